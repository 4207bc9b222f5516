/// Growable bytes with the encodings that the log, the database and HTTP need.
///
/// A value type: copies share storage until one of them is written to. `removeAll` keeps the
/// capacity, so a buffer that is reused allocates nothing once it has grown.
public struct ByteBuffer: Hashable, Sendable {
    @usableFromInline var storage: ContiguousArray<UInt8>

    public init() { storage = [] }

    public init(_ bytes: some Sequence<UInt8>) { storage = ContiguousArray(bytes) }

    public init(copying bytes: Span<UInt8>) {
        storage = []
        append(bytes)
    }

    @inlinable public var count: Int { storage.count }
    @inlinable public var isEmpty: Bool { storage.isEmpty }
    @inlinable public var span: Span<UInt8> {
        @_lifetime(borrow self) get { storage.span }
    }

    /// The bytes as an array, copied.
    public var bytes: [UInt8] { Array(storage) }

    @inlinable public subscript(index: Int) -> UInt8 {
        get { storage[index] }
        set { storage[index] = newValue }
    }

    public mutating func reserveCapacity(_ capacity: Int) { storage.reserveCapacity(capacity) }

    @inlinable public mutating func removeAll() { storage.removeAll(keepingCapacity: true) }

    /// Gives the storage back as well.
    public mutating func release() { storage = [] }

    @inlinable public mutating func truncate(to count: Int) {
        storage.removeLast(storage.count - count)
    }

    @inlinable public mutating func append(_ byte: UInt8) { storage.append(byte) }

    @inlinable public mutating func append(_ bytes: Span<UInt8>) {
        unsafe bytes.withUnsafeBufferPointer { unsafe storage.append(contentsOf: $0) }
    }

    @inlinable public mutating func append(_ other: ByteBuffer) {
        storage.append(contentsOf: other.storage)
    }

    @inlinable public mutating func append(_ bytes: [UInt8]) { storage.append(contentsOf: bytes) }

    @inlinable public mutating func append(_ text: StaticString) {
        unsafe storage.append(
            contentsOf: UnsafeBufferPointer(start: text.utf8Start, count: text.utf8CodeUnitCount))
    }

    @inlinable public mutating func append(text: some StringProtocol) {
        storage.append(contentsOf: text.utf8)
    }

    @inlinable public mutating func appendBigEndian<Value: FixedWidthInteger>(_ value: Value) {
        unsafe Swift.withUnsafeBytes(of: value.bigEndian) { unsafe storage.append(contentsOf: $0) }
    }

    @inlinable public mutating func appendLittleEndian<Value: FixedWidthInteger>(_ value: Value) {
        unsafe Swift.withUnsafeBytes(of: value.littleEndian) {
            unsafe storage.append(contentsOf: $0)
        }
    }

    /// Overwrites bytes that are already there; `offset + size` must not pass the end.
    public mutating func setBigEndian<Value: FixedWidthInteger>(_ value: Value, at offset: Int) {
        precondition(offset >= 0 && offset + MemoryLayout<Value>.size <= storage.count)
        unsafe Swift.withUnsafeBytes(of: value.bigEndian) { source in
            for index in 0..<source.count { storage[offset + index] = unsafe source[index] }
        }
    }

    /// Appends a decimal number.
    @inlinable public mutating func append(decimal value: Int64) {
        if value < 0 { storage.append(0x2D) }
        append(decimal: value.magnitude)
    }

    /// Appends a decimal number.
    @inlinable public mutating func append(decimal value: UInt64) {
        var digits = InlineArray<20, UInt8>(repeating: 0)
        var rest = value
        var start = 20
        repeat {
            start -= 1
            digits[start] = 0x30 + UInt8(truncatingIfNeeded: rest % 10)
            rest /= 10
        } while rest != 0
        append(digits.span.extracting(start..<20))
    }

    /// Appends lower-case hexadecimal digits, the highest first; at most 16.
    @inlinable public mutating func append(hexadecimal value: UInt64, digits: Int) {
        if digits > 8 { append(hexadecimal: value >> 32, digits: digits - 8) }
        let low = Self.hexadecimal(UInt32(truncatingIfNeeded: value))
        let count = min(digits, 8)
        unsafe Swift.withUnsafeBytes(of: low.littleEndian) {
            unsafe storage.append(contentsOf: $0[(8 - count)...])
        }
    }

