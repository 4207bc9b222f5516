internal import Schemas

/// The fleet's page, from a reading.
package enum FleetView {
    /// In the order of the page. Equal readings make equal parts.
    package static func parts(_ reading: FleetReading) -> [PagePart] {
        [
            PagePart(.summary) { summary(reading, &$0) },
            PagePart(.states) { states(reading, &$0) },
            PagePart(.picture) { picture(reading, &$0) },
            PagePart(.numbers) { numbers(reading, &$0) },
            PagePart(.troubles) { troubles(reading, &$0) },
            PagePart(.alerts) { alerts(reading, &$0) },
            PagePart(.flow) { flow(reading, &$0) },
            PagePart(.partitions) { partitions(reading, &$0) },
            PagePart(.configurations) { RolloutView.configurations(reading, &$0) },
            PagePart(.releases) { RolloutView.releases(reading, &$0) },
            PagePart(.matches) { RolloutView.matches(reading, &$0) },
        ]
    }

    package static func document(_ parts: [PagePart]) -> HTML {
        func part(_ name: StaticName, _ html: inout HTML) {
            html.element("div", .part(name)) { html in
                if let part = parts.first(where: { $0.id == name }) { html.append(part.html) }
            }
        }
        func section(
            _ heading: String, _ css: StaticString, _ html: inout HTML,
            _ content: (inout HTML) -> Void
        ) {
            html.element("section", .css(css), .text(.label, heading)) { html in
                html.element("h2", text: heading)
                content(&html)
            }
        }
        return PageDocument.signedIn(title: "The fleet now", live: .fleetLive) { html in
            part(.summary, &html)
            part(.states, &html)
            section("Devices by state", "card wide", &html) { html in
                part(.picture, &html)
                html.element("details") { html in
                    html.element("summary", text: "The same as a table")
                    part(.numbers, &html)
                }
            }
            html.element("div", .css("columns")) { html in
                html.element("div") { html in
                    section("Tunnels in trouble, the newest first", "card", &html) {
                        part(.troubles, &$0)
                    }
                    section("From the log to the tables", "card", &html) { html in
                        part(.flow, &html)
                        html.element("details") { html in
                            html.element("summary", text: "Every partition")
                            part(.partitions, &html)
                        }
                    }
                }
                html.element("div") { html in
                    section("Open alerts", "card", &html) { part(.alerts, &$0) }
                    section("Configurations on their way", "card", &html) {
                        part(.configurations, &$0)
                    }
                    section("Releases of apps", "card", &html) { part(.releases, &$0) }
                    section("Matches", "card", &html) { part(.matches, &$0) }
                }
            }
        }
    }

    // MARK: - Parts

    /// The fleet in one sentence.
    package static func sentence(_ counts: StateCounts) -> String {
        let total = counts.total
        if total == 0 { return "No device has been judged yet." }
        var text =
            counts[.healthy] == total
            ? (total == 1
                ? "The one device is healthy."
                : "All \(PageText.number(total)) devices are healthy.")
            : "\(PageText.number(counts[.healthy])) of \(PageText.count(total, "device is", "devices are")) healthy"
        let others = FleetState.allCases.filter { $0 != .healthy && counts[$0] > 0 }
        if !others.isEmpty {
            text += "; "
            text += others.map { "\(PageText.number(counts[$0])) \($0.rawValue)" }
                .joined(separator: ", ")
            text += "."
        }
        return text
    }

    private static func summary(_ reading: FleetReading, _ html: inout HTML) {
        html.element("h1", text: "The fleet now")
        html.element("p", .css("lead"), text: sentence(reading.counts))
        html.element("p", .css("hint")) { html in
            html.text("As of ")
            html.time(reading.countedAt, now: reading.countedAt)
        }
        if let fault = reading.fault {
            html.element("p", .css("fault")) { html in
                html.text(fault)
                html.text(" What stands here is older than it should be.")
            }
        }
    }

    private static func states(_ reading: FleetReading, _ html: inout HTML) {
        let total = reading.counts.total
        html.element("ul", .css("tiles"), .fixed("role", "list")) { html in
            for state in FleetState.allCases {
                let count = reading.counts[state]
                html.element("li", .css(count == 0 ? "none" : "some")) { html in
                    html.element("a", .href(.devices(state)), .text(.title, state.meaning)) {
                        html in
                        html.element("span", .css("name")) {
                            $0.swatch(state)
                            $0.text(state.rawValue)
                        }
                        html.element("span", .css("count")) { $0.number(count) }
                        html.element(
                            "span", .css("share"), text: PageText.share(count, of: total))
                    }
                }
            }
        }
    }

    private static func picture(_ reading: FleetReading, _ html: inout HTML) {
        guard let all = HistoryPicture(reading.history, states: FleetState.allCases) else {
            html.element(
                "p", .css("empty"),
                text:
                    "The picture begins when devices have been counted twice. Add one with heartline device add."
            )
            return
        }
        panel("All devices", all, &html)
        let troubled = FleetState.allCases.filter { $0 != .healthy }
        if let rest = HistoryPicture(reading.history, states: troubled) {
            panel("Without the healthy ones", rest, &html)
        } else {
            html.element(
                "p", .css("empty"), text: "All of them were healthy all the time.")
        }
    }

    private static func panel(_ title: String, _ picture: HistoryPicture, _ html: inout HTML) {
        html.element("figure", .css("panel")) { html in
            html.element("figcaption", text: title)
            html.element("div", .css("plot")) { html in
                html.element("div", .css("scale"), .fixed("aria-hidden", "true")) { html in
                    for value in [picture.top, picture.top / 2, 0] {
                        html.element("span") { $0.number(value) }
                    }
                }
                let last = picture.samples[picture.samples.count - 1]
                let words = picture.states.map {
                    "\($0.rawValue) \(PageText.number(last.counts[$0]))"
                }
                picture.write(
                    into: &html,
                    label:
                        "\(title) by state from \(PageText.minute(picture.ticks[0])) to \(PageText.minute(last.at)); at the end \(words.joined(separator: ", "))"
                )
            }
            let isShort = picture.ticks[4] - picture.ticks[0] < 10 * 60_000
            html.element("div", .css("ticks"), .fixed("aria-hidden", "true")) { html in
                for tick in picture.ticks {
                    html.element(
                        "span", text: isShort ? PageText.clock(tick) : PageText.minute(tick))
                }
            }
        }
    }

    private static func numbers(_ reading: FleetReading, _ html: inout HTML) {
        let samples = reading.history
        guard samples.count > 1 else {
            html.element("p", .css("empty"), text: "Nothing yet.")
            return
        }
        let rows = 12
        var chosen: [FleetReading.Sample] = []
        for row in 0...rows {
            let sample = samples[(samples.count - 1) * row / rows]
            if chosen.last != sample { chosen.append(sample) }
        }
        html.table(
            "Devices by state over time",
            ["Time"] + FleetState.allCases.map(\.rawValue), numbersFrom: 1
        ) { html in
            for sample in chosen.reversed() {
                html.element("tr") { html in
                    html.element("th", .fixed("scope", "row")) {
                        $0.time(sample.at, now: reading.now)
                    }
                    for state in FleetState.allCases {
                        html.element("td", .css("n")) { $0.number(sample.counts[state]) }
                    }
                }
            }
        }
    }

    private static func troubles(_ reading: FleetReading, _ html: inout HTML) {
        guard !reading.troubles.isEmpty else {
            html.element(
                "p", .css("empty"), text: "No tunnel is stale, down or offline.")
            return
        }
        html.table(
            "Devices that became stale, down or offline last",
            ["Device", "State", "Why", "For", "Last heard of"], numbersFrom: 3
        ) { html in
            for trouble in reading.troubles {
                html.element("tr", .text(.key, trouble.device.description)) { html in
                    html.element("td") { $0.device(trouble.device) }
                    html.element("td") { $0.state(trouble.state) }
                    html.element("td") { $0.foreign(trouble.reason, limit: 60) }
                    html.element("td", .css("n")) { $0.age(trouble.since, now: reading.now) }
                    html.element("td", .css("n")) { html in
                        if let seen = trouble.lastSeen {
                            html.time(seen, now: reading.now)
                        } else {
                            html.text("never")
                        }
                    }
                }
            }
        }
        html.element("p", .css("hint")) { html in
            html.text("All that are ")
            for (index, state) in FleetState.troubled.enumerated() {
                if index > 0 { html.text(index == 2 ? " or " : ", ") }
                html.element("a", .href(.devices(state)), text: state.rawValue)
            }
        }
    }

    private static func alerts(_ reading: FleetReading, _ html: inout HTML) {
        guard !reading.alerts.isEmpty else {
            html.element("p", .css("empty"), text: "No alert is open.")
            return
        }
        html.element("ul", .css("chips"), .fixed("role", "list")) { html in
            for alert in reading.alerts {
                html.element("li") { html in
                    html.element("b") { $0.number(alert.open) }
                    html.text(" ")
                    html.foreign(alert.kind, limit: 60)
                    html.text(", the oldest for ")
                    html.age(alert.oldest, now: reading.now)
                }
            }
        }
        AlertTable.write(
            reading.newestAlerts, now: reading.now, caption: "Alerts that opened last", into: &html)
    }

    private static func flow(_ reading: FleetReading, _ html: inout HTML) {
        guard !reading.partitions.isEmpty else {
            html.element("p", .css("empty"), text: "No pipeline has stored anything yet.")
            return
        }
        let lags = reading.partitions.map(\.lag)
        html.element("dl", .css("facts")) { html in
            html.fact("Records in") { html in
                html.text(reading.rates.taken.map { "\(PageText.rate($0))/s" } ?? "not known")
            }
            html.fact("Stored, by all pipelines") { html in
                html.text(reading.rates.stored.map { "\(PageText.rate($0))/s" } ?? "not known")
            }
            html.fact("Waiting in the log") { html in
                html.text(
                    lags.contains(nil)
                        ? "not known"
                        : PageText.count(lags.compactMap { $0 }.reduce(0, +), "record", "records"))
            }
            html.fact("Events to be published") { html in
                html.text(
                    reading.outbox >= 10_000 ? "10,000 or more" : PageText.number(reading.outbox))
            }
        }
        html.table(
            "Pipelines", ["Pipeline", "Reads", "Lag", "Worst partition", "Last commit"],
            numbersFrom: 2
        ) { html in
            for pipeline in Pipeline.all(reading.partitions) {
                html.element("tr", .text(.key, pipeline.name)) { html in
                    html.element("th", .fixed("scope", "row")) {
                        $0.foreign(pipeline.name, limit: 60)
                    }
                    html.element("td") { $0.foreign(pipeline.topic, limit: 60) }
                    html.element("td", .css("n")) { html in
                        html.text(pipeline.lag.map { PageText.number($0) } ?? "not known")
                    }
                    html.element("td", .css("n")) { html in
                        if let (partition, lag) = pipeline.worst, lag > 0 {
                            html.text("\(partition) (\(PageText.number(lag)))")
                        } else {
                            html.text("–")
                        }
                    }
                    html.element("td", .css("n")) { html in
                        html.age(pipeline.committedAt, now: reading.now)
                        html.text(" ago")
                    }
                }
            }
        }
    }

    /// The partitions of one pipeline, taken together.
    private struct Pipeline {
        var name: String
        var topic: String
        var lag: Int64?
        var worst: (partition: Int32, lag: Int64)?
        var committedAt: EventTime

        /// - Parameter partitions: those of one pipeline stand together.
        static func all(_ partitions: [FleetReading.Partition]) -> [Pipeline] {
            var all: [Pipeline] = []
            for partition in partitions {
                if all.last?.name != partition.pipeline {
                    all.append(
                        Pipeline(
                            name: partition.pipeline, topic: partition.topic, lag: 0, worst: nil,
                            committedAt: partition.committedAt))
                }
                let place = all.count - 1
                if let lag = partition.lag {
                    all[place].lag = all[place].lag.map { $0 + lag }
                    if lag > all[place].worst?.lag ?? -1 {
                        all[place].worst = (partition.partition, lag)
                    }
                } else {
                    all[place].lag = nil
                }
                all[place].committedAt = max(all[place].committedAt, partition.committedAt)
            }
            return all
        }
    }

    private static func partitions(_ reading: FleetReading, _ html: inout HTML) {
        guard !reading.partitions.isEmpty else {
            html.element("p", .css("empty"), text: "Nothing yet.")
            return
        }
        /// Rows beyond these say no more to a person.
        let limit = 256
        html.table(
            "Partitions of every pipeline",
            ["Pipeline", "Partition", "Stored up to", "Lag", "Last commit", "Worker"],
            numbersFrom: 1
        ) { html in
            for partition in reading.partitions.prefix(limit) {
                html.element(
                    "tr", .text(.key, "\(partition.pipeline) \(partition.partition)")
                ) { html in
                    html.element("th", .fixed("scope", "row")) {
                        $0.foreign(partition.pipeline, limit: 60)
                    }
                    html.element("td", .css("n")) { $0.number(Int64(partition.partition)) }
                    html.element("td", .css("n")) { $0.number(partition.committed) }
                    html.element("td", .css("n")) { html in
                        html.text(partition.lag.map { PageText.number($0) } ?? "not known")
                    }
                    html.element("td", .css("n")) { html in
                        html.age(partition.committedAt, now: reading.now)
                        html.text(" ago")
                    }
                    html.element("td", .css("owner")) { $0.foreign(partition.owner, limit: 80) }
                }
            }
        }
        if reading.partitions.count > limit {
            html.element(
                "p", .css("hint"),
                text:
                    "\(PageText.number(Int64(reading.partitions.count - limit))) more; heartline status lists them."
            )
        }
    }
}

