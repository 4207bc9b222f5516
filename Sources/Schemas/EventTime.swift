public import Bytes

/// A point in time as the log knows it: whole milliseconds since 1970-01-01T00:00:00Z.
///
/// Comes from a record's receipt stamp or from a device's claim; never from a clock of this process.
public struct EventTime: Hashable, Comparable, Sendable, CustomStringConvertible {
    public var milliseconds: Int64

    @inlinable public init(milliseconds: Int64) { self.milliseconds = milliseconds }

    @inlinable public static func < (a: EventTime, b: EventTime) -> Bool {
        a.milliseconds < b.milliseconds
    }

    @inlinable public static func + (time: EventTime, milliseconds: Int64) -> EventTime {
        EventTime(milliseconds: time.milliseconds + milliseconds)
    }

    /// Milliseconds from `b` to `a`.
    @inlinable public static func - (a: EventTime, b: EventTime) -> Int64 {
        a.milliseconds - b.milliseconds
    }

    /// Years that are written and read: 0000 to 9999.
    public static let earliest = EventTime(milliseconds: -62_167_219_200_000)
    public static let latest = EventTime(milliseconds: 253_402_300_799_999)

    /// Reads an ISO 8601 date and time with seconds and a zone (RFC 3339: `2026-06-26T09:00:00Z`,
    /// fractions of a second and offsets allowed); `nil` for anything else. Leap seconds count as
    /// the second after them.
    public init?(parsing text: Span<UInt8>) {
        guard text.count >= 20, text.count <= 64, text[4] == 0x2D, text[7] == 0x2D,
            text[10] | 0x20 == 0x74 || text[10] == 0x20, text[13] == 0x3A, text[16] == 0x3A
        else { return nil }
        var valid = true
        func digit(_ index: Int) -> Int {
            let byte = Int(text[index]) - 0x30
            if byte < 0 || byte > 9 { valid = false }
            return byte
        }
        func two(_ index: Int) -> Int { digit(index) * 10 + digit(index + 1) }
        let year = two(0) * 100 + two(2)
        let month = two(5), day = two(8), hour = two(11), minute = two(14), second = two(17)
        guard valid, month >= 1, month <= 12, day >= 1, hour <= 23, minute <= 59, second <= 60
        else { return nil }
        let isLeap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
        let days = month == 2 ? (isLeap ? 29 : 28) : 30 + ((month + (month >> 3)) & 1)
        guard day <= days else { return nil }
        var index = 19
        var fraction = 0
        if text[index] == 0x2E || text[index] == 0x2C {
            index += 1
            let first = index
            var scale = 100
            while index < text.count, text[index] >= 0x30, text[index] <= 0x39 {
                fraction += Int(text[index] - 0x30) * scale
                scale /= 10
                index += 1
            }
            guard index > first else { return nil }
        }
        guard index < text.count else { return nil }
        var offset = 0
        switch text[index] {
        case 0x5A, 0x7A: index += 1
        case 0x2B, 0x2D:
            let sign = text[index] == 0x2D ? -1 : 1
            let rest = text.count - index
            guard rest == 6 && text[index + 3] == 0x3A || rest == 5 || rest == 3 else { return nil }
            let hours = two(index + 1)
            let minutes = rest == 6 ? two(index + 4) : rest == 5 ? two(index + 3) : 0
            guard valid, hours <= 23, minutes <= 59 else { return nil }
            offset = sign * (hours * 60 + minutes)
            index = text.count
        default: return nil
        }
        guard index == text.count else { return nil }
        let seconds =
            EventTime.daysSinceEpoch(year: year, month: month, day: day) * 86_400
            + hour * 3_600 + minute * 60 + second - offset * 60
        milliseconds = Int64(seconds * 1_000 + fraction)
    }

