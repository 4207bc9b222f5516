public import Bytes
internal import CSimdjson

/// JSON written byte by byte, for hot paths: no `String`, no encoder, no allocation of its own.
extension ByteBuffer {
    /// Appends a JSON string with quotes. The bytes must be UTF-8; U+0000 becomes U+FFFD, because
    /// PostgreSQL cannot hold it.
    public mutating func append(jsonString bytes: Span<UInt8>) {
        append(UInt8(ascii: "\""))
        var start = 0
        for index in 0..<bytes.count {
            let byte = bytes[index]
            if byte >= 0x20 && byte != 0x22 && byte != 0x5C { continue }
            if start < index { append(bytes.extracting(start..<index)) }
            start = index + 1
            switch byte {
            case 0: append("\u{FFFD}")
            case 0x22: append("\\\"")
            case 0x5C: append("\\\\")
            case 0x0A: append("\\n")
            case 0x0D: append("\\r")
            case 0x09: append("\\t")
            default:
                append("\\u00")
                append(hexadecimal: UInt64(byte), digits: 2)
            }
        }
        if start < bytes.count { append(bytes.extracting(start..<bytes.count)) }
        append(UInt8(ascii: "\""))
    }

    /// Appends a JSON string with quotes.
    public mutating func append(jsonString text: String) {
        append(jsonString: ByteBuffer(text.utf8).span)
    }

    /// Appends a finite number, as the shortest text that reads as the same.
    public mutating func append(jsonNumber value: Double) {
        precondition(value.isFinite, "JSON has no such number")
        if let whole = Int64(exactly: value), whole.magnitude < 1 << 53 {
            append(decimal: whole)
            return
        }
        var text = InlineArray<32, UInt8>(repeating: 0)
        var span = text.mutableSpan
        let count = unsafe span.withUnsafeMutableBytes { bytes in
            unsafe heartline_json_write_number(
                value, bytes.baseAddress!.assumingMemoryBound(to: CChar.self))
        }
        append(text.span.extracting(0..<count))
    }
}