/// Alerts as a table.
enum AlertTable {
    /// - Parameter isOfOne: all of them are about one device, which is not told again.
    static func write(
        _ alerts: [AlertReading], now: EventTime, isOfOne: Bool = false, caption: String,
        into html: inout HTML
    ) {
        html.table(
            caption, ["Alert"] + (isOfOne ? [] : ["About"]) + ["Why", "Since", "State"],
            numbersFrom: nil
        ) { html in
            for alert in alerts {
                html.element("tr", .text(.key, alert.id.description)) { html in
                    html.element("td") { $0.foreign(alert.kind, limit: 60) }
                    if !isOfOne {
                        html.element("td") { html in
                            if let device = alert.device {
                                html.device(device)
                            } else {
                                html.foreign(alert.entity, limit: 60)
                            }
                            if let devices = alert.devices {
                                html.text(" (\(PageText.count(devices, "device", "devices")))")
                            }
                        }
                    }
                    html.element("td") { $0.foreign(alert.reason, limit: 80) }
                    html.element("td") { $0.time(alert.openedAt, now: now) }
                    html.element("td") { html in
                        if let resolved = alert.resolvedAt {
                            html.text("ended ")
                            html.time(resolved, now: now)
                        } else if let who = alert.acknowledgedBy {
                            html.text("open, looked after by ")
                            html.foreign(who, limit: 60)
                        } else {
                            html.text("open")
                        }
                    }
                }
            }
        }
    }
}

extension HTML {
    /// A table with its caption, which is for who cannot see it, in a box that scrolls by itself.
    /// - Parameter numbersFrom: the first column whose heading is set to the right, as numbers are.
    mutating func table(
        _ caption: String, _ columns: [String], numbersFrom: Int?, _ rows: (inout HTML) -> Void
    ) {
        element(
            "div", .css("scroll"), .number("tabindex", 0), .fixed("role", "region"),
            .text(.label, caption)
        ) { html in
            html.element("table") { html in
                html.element("caption", .css("unseen"), text: caption)
                html.element("thead") { html in
                    html.element("tr") { html in
                        for (index, column) in columns.enumerated() {
                            let isNumber = numbersFrom.map { index >= $0 } ?? false
                            html.element(
                                "th", .fixed("scope", "col"), .css(isNumber ? "n" : "t"),
                                text: column)
                        }
                    }
                }
                html.element("tbody", content: rows)
            }
        }
    }

    /// A fact of a list of descriptions.
    mutating func fact(_ name: String, _ value: (inout HTML) -> Void) {
        element("div") { html in
            html.element("dt", text: name)
            html.element("dd", content: value)
        }
    }
}