    // H. Hinnant, "chrono-compatible low-level date algorithms".
    private static func daysSinceEpoch(year: Int, month: Int, day: Int) -> Int {
        let shifted = month <= 2 ? year - 1 : year
        let era = (shifted >= 0 ? shifted : shifted - 399) / 400
        let yearOfEra = shifted - era * 400
        let dayOfYear = (153 * (month > 2 ? month - 3 : month + 9) + 2) / 5 + day - 1
        let dayOfEra = yearOfEra * 365 + yearOfEra / 4 - yearOfEra / 100 + dayOfYear
        return era * 146_097 + dayOfEra - 719_468
    }

    /// Year, month and day in UTC.
    public var date: (year: Int, month: Int, day: Int) {
        let clamped = min(max(milliseconds, Self.earliest.milliseconds), Self.latest.milliseconds)
        let days = Int((clamped - (clamped % 86_400_000 + 86_400_000) % 86_400_000) / 86_400_000)
        let shifted = days + 719_468
        let era = (shifted >= 0 ? shifted : shifted - 146_096) / 146_097
        let dayOfEra = shifted - era * 146_097
        let yearOfEra =
            (dayOfEra - dayOfEra / 1_460 + dayOfEra / 36_524 - dayOfEra / 146_096) / 365
        let dayOfYear = dayOfEra - (365 * yearOfEra + yearOfEra / 4 - yearOfEra / 100)
        let shiftedMonth = (5 * dayOfYear + 2) / 153
        let day = dayOfYear - (153 * shiftedMonth + 2) / 5 + 1
        let month = shiftedMonth < 10 ? shiftedMonth + 3 : shiftedMonth - 9
        return (yearOfEra + era * 400 + (month <= 2 ? 1 : 0), month, day)
    }

    /// `2026-06-26T09:00:00.000Z`; times outside the years 0000 to 9999 show the nearest of them.
    public var description: String {
        var buffer = ByteBuffer()
        buffer.append(self)
        return buffer.span.text
    }

    /// From PostgreSQL's binary `timestamptz`, microseconds since 2000-01-01T00:00:00Z; fractions of a
    /// millisecond are cut off, and infinities become the ends of the range that can be shown.
    public init(postgresMicroseconds microseconds: Int64) {
        let time = microseconds / 1_000 + 946_684_800_000
        self.init(
            milliseconds: min(max(time, Self.earliest.milliseconds), Self.latest.milliseconds))
    }

    /// Microseconds since 2000-01-01T00:00:00Z: PostgreSQL's binary `timestamptz`, kept in the
    /// range of years that it can show (0001 to 9999).
    public var postgresMicroseconds: Int64 {
        let clamped = min(max(milliseconds, -62_135_596_800_000), Self.latest.milliseconds)
        return (clamped - 946_684_800_000) * 1_000
    }
}

extension ByteBuffer {
    /// Appends `2026-06-26T09:00:00.000Z`.
    public mutating func append(_ time: EventTime) {
        let clamped = min(
            max(time.milliseconds, EventTime.earliest.milliseconds), EventTime.latest.milliseconds)
        let (year, month, day) = time.date
        let inDay = Int((clamped % 86_400_000 + 86_400_000) % 86_400_000)
        var text: InlineArray<24, UInt8> = [
            0x30, 0x30, 0x30, 0x30, 0x2D, 0x30, 0x30, 0x2D, 0x30, 0x30, 0x54, 0x30, 0x30, 0x3A,
            0x30, 0x30, 0x3A, 0x30, 0x30, 0x2E, 0x30, 0x30, 0x30, 0x5A,
        ]
        func two(_ value: Int, at index: Int) {
            text[index] = UInt8(truncatingIfNeeded: 0x30 + value / 10)
            text[index + 1] = UInt8(truncatingIfNeeded: 0x30 + value % 10)
        }
        two(year / 100, at: 0)
        two(year % 100, at: 2)
        two(month, at: 5)
        two(day, at: 8)
        two(inDay / 3_600_000, at: 11)
        two(inDay / 60_000 % 60, at: 14)
        two(inDay / 1_000 % 60, at: 17)
        two(inDay % 1_000 / 10, at: 20)
        text[22] = UInt8(truncatingIfNeeded: 0x30 + inDay % 10)
        append(text.span)
    }
}
