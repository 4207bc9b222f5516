internal import CWslay
internal import Glibc

/// Takes the frames of one client out of its bytes (RFC 6455, section 5), by libwslay.
///
/// libwslay keeps 4 KiB for each reader. So a connection has one only while it is in the middle of a
/// frame, and its loop keeps a few for whoever comes next.
@safe final class FrameReader {
    /// The payload of a frame, or as much of it as there is.
    @safe struct Part {
        var opcode: UInt8
        var isFinal: Bool
        var reservedBits: UInt8
        var isMasked: Bool
        /// Of the whole frame.
        var length: UInt64
        /// Unmasked; valid until the next part is asked for.
        let bytes: UnsafeRawBufferPointer
        var startsFrame: Bool
        var endsFrame: Bool

        var isControl: Bool { opcode & 8 != 0 }
    }

    enum Outcome {
        case part(Part)
        /// Every byte was used.
        case needsInput
        /// No more can be read: a control frame too long or in pieces, or a length not as short as
        /// it could be.
        case malformed
    }

    private var context: wslay_frame_context_ptr?
    // What was fed and has not been copied by libwslay yet.
    private var input: UnsafeRawPointer?
    private var inputCount = 0
    /// Fed, and no part of a frame's head or payload that was handed out.
    private var unused = 0
    private var payloadLeft: UInt64 = 0
    private var isInFrame = false

    init() {
        unsafe input = nil
        unsafe context = nil
        var callbacks = unsafe wslay_frame_callbacks(
            send_callback: nil,
            recv_callback: { target, capacity, _, reader in
                guard let reader = unsafe reader, let target = unsafe target else { return -1 }
                return unsafe Unmanaged<FrameReader>.fromOpaque(reader).takeUnretainedValue()
                    .copy(to: target, capacity)
            },
            genmask_callback: nil)
        let result = unsafe wslay_frame_context_init(
            &context, &callbacks, Unmanaged.passUnretained(self).toOpaque())
        guard result == 0 else {
            fatalError("reading WebSocket frames: the system has no memory left")
        }
    }

    deinit { unsafe wslay_frame_context_free(context) }

    /// Whether it holds nothing of a frame that has begun.
    var isEmpty: Bool { unused == 0 && !isInFrame }

    /// Lends more bytes, which must stay until `next` says that it needs input.
    func feed(_ bytes: UnsafeRawBufferPointer) {
        unsafe input = bytes.baseAddress
        inputCount = bytes.count
        unused += bytes.count
    }

    func next() -> Outcome {
        var frame = unsafe wslay_frame_iocb()
        let result = unsafe wslay_frame_recv(context, &frame)
        guard result >= 0 else {
            return result == Int(WSLAY_ERR_WANT_READ.rawValue) ? .needsInput : .malformed
        }
        let length = unsafe frame.payload_length
        let isMasked = unsafe frame.mask != 0
        let startsFrame = !isInFrame
        if startsFrame {
            // Lengths come in the shortest form, or libwslay would have refused them.
            unused -= 2 + (length < 126 ? 0 : length <= 0xFFFF ? 2 : 8) + (isMasked ? 4 : 0)
            payloadLeft = length
        }
        unused -= result
        payloadLeft -= UInt64(result)
        isInFrame = payloadLeft > 0
        return unsafe .part(
            Part(
                opcode: frame.opcode, isFinal: frame.fin != 0, reservedBits: frame.rsv,
                isMasked: isMasked, length: length,
                bytes: UnsafeRawBufferPointer(start: frame.data, count: result),
                startsFrame: startsFrame, endsFrame: !isInFrame))
    }

    private func copy(to target: UnsafeMutablePointer<UInt8>, _ capacity: Int) -> Int {
        let count = min(capacity, inputCount)
        guard count > 0, let source = unsafe input else { return -1 }
        unsafe memcpy(target, source, count)
        unsafe input = source + count
        inputCount -= count
        return count
    }
}

/// The head of a frame that a server sends: whole, and not masked (RFC 6455, section 5.2).
struct FrameHead {
    private(set) var bytes = InlineArray<10, UInt8>(repeating: 0)
    private(set) var count = 2

    init(opcode: UInt8, length: Int) {
        bytes[0] = 0x80 | opcode
        if length < 126 {
            bytes[1] = UInt8(length)
            return
        }
        bytes[1] = length <= 0xFFFF ? 126 : 127
        count = length <= 0xFFFF ? 4 : 10
        for index in 2..<count {
            bytes[index] = UInt8(truncatingIfNeeded: length >> (8 * (count - 1 - index)))
        }
    }
}

/// Whether bytes that come in pieces are UTF-8 (Unicode 16, table 3-7).
struct UTF8Check {
    /// How many bytes of the character are still to come.
    private var missing: UInt8 = 0
    // What the next of them may be: not always all of 80 to BF.
    private var lowest: UInt8 = 0x80
    private var highest: UInt8 = 0xBF

    /// Whether no character is incomplete.
    var isComplete: Bool { missing == 0 }

    /// - Returns: false at a byte that cannot stand where it does.
    mutating func advance(over bytes: UnsafeRawBufferPointer) -> Bool {
        var index = 0
        while index < bytes.count {
            if missing == 0 {
                while index + 8 <= bytes.count,
                    unsafe bytes.loadUnaligned(fromByteOffset: index, as: UInt64.self)
                        & 0x8080_8080_8080_8080 == 0
                {
                    index += 8
                }
                guard index < bytes.count else { return true }
                let byte = unsafe bytes[index]
                (lowest, highest) = (0x80, 0xBF)
                switch byte {
                case 0x00...0x7F: missing = 0
                case 0xC2...0xDF: missing = 1
                case 0xE0: (missing, lowest) = (2, 0xA0)
                case 0xED: (missing, highest) = (2, 0x9F)
                case 0xE1...0xEF: missing = 2
                case 0xF0: (missing, lowest) = (3, 0x90)
                case 0xF1...0xF3: missing = 3
                case 0xF4: (missing, highest) = (3, 0x8F)
                default: return false
                }
            } else {
                let byte = unsafe bytes[index]
                guard byte >= lowest, byte <= highest else { return false }
                (lowest, highest) = (0x80, 0xBF)
                missing -= 1
            }
            index += 1
        }
        return true
    }
}
