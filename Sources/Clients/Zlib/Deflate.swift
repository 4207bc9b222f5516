public import Bytes
internal import CZlib

/// Packs as gzip (RFC 1952).
public enum Deflate {
    /// - Parameter bytes: less than 4 GiB.
    /// - Throws: `outOfMemory`.
    public static func pack(_ bytes: Span<UInt8>) throws(ZlibError) -> ByteBuffer {
        precondition(bytes.count < Int(UInt32.max))
        let stream = UnsafeMutablePointer<z_stream>.allocate(capacity: 1)
        unsafe stream.initialize(to: z_stream())
        defer { unsafe stream.deallocate() }
        guard unsafe heartline_deflate_init(stream) == Z_OK else { throw .outOfMemory }
        defer { unsafe deflateEnd(stream) }
        let bound = unsafe Int(deflateBound(stream, UInt(bytes.count)))
        var packed = ByteBuffer([UInt8](repeating: 0, count: bound))
        let written = unsafe bytes.withUnsafeBufferPointer { input in
            unsafe packed.withUnsafeMutableBytes { output -> Int? in
                unsafe stream.pointee.next_in = UnsafeMutablePointer(mutating: input.baseAddress)
                unsafe stream.pointee.avail_in = UInt32(input.count)
                unsafe stream.pointee.next_out =
                    output.baseAddress?.assumingMemoryBound(to: UInt8.self)
                unsafe stream.pointee.avail_out = UInt32(output.count)
                guard unsafe deflate(stream, Z_FINISH) == Z_STREAM_END else { return nil }
                return unsafe output.count - Int(stream.pointee.avail_out)
            }
        }
        guard let written else { throw .outOfMemory }
        packed.truncate(to: written)
        return packed
    }
}
