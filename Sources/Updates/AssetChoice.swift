/// A file of a release.
public struct ReleaseAsset: Hashable, Sendable {
    /// The source's own name for it.
    public var id: String
    public var name: String
    /// Where anyone downloads it.
    public var url: String
    /// Where it is downloaded with a credential; `nil`: from `url`.
    public var privateURL: String?
    /// As the source announces it.
    public var sizeBytes: Int64?
    /// SHA-256 as the source announces it, 64 lower-case hexadecimal digits.
    public var digest: String?
    /// Changes when the file is replaced under the same name.
    public var fingerprint: String

    public init(
        id: String, name: String, url: String, privateURL: String? = nil, sizeBytes: Int64? = nil,
        digest: String? = nil, fingerprint: String
    ) {
        self.id = id
        self.name = name
        self.url = url
        self.privateURL = privateURL
        self.sizeBytes = sizeBytes
        self.digest = digest
        self.fingerprint = fingerprint
    }
}

/// Which words a file's name must and must not have.
///
/// Words with spaces between them, compared without case: each must be in the name; one behind a
/// minus must not. `*` stands for any text, and a word with one must match the whole name.
public struct AssetFilter: Sendable, Hashable {
    private var wanted: [String] = []
    private var unwanted: [String] = []

    public init(_ text: String) {
        for word in text.lowercased().split(separator: " ") {
            if word.hasPrefix("-"), word.count > 1 {
                unwanted.append(String(word.dropFirst()))
            } else {
                wanted.append(String(word))
            }
        }
    }

    public func matches(_ name: String) -> Bool {
        let name = name.lowercased()
        return wanted.allSatisfy { Self.matches(name, $0) }
            && !unwanted.contains { Self.matches(name, $0) }
    }

    private static func matches(_ name: String, _ word: String) -> Bool {
        guard word.contains("*") else { return name.contains(word) }
        let parts = word.split(separator: "*", omittingEmptySubsequences: false)
        var rest = name[...]
        for (index, part) in parts.enumerated() {
            if index == 0 {
                guard rest.hasPrefix(part) else { return false }
                rest = rest.dropFirst(part.count)
            } else if index == parts.count - 1 {
                return rest.hasSuffix(part)
            } else if let found = rest.firstRange(of: part) {
                rest = rest[found.upperBound...]
            } else {
                return false
            }
        }
        return true
    }
}

/// Decides which of a release's files an installation takes.
public enum AssetChoice: Sendable, Hashable {
    /// `refinement`: what is to be saved, so that the next release is decided by it as well.
    case chosen(ReleaseAsset, refinement: String?)
    /// The user must say which.
    case ambiguous([ReleaseAsset])
    /// There is none that could be installed.
    case none

    /// - Parameters:
    ///   - filter: what the installation was told; `nil` or empty: nothing.
    ///   - refinement: what an earlier choice has saved.
    ///   - installedName: the name of the file that is installed.
    public static func make(
        _ assets: [ReleaseAsset], filter: String?, refinement: String?, installedName: String?
    ) -> AssetChoice {
        let apps = assets.filter { $0.name.lowercased().hasSuffix(".ipa") }
        if apps.isEmpty { return .none }
        var candidates = apps
        if let filter, !filter.isEmpty {
            let wanted = AssetFilter(filter)
            let matching = apps.filter { wanted.matches($0.name) }
            if matching.count == 1 { return .chosen(matching[0], refinement: nil) }
            // A release whose files are named otherwise: what was saved may still know it.
            if !matching.isEmpty { candidates = matching }
        } else if apps.count == 1 {
            return .chosen(apps[0], refinement: nil)
        }
        if let refinement, !refinement.isEmpty {
            let same = candidates.filter { shape(of: $0.name) == refinement }
            if same.count == 1 { return .chosen(same[0], refinement: nil) }
        }
        if let installedName {
            let known = shape(of: installedName)
            let same = candidates.filter { shape(of: $0.name) == known }
            if same.count == 1 { return .chosen(same[0], refinement: known) }
        }
        return .ambiguous(candidates)
    }

    /// A file's name without what differs from version to version: each run of digits, points between
    /// them included, becomes `#`.
    public static func shape(of name: String) -> String {
        var result = ""
        var isInNumber = false
        let characters = Array(name.lowercased().unicodeScalars)
        for (index, character) in characters.enumerated() {
            let isDigit = ("0"..."9").contains(character)
            let next = index + 1 < characters.count ? characters[index + 1] : " "
            if isDigit {
                if !isInNumber { result += "#" }
                isInNumber = true
            } else if isInNumber, character == "." || character == "_",
                ("0"..."9").contains(next)
            {
                continue
            } else {
                isInNumber = false
                result.unicodeScalars.append(character)
            }
        }
        return result
    }
}
