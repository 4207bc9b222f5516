internal import Bytes
package import Schemas

/// One device's page, from a reading.
package enum DeviceView {
    package static func parts(_ reading: DeviceReading) -> [PagePart] {
        [
            PagePart(.device) { facts(reading, &$0) },
            PagePart(.timeline) { timeline(reading, &$0) },
            PagePart(.intervals) { intervals(reading, &$0) },
            PagePart(.versions) { versions(reading, &$0) },
            PagePart(.deviceAlerts) { alerts(reading, &$0) },
        ]
    }

    package static func document(_ device: DeviceID, _ parts: [PagePart]) -> HTML {
        func part(_ name: StaticName, _ html: inout HTML) {
            html.element("div", .part(name)) { html in
                if let part = parts.first(where: { $0.id == name }) { html.append(part.html) }
            }
        }
        return PageDocument.signedIn(
            title: "Device \(device.shortened)", live: .deviceLive(device)
        ) { html in
            part(.device, &html)
            html.element("section", .css("card wide"), .text(.label, "States")) { html in
                html.element("h2", text: "States")
                part(.timeline, &html)
                part(.intervals, &html)
            }
            html.element("div", .css("columns")) { html in
                html.element("section", .css("card"), .text(.label, "Configurations")) { html in
                    html.element("h2", text: "Configurations")
                    part(.versions, &html)
                }
                html.element("section", .css("card"), .text(.label, "Alerts")) { html in
                    html.element("h2", text: "Alerts")
                    part(.deviceAlerts, &html)
                }
            }
        }
    }

    // MARK: - Parts

    private static func facts(_ reading: DeviceReading, _ html: inout HTML) {
        html.element("h1") { html in
            html.text("Device ")
            html.element("code", text: reading.device.shortened)
        }
        html.element("p", .css("lead")) { html in
            guard let current = reading.intervals.first, current.end == nil else {
                html.text("It was not judged yet.")
                return
            }
            html.state(current.state)
            html.text(" for ")
            html.age(current.start, now: reading.now)
            html.text(": ")
            html.foreign(current.reason, limit: 60)
            if reading.status?.isFlapping == true { html.text("; flapping") }
        }
        html.element("dl", .css("facts wide")) { html in
            html.fact("Id") { $0.element("code", text: reading.device.description) }
            if let registration = reading.registration {
                html.fact("Address") { $0.element("code", text: registration.internalAddress) }
                if let hardware = registration.hardwareID {
                    html.fact("Hardware id") { $0.foreign(hardware, limit: 256) }
                }
                html.fact("Configuration") { html in
                    html.text("version \(PageText.number(registration.version))")
                    if registration.isSuspended { html.text(", suspended") }
                }
                if let interval = registration.expectedIntervalMilliseconds {
                    html.fact("Beats every") { $0.text(PageText.delay(interval)) }
                }
                html.fact("In the registry since") {
                    $0.time(registration.createdAt, now: reading.now)
                }
            } else {
                html.fact("Registry") { $0.text("not in it: it was removed") }
            }
            if let status = reading.status { facts(status, reading.now, &html) }
            if !reading.forwards.isEmpty {
                html.fact("Forwards") { html in
                    for (index, forward) in reading.forwards.enumerated() {
                        if index > 0 { html.text(", ") }
                        html.foreign(forward)
                    }
                }
            }
        }
    }

    private static func facts(
        _ status: DeviceReading.Status, _ now: EventTime, _ html: inout HTML
    ) {
        html.fact("Last heard of") { html in
            if let seen = status.lastSeen { html.time(seen, now: now) } else { html.text("never") }
        }
        html.fact("Last handshake, by its clock") { html in
            if let time = status.lastHandshake {
                html.time(time, now: now)
            } else {
                html.text("none")
            }
        }
        if let isUp = status.tunnelUp {
            html.fact("Tunnel, as it says") { $0.text(isUp ? "up" : "down") }
        }
        if let agent = status.agentStatus {
            html.fact("Agent says") { html in
                html.foreign(agent, limit: 60)
                if let state = status.agentState, !state.isEmpty {
                    html.text(": ")
                    html.foreign(state)
                }
            }
        } else if let state = status.agentState, !state.isEmpty {
            html.fact("Agent says") { $0.foreign(state) }
        }
        if status.flags != "[]" {
            html.fact("Wrong with its last heartbeat") { $0.foreign(status.flags) }
        }
    }

    private static let day: Int64 = 86_400_000

    private static func timeline(_ reading: DeviceReading, _ html: inout HTML) {
        guard let oldest = reading.intervals.last else {
            html.element(
                "p", .css("empty"), text: "No heartbeat of it was judged yet.")
            return
        }
        let end = reading.now
        // A device of a minute has a picture too.
        let start = min(max(oldest.start, end + -day), end + -1_000)
        let (width, span) = (Int64(960), end - start)
        func x(_ time: EventTime) -> Int {
            Int(min(max(0, time - start), span) * width / span)
        }
        html.element("figure", .css("panel strip")) { html in
            html.element(
                "svg", .css("picture"), .fixed("viewBox", "0 0 960 32"),
                .fixed("preserveAspectRatio", "none"), .fixed("role", "img"),
                .text(
                    .label,
                    "States over the last \(PageText.age(span)); the table below has them as text")
            ) { html in
                for interval in reading.intervals.reversed() {
                    let until = interval.end ?? end
                    guard until > start, let state = FleetState(rawValue: interval.state) else {
                        continue
                    }
                    let (from, to) = (x(interval.start), x(until))
                    html.element(
                        "rect", .css(state.css), .number("x", from), .number("y", 0),
                        .number("width", max(1, to - from)), .number("height", 32)
                    ) { html in
                        html.element(
                            "title", text: "\(state.rawValue) \(PageText.clock(interval.start))")
                    }
                }
            }
            html.element("div", .css("ticks"), .fixed("aria-hidden", "true")) { html in
                for part: Int64 in 0...4 {
                    let time = start + span * part / 4
                    html.element(
                        "span",
                        text: span < 30 * 60_000 ? PageText.clock(time) : PageText.minute(time))
                }
            }
        }
    }

    private static func intervals(_ reading: DeviceReading, _ html: inout HTML) {
        guard !reading.intervals.isEmpty else { return }
        let limit = 30
        html.table(
            "Intervals of its states, the newest first", ["State", "Why", "From", "To", "Length"],
            numbersFrom: 2
        ) { html in
            for interval in reading.intervals.prefix(limit) {
                html.element("tr", .text(.key, interval.start.description)) { html in
                    html.element("td") { $0.state(interval.state) }
                    html.element("td") { $0.foreign(interval.reason, limit: 60) }
                    html.element("td", .css("n")) { $0.time(interval.start, now: reading.now) }
                    html.element("td", .css("n")) { html in
                        if let end = interval.end {
                            html.time(end, now: reading.now)
                        } else {
                            html.text("now")
                        }
                    }
                    html.element("td", .css("n")) {
                        $0.text(PageText.age((interval.end ?? reading.now) - interval.start))
                    }
                }
            }
        }
        if reading.intervals.count > limit {
            html.element(
                "p", .css("hint"),
                text: "Older ones are in table device_state_history.")
        }
    }

    private static func versions(_ reading: DeviceReading, _ html: inout HTML) {
        guard !reading.versions.isEmpty else {
            html.element(
                "p", .css("empty"), text: "No version of its configuration is known yet.")
            return
        }
        html.table(
            "Versions of its configuration, the newest first",
            ["Version", "What was done", "By", "When", "Delivered"], numbersFrom: nil
        ) { html in
            for version in reading.versions {
                html.element("tr", .text(.key, "\(version.version)")) { html in
                    html.element("td") { $0.number(version.version) }
                    html.element("td") { $0.foreign(version.kind, limit: 60) }
                    html.element("td") { $0.foreign(version.changedBy, limit: 60) }
                    html.element("td") { $0.time(version.changedAt, now: reading.now) }
                    html.element("td") { html in
                        if let delivered = version.deliveredAt {
                            html.text(
                                "after \(PageText.delay(delivered - version.changedAt))")
                        } else if version.version == reading.versions[0].version {
                            html.text("waiting")
                        } else {
                            html.text("–")
                        }
                    }
                }
            }
        }
    }

    private static func alerts(_ reading: DeviceReading, _ html: inout HTML) {
        guard !reading.alerts.isEmpty else {
            html.element("p", .css("empty"), text: "It never raised an alert.")
            return
        }
        AlertTable.write(
            reading.alerts, now: reading.now, isOfOne: true,
            caption: "Alerts of this device, the newest first", into: &html)
    }
}

