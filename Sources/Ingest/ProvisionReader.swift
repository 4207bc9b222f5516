internal import Bytes
internal import JSON
internal import Schemas

/// Reads the body of `POST /api/v1/provision` (agent contract, "Provisioning"). One for each thread.
struct ProvisionReader: ~Copyable {
    enum Reading {
        case request(ProvisionRequest)
        case invalidJSON
        case invalidToken
        case invalidHardwareID
        case outOfMemory
    }

    private static let fields = JSONFields(["token", "hwid"])
    private var parser = JSONParser(fields)

    /// Looks at the token before the hardware id, as the order of the contract's answers is.
    mutating func read(_ body: Span<UInt8>) -> Reading {
        do throws(JSONError) {
            try parser.parse(body)
        } catch {
            switch error {
            // JSON it is, but nothing that could have a token.
            case .notAnObject: return .invalidToken
            case .outOfMemory: return .outOfMemory
            default: return .invalidJSON
            }
        }
        guard let token = parser.withString(0, { DeviceID(parsing: $0) }) ?? nil else {
            return .invalidToken
        }
        let hardwareID = parser.withString(1) { text -> ByteBuffer? in
            HardwareID.isValid(text) ? ByteBuffer(copying: text) : nil
        }
        guard let hardwareID = hardwareID ?? nil else { return .invalidHardwareID }
        return .request(ProvisionRequest(tokenDigest: token.tokenDigest, hardwareID: hardwareID))
    }
}

/// What an agent names its hardware by.
package enum HardwareID {
    /// Longest id, in Unicode scalars.
    package static let maximumScalars = 256

    /// Whether `text`, which is UTF-8, is 1 to 256 printable characters.
    ///
    /// A character is one Unicode scalar, so that every implementation counts alike: an emoji may be
    /// several. Printable is all but the control characters (U+0000…U+001F, U+007F…U+009F) and the line and
    /// paragraph separators (U+2028, U+2029): what could break a line of a list or a log. An unpaired
    /// surrogate is no character, and JSON with one has been refused before.
    package static func isValid(_ text: Span<UInt8>) -> Bool {
        var scalars = 0
        for index in 0..<text.count {
            let byte = text[index]
            if byte < 0x20 || byte == 0x7F { return false }
            if byte & 0xC0 == 0x80 { continue }
            scalars += 1
            if byte == 0xC2, index + 1 < text.count, text[index + 1] < 0xA0 { return false }
            if byte == 0xE2, index + 2 < text.count, text[index + 1] == 0x80,
                text[index + 2] == 0xA8 || text[index + 2] == 0xA9
            {
                return false
            }
        }
        return scalars >= 1 && scalars <= maximumScalars
    }
}
