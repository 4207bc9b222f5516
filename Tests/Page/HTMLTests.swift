import Bytes
import Page
import Schemas
import Simulation
import Testing

/// What attackers call their devices.
let attacks = [
    "<script>alert(1)</script>", "\"><img src=x onerror=alert(1)>", "' onmouseover='alert(1)",
    "</title><script>alert(1)</script>", "<!--", "]]>", "&lt;b&gt;", "&#60;script&#62;",
    "<svg/onload=alert(1)>", "javascript:alert(1)", "\u{202E}txt.exe",
    "a\u{2066}b\u{2069}\u{2069}c",
    "\u{200F}\u{061C}abc", "zero\u{200B}width\u{FEFF}", "nul\u{0}bell\u{7}escape\u{1B}[31m",
    "next\u{85}line\u{2028}separator", "\u{E0041}\u{E007F}tags", "`${alert(1)}`",
    "\\u003cscript\\u003e",
]

@Suite("HTML that holds strangers' text") struct HTMLTests {
    @Test("the five characters that mean something are escaped, in text and in attributes")
    func escaping() {
        var html = HTML()
        html.element("p", .text(.title, "a\"b'c<d>e&f"), text: "a\"b'c<d>e&f")
        let escaped = "a&quot;b&#39;c&lt;d&gt;e&amp;f"
        #expect(html.text == "<p title=\"\(escaped)\">\(escaped)</p>")
    }

    @Test("no attack becomes markup, wherever it stands", arguments: attacks)
    func attack(_ text: String) {
        var html = HTML()
        html.element("p", .text(.title, text), .text(.key, text), .text(.label, text)) {
            $0.text(text)
            $0.foreign(text)
        }
        // By scalars, as a browser reads: a character may begin with a quotation mark and go on.
        let scalars = Array(html.text.unicodeScalars)
        let names = scalars.split(separator: "<", omittingEmptySubsequences: false).dropFirst()
            .map { String(String.UnicodeScalarView($0.prefix { $0 != " " && $0 != ">" })) }
        #expect(
            Set(names).isSubset(of: ["p", "/p", "bdi", "/bdi", "span", "/span"]), "\(html.text)")
        // Nothing of it ends an attribute: three of ours, and one for each mark.
        let marks = html.text.split(separator: "<span class=\"mark\"").count - 1
        #expect(scalars.count { $0 == "\"" } == 2 * (3 + marks), "\(html.text)")
        for scalar in scalars {
            #expect(scalar.value >= 0x20 || scalar == "\n" || scalar == "\t", "\(html.text)")
        }
    }

    @Test("what cannot be seen is shown as its code, within an isolate of its own")
    func directions() {
        var html = HTML()
        html.foreign("a\u{202E}b\u{2069}c\u{200B}d\u{7}\u{1F600}\u{FE0F}é")
        func mark(_ code: String) -> String { "<span class=\"mark\">U+\(code)</span>" }
        #expect(
            html.text
                == "<bdi>a\(mark("202E"))b\(mark("2069"))c\(mark("200B"))d\(mark("0007"))\u{1F600}\u{FE0F}é</bdi>"
        )
    }

    @Test("whatever text it is given, a browser reads it back as that text")
    func readsBack() {
        var random = SplitMix64(seed: 8)
        for _ in 0..<2_000 {
            let text = String(
                String.UnicodeScalarView(
                    (0..<Int.random(in: 0...12, using: &random)).map { _ in
                        if Bool.random(using: &random) {
                            return Array("<>&\"'/ =ab;#".unicodeScalars).randomElement(
                                using: &random)!
                        }
                        while true {
                            let value = UInt32.random(in: 0...0x10FFFF, using: &random)
                            if let scalar = Unicode.Scalar(value) { return scalar }
                        }
                    }))
            var html = HTML()
            html.text(text)
            var read: [Unicode.Scalar] = []
            var rest = Array(html.text.unicodeScalars)[...]
            #expect(!rest.contains { ["<", ">", "\"", "'"].contains($0) })
            while let scalar = rest.popFirst() {
                guard scalar == "&" else {
                    read.append(scalar)
                    continue
                }
                let name = rest.prefix { $0 != ";" }
                rest = rest.dropFirst(name.count + 1)
                let entities: [String: Unicode.Scalar] = [
                    "lt": "<", "gt": ">", "quot": "\"", "#39": "'", "amp": "&",
                ]
                read.append(entities[String(String.UnicodeScalarView(name))] ?? "\u{FFFF}")
            }
            let wanted = String(
                String.UnicodeScalarView(
                    text.unicodeScalars.map {
                        let isControl =
                            $0.value < 0x20 && $0 != "\n" && $0 != "\t"
                            || (0x7F..<0xA0).contains($0.value)
                        return isControl ? "\u{FFFD}" : $0
                    }))
            #expect(read == Array(wanted.unicodeScalars))
        }
    }

    @Test("long text is cut, and says so")
    func cut() {
        var html = HTML()
        html.foreign(String(repeating: "x", count: 10), limit: 3)
        #expect(html.text == "<bdi>xxx…</bdi>")
    }

    static let device = DeviceID("0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9")!

    @Test("a path leads to a page of ours or nowhere")
    func paths() {
        let known: [(String, PagePath)] = [
            ("/", .fleet), ("/live", .fleetLive), ("/search", .search), ("/login", .login),
            ("/logout", .logout), ("/page.css", .styles), ("/page.js", .script),
            ("/icon.svg", .icon), ("/states/stale", .devices(.stale)),
            ("/devices/\(Self.device)", .device(Self.device)),
            ("/devices/\(Self.device)/live", .deviceLive(Self.device)),
        ]
        for (text, path) in known {
            #expect(PagePath(parsing: text) == path)
            #expect(path.description == text)
        }
        let unknown = [
            "", "//", "/x", "/states/", "/states/removed", "/devices/", "/devices/1",
            "/devices/\(Self.device)/", "/devices/\(Self.device)/live/", "https://example.org/",
            "//example.org", "/devices/../x", "javascript:alert(1)",
        ]
        for text in unknown { #expect(PagePath(parsing: text) == nil, "\(text)") }
    }
}

