internal import Bytes
internal import Schemas

/// How what was changed spreads: configurations, releases; and how people find each other.
enum RolloutView {
    // MARK: - Configurations

    static func configurations(_ reading: FleetReading, _ html: inout HTML) {
        let configurations = reading.configurations
        guard configurations.changed > 0 else {
            html.element(
                "p", .css("empty"), text: "No configuration changed in the last 24 hours.")
            return
        }
        let asked = configurations.changed - configurations.suspended
        html.element("p") { html in
            html.element("b") { html in
                html.text(
                    "\(PageText.number(configurations.delivered)) of \(PageText.number(asked))")
            }
            html.text(" changed devices have their newest configuration")
            if configurations.waiting > 0 {
                html.text(
                    "; \(PageText.number(configurations.waiting)) wait for their next heartbeat")
            }
            html.text(".")
        }
        html.bar(
            [
                ("delivered", "b-done", configurations.delivered),
                ("waiting", "b-rest", configurations.waiting),
                ("suspended", "s-suspended", configurations.suspended),
            ], "Configurations")
        curve(configurations.minutes, &html)
        html.element("dl", .css("facts")) { html in
            if let last = configurations.lastChange {
                html.fact("Last change") { $0.time(last, now: reading.now) }
            }
            if let median = configurations.medianMilliseconds {
                html.fact("Half of them within") { $0.text(PageText.delay(median)) }
            }
            if let longest = configurations.longestMilliseconds {
                html.fact("The slowest took") { $0.text(PageText.delay(longest)) }
            }
            if configurations.suspended > 0 {
                html.fact("Suspended, told nothing") { $0.number(configurations.suspended) }
            }
        }
        html.element("p", .css("hint")) { html in
            html.text("Changes of the last 24 hours")
            if configurations.isCut {
                html.text(
                    ", the newest \(PageText.number(PageQueries.configurationLimit)) of them")
            }
            html.text(".")
        }
    }

    /// How many were changed and how many had arrived, over time: the second line follows the first.
    private static func curve(
        _ minutes: [FleetReading.Configurations.Minute], _ html: inout HTML
    ) {
        guard let first = minutes.first, let last = minutes.last, minutes.count > 2 else { return }
        let (width, height) = (Int64(960), Int64(96))
        let total = max(1, minutes.reduce(0) { $0 + $1.changed })
        let span = max(1, last.minute - first.minute)
        func line(_ value: (FleetReading.Configurations.Minute) -> Int64) -> String {
            var text = ByteBuffer("M0 \(height)".utf8)
            var sum: Int64 = 0
            for minute in minutes {
                sum += value(minute)
                let x = (minute.minute - first.minute) * width / span
                // Within its box by the width of the line.
                let y = height - 2 - min(sum, total) * (height - 4) / total
                text.append(text: "H\(x)V\(y)")
            }
            text.append(text: "H\(width)")
            return text.span.text
        }
        html.smallPicture(
            "Changes and deliveries from \(PageText.minute(first.minute)) to \(PageText.minute(last.minute))"
        ) { html in
            html.element("path", .css("l-made"), .text(.outline, line { $0.changed })) { _ in }
            html.element("path", .css("l-done"), .text(.outline, line { $0.delivered })) { _ in }
        } ticks: { html in
            html.element("span", text: PageText.minute(first.minute))
            html.element("span", .css("legend")) { html in
                html.markup("<i class=\"k-made\"></i>changed <i class=\"k-done\"></i>arrived")
            }
            html.element("span", text: PageText.minute(last.minute))
        }
    }

    // MARK: - Releases

    static func releases(_ reading: FleetReading, _ html: inout HTML) {
        guard !reading.releases.isEmpty else {
            html.element(
                "p", .css("empty"), text: "No release of an app is offered or installed.")
            return
        }
        html.element("ul", .css("bars"), .fixed("role", "list")) { html in
            for release in reading.releases {
                html.element("li", .text(.key, "\(release.source) \(release.release)")) { html in
                    html.element("p", .css("name")) { html in
                        html.foreign(release.release, limit: 60)
                        html.text(" ")
                        html.element("span", .css("hint")) {
                            $0.foreign(release.source, limit: 80)
                        }
                    }
                    html.bar(
                        [
                            ("installed", "b-done", release.installed),
                            ("downloading", "b-moving", release.downloading),
                            ("offered", "b-rest", release.offered),
                            ("failed", "s-down", release.failed),
                            ("unconfirmed", "s-stale", release.unconfirmed),
                        ], "Release")
                }
            }
        }
    }

