import Bytes
import Testing
import Zlib

@Suite("Unpacking gzip") struct InflateTests {
    private static func packed(_ bytes: [UInt8]) throws -> [UInt8] {
        let packed = try Deflate.pack(bytes.span)
        return packed.bytes
    }

    private static func unpack(_ bytes: [UInt8], limit: Int) throws(ZlibError) -> [UInt8] {
        var inflate = try Inflate(limit: limit)
        try inflate.unpack(bytes.span)
        return inflate.output.array
    }

    @Test("What was packed comes out again", arguments: [0, 1, 1_000, 1 << 20])
    func roundTrip(size: Int) throws {
        let bytes = (0..<size).map { UInt8(truncatingIfNeeded: $0 &* $0 >> 3) }
        #expect(try Self.unpack(Self.packed(bytes), limit: max(1, size)) == bytes)
    }

    @Test("What `gzip` wrote is read: header with a name, checksum, size")
    func gzip() throws {
        // printf 'a\n' | gzip -n
        let bytes: [UInt8] = [
            0x1F, 0x8B, 8, 0, 0, 0, 0, 0, 0, 3, 0x4B, 0xE4, 2, 0, 0x07, 0xA1, 0xEA, 0xDD, 2, 0, 0,
            0,
        ]
        #expect(try Self.unpack(bytes, limit: 16) == Array("a\n".utf8))
    }

    @Test("The limit itself comes out, one byte more does not")
    func limit() throws {
        let bytes = try Self.packed([UInt8](repeating: 7, count: 1_000))
        #expect(try Self.unpack(bytes, limit: 1_000).count == 1_000)
        #expect(throws: ZlibError.tooLarge) { try Self.unpack(bytes, limit: 999) }
    }

    @Test("A bomb of a gigabyte costs no more than the limit")
    func bomb() throws {
        // A thousand members of a megabyte each: a kilobyte apiece.
        let member = try Self.packed([UInt8](repeating: 0, count: 1 << 20))
        var bytes: [UInt8] = []
        for _ in 0..<1_000 { bytes += member }
        #expect(bytes.count < 2 << 20)
        var inflate = try Inflate(limit: 1 << 16)
        #expect(throws: ZlibError.tooLarge) { try inflate.unpack(bytes.span) }
        #expect(inflate.output.array == [])
        // And it is good for the next.
        let small = try Self.packed([1, 2, 3])
        try inflate.unpack(small.span)
        #expect(inflate.output.array == [1, 2, 3])
    }

    @Test("Members stand one after another, as `cat a.gz b.gz` puts them")
    func members() throws {
        let bytes = try Self.packed([1, 2]) + Self.packed([3])
        #expect(try Self.unpack(bytes, limit: 3) == [1, 2, 3])
        #expect(throws: ZlibError.tooLarge) { try Self.unpack(bytes, limit: 2) }
    }

    @Test("Every cut is told, and every changed byte but those that mean nothing")
    func damaged() throws {
        let plain = Array("telemetry, telemetry and telemetry".utf8)
        let bytes = try Self.packed(plain)
        for end in 0..<bytes.count {
            #expect(throws: ZlibError.truncated) {
                try Self.unpack(Array(bytes[..<end]), limit: 100)
            }
        }
        for index in bytes.indices where !(4..<10).contains(index) {
            var changed = bytes
            changed[index] ^= 0x10
            #expect(throws: ZlibError.self, "byte \(index)") {
                try Self.unpack(changed, limit: 100)
            }
        }
        #expect(throws: ZlibError.damaged) { try Self.unpack(Array("{}".utf8), limit: 9) }
        #expect(throws: ZlibError.damaged) { try Self.unpack(bytes + [0, 0, 0], limit: 100) }
    }
}
