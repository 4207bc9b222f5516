/// Takes the chunked coding off a body (RFC 9112, section 7.1), over as many pieces as it comes in.
///
/// Strict: lines end with CR LF, sizes are hexadecimal digits, extensions and trailers are read,
/// ignored and bounded.
package struct ChunkedDecoder: Equatable {
    package enum Outcome: Equatable {
        /// More is needed.
        case incomplete
        /// The body ended.
        case complete
        case malformed
        /// The body is longer than the limit.
        case tooLarge
    }

    private enum State: Equatable {
        case size, extension_, sizeLineFeed
        case data, dataReturn, dataLineFeed
        case trailerStart, trailer, trailerLineFeed, lastLineFeed
        case done
    }

    package static let longestExtension = 256
    package static let longestTrailers = 4096

    private var state = State.size
    private var digits = 0
    private var left = 0
    private var lineBytes = 0
    private var trailerBytes = 0
    private var total = 0

    package init() {}

    /// Reads from `bytes`, and lends each run of data to `emit`.
    /// - Returns: what came of it, and how many bytes were read.
    package mutating func advance(
        over bytes: UnsafeRawBufferPointer, limit: Int,
        _ emit: (UnsafeRawBufferPointer) -> Void
    ) -> (outcome: Outcome, taken: Int) {
        var position = 0
        while position < bytes.count {
            if state == .data {
                let count = min(left, bytes.count - position)
                unsafe emit(
                    UnsafeRawBufferPointer(rebasing: bytes[position..<(position + count)]))
                position += count
                left -= count
                if left == 0 { state = .dataReturn }
                continue
            }
            let byte = unsafe bytes[position]
            position += 1
            switch state {
            case .size:
                if let digit = Self.hexadecimal(byte) {
                    digits += 1
                    // 15 digits do not overflow; nobody honest sends as many.
                    guard digits <= 15 else { return (.malformed, position) }
                    left = left << 4 | digit
                } else {
                    guard digits > 0 else { return (.malformed, position) }
                    switch byte {
                    case 0x0D: state = .sizeLineFeed
                    case 0x3B, 0x20, 0x09: state = .extension_
                    default: return (.malformed, position)
                    }
                }
            case .extension_:
                lineBytes += 1
                guard lineBytes <= Self.longestExtension else { return (.malformed, position) }
                if byte == 0x0D {
                    state = .sizeLineFeed
                } else if ByteClass.isForbiddenInValue(byte) {
                    return (.malformed, position)
                }
            case .sizeLineFeed:
                guard byte == 0x0A else { return (.malformed, position) }
                (digits, lineBytes) = (0, 0)
                guard left <= limit - total else { return (.tooLarge, position) }
                total += left
                state = left == 0 ? .trailerStart : .data
            case .dataReturn:
                guard byte == 0x0D else { return (.malformed, position) }
                state = .dataLineFeed
            case .dataLineFeed:
                guard byte == 0x0A else { return (.malformed, position) }
                state = .size
            case .trailerStart where byte == 0x0D: state = .lastLineFeed
            case .trailerStart, .trailer:
                trailerBytes += 1
                guard trailerBytes <= Self.longestTrailers else { return (.malformed, position) }
                if byte == 0x0D {
                    state = .trailerLineFeed
                } else if ByteClass.isForbiddenInValue(byte) {
                    return (.malformed, position)
                } else {
                    state = .trailer
                }
            case .trailerLineFeed:
                guard byte == 0x0A else { return (.malformed, position) }
                state = .trailerStart
            case .lastLineFeed:
                guard byte == 0x0A else { return (.malformed, position) }
                state = .done
                return (.complete, position)
            case .data, .done: preconditionFailure("a finished body was given more bytes")
            }
        }
        return (.incomplete, position)
    }

    private static func hexadecimal(_ byte: UInt8) -> Int? {
        switch byte {
        case 0x30...0x39: Int(byte) - 0x30
        case 0x41...0x46: Int(byte) - 0x37
        case 0x61...0x66: Int(byte) - 0x57
        default: nil
        }
    }
}
