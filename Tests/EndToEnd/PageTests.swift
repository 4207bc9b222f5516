import Foundation
import Postgres
import Schemas
import System
import TestSupport
import Testing

@Suite(
    "heartline up: the page in a real browser", .serialized,
    .enabled(if: Browser.isInstalled, Browser.missing))
struct PageTests {
    /// A link to the page that signs in.
    static func link(_ running: RunningHeartline) async throws -> String {
        let outcome = try await running.run(["page"])
        #expect(outcome.status == 0, "\(outcome.errors)")
        let link = outcome.output.trimmingCharacters(in: .whitespacesAndNewlines)
        #expect(link.hasPrefix("\(running.places.admin)/login?code="))
        return link
    }

    /// A heartbeat whose handshake is as old as that.
    private func beat(_ running: RunningHeartline, _ device: DeviceID, handshakeAge: Int64) throws {
        let time = EventTime(milliseconds: SystemClock.wallMilliseconds() - handshakeAge)
        let body = """
            {"device_id":"\(device)","status":"connected","tunnel_up":true,"last_handshake":"\(time)"}
            """
        #expect(try running.post("/api/v1/heartbeat", body.utf8).status == 200)
    }

    @Test(
        "states appear, change live, and a stale device turns up; links lead on; nothing is complained of"
    )
    func live() async throws {
        let folder = try TemporaryFolder()
        try FileSystem.makeDirectory("\(folder.path)/pipelines", mode: 0o755)
        _ = try folder.write(RunningHeartline.pipeline(), to: "pipelines/health.yaml")
        _ = try folder.write(
            "name: config-hash\nsource: { topic: config-changes }\nprocessor: { config-hash: {} }\n"
                + "commit_interval: 0s\nsinks:\n  - postgres: { tables: [config_versions] }\n"
                + "  - topic: device-configs\n", to: "pipelines/config-hash.yaml")
        let running = try await RunningHeartline(in: folder)
        var devices = try await running.addDevices(3)
        for device in devices { try beat(running, device, handshakeAge: 1_000) }
        let browser = try await Browser()
        try browser.open(try await Self.link(running))
        #expect(try browser.url == "\(running.places.admin)/")
        #expect(try browser.title == "The fleet now · Heartline")
        #expect(try browser.text("h1") == "The fleet now")
        #expect(
            try await browser.waits(
                for: "document.querySelector('.lead').textContent == 'All 3 devices are healthy.'"))
        #expect(
            try await browser.waits(
                for: "document.getElementById('connection').textContent == 'Live'"))
        #expect(
            try await browser.waits(for: "document.querySelector('#picture svg path.s-healthy')"))
        // Whatever comes now comes into the page as it stands: a mark in it stays.
        _ = try browser.evaluate("window.isTheSame = true")
        try browser.click("details summary")
        #expect(try browser.isTrue("document.querySelector('details').open"))
        // One whose handshake is too old, and stays so.
        devices.insert(contentsOf: try await running.addDevices(1), at: 0)
        try beat(running, devices[0], handshakeAge: 1_000_000)
        let short = devices[0].shortened
        #expect(
            try await browser.waits(
                for: "document.querySelector('#troubles').textContent.includes('\(short)')"))
        #expect(
            try await browser.waits(
                for:
                    "document.querySelector('.lead').textContent == '3 of 4 devices are healthy; 1 stale.'"
            ))
        #expect(try await browser.waits(for: "document.querySelector('#alerts .chips')"))
        #expect(try browser.isTrue("window.isTheSame && document.querySelector('details').open"))
        // The picture has the state, and its table the number.
        #expect(try await browser.waits(for: "document.querySelector('#picture svg path.s-stale')"))
        #expect(try browser.text("#numbers table").contains("stale"))
        // The numbers go on under somebody's hands: the link that has the focus keeps it.
        _ = try browser.evaluate("document.querySelector('#troubles a.id').focus()")
        let said = try browser.text("#troubles td.n")
        #expect(
            try await browser.waits(
                for: "document.querySelector('#troubles td.n').textContent != '\(said)'"))
        #expect(try browser.string("document.activeElement.textContent") == short)

        // To the device, which is live too.
        try browser.click("#troubles a.id")
        #expect(try await browser.waits(for: "location.pathname == '/devices/\(devices[0])'"))
        #expect(try browser.text("h1") == "Device \(short)")
        #expect(try browser.text("#device .lead").hasPrefix("stale for"))
        #expect(try browser.text("#device-alerts").contains("open"))
        #expect(try await browser.waits(for: "document.querySelector('#timeline rect.s-stale')"))
        #expect(
            try await browser.waits(
                for: "document.querySelector('#versions').textContent.includes('provisioned')"))
        _ = try browser.evaluate("window.isTheSame = true")
        let suspended = try await running.run(["device", "suspend", "\(devices[0])"])
        #expect(suspended.status == 0)
        #expect(
            try await browser.waits(
                for: "document.querySelector('#device .lead').textContent.startsWith('suspended')"))
        #expect(
            try await browser.waits(
                for: "document.querySelector('#versions').textContent.includes('suspended')"))
        #expect(try browser.isTrue("window.isTheSame"))

        // By search, by a state's tile, and home.
        try browser.type("\(String(devices[1].description.prefix(13)))\u{E007}", into: "#q")
        #expect(try await browser.waits(for: "location.pathname == '/devices/\(devices[1])'"))
        try browser.click("a.home")
        #expect(try await browser.waits(for: "location.pathname == '/'"))
        try browser.click("a[href='/states/suspended']")
        #expect(try await browser.waits(for: "location.pathname == '/states/suspended'"))
        #expect(try browser.text("table").contains("\(devices[0])"))
        try browser.back()
        #expect(try await browser.waits(for: "document.querySelector('#states')"))
        // Pause holds the numbers still.
        #expect(
            try await browser.waits(
                for: "document.getElementById('connection').textContent == 'Live'"))
        try browser.click("#pause")
        #expect(
            try browser.string("document.getElementById('pause').getAttribute('aria-pressed')")
                == "true")
        #expect(try browser.text("#connection") == "Paused")
        #expect(try browser.complaints() == [])
        try browser.click(".session form button")
        #expect(try await browser.waits(for: "location.pathname == '/login'"))
        try browser.open("\(running.places.admin)/")
        #expect(try browser.text("main").contains("The operators’ token"))
        let token = try #require(
            FileManager.default.contents(atPath: "\(running.data)/admin-token").map {
                String(decoding: $0, as: UTF8.self)
            })
        try browser.type(token.trimmingCharacters(in: .newlines) + "\u{E007}", into: "#token")
        #expect(try await browser.waits(for: "document.querySelector('#states')"))
        #expect(await running.stop() == 0)
    }

    @Test("without JavaScript the numbers, tables and links are there all the same")
    func withoutScripts() async throws {
        let running = try await RunningHeartline()
        let devices = try await running.addDevices(2)
        try beat(running, devices[0], handshakeAge: 1_000)
        try beat(running, devices[1], handshakeAge: 1_000_000)
        #expect(try await running.waitFor("stale", of: devices[1]))
        #expect(try await running.waitFor("healthy", of: devices[0]))
        let browser = try await Browser(runsScripts: false)
        try browser.open(try await Self.link(running))
        let isThere = try await holds(within: 60) {
            try browser.reload()
            return try browser.text(".lead") == "1 of 2 devices is healthy; 1 stale."
                || browser.text(".lead") == "1 of 2 devices are healthy; 1 stale."
        }
        #expect(isThere)
        #expect(try browser.text("#troubles").contains(devices[1].shortened))
        #expect(try browser.text("#alerts").contains("handshake-old"))
        #expect(try browser.text("footer").contains("Without JavaScript this page stands still."))
        // Nothing is offered that would not work.
        #expect(try browser.text(".session") == "Sign out")
        try browser.click("#troubles a.id")
        #expect(try browser.text("h1") == "Device \(devices[1].shortened)")
        try browser.type("\(devices[0])\u{E007}", into: "#q")
        let isLed = try await holds(within: 60) {
            try browser.url == "\(running.places.admin)/devices/\(devices[0])"
        }
        #expect(isLed)
        #expect(await running.stop() == 0)
    }

    @Test("names that attackers chose are read as they are, and run nothing")
    func attackers() async throws {
        let running = try await RunningHeartline()
        let device = try #require(try await running.addDevices(1).first)
        let name =
            "\"><script>window.isAttacked = 1</script><img src=x onerror='window.isAttacked = 1'>\u{202E}evil"
        let connection = try running.connect()
        try connection.execute(
            "UPDATE heartline.devices SET hardware_id = $1::text::bytea WHERE device_id = $2",
            .text(name), .uuid(device.high, device.low))
        connection.close()
        let time = EventTime(milliseconds: SystemClock.wallMilliseconds())
        let body = try JSONSerialization.data(withJSONObject: [
            "device_id": "\(device)", "status": "connected", "tunnel_up": true,
            "last_handshake": "\(time)",
            "state": "</dd><script>window.isAttacked = 1</script>\u{202E}",
        ])
        #expect(try running.post("/api/v1/heartbeat", Array(body)).status == 200)
        let browser = try await Browser()
        try browser.open(try await Self.link(running))
        try browser.open("\(running.places.admin)/devices/\(device)")
        let shown = name.replacing("\u{202E}", with: "U+202E")
        #expect(
            try await browser.waits(
                for: "document.querySelector('#device').textContent.includes('</dd><script>')"))
        #expect(try browser.text("#device").contains(shown))
        try browser.open("\(running.places.admin)/search?q=%22%3E%3Cscript")
        #expect(try await browser.waits(for: "location.pathname == '/devices/\(device)'"))
        #expect(try browser.isTrue("window.isAttacked === undefined"))
        #expect(try browser.isTrue("document.scripts.length == 1"))
        #expect(try browser.complaints() == [])
        #expect(await running.stop() == 0)
    }

    @Test("light and dark, narrow and by keyboard: it can be read and used")
    func ways() async throws {
        let running = try await RunningHeartline()
        let device = try #require(try await running.addDevices(1).first)
        try beat(running, device, handshakeAge: 1_000_000)
        #expect(try await running.waitFor("stale", of: device))
        let browser = try await Browser()
        try browser.open(try await Self.link(running))
        #expect(try await browser.waits(for: "document.querySelector('#troubles a.id')"))

        /// The contrast of an element's text on the card it stands on (WCAG 2.2, section 1.4.3).
        func contrast(_ selector: String) throws -> Double {
            try browser.evaluate(
                """
                const light = (color) => {
                  const [r, g, b] = color.match(/[0-9.]+/g).map(Number).map((c) => c / 255)
                    .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
                  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
                };
                const element = document.querySelector("\(selector)");
                let ground = element;
                while (getComputedStyle(ground).backgroundColor == "rgba(0, 0, 0, 0)") ground = ground.parentElement;
                const [a, b] = [light(getComputedStyle(element).color), light(getComputedStyle(ground).backgroundColor)];
                return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
                """) as? Double ?? 0
        }
        var grounds: [String] = []
        for scheme in ["light", "dark"] {
            try browser.prefer(scheme: scheme)
            grounds.append(try browser.string("getComputedStyle(document.body).backgroundColor"))
            for selector in [
                ".lead", ".hint", ".tiles .share", ".tiles .none .count", "#troubles a.id",
                "thead th", "dt",
                "summary", ".connection", "footer p", ".empty",
            ] { #expect(try contrast(selector) >= 4.5, "\(scheme) \(selector)") }
        }
        #expect(grounds == ["rgb(246, 247, 248)", "rgb(17, 22, 27)"])

        // The first key goes past the head, the landmarks are there, and everything has a name.
        try browser.press("\u{E004}")
        #expect(try browser.string("document.activeElement.className") == "skip")
        try browser.press("\u{E007}")
        #expect(try await browser.waits(for: "document.activeElement.id == 'main'"))
        for landmark in [
            "header", "nav[aria-label]", "[role=search]", "main", "footer", "[role=status]",
        ] {
            #expect(try browser.isTrue("document.querySelector('\(landmark)')"), "\(landmark)")
        }
        #expect(
            try browser.isTrue(
                "[...document.querySelectorAll('section, svg[role=img], [role=region]')].every((e) => e.getAttribute('aria-label'))"
            ))
        #expect(
            try browser.isTrue(
                "[...document.querySelectorAll('svg')].every((e) => e.getAttribute('role') == 'img' || e.getAttribute('aria-hidden') == 'true' || e.closest('[aria-hidden=true]'))"
            ))
        #expect(
            try browser.isTrue("[...document.querySelectorAll('table')].every((t) => t.caption)"))
        #expect(
            try browser.isTrue(
                "[...document.querySelectorAll('input:not([type=hidden])')].every((e) => e.labels.length)"
            ))
        #expect(
            try browser.isTrue(
                "[...document.querySelectorAll('a, button')].every((e) => e.textContent.trim())"))

        // On a telephone nothing but tables is wider than the screen, and those scroll by themselves.
        try browser.command(
            "Emulation.setDeviceMetricsOverride",
            ["width": 360, "height": 740, "deviceScaleFactor": 1, "mobile": true])
        let isNarrow = try await browser.waits(
            for: "innerWidth == 360 && document.documentElement.scrollWidth <= 360")
        let wide = try browser.string(
            """
            innerWidth + ": " + [...document.querySelectorAll("body *")]
              .filter((e) => e.getBoundingClientRect().right > 360 && !e.closest(".scroll"))
              .map((e) => e.tagName + "." + e.className).join(" ")
            """)
        #expect(isNarrow, "\(wide)")
        #expect(try browser.complaints() == [])
        #expect(await running.stop() == 0)
    }
}

