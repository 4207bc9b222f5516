internal import Bytes
internal import Schemas

/// Draws devices by state over time, one state on top of the other.
///
/// The drawing has a box of fixed size that the page stretches; what is to be read stands beside it as text,
/// so that it stays sharp, and in a table.
package struct HistoryPicture {
    static let width = 960
    static let height = 200

    /// Ascending; of at least two times.
    package let samples: [FleetReading.Sample]
    /// Drawn from below, in this order.
    package let states: [FleetState]
    /// The value at the upper edge.
    package let top: Int64

    /// `nil` where there are no two times, and where no device was in one of the states.
    package init?(_ samples: [FleetReading.Sample], states: [FleetState]) {
        guard let first = samples.first, let last = samples.last, last.at > first.at else {
            return nil
        }
        let highest = samples.map { sample in states.reduce(0) { $0 + sample.counts[$1] } }.max()
        guard let highest, highest > 0 else { return nil }
        self.samples = samples
        self.states = states.filter { state in samples.contains { $0.counts[state] > 0 } }
        top = Self.roundedUp(highest)
    }

    /// The next number with one digit that counts, so that the half of it can be told at a glance; an even one.
    package static func roundedUp(_ value: Int64) -> Int64 {
        var power: Int64 = 1
        while true {
            for factor: Int64 in [2, 3, 4, 5, 6, 8, 10] where power > 1 || factor % 2 == 0 {
                let (rounded, overflow) = factor.multipliedReportingOverflow(by: power)
                if overflow { return value }
                if rounded >= value { return rounded }
            }
            power *= 10
        }
    }

    /// Times that are written below, from the left edge to the right one.
    var ticks: [EventTime] {
        let (first, last) = (samples[0].at, samples[samples.count - 1].at)
        return (0...4).map { first + (last - first) * $0 / 4 }
    }

    /// Names the box for who cannot see it.
    package func write(into html: inout HTML, label: String) {
        html.element(
            "svg", .css("picture"), .fixed("viewBox", "0 0 960 200"),
            .fixed("preserveAspectRatio", "none"), .fixed("role", "img"), .text(.label, label)
        ) { html in
            for line in [50, 100, 150] {
                html.element(
                    "line", .css("grid"), .number("x1", 0), .number("x2", Self.width),
                    .number("y1", line), .number("y2", line)
                ) { _ in }
            }
            var below = [Int64](repeating: 0, count: samples.count)
            for state in states {
                let above = zip(below, samples).map { $0 + $1.counts[state] }
                html.element(
                    "path", .css(state.css), .text(.outline, outline(below: below, above: above))
                ) { $0.element("title", text: state.rawValue) }
                below = above
            }
        }
    }

    /// Along the upper edge to the right, and back along the lower one. A count holds until the next.
    private func outline(below: [Int64], above: [Int64]) -> String {
        var text = ByteBuffer()
        func move(_ command: StaticString, _ x: Int, _ y: Int) {
            text.append(command)
            text.append(decimal: Int64(x))
            text.append(" ")
            text.append(decimal: Int64(y))
        }
        for index in samples.indices {
            let (x, y) = (x(samples[index].at), y(above[index]))
            if index == 0 {
                move("M", x, y)
            } else {
                text.append("H")
                text.append(decimal: Int64(x))
                text.append("V")
                text.append(decimal: Int64(y))
            }
        }
        for index in samples.indices.reversed() {
            let (x, y) = (x(samples[index].at), y(below[index]))
            if index == samples.count - 1 {
                move("L", x, y)
                continue
            }
            // The count of the time before holds up to here.
            text.append("V")
            text.append(decimal: Int64(y))
            text.append("H")
            text.append(decimal: Int64(x))
        }
        text.append("Z")
        return text.span.text
    }

    private func x(_ time: EventTime) -> Int {
        let (first, last) = (samples[0].at, samples[samples.count - 1].at)
        return Int((time - first) * Int64(Self.width) / (last - first))
    }

    private func y(_ count: Int64) -> Int {
        Self.height - Int((Double(count) / Double(top) * Double(Self.height)).rounded())
    }
}
