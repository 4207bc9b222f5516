public import Bytes

/// A cell of five geohash characters: about 4.9 km from south to north, and up to that from west to
/// east. Finer places are never kept.
///
/// - SeeAlso: G. Niemeyer's Geohash, 2008; base-32 alphabet without a, i, l, o.
public struct Geohash: Hashable, Sendable, CustomStringConvertible {
    public static let characters = 5
    /// Longer texts are refused; what is beyond five characters is cut off.
    public static let maximumCharacters = 12

    private static let columns: UInt16 = 1 << 13
    private static let rows: UInt16 = 1 << 12

    /// Counted eastward from the antimeridian. Range: 0 to 8191.
    let column: UInt16
    /// Counted northward from the south pole. Range: 0 to 4095.
    let row: UInt16

    private init(column: UInt16, row: UInt16) {
        self.column = column & (Self.columns - 1)
        self.row = row
    }

    /// Reads 5 to 12 characters in any case and keeps the first five; `nil` for anything else.
    public init?(parsing text: Span<UInt8>) {
        guard text.count >= Self.characters, text.count <= Self.maximumCharacters else {
            return nil
        }
        var bits: UInt32 = 0
        for index in 0..<text.count {
            guard let value = Self.value(text[index]) else { return nil }
            if index < Self.characters { bits = bits << 5 | UInt32(value) }
        }
        // 25 bits, longitude and latitude in turn, longitude first and last.
        var column: UInt16 = 0
        var row: UInt16 = 0
        for place in stride(from: 24, through: 0, by: -1) {
            let bit = UInt16(bits >> UInt32(place) & 1)
            if place % 2 == 0 { column = column << 1 | bit } else { row = row << 1 | bit }
        }
        self.init(column: column, row: row)
    }

    public init?(_ text: String) {
        let bytes = ByteBuffer(text.utf8)
        self.init(parsing: bytes.span)
    }

    /// The cell around a point; `nil` if a value is out of range.
    ///
    /// Unit: degrees (WGS 84), latitude -90...90, longitude -180...180.
    public init?(latitude: Double, longitude: Double) {
        guard abs(latitude) <= 90, abs(longitude) <= 180 else { return nil }
        let x = (longitude + 180) / 360 * Double(Self.columns)
        let y = (latitude + 90) / 180 * Double(Self.rows)
        // The end of each range belongs to the last cell.
        self.init(
            column: min(UInt16(x), Self.columns - 1), row: min(UInt16(y), Self.rows - 1))
    }

    /// The eight cells around this one, from the north clockwise. Columns go on across the
    /// antimeridian; beyond a pole lie the cells of the same row half a turn away.
    public var neighbors: [Geohash] {
        [(0, 1), (1, 1), (1, 0), (1, -1), (0, -1), (-1, -1), (-1, 0), (-1, 1)].map {
            (east: Int, north: Int) in
            let target = Int(row) + north
            let isBeyondPole = target < 0 || target >= Int(Self.rows)
            let turn = isBeyondPole ? Int(Self.columns) / 2 : 0
            let shifted = Int(column) + east + turn + Int(Self.columns)
            return Geohash(
                column: UInt16(shifted % Int(Self.columns)),
                row: isBeyondPole ? row : UInt16(target))
        }
    }

    /// Five characters, lower case.
    public var description: String {
        var text = ByteBuffer()
        text.append(self)
        return text.span.text
    }

    private static func value(_ character: UInt8) -> UInt8? {
        switch character {
        case 0x30...0x39: return character - 0x30
        case 0x41...0x5A: return value(character | 0x20)
        case UInt8(ascii: "b")...UInt8(ascii: "h"): return character - UInt8(ascii: "b") + 10
        case UInt8(ascii: "j"), UInt8(ascii: "k"): return character - UInt8(ascii: "j") + 17
        case UInt8(ascii: "m"), UInt8(ascii: "n"): return character - UInt8(ascii: "m") + 19
        case UInt8(ascii: "p")...UInt8(ascii: "z"): return character - UInt8(ascii: "p") + 21
        default: return nil
        }
    }

    fileprivate static func character(_ value: UInt8) -> UInt8 {
        switch value {
        case 0..<10: 0x30 + value
        case 10..<17: UInt8(ascii: "b") + value - 10
        case 17, 18: UInt8(ascii: "j") + value - 17
        case 19, 20: UInt8(ascii: "m") + value - 19
        default: UInt8(ascii: "p") + value - 21
        }
    }
}

extension ByteBuffer {
    /// Appends five characters, lower case.
    public mutating func append(_ cell: Geohash) {
        for step in 0..<Geohash.characters {
            var value: UInt8 = 0
            for place in stride(from: 24 - step * 5, through: 20 - step * 5, by: -1) {
                // Every second place is the latitude's.
                let number = place % 2 == 0 ? cell.column : cell.row
                value = value << 1 | UInt8(number >> UInt16(place / 2) & 1)
            }
            append(Geohash.character(value))
        }
    }
}
