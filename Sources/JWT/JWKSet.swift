internal import Bytes
public import Crypto
internal import JSON

/// The keys that an identity provider publishes (RFC 7517, section 5).
public struct JWKSet: Sendable {
    /// Larger documents are refused. Unit: bytes.
    public static let maximumBytes = 256 << 10
    /// More entries are refused.
    public static let maximumKeys = 100

    /// Those that can check tokens.
    public private(set) var keys: [JSONWebKey] = []
    /// Entries that were left out, in the set's order, for the log.
    public private(set) var skipped: [SkippedKey] = []

    /// An entry that checks no tokens.
    public struct SkippedKey: Hashable, Sendable, CustomStringConvertible {
        public enum Reason: Hashable, Sendable {
            case notAnObject
            /// A member of the wrong type or too long, by its name.
            case malformed(String)
            /// `kty` is neither `RSA` nor `EC`.
            case type
            /// `crv` is not `P-256`.
            case curve
            /// `alg` is neither RS256 nor ES256, or not one of this type of key.
            case algorithm
            /// `use` or `key_ops` is for something other than checking signatures.
            case use
            case noKeyID
            /// The set publishes a private key, which is nobody's secret any more.
            case privateKey
            /// The same key as an earlier entry, under the same id.
            case repeated
            /// Another key than the earlier entry of this id and algorithm; that one holds.
            case conflict
            case badKey(VerificationKeyError)
        }

        /// Its place in `keys`, from 0.
        public var index: Int
        public var reason: Reason

        package init(index: Int, reason: Reason) {
            self.index = index
            self.reason = reason
        }

        public var description: String {
            let text =
                switch reason {
                case .notAnObject: "it is not an object"
                case .malformed(let member): "its \(member) is malformed"
                case .type: "its kty is neither RSA nor EC"
                case .curve: "its crv is not P-256"
                case .algorithm: "its alg is neither RS256 nor ES256, or is not its kty's"
                case .use: "it is not for checking signatures"
                case .noKeyID: "it has no kid"
                case .privateKey: "it is a private key, and known to all; revoke it"
                case .repeated: "it repeats an earlier key"
                case .conflict: "an earlier key has its kid"
                case .badKey(let error): "\(error)"
                }
            return "key \(index) is left out: \(text)"
        }
    }

    /// Why a document was refused as a whole.
    public enum Failure: Error, Hashable, Sendable, CustomStringConvertible {
        case badJSON(String)
        /// `keys` is missing, or not an array.
        case noKeys
        case tooManyKeys(Int)
        /// Not one entry can check tokens.
        case noUsableKey([SkippedKey])

        public var description: String {
            switch self {
            case .badJSON(let reason): "reading a JWK set: \(reason)"
            case .noKeys: "reading a JWK set: it has no array keys"
            case .tooManyKeys(let count):
                "reading a JWK set: it has \(count) keys instead of at most \(maximumKeys)"
            case .noUsableKey(let skipped):
                "reading a JWK set: no key can check tokens"
                    + skipped.prefix(8).map { "; \($0)" }.joined()
            }
        }
    }

    /// Reads a set; entries that cannot check tokens are skipped and reported.
    public init(parsing document: Span<UInt8>) throws(Failure) {
        let set = JSONParser(Self.setFields, maximumBytes: Self.maximumBytes, maximumDepth: 16)
        do { try set.parse(document) } catch { throw .badJSON("\(error)") }
        guard set.kind(0) == .array else { throw .noKeys }
        let count = set.count(0)
        guard count <= Self.maximumKeys else { throw .tooManyKeys(count) }

        let entry = JSONParser(KeyField.names, maximumBytes: Self.maximumBytes, maximumDepth: 16)
        for index in 0..<count {
            do throws(Rejection) {
                guard let object = set.withObject(0, element: index, { $0.array }) else {
                    throw Rejection(.notAnObject)
                }
                add(try Self.readKey(object, with: entry), index: index)
            } catch {
                skipped.append(SkippedKey(index: index, reason: error.reason))
            }
        }
        guard !keys.isEmpty else { throw .noUsableKey(skipped) }
    }

    /// A set of given keys, as the reader would make it.
    public init(_ keys: [JSONWebKey]) {
        for (index, key) in keys.enumerated() { add(key, index: index) }
    }

    /// The key of an id and an algorithm; without one, whether the id is known at all.
    func key(id: Span<UInt8>, algorithm: JWTAlgorithm) throws(JWTRefusal) -> JSONWebKey {
        let id = id.text
        let named = keys.filter { $0.id.utf8.elementsEqual(id.utf8) }
        guard !named.isEmpty else { throw .keyIDUnknown }
        guard let key = named.first(where: { $0.algorithm == algorithm }) else {
            throw .algorithmMismatch
        }
        return key
    }

