internal import Glibc

extension Span where Element == UInt8 {
    /// The little-endian number that begins at `offset`.
    ///
    /// - Precondition: the number lies within the bytes.
    @inlinable public func littleEndian<Value: FixedWidthInteger & BitwiseCopyable>(
        at offset: Int, as type: Value.Type = Value.self
    ) -> Value {
        precondition(offset >= 0 && offset <= count - MemoryLayout<Value>.size)
        return unsafe Value(
            littleEndian: bytes.unsafeLoadUnaligned(fromByteOffset: offset, as: Value.self))
    }

    /// Where the next byte of this value stands, from `start` on; `nil` if none does.
    ///
    /// - Precondition: `start` is at most `count`.
    public func firstIndex(of byte: UInt8, from start: Int = 0) -> Int? {
        precondition(start >= 0 && start <= count)
        return unsafe withUnsafeBufferPointer { bytes in
            guard start < bytes.count, let base = bytes.baseAddress,
                let found = unsafe memchr(base + start, Int32(byte), bytes.count - start)
            else { return nil }
            return unsafe UnsafeRawPointer(found) - UnsafeRawPointer(base)
        }
    }

    /// The longest beginning of UTF-8 text that has at most `limit` bytes and cuts no character.
    public func utf8Prefix(_ limit: Int) -> Range<Int> {
        guard count > limit else { return 0..<count }
        var end = limit
        while end > 0, self[end] & 0xC0 == 0x80 { end -= 1 }
        return 0..<end
    }
}
