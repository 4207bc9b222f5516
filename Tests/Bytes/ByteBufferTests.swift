import Bytes
import Testing

@Suite("Bytes")
struct ByteBufferTests {
    @Test(arguments: [0, 1, 9, 10, 123_456_789, Int64.max, Int64.min, -1])
    func decimalsAreThoseOfSwift(_ value: Int64) {
        var buffer = ByteBuffer()
        buffer.append(decimal: value)
        #expect(buffer.span.text == String(value))
    }

    @Test func numbersAreReadAsTheyWereWritten() {
        var buffer = ByteBuffer()
        buffer.appendBigEndian(Int64(-2))
        buffer.appendLittleEndian(UInt32(0xDEAD_BEEF))
        buffer.append(7)
        buffer.appendLittleEndian(Int16(-3))
        var reader = ByteReader(buffer.span)
        #expect(reader.bigEndian(Int64.self) == -2)
        #expect(reader.littleEndian(UInt32.self) == 0xDEAD_BEEF)
        #expect(reader.littleEndian(UInt8.self) == 7)
        #expect(reader.littleEndian(Int16.self) == -3)
        #expect(reader.littleEndian(UInt8.self) == nil)
        #expect(reader.take(1) == nil)
    }

    @Test func bytesCanBeOverwrittenInPlace() {
        var buffer = ByteBuffer()
        buffer.append("abcdefgh")
        buffer.setBigEndian(UInt32(0x3132_3334), at: 2)
        #expect(buffer.span.text == "ab1234gh")
    }
}