    /// Eight lower-case hexadecimal digits, the highest in the lowest byte.
    @inlinable public static func hexadecimal(_ value: UInt32) -> UInt64 {
        // Spreads the nibbles over the bytes, then adds what makes each a digit or a letter.
        var spread = UInt64(value)
        spread = (spread | spread << 16) & 0x0000_FFFF_0000_FFFF
        spread = (spread | spread << 8) & 0x00FF_00FF_00FF_00FF
        spread = (spread | spread << 4) & 0x0F0F_0F0F_0F0F_0F0F
        let isLetter = (spread &+ 0x0606_0606_0606_0606) >> 4 & 0x0101_0101_0101_0101
        return (spread &+ 0x3030_3030_3030_3030 &+ isLetter &* 0x27).byteSwapped
    }

    /// Lends the bytes to C.
    @inlinable public func withUnsafeBytes<Result, Failure: Error>(
        _ body: (UnsafeRawBufferPointer) throws(Failure) -> Result
    ) throws(Failure) -> Result {
        unsafe try storage.span.withUnsafeBytes { (raw) throws(Failure) in unsafe try body(raw) }
    }

    /// Lends the bytes to C, which may write to them.
    @inlinable public mutating func withUnsafeMutableBytes<Result, Failure: Error>(
        _ body: (UnsafeMutableRawBufferPointer) throws(Failure) -> Result
    ) throws(Failure) -> Result {
        var span = storage.mutableSpan
        return unsafe try span.withUnsafeMutableBytes { (raw) throws(Failure) in
            unsafe try body(raw)
        }
    }
}

/// Reads numbers from bytes in order; every read checks the end.
///
/// Inlinable, so that callers in other modules read with one load and not through generic code.
public struct ByteReader: ~Escapable {
    @usableFromInline let bytes: Span<UInt8>
    /// Bytes that were read.
    @inlinable public var offset: Int { place }
    @usableFromInline var place = 0

    @inlinable @_lifetime(copy bytes)
    public init(_ bytes: Span<UInt8>) { self.bytes = bytes }

    @inlinable public var remaining: Int { bytes.count - place }

    /// `nil` if fewer bytes are left than the number needs.
    @inlinable @_lifetime(self: copy self)
    public mutating func littleEndian<Value: FixedWidthInteger & BitwiseCopyable>(
        _ type: Value.Type
    ) -> Value? {
        let size = MemoryLayout<Value>.size
        guard bytes.count - place >= size else { return nil }
        let start = place
        place += size
        return unsafe bytes.withUnsafeBytes {
            unsafe Value(littleEndian: $0.loadUnaligned(fromByteOffset: start, as: Value.self))
        }
    }

    /// `nil` if fewer bytes are left than the number needs.
    @inlinable @_lifetime(self: copy self)
    public mutating func bigEndian<Value: FixedWidthInteger & BitwiseCopyable>(
        _ type: Value.Type
    ) -> Value? {
        guard let value = littleEndian(type) else { return nil }
        return value.byteSwapped
    }

    /// `nil` if fewer than `count` bytes are left.
    @inlinable @_lifetime(self: copy self)
    public mutating func take(_ count: Int) -> Range<Int>? {
        guard count >= 0, remaining >= count else { return nil }
        defer { place += count }
        return place..<(place + count)
    }
}

extension Span where Element == UInt8 {
    /// Whether the bytes are those of `text`.
    @inlinable public func equals(_ text: StaticString) -> Bool {
        guard count == text.utf8CodeUnitCount else { return false }
        let start = unsafe text.utf8Start
        for index in 0..<count where unsafe self[index] != start[index] { return false }
        return true
    }

    /// Eight bytes from `offset` on, the first one lowest; they must all be there.
    @inlinable public func littleEndianWord(at offset: Int) -> UInt64 {
        precondition(offset >= 0 && offset + 8 <= count)
        return unsafe withUnsafeBytes {
            unsafe UInt64(littleEndian: $0.loadUnaligned(fromByteOffset: offset, as: UInt64.self))
        }
    }

    /// The bytes as an array, copied.
    @inlinable public var array: [UInt8] {
        unsafe withUnsafeBufferPointer { unsafe Array($0) }
    }

    /// The bytes as text; what is not UTF-8 becomes U+FFFD.
    @inlinable public var text: String {
        unsafe withUnsafeBufferPointer { unsafe String(decoding: $0, as: UTF8.self) }
    }
}
