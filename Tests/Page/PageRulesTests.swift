import Page
import Schemas
import Testing

@Suite("Who may ask for the page") struct RequestOriginTests {
    struct Example: Sendable, CustomTestStringConvertible {
        var testDescription: String
        var host: String?
        var origin: String?
        var site: String?
        var isFromElsewhere: Bool
    }

    static let examples = [
        Example(testDescription: "a program", host: "127.0.0.1:8081", isFromElsewhere: false),
        Example(
            testDescription: "an address that was typed", host: "127.0.0.1:8081", site: "none",
            isFromElsewhere: false),
        Example(
            testDescription: "a link of the page", host: "127.0.0.1:8081", site: "same-origin",
            isFromElsewhere: false),
        Example(
            testDescription: "another site", host: "127.0.0.1:8081", site: "cross-site",
            isFromElsewhere: true),
        Example(
            testDescription: "another port of this machine", host: "127.0.0.1:8081",
            site: "same-site", isFromElsewhere: true),
        Example(
            testDescription: "what no browser says", host: "127.0.0.1:8081", site: "",
            isFromElsewhere: true),
        Example(
            testDescription: "a form of the page, in an old browser", host: "127.0.0.1:8081",
            origin: "http://127.0.0.1:8081", isFromElsewhere: false),
        Example(
            testDescription: "the same behind a proxy with TLS", host: "Fleet.example.org",
            origin: "https://fleet.example.org", isFromElsewhere: false),
        Example(
            testDescription: "another port, in an old browser", host: "127.0.0.1:8081",
            origin: "http://127.0.0.1:8080", isFromElsewhere: true),
        Example(
            testDescription: "another site, in an old browser", host: "127.0.0.1:8081",
            origin: "https://evil.example", isFromElsewhere: true),
        Example(
            testDescription: "a sandboxed document", host: "127.0.0.1:8081", origin: "null",
            isFromElsewhere: true),
        Example(
            testDescription: "an extension", host: "127.0.0.1:8081",
            origin: "chrome-extension://127.0.0.1:8081", isFromElsewhere: true),
        Example(
            testDescription: "an origin and no host", origin: "http://127.0.0.1:8081",
            isFromElsewhere: true),
    ]

    @Test("requests that another site made a browser send are told", arguments: examples)
    func decides(_ example: Example) {
        let request = RequestOrigin(
            host: example.host, origin: example.origin, fetchSite: example.site)
        #expect(request.isFromElsewhere == example.isFromElsewhere)
    }