    private mutating func add(_ key: JSONWebKey, index: Int) {
        // One id may stand for keys of several types (RFC 7517, section 4.5), not for two of one.
        let earlier = keys.first {
            $0.id.utf8.elementsEqual(key.id.utf8) && $0.algorithm == key.algorithm
        }
        if let earlier {
            let isSame = earlier.thumbprint == key.thumbprint
            skipped.append(SkippedKey(index: index, reason: isSame ? .repeated : .conflict))
        } else {
            keys.append(key)
        }
    }
}

private struct Rejection: Error {
    var reason: JWKSet.SkippedKey.Reason
    init(_ reason: JWKSet.SkippedKey.Reason) { self.reason = reason }
}

private enum KeyField {
    static let kty = 0, use = 1, operations = 2, alg = 3, kid = 4
    static let n = 5, e = 6, crv = 7, x = 8, y = 9
    /// The private parts of RSA and elliptic curves (RFC 7518, section 6).
    static let secrets = 10..<17

    static let names = JSONFields([
        "kty", "use", "key_ops", "alg", "kid", "n", "e", "crv", "x", "y",
        "d", "p", "q", "dp", "dq", "qi", "oth",
    ])
}

extension JWKSet {
    private static let setFields = JSONFields(["keys"])

    private static func readKey(
        _ object: [UInt8], with entry: borrowing JSONParser
    )
        throws(Rejection) -> JSONWebKey
    {
        do { try entry.parse(object.span) } catch { throw Rejection(.notAnObject) }
        guard let type = try text(KeyField.kty, "kty", of: entry) else {
            throw Rejection(.malformed("kty"))
        }
        guard type == "RSA" || type == "EC" else { throw Rejection(.type) }
        if KeyField.secrets.contains(where: { entry.kind($0) != .absent }) {
            throw Rejection(.privateKey)
        }
        if let use = try text(KeyField.use, "use", of: entry), use != "sig" {
            throw Rejection(.use)
        }
        try checkOperations(of: entry)
        if type == "EC" {
            guard try text(KeyField.crv, "crv", of: entry) == "P-256" else {
                throw Rejection(.curve)
            }
        }
        // Without `alg` the type of key decides; nothing else is ever done with it.
        let algorithm: JWTAlgorithm = type == "RSA" ? .rs256 : .es256
        if let name = try text(KeyField.alg, "alg", of: entry), name != algorithm.rawValue {
            throw Rejection(.algorithm)
        }
        guard let id = try text(KeyField.kid, "kid", of: entry), !id.isEmpty else {
            throw Rejection(.noKeyID)
        }
        let isRSA = algorithm == .rs256
        let first =
            isRSA
            ? try number(KeyField.n, "n", of: entry) : try number(KeyField.x, "x", of: entry)
        let second =
            isRSA
            ? try number(KeyField.e, "e", of: entry) : try number(KeyField.y, "y", of: entry)
        do throws(VerificationKeyError) {
            switch algorithm {
            case .rs256: return try JSONWebKey(id: id, rsaModulus: first, exponent: second)
            case .es256: return try JSONWebKey(id: id, p256X: first, y: second)
            }
        } catch { throw Rejection(.badKey(error)) }
    }

    private static func checkOperations(of entry: borrowing JSONParser) throws(Rejection) {
        guard entry.kind(KeyField.operations) != .absent else { return }
        guard entry.kind(KeyField.operations) == .array else {
            throw Rejection(.malformed("key_ops"))
        }
        for index in 0..<min(entry.count(KeyField.operations), 16) {
            let isVerify = entry.withString(KeyField.operations, element: index) {
                $0.equals("verify")
            }
            if isVerify == true { return }
        }
        throw Rejection(.use)
    }

    /// `nil` if the member is absent.
    private static func text(
        _ field: Int, _ name: String, of entry: borrowing JSONParser
    )
        throws(Rejection) -> String?
    {
        guard entry.kind(field) != .absent else { return nil }
        guard let text = entry.string(field), text.utf8.count <= JWTVerifier.maximumKeyIDBytes
        else { throw Rejection(.malformed(name)) }
        return text
    }

    private static func number(
        _ field: Int, _ name: String, of entry: borrowing JSONParser
    )
        throws(Rejection) -> [UInt8]
    {
        let decoded = entry.withString(field) { Base64URL.decode($0) }
        guard let bytes = decoded ?? nil else { throw Rejection(.malformed(name)) }
        return bytes
    }
}
