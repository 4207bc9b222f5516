internal import Glibc

/// Finds the blank line that ends a request's head, over as many pieces as it comes in.
///
/// Only this decides where a head ends; a line feed without its carriage return is refused, since
/// parsers that disagree about line ends are how requests are smuggled (RFC 9112, section 2.2).
package struct HeadSearch {
    package enum Outcome: Equatable {
        /// The end has not come yet.
        case incomplete
        /// The head is `start ..< end` of the bytes.
        case complete(start: Int, end: Int)
        /// No continuation could make this a request.
        case malformed
    }

    private var start = 0
    private var lineStart = 0
    private var position = 0

    package init() {}

    /// `bytes` are all bytes since the last request; those of earlier calls are not searched again.
    package mutating func advance(over bytes: UnsafeRawBufferPointer) -> Outcome {
        guard let base = bytes.baseAddress else { return .incomplete }
        let octets = unsafe base.assumingMemoryBound(to: UInt8.self)
        while position < bytes.count {
            guard let found = unsafe memchr(base + position, 0x0A, bytes.count - position) else {
                position = bytes.count
                break
            }
            let feed = unsafe UnsafeRawPointer(found) - base
            position = feed + 1
            guard feed > lineStart, unsafe octets[feed - 1] == 0x0D else { return .malformed }
            let isBlank = feed - 1 == lineStart
            lineStart = position
            guard isBlank else { continue }
            // Blank lines before a request line are ignored (RFC 9112, section 2.2).
            if start == feed - 1 {
                start = position
            } else {
                return unsafe ByteClass.isToken(octets[start])
                    ? .complete(start: start, end: position) : .malformed
            }
        }
        // Other protocols (TLS, for one) are refused at their first byte instead of timing out.
        if start < bytes.count {
            let first = unsafe octets[start]
            guard ByteClass.isToken(first) || first == 0x0D else { return .malformed }
        }
        return .incomplete
    }
}

/// Classes of bytes in HTTP (RFC 9110, section 5.6.2).
enum ByteClass {
    /// Whether the byte may stand in a method or a header's name.
    @inline(__always)
    static func isToken(_ byte: UInt8) -> Bool {
        // One bit a character: ! # $ % & ' * + - . 0-9 A-Z ^ _ ` a-z | ~
        let low: UInt64 = 0x03FF_6CFA_0000_0000
        let high: UInt64 = 0x57FF_FFFF_C7FF_FFFE
        if byte < 64 { return low >> UInt64(byte) & 1 == 1 }
        return byte < 128 && high >> UInt64(byte - 64) & 1 == 1
    }

    /// Whether the byte is a control character that no header's value may hold.
    @inline(__always)
    static func isForbiddenInValue(_ byte: UInt8) -> Bool {
        (byte < 0x20 && byte != 0x09) || byte == 0x7F
    }
}
