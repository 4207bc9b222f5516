internal import Bytes
internal import Crypto
internal import HTTP
internal import Updates

/// What an app, or who has a global link, asks for.
struct UpdateRequest: Sendable {
    enum Target: Hashable, Sendable {
        /// SHA-256 of an installation's id.
        case installation(Digest)
        /// SHA-256 of a link's.
        case link(Digest)
    }

    var target: Target
    var kind: UpdateJob.Kind
    /// `nil`: it cannot be known, so it is nobody's.
    var address: ClientAddress?

    enum Reading {
        /// Another route's path.
        case notOurs
        /// 400, for this reason.
        case bad(StaticString)
        case request(Target, UpdateJob.Kind)
    }

    /// Characters of an id.
    static let idCharacters = 48

    /// Reads path and query (the apps' contract, "Every update endpoint", "Global update links").
    static func read(path: String, query: String?) -> Reading {
        let parts = path.split(separator: "/", omittingEmptySubsequences: false).dropFirst()
        let words = Array(parts)
        var isCheck = false
        let id: Substring
        if words.count >= 4, words[0] == "api", words[1] == "app", words[3] == "update" {
            id = words[2]
            guard words.count == 4 || words.count == 5 && words[4] == "check" else {
                return .notOurs
            }
            isCheck = words.count == 5
        } else if words.count >= 2, words[0] == "update" {
            id = words[1]
            guard words.count == 2 || words.count == 3 && words[2] == "check" else {
                return .notOurs
            }
            isCheck = words.count == 3
        } else if words.count == 2, words[0] == "global-update" {
            guard let digest = digest(words[1]) else { return .bad("unknown link") }
            return link(digest, Query(query))
        } else {
            return .notOurs
        }
        guard let digest = digest(id) else { return .bad("unknown installation") }
        return installation(digest, isCheck: isCheck, Query(query))
    }

    private static func installation(
        _ digest: Digest, isCheck: Bool, _ query: Query
    ) -> Reading {
        if query.hasRepeat { return .bad("a parameter is given twice") }
        guard let opens = query.opens else { return .bad("open must be true or false") }
        let kind: UpdateJob.Kind
        switch query["prefetch"] {
        case nil: kind = isCheck ? .check(prefetches: true) : .install(opens: opens)
        case "true": kind = .check(prefetches: true)
        case "false": kind = .check(prefetches: false)
        case "foreground": kind = .prefetch
        default: return .bad("prefetch must be true, false or foreground")
        }
        return .request(.installation(digest), kind)
    }

    private static func link(_ digest: Digest, _ query: Query) -> Reading {
        if query.hasRepeat { return .bad("a parameter is given twice") }
        guard let opens = query.opens else { return .bad("open must be true or false") }
        let kind: UpdateJob.Kind
        switch query["install"] {
        case nil, "false": kind = .linkCheck
        case "", "true": kind = .linkInstall(isForeground: false, opens: opens)
        case "foreground", "forgroung": kind = .linkInstall(isForeground: true, opens: opens)
        default: return .bad("install must be true, false or foreground")
        }
        return .request(.link(digest), kind)
    }

    private static func digest(_ id: Substring) -> Digest? { digest(of: String(id)) }

    /// What is stored of an id or a link: SHA-256 of its digits in lower case; `nil` for what is none.
    static func digest(of id: String) -> Digest? {
        let text = ByteBuffer(id.lowercased().utf8)
        guard text.count == idCharacters, id.utf8.count == idCharacters,
            Hex.decode(text.span) != nil
        else { return nil }
        return SHA256.hash(text.span)
    }

    /// A new id or link: 24 random bytes.
    static func newID() throws(CryptoError) -> String {
        let bytes = try Random.bytes(idCharacters / 2)
        return Hex.encode(bytes.span)
    }

    /// The parameters that mean something here; all others are those of the app's address, which say
    /// nothing to us.
    private struct Query {
        private static let names = ["prefetch", "open", "install"]
        private var values: [String: String] = [:]
        private(set) var hasRepeat = false

        init(_ text: String?) {
            for pair in (text ?? "").split(separator: "&") {
                let sides = pair.split(
                    separator: "=", maxSplits: 1, omittingEmptySubsequences: false)
                let name = Self.decoded(sides[0])
                guard Self.names.contains(name) else { continue }
                let value = sides.count > 1 ? Self.decoded(sides[1]) : ""
                if values.updateValue(value, forKey: name) != nil { hasRepeat = true }
            }
        }

        subscript(_ name: String) -> String? { values[name] }

        /// `nil`: neither true nor false.
        var opens: Bool? {
            switch values["open"] {
            case nil, "true": true
            case "false": false
            default: nil
            }
        }

        private static func decoded(_ text: Substring) -> String {
            var bytes: [UInt8] = []
            var rest = Array(text.utf8)[...]
            while let byte = rest.popFirst() {
                if byte == 0x25, rest.count >= 2,
                    let value = Hex.decode(Array(rest.prefix(2)).span)
                {
                    bytes.append(value[0])
                    rest = rest.dropFirst(2)
                } else {
                    bytes.append(byte)
                }
            }
            return String(decoding: bytes, as: UTF8.self)
        }
    }
}