@Suite("Documents of the page") struct DocumentTests {
    private static let now = EventTime(milliseconds: 1_780_000_000_000)

    /// A reading in which everything that others wrote is an attack.
    static func reading(_ text: String) -> FleetReading {
        var reading = FleetReading(now: now)
        reading.counts[.healthy] = 1_000_000
        reading.counts[.stale] = 12
        for minute: Int64 in 0..<10 {
            var counts = StateCounts()
            counts[.healthy] = 1_000_000
            counts[.stale] = minute
            reading.history.append(.init(at: now + (minute - 10) * 60_000, counts: counts))
        }
        reading.troubles = [
            .init(
                device: HTMLTests.device, state: text, reason: text, since: now + -1_000,
                lastSeen: nil)
        ]
        reading.alerts = [.init(kind: text, open: 3, oldest: now + -9_000)]
        reading.newestAlerts = [
            AlertReading(
                id: HTMLTests.device, kind: text, entity: text, device: nil, reason: text,
                openedAt: now, acknowledgedBy: text)
        ]
        reading.partitions = [
            .init(
                pipeline: text, topic: text, partition: 0, committed: 5, committedAt: now,
                owner: text, end: 9)
        ]
        reading.releases = [
            .init(
                source: text, release: text, offered: 1, downloading: 1, installed: 1, failed: 1,
                unconfirmed: 1)
        ]
        reading.configurations.changed = 3
        reading.configurations.delivered = 2
        reading.matches.minutes = [.init(minute: now, count: 2)]
        return reading
    }

    @Test("no attack becomes markup in any part of any document", arguments: attacks)
    func attack(_ text: String) {
        var device = DeviceReading(now: Self.now, device: HTMLTests.device)
        device.registration = .init(
            internalAddress: "10.0.0.1", hardwareID: text, version: 1, isSuspended: false,
            expectedIntervalMilliseconds: 1, createdAt: Self.now)
        device.status = .init(agentStatus: text, agentState: text, flags: text)
        device.intervals = [.init(state: text, reason: text, start: Self.now, end: nil)]
        device.versions = [
            .init(version: 1, kind: text, changedAt: Self.now, changedBy: text, deliveredAt: nil)
        ]
        device.alerts = Self.reading(text).newestAlerts
        device.forwards = [text]
        let harmless = "harmless"
        var plain = device
        plain.registration?.hardwareID = harmless
        plain.status = .init(agentStatus: harmless, agentState: harmless, flags: harmless)
        plain.intervals = [.init(state: harmless, reason: harmless, start: Self.now, end: nil)]
        plain.versions[0].kind = harmless
        plain.versions[0].changedBy = harmless
        plain.alerts = Self.reading(harmless).newestAlerts
        plain.forwards = [harmless]
        let pairs = [
            (
                FleetView.document(FleetView.parts(Self.reading(text))),
                FleetView.document(FleetView.parts(Self.reading(harmless)))
            ),
            (
                DeviceView.document(device.device, DeviceView.parts(device)),
                DeviceView.document(device.device, DeviceView.parts(plain))
            ),
        ]
        // The same elements with the same attributes as without an attack, but for the marks.
        for (attacked, quiet) in pairs {
            #expect(Self.skeleton(attacked.text) == Self.skeleton(quiet.text))
        }
    }