    @Test("names are told from addresses: only those that were given are ours")
    func names() {
        func isOurs(_ host: String?, _ names: [String] = []) -> Bool {
            RequestOrigin(host: host, origin: nil, fetchSite: nil).isAddressed(toOneOf: names)
        }
        for host in [
            "127.0.0.1:8081", "127.0.0.1", "10.1.2.3:80", "[::1]:8081", "[fe80::1]", "localhost",
            "LocalHost:8081", "localhost.:1", "one.localhost:8081",
        ] { #expect(isOurs(host), "\(host)") }
        for host in [
            nil, "", "evil.example:8081", "127.0.0.1.evil.example", "1.2.3", "1.2.3.4.5",
            "256.1.1.1",
            "localhost.evil.example", "notlocalhost", "[::1", "[evil.example]:8081", "a:b:c",
            "+1.2.3.4",
        ] { #expect(!isOurs(host), "\(host ?? "none")") }
        #expect(isOurs("Fleet.Example.org:443", ["fleet.example.ORG"]))
        #expect(!isOurs("fleet.example.org.evil.example", ["fleet.example.org"]))
    }

    static let key = [UInt8](repeating: 7, count: 32)

    @Test("a code is good under its key, for ten minutes, and not from before the start")
    func codes() throws {
        let code = LoginCode(madeAt: 1_000_000, number: 42)
        let text = code.text(key: Self.key)
        #expect(text.count == 64)
        #expect(LoginCode(text, key: Self.key) == code)
        #expect(LoginCode(text, key: [UInt8](repeating: 8, count: 32)) == nil)
        for place in 0..<64 {
            var digits = Array(text)
            digits[place] = digits[place] == "0" ? "1" : "0"
            #expect(LoginCode(String(digits), key: Self.key) == nil)
        }
        for wrong in ["", "x", String(text.dropLast()), text + "0"] {
            #expect(LoginCode(wrong, key: Self.key) == nil)
        }
        #expect(code.isValid(now: 1_000_000, since: 1_000_000))
        #expect(code.isValid(now: 1_600_000, since: 0))
        #expect(!code.isValid(now: 1_600_001, since: 0))
        #expect(!code.isValid(now: 990_000, since: 0))
        #expect(!code.isValid(now: 1_010_000, since: 1_005_000))
        #expect(!LoginCode(madeAt: .max, number: 0).isValid(now: 0, since: 0))
        #expect(!LoginCode(madeAt: .min, number: 0).isValid(now: .max, since: 0))
    }

    @Test(
        "a session holds until it is ended or over; of too many the oldest ends; a code is used once"
    )
    func sessions() throws {
        let sessions = PageSessions()
        let first = try sessions.begin(now: 0)
        #expect(sessions.holds(first, now: PageSessions.validMilliseconds - 1))
        #expect(!sessions.holds(first, now: PageSessions.validMilliseconds))
        #expect(!sessions.holds("", now: 0))
        let second = try sessions.begin(now: 1)
        sessions.end(second)
        #expect(!sessions.holds(second, now: 1))
        for time in 2..<Int64(2 + PageSessions.limit) { _ = try sessions.begin(now: time) }
        #expect(!sessions.holds(first, now: 2))
        let code = LoginCode(madeAt: 0, number: 1)
        #expect(sessions.use(code, now: 0))
        #expect(!sessions.use(code, now: 600_000))
        #expect(sessions.use(LoginCode(madeAt: 0, number: 2), now: 0))
    }
}

@Suite("What the page computes") struct PageRulesTests {
    @Test("a search is turned into ranges that an index knows")
    func search() throws {
        let id = try #require(SearchTerm(" 0A-1b2 "))
        #expect(id.text == "0A-1b2")
        #expect(id.ids?.lowerBound == DeviceID("0a1b2000-0000-0000-0000-000000000000"))
        #expect(id.ids?.upperBound == DeviceID("0a1b2fff-ffff-ffff-ffff-ffffffffffff"))
        let whole = try #require(SearchTerm("\(HTMLTests.device)"))
        #expect(whole.ids == HTMLTests.device...HTMLTests.device)
        #expect(try #require(SearchTerm("a")).ids == nil)
        #expect(try #require(SearchTerm("xyz")).ids == nil)
        #expect(try #require(SearchTerm("\(HTMLTests.device)0")).ids == nil)

        let start: UInt32 = 10 << 24 | 64 << 16
        #expect(try #require(SearchTerm("10.64")).addresses == start...(start | 0xFFFF))
        #expect(try #require(SearchTerm("10.64.0.")).addresses == start...(start | 0xFF))
        #expect(try #require(SearchTerm("10.64.0.7")).addresses == (start | 7)...(start | 7))
        #expect(try #require(SearchTerm("0.0.0.0")).addresses == 0...0)
        for text in ["10", "10.", "10.256", "10.64.0.7.1", "10..1", "10.+1", "١٠.١"] {
            #expect(try #require(SearchTerm(text)).addresses == nil, "\(text)")
        }

        let name = try #require(SearchTerm("phone-é"))
        #expect(name.hardware?.from == Array("phone-é".utf8))
        #expect(name.hardware?.before == Array("phone-".utf8) + [0xC3, 0xAA])
        #expect(SearchTerm("") == nil)
        #expect(SearchTerm(" \n") == nil)
        #expect(SearchTerm(String(repeating: "x", count: 257)) == nil)
    }

    private func sample(_ time: Int64, _ healthy: Int64) -> FleetReading.Sample {
        var counts = StateCounts()
        counts[.healthy] = healthy
        return .init(at: EventTime(milliseconds: time), counts: counts)
    }

    private func minute(
        _ number: Int64, _ healthy: Int64, partitions: Int64 = 4
    ) -> FleetHistory.Minute {
        .init(
            start: EventTime(milliseconds: number * 60_000),
            counts: sample(0, healthy).counts, partitions: partitions)
    }

    @Test("a minute that not all partitions have closed is not shown")
    func partialMinutes() {
        var history = FleetHistory()
        history.replace([
            minute(0, 10), minute(1, 10), minute(2, 7, partitions: 3), minute(3, 2, partitions: 1),
        ])
        let samples = history.samples(now: EventTime(milliseconds: 300_000))
        #expect(samples == [sample(60_000, 10), sample(120_000, 10)])
    }

    @Test("our own counts continue the minutes; those before a gap are given up")
    func ownCounts() {
        var history = FleetHistory()
        history.append(sample(1_000, 1))
        history.append(sample(95_000, 2))
        history.append(sample(100_000, 3))
        history.replace([minute(0, 5), minute(1, 6)])
        let samples = history.samples(now: EventTime(milliseconds: 130_000))
        #expect(samples == [sample(60_000, 5), sample(95_000, 2), sample(100_000, 3)])
    }

    @Test("a picture has so many points at most, whatever there is, and the newest among them")
    func thinning() {
        var history = FleetHistory()
        history.replace((0..<360).map { minute($0, $0) })
        for second: Int64 in 0..<600 {
            history.append(sample(360 * 60_000 + second * 1_000, second))
        }
        let samples = history.samples(now: EventTime(milliseconds: 370 * 60_000))
        #expect((100...170).contains(samples.count))
        #expect(samples.last == sample(360 * 60_000 + 599_000, 599))
        #expect(samples == samples.sorted { $0.at < $1.at })
    }

    @Test("what costs is asked for the less often")
    func pace() {
        var pace = Pace(every: 1_000)
        #expect(pace.isDue(0))
        pace.took(10, now: 100)
        #expect(!pace.isDue(1_099))
        #expect(pace.isDue(1_100))
        pace.took(400, now: 2_000)
        #expect(!pace.isDue(9_999))
        #expect(pace.isDue(10_000))
    }

    @Test("the picture's outline is what was counted")
    func outline() throws {
        let samples = [sample(0, 10), sample(500, 20), sample(1_000, 0)]
        let picture = try #require(HistoryPicture(samples, states: FleetState.allCases))
        #expect(picture.top == 20)
        #expect(picture.states == [.healthy])
        var html = HTML()
        picture.write(into: &html, label: "x")
        // 960 wide, 200 high: 10 until the middle, 20 until the end, where nothing is left.
        #expect(
            html.text.contains("d=\"M0 100H480V0H960V200L960 200V200H480V200H0Z\""), "\(html.text)")
        #expect(HistoryPicture([sample(0, 1)], states: FleetState.allCases) == nil)
        #expect(HistoryPicture(samples, states: [.stale]) == nil)
    }

    @Test(
        "scales end at a number that can be halved",
        arguments: [
            (1, 2), (2, 2), (3, 4), (5, 6), (7, 8), (9, 10), (11, 20), (240, 300), (300, 300),
            (999, 1_000),
            (1_000_001, 2_000_000), (Int64.max, Int64.max),
        ] as [(Int64, Int64)])
    func scales(_ value: Int64, _ top: Int64) { #expect(HistoryPicture.roundedUp(value) == top) }

    @Test("numbers and times are written as people read them")
    func text() {
        #expect(PageText.number(1_234_567) == "1,234,567")
        #expect(PageText.number(-1_000) == "−1,000")
        #expect(PageText.number(999) == "999")
        #expect(PageText.share(0, of: 10) == "0%")
        #expect(PageText.share(10, of: 10) == "100%")
        #expect(PageText.share(1, of: 1_000_000) == "<0.1%")
        #expect(PageText.share(999_999, of: 1_000_000) == "99.9%")
        #expect(PageText.share(1, of: 8) == "12.5%")
        #expect(PageText.share(1, of: 0) == "0%")
        #expect(PageText.age(59_999) == "59 s")
        #expect(PageText.age(-5) == "0 s")
        #expect(PageText.age(3_599_000) == "59 min")
        #expect(PageText.age(3_600_000) == "1 h")
        #expect(PageText.age(90_000_000) == "1 d 1 h")
        #expect(PageText.delay(973) == "973 ms")
        #expect(PageText.delay(1_999) == "1.9 s")
        #expect(PageText.rate(0) == "0.0")
        #expect(PageText.rate(12_345.6) == "12,346")
        #expect(PageText.rate(-1) == "0.0")
    }

    @Test("the fleet in one sentence")
    func sentences() {
        var counts = StateCounts()
        #expect(FleetView.sentence(counts) == "No device has been judged yet.")
        counts[.healthy] = 1
        #expect(FleetView.sentence(counts) == "The one device is healthy.")
        counts[.healthy] = 2_000
        #expect(FleetView.sentence(counts) == "All 2,000 devices are healthy.")
        counts[.offline] = 3
        counts[.stale] = 1
        #expect(
            FleetView.sentence(counts)
                == "2,000 of 2,004 devices are healthy; 1 stale, 3 offline.")
    }
}
