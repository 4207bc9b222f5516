import Bytes
import Crypto
import Foundation
import Glibc
import Schemas
import Testing

/// Secrets, and every form in which they could have been written somewhere.
struct SecretSearch {
    private struct Form {
        var name: String
        var bytes: [UInt8]
    }

    private var forms: [Form] = []
    /// Forms by their first two bytes.
    private var beginnings = [[Int]](repeating: [], count: 1 << 16)
    /// A file is read in pieces; what stands across two is found in the overlap.
    private static let pieceBytes = 4 << 20
    private var longest = 0

    /// Adds bytes that are secret as they are: raw, hexadecimal in both cases, Base64 and Base64 for URLs
    /// wherever they begin in what was encoded.
    mutating func add(_ name: String, raw: [UInt8]) {
        add("raw \(name)", raw)
        let buffer = ByteBuffer(raw)
        let hex = Hex.encode(buffer.span)
        add("hex \(name)", Array(hex.utf8))
        add("upper hex \(name)", Array(hex.uppercased().utf8))
        for shift in 0..<3 {
            let padded = ByteBuffer([UInt8](repeating: 0, count: shift) + raw)
            let text = Base64.encode(padded.span)
            // What depends on the neighbours is left out.
            let first = [0, 2, 3][shift]
            let bits = (shift + raw.count) * 8
            let core = String(text.prefix(bits / 6).dropFirst(first))
            add("base64 \(name)", Array(core.utf8))
            let url = core.replacing("+", with: "-").replacing("/", with: "_")
            if url != core { add("base64url \(name)", Array(url.utf8)) }
        }
    }

    /// Adds a text that is secret, and what it encodes.
    mutating func add(_ name: String, text: String) {
        add(name, raw: Array(text.utf8))
        let digits = ByteBuffer(text.utf8)
        if text.count >= 32, let bytes = Hex.decode(digits.span) {
            add("decoded \(name)", raw: bytes)
        }
    }

    /// Adds a registration token.
    mutating func add(_ name: String, token: String) throws {
        let id = try #require(DeviceID(token))
        add(name, raw: Array(token.utf8))
        add(name, raw: Array(token.uppercased().utf8))
        var bytes = ByteBuffer()
        bytes.appendBigEndian(id.high)
        bytes.appendBigEndian(id.low)
        add("decoded \(name)", raw: bytes.bytes)
    }

    private mutating func add(_ name: String, _ bytes: [UInt8]) {
        // Anything shorter is found by chance.
        precondition(bytes.count >= 10, "\(name) is too short to be searched")
        guard !forms.contains(where: { $0.bytes == bytes }) else { return }
        beginnings[Int(bytes[0]) << 8 | Int(bytes[1])].append(forms.count)
        forms.append(Form(name: name, bytes: bytes))
        longest = max(longest, bytes.count)
    }

    /// Names of what stands in these bytes, each once.
    func found(in bytes: [UInt8]) -> [String] {
        var found: Set<Int> = []
        // One pass for all forms: there are hundreds of them, and gigabytes to look at.
        let isBeginning = beginnings.map { !$0.isEmpty }
        unsafe bytes.withUnsafeBufferPointer { bytes in
            unsafe isBeginning.withUnsafeBufferPointer { isBeginning in
                var index = 0
                while index + 1 < bytes.count {
                    let pair = unsafe Int(bytes[index]) << 8 | Int(bytes[index + 1])
                    if unsafe isBeginning[pair] {
                        for form in beginnings[pair] {
                            let pattern = forms[form].bytes
                            if index + pattern.count <= bytes.count,
                                unsafe memcmp(
                                    bytes.baseAddress! + index, pattern, pattern.count) == 0
                            {
                                found.insert(form)
                            }
                        }
                    }
                    index += 1
                }
            }
        }
        return found.sorted().map { forms[$0].name }
    }

    func found(in text: String) -> [String] { found(in: Array(text.utf8)) }

    /// Searches every file below a folder.
    /// - Parameters:
    ///   - excluded: paths in it that are not looked at.
    ///   - known: what may be found, and will be if this searches as it should.
    /// - Returns: what was found and where, the files that were read, and whether `known` was there.
    func found(
        below folder: String, except excluded: Set<String>, known: [UInt8]
    ) throws -> (secrets: [String], files: Int, isKnownFound: Bool) {
        var secrets: [String] = []
        var files = 0
        var isKnownFound = false
        var knownSearch = SecretSearch()
        knownSearch.add("what is known", known)
        let paths = try #require(FileManager.default.enumerator(atPath: folder))
        for case let file as String in paths where !excluded.contains(file) {
            let path = "\(folder)/\(file)"
            var isDirectory: ObjCBool = false
            guard unsafe FileManager.default.fileExists(atPath: path, isDirectory: &isDirectory),
                !isDirectory.boolValue, let handle = FileHandle(forReadingAtPath: path)
            else { continue }
            files += 1
            var rest: [UInt8] = []
            while let piece = try handle.read(upToCount: Self.pieceBytes), !piece.isEmpty {
                let bytes = rest + piece
                secrets += found(in: bytes).map { "\($0) in \(file)" }
                isKnownFound = isKnownFound || !knownSearch.found(in: bytes).isEmpty
                rest = Array(bytes.suffix(longest))
            }
            try handle.close()
        }
        return (secrets, files, isKnownFound)
    }
}