    /// Tags without the values of their attributes, and without marks.
    private static func skeleton(_ html: String) -> [String] {
        var tags: [String] = []
        var isMark = false
        for piece in Array(html.unicodeScalars).split(
            separator: "<", omittingEmptySubsequences: false
        ).dropFirst() {
            var tag = ""
            var isValue = false
            for scalar in piece {
                if scalar == "\"" {
                    isValue.toggle()
                } else if !isValue {
                    tag.unicodeScalars.append(scalar)
                }
                if scalar == ">", !isValue { break }
            }
            if piece.starts(with: "span class=\"mark\"".unicodeScalars) {
                isMark = true
            } else if isMark, tag == "/span>" {
                isMark = false
            } else {
                tags.append(tag)
            }
        }
        return tags
    }

    @Test("the numbers stand in the document itself, for who has no JavaScript")
    func numbers() {
        let text = FleetView.document(FleetView.parts(Self.reading("x"))).text
        #expect(text.contains("1,000,000 of 1,000,012 devices are healthy; 12 stale."))
        #expect(text.contains("<noscript>"))
        // Two panels, a bar, a bar of a release, matches: each has words for who cannot see it.
        let pictures = text.split(separator: "<svg").dropFirst().filter {
            !$0.hasPrefix(" class=\"swatch\"")
        }
        #expect(pictures.count == 5)
        #expect(
            pictures.allSatisfy { $0.prefix { $0 != ">" }.contains("role=\"img\" aria-label=\"") })
    }

    @Test("where there is nothing, words say so")
    func empty() {
        let text = FleetView.document(FleetView.parts(FleetReading(now: Self.now))).text
        for words in [
            "No device has been judged yet.", "The picture begins when", "No tunnel is stale",
            "No alert is open.", "No pipeline has stored", "No configuration changed",
            "No release of an app", "Nobody waved back",
        ] { #expect(text.contains(words), "\(words)") }
        let device = DeviceReading(now: Self.now, device: HTMLTests.device)
        let page = DeviceView.document(device.device, DeviceView.parts(device)).text
        for words in [
            "It was not judged yet.", "not in it: it was removed", "No heartbeat of it",
            "No version of its", "It never raised an alert.",
        ] { #expect(page.contains(words), "\(words)") }
    }

    @Test("no document has a script, a style or a handler of its own, or anything of elsewhere")
    func strictPolicy() {
        let html = FleetView.document(FleetView.parts(Self.reading("x"))).text
        #expect(html.contains("<script src=\"/page.js\" defer></script>"))
        #expect(html.split(separator: "<script").count == 2)
        #expect(!html.contains("<style"))
        #expect(!html.contains(" style="))
        #expect(!Self.skeleton(html).contains { $0.contains(" on") })
        #expect(!html.contains("http"))
    }

    @Test("equal readings make equal parts, and only what changed is sent again")
    func parts() {
        let before = FleetView.parts(Self.reading("x"))
        var reading = Self.reading("x")
        #expect(FleetView.parts(reading) == before)
        reading.releases[0].installed += 1
        let changed = FleetView.parts(reading).filter { !before.contains($0) }
        #expect(changed.map(\.id) == [.releases])
        let event = changed[0].event.span.text
        #expect(event.hasPrefix("event: part\ndata: {\"id\":\"releases\",\"html\":\""))
        #expect(event.hasSuffix("\"}\n\n"))
        #expect(event.count { $0 == "\n" } == 3)
    }
}