/// Lists of devices.
enum ListView {
    static func inState(_ state: FleetState, _ devices: [FoundDevice], now: EventTime) -> HTML {
        PageDocument.signedIn(title: "Devices that are \(state.rawValue)") { html in
            html.element("h1") { html in
                html.text("Devices that are ")
                html.text(state.rawValue)
            }
            html.element(
                "p", .css("lead"),
                text: "\(state.meaning.prefix(1).uppercased())\(state.meaning.dropFirst()).")
            if devices.isEmpty {
                html.element("p", .css("empty"), text: "There is none.")
                return
            }
            table(devices, now: now, caption: "Devices that are \(state.rawValue)", &html)
            if devices.count >= Int(PageQueries.listLimit) {
                html.element(
                    "p", .css("hint"),
                    text:
                        "The newest \(PageQueries.listLimit); table device_status has all of them.")
            }
        }
    }

    static func found(_ text: String, _ devices: [FoundDevice], now: EventTime) -> HTML {
        PageDocument.signedIn(title: "Search", search: text) { html in
            html.element("h1") { html in
                html.text("Devices for “")
                html.foreign(text, limit: 60)
                html.text("”")
            }
            if devices.isEmpty {
                html.element("p", .css("lead"), text: "None was found.")
                html.element(
                    "p",
                    text:
                        "A device is found by the beginning of its id (at least two digits), of its address in the tunnel (at least two numbers) or of its hardware id."
                )
                return
            }
            table(devices, now: now, caption: "Devices that were found", &html)
            if devices.count >= Int(PageQueries.listLimit) {
                html.element(
                    "p", .css("hint"),
                    text: "The first \(PageQueries.listLimit); write more of it to see fewer.")
            }
        }
    }

    private static func table(
        _ devices: [FoundDevice], now: EventTime, caption: String, _ html: inout HTML
    ) {
        html.element("section", .css("card wide"), .text(.label, caption)) { html in
            html.table(
                caption, ["Device", "Address", "Hardware id", "State", "For"], numbersFrom: 4
            ) { html in
                for device in devices {
                    html.element("tr") { html in
                        html.element("td") { html in
                            html.element("a", .css("id"), .href(.device(device.device))) {
                                $0.element("code", text: device.device.description)
                            }
                        }
                        html.element("td") { $0.element("code", text: device.address) }
                        html.element("td") { html in
                            if let hardware = device.hardwareID {
                                html.foreign(hardware, limit: 60)
                            } else {
                                html.text("–")
                            }
                        }
                        html.element("td") { html in
                            if let state = device.state {
                                html.state(state)
                            } else {
                                html.text("not judged yet")
                            }
                        }
                        html.element("td", .css("n")) { html in
                            if let since = device.since { html.age(since, now: now) }
                        }
                    }
                }
            }
        }
    }
}