/// Makes the pictures of the documents: `make screenshots`.
@Suite(
    "Screenshots",
    .enabled(
        if: ProcessInfo.processInfo.environment["HEARTLINE_SCREENSHOTS"] != nil
            && Browser.isInstalled))
struct Screenshots {
    @Test("of a demo that has run for some minutes")
    func take() async throws {
        let folder = try #require(ProcessInfo.processInfo.environment["HEARTLINE_SCREENSHOTS"])
        let seconds =
            Double(ProcessInfo.processInfo.environment["HEARTLINE_SCREENSHOTS_AFTER"] ?? "") ?? 420
        let place = try TemporaryFolder()
        let demo = try HeartlineProcess([
            "demo", "--data", place.path, "--agents", "240", "--listen", "127.0.0.1:0", "--admin",
            "127.0.0.1:0", "--duration", "1h",
        ])
        var found: RunningHeartline.Places?
        _ = await holds(within: 300) {
            found = RunningHeartline.places(in: place.path)
            return found != nil || demo.hasEnded
        }
        let places = try #require(found, "\(demo.errors())")
        let connection = try PostgresConnection(places.database)
        // Its fleet comes a moment later.
        #expect(
            try await holds(within: 60) {
                try connection.execute("SELECT device_id FROM heartline.devices").count == 240
            })
        // Long enough for a picture.
        _ = await holds(within: seconds) { demo.hasEnded }
        let outcome = try await Executable.run(["page", "--data", place.path])
        let browser = try await Browser(width: 1280, height: 800)
        try browser.open(outcome.output.trimmingCharacters(in: .whitespacesAndNewlines))
        #expect(
            try await browser.waits(
                for: "document.getElementById('connection').textContent == 'Live'"))
        #expect(
            try await browser.waits(for: "document.querySelectorAll('#picture svg').length == 2"))
        func take(_ name: String, height: Int) throws {
            try browser.command(
                "Emulation.setDeviceMetricsOverride",
                ["width": 1280, "height": height, "deviceScaleFactor": 1, "mobile": false])
            try browser.screenshot().write(to: URL(filePath: "\(folder)/\(name).png"))
        }
        try take("fleet", height: 1120)
        try browser.prefer(scheme: "dark")
        try take("fleet-dark", height: 1120)
        try browser.prefer(scheme: "light")
        let flapping = try connection.execute(
            "SELECT device_id::text FROM heartline.device_status ORDER BY transitions DESC LIMIT 1"
        ).only().text(0)
        connection.close()
        try browser.open("\(places.admin)/devices/\(flapping)")
        #expect(try await browser.waits(for: "document.querySelector('#timeline svg')"))
        try take("device", height: 820)
        #expect(try browser.complaints() == [])
        demo.send(SIGTERM)
        #expect(await demo.waitForEnd() == 0)
    }
}
