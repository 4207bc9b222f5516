public import Bytes
internal import Crypto

/// 128 bits that name something of the proximity service, written as a UUID (RFC 9562). Compared by
/// the bits, so upper and lower case are the same, and in the order of the lower-case texts.
public protocol ProximityID: Hashable, Comparable, Sendable, CustomStringConvertible {
    var high: UInt64 { get }
    var low: UInt64 { get }

    init(high: UInt64, low: UInt64)
}

extension ProximityID {
    /// Reads the 36-character form in any case; `nil` for anything else.
    public init?(parsing text: Span<UInt8>) {
        guard let bits = DeviceID(parsing: text) else { return nil }
        self.init(high: bits.high, low: bits.low)
    }

    public init?(_ text: String) {
        guard let bits = DeviceID(text) else { return nil }
        self.init(high: bits.high, low: bits.low)
    }

    public static func < (a: Self, b: Self) -> Bool {
        a.high != b.high ? a.high < b.high : a.low < b.low
    }

    /// The lower-case form with hyphens.
    public var description: String { DeviceID(high: high, low: low).description }
}

extension ByteBuffer {
    /// Appends the 36-character lower-case form.
    public mutating func append(_ id: some ProximityID) {
        append(DeviceID(high: id.high, low: id.low))
    }
}

/// A person's account: a random subject id, which names nobody outside the database.
public struct AccountID: ProximityID {
    public var high: UInt64
    public var low: UInt64

    public init(high: UInt64, low: UInt64) {
        self.high = high
        self.low = low
    }
}

/// A report of an encounter, by the id that the reporting client gave it.
public struct EncounterID: ProximityID {
    public var high: UInt64
    public var low: UInt64

    public init(high: UInt64, low: UInt64) {
        self.high = high
        self.low = low
    }
}

/// Two accounts that waved at each other. There is one for a pair of accounts, whoever waved first
/// and however often: it follows from the pair (`AccountPair.connection`).
public struct ConnectionID: ProximityID {
    public var high: UInt64
    public var low: UInt64

    public init(high: UInt64, low: UInt64) {
        self.high = high
        self.low = low
    }
}

/// Two different accounts, in no order: the key of what goes on between them.
public struct AccountPair: Hashable, Sendable, CustomStringConvertible {
    /// The length of the key: two ids and a colon. Unit: bytes.
    public static let keyBytes = 73

    /// The account whose id comes first in byte order.
    public let first: AccountID
    public let second: AccountID

    /// `nil` if both are the same.
    public init?(_ a: AccountID, _ b: AccountID) {
        guard a != b else { return nil }
        first = min(a, b)
        second = max(a, b)
    }

    /// Reads a record's key; `nil` for anything but two ids in their order.
    public init?(parsing key: Span<UInt8>) {
        guard key.count == Self.keyBytes, key[36] == UInt8(ascii: ":"),
            let first = AccountID(parsing: key.extracting(0..<36)),
            let second = AccountID(parsing: key.extracting(37..<73)), first < second
        else { return nil }
        self.first = first
        self.second = second
    }

    /// The other account of the pair; `nil` if `account` is none of it.
    public func other(than account: AccountID) -> AccountID? {
        account == first ? second : account == second ? first : nil
    }

    /// The pair's connection: a UUID of version 8 from the SHA-256 of the pair (RFC 9562, section
    /// 5.8). Never change how it is made: rows and clients keep it.
    public var connection: ConnectionID {
        var text = ByteBuffer()
        text.append("connection:")
        text.append(self)
        let (high, low) = SHA256.hash(text.span).uuid
        return ConnectionID(high: high, low: low)
    }

    /// The key: the two ids in byte order, joined by a colon.
    public var description: String {
        var text = ByteBuffer()
        text.append(self)
        return text.span.text
    }
}

extension ByteBuffer {
    /// Appends the key of records about the pair.
    public mutating func append(_ pair: AccountPair) {
        append(pair.first)
        append(UInt8(ascii: ":"))
        append(pair.second)
    }
}
