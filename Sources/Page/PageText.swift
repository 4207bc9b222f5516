public import Schemas

/// Numbers and times as people read them. Times are UTC.
public enum PageText {
    /// `1,234,567`.
    public static func number(_ value: Int64) -> String {
        let digits = Array(String(value.magnitude))
        var text = value < 0 ? "−" : ""
        for (index, digit) in digits.enumerated() {
            if index > 0, (digits.count - index) % 3 == 0 { text.append(",") }
            text.append(digit)
        }
        return text
    }

    /// `1 device`, `2 devices`.
    public static func count(_ value: Int64, _ one: String, _ many: String) -> String {
        "\(number(value)) \(value == 1 ? one : many)"
    }

    /// A share of a whole to a tenth of a percent, never rounded to all or nothing.
    public static func share(_ part: Int64, of whole: Int64) -> String {
        guard whole > 0, part > 0 else { return "0%" }
        if part >= whole { return "100%" }
        let tenths = Int64((Double(part) / Double(whole) * 1_000).rounded())
        if tenths == 0 { return "<0.1%" }
        if tenths >= 1_000 { return "99.9%" }
        return tenths % 10 == 0 ? "\(tenths / 10)%" : "\(tenths / 10).\(tenths % 10)%"
    }

    /// A rate with as many digits as tell something.
    public static func rate(_ perSecond: Double) -> String {
        let value = max(0, perSecond)
        if value < 10 {
            let tenths = Int64((value * 10).rounded())
            return "\(tenths / 10).\(tenths % 10)"
        }
        return number(Int64(min(value, 1e15).rounded()))
    }

    /// The length of a time in its largest unit or two: `8 s`, `12 min`, `3 h 20 min`, `2 d 4 h`.
    public static func age(_ milliseconds: Int64) -> String {
        let seconds = max(0, milliseconds / 1_000)
        func two(_ large: Int64, _ unit: String, _ small: Int64, _ smallUnit: String) -> String {
            small == 0 ? "\(large) \(unit)" : "\(large) \(unit) \(small) \(smallUnit)"
        }
        if seconds < 60 { return "\(seconds) s" }
        if seconds < 3_600 { return "\(seconds / 60) min" }
        if seconds < 86_400 { return two(seconds / 3_600, "h", seconds % 3_600 / 60, "min") }
        return two(seconds / 86_400, "d", seconds % 86_400 / 3_600, "h")
    }

    /// A delay, to the millisecond where it is short.
    public static func delay(_ milliseconds: Int64) -> String {
        if milliseconds < 1_000 { return "\(max(0, milliseconds)) ms" }
        if milliseconds < 60_000 {
            return "\(milliseconds / 1_000).\(milliseconds % 1_000 / 100) s"
        }
        return age(milliseconds)
    }

    /// `09:05:01`.
    public static func clock(_ time: EventTime) -> String { part(time, 11, 8) }

    /// `09:05`.
    public static func minute(_ time: EventTime) -> String { part(time, 11, 5) }

    /// `2026-06-26`.
    public static func date(_ time: EventTime) -> String { part(time, 0, 10) }

    private static func part(_ time: EventTime, _ start: Int, _ count: Int) -> String {
        String(time.description.dropFirst(start).prefix(count))
    }
}

extension HTML {
    /// A time of today as its time of day, any other with its date.
    mutating func time(_ time: EventTime, now: EventTime) {
        let isToday = PageText.date(time) == PageText.date(now)
        element(
            "time", .text(.datetime, time.description),
            text: isToday
                ? PageText.clock(time) : "\(PageText.date(time)) \(PageText.clock(time))")
    }

    /// How long ago a time was.
    mutating func age(_ time: EventTime, now: EventTime) {
        element(
            "time", .text(.datetime, time.description),
            text: PageText.age(now - time))
    }

    /// A state with its colour.
    mutating func state(_ state: String) {
        guard let known = FleetState(rawValue: state) else { return foreign(state) }
        element("span", .css("state")) {
            $0.swatch(known)
            $0.text(known.rawValue)
        }
    }

    mutating func swatch(_ state: FleetState) {
        markup("<svg class=\"swatch\" viewBox=\"0 0 12 12\" aria-hidden=\"true\">")
        element(
            "rect", .css(state.css), .number("width", 12), .number("height", 12),
            .number("rx", 3)
        ) { _ in }
        markup("</svg>")
    }

    /// A device's short id as a link to it.
    mutating func device(_ device: DeviceID) {
        element("a", .css("id"), .href(.device(device)), .text(.title, device.description)) {
            $0.text(device.shortened)
        }
    }
}
