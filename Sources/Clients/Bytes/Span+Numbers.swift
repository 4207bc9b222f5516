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
}