    // MARK: - Matches

    static func matches(_ reading: FleetReading, _ html: inout HTML) {
        let minutes = reading.matches.minutes
        let total = minutes.reduce(0) { $0 + $1.count }
        guard total > 0 else {
            html.element(
                "p", .css("empty"), text: "Nobody waved back at anybody in the last hour.")
            return
        }
        let current = reading.now.milliseconds / 60_000
        var counts = [Int64](repeating: 0, count: 60)
        for minute in minutes {
            let ago = current - minute.minute.milliseconds / 60_000
            if (0..<60).contains(ago) { counts[59 - Int(ago)] += minute.count }
        }
        let highest = max(1, counts.max() ?? 1)
        html.element("p") { html in
            html.element("b") { $0.number(total) }
            html.text(
                " \(total == 1 ? "pair" : "pairs") in the last hour; \(PageText.number(counts[58])) in the last whole minute, \(PageText.number(highest)) in the busiest."
            )
        }
        html.smallPicture(
            "Matches a minute over the last hour: \(PageText.number(total)) in all, \(PageText.number(highest)) at most"
        ) { html in
            for (index, count) in counts.enumerated() where count > 0 {
                let height = max(1, Int(count * 92 / highest))
                html.element(
                    "rect", .css("b-done"), .number("x", index * 16 + 2), .number("width", 12),
                    .number("y", 96 - height), .number("height", height)
                ) { _ in }
            }
        } ticks: { html in
            for ago: Int64 in [60, 45, 30, 15, 0] {
                html.element(
                    "span", text: ago == 0 ? "now" : PageText.minute(reading.now + -ago * 60_000))
            }
        }
    }
}

extension HTML {
    /// A picture 960 wide and 96 high, whatever is drawn, with words along its lower edge.
    /// - Parameter label: names it for who cannot see it.
    mutating func smallPicture(
        _ label: String, drawing: (inout HTML) -> Void, ticks: (inout HTML) -> Void
    ) {
        element("figure", .css("panel small")) { html in
            html.element(
                "svg", .css("picture"), .fixed("viewBox", "0 0 960 96"),
                .fixed("preserveAspectRatio", "none"), .fixed("role", "img"), .text(.label, label),
                content: drawing)
            html.element(
                "div", .css("ticks"), .fixed("aria-hidden", "true"), content: ticks)
        }
    }

    /// The parts of a whole beside each other, and their numbers below.
    mutating func bar(_ parts: [(name: String, css: StaticString, count: Int64)], _ label: String) {
        let shown = parts.filter { $0.count > 0 }
        let total = max(1, shown.reduce(0) { $0 + $1.count })
        let words = shown.map { "\($0.name) \(PageText.number($0.count))" }
        element(
            "svg", .css("bar"), .fixed("viewBox", "0 0 1000 10"),
            .fixed("preserveAspectRatio", "none"), .fixed("role", "img"),
            .text(.label, "\(label): \(words.joined(separator: ", "))")
        ) { html in
            var sum: Int64 = 0
            for part in shown {
                let start = Int(Double(sum) / Double(total) * 1_000)
                sum += part.count
                let end = Int(Double(sum) / Double(total) * 1_000)
                html.element(
                    "rect", .css(part.css), .number("x", start), .number("y", 0),
                    .number("width", max(3, end - start)), .number("height", 10)
                ) { _ in }
            }
        }
        element("p", .css("parts"), .fixed("aria-hidden", "true")) { html in
            for part in shown {
                html.element("span") { html in
                    html.markup("<svg class=\"swatch\" viewBox=\"0 0 12 12\">")
                    html.element(
                        "rect", .css(part.css), .number("width", 12), .number("height", 12),
                        .number("rx", 3)
                    ) { _ in }
                    html.markup("</svg>")
                    html.text("\(part.name) ")
                    html.element("b") { $0.number(part.count) }
                }
            }
        }
    }
}
