/// Where an app's updates come from.
public enum UpdateSource: Hashable, Sendable, CustomStringConvertible {
    /// Releases of a repository on GitHub, or on what speaks its API.
    case github(owner: String, repository: String)
    /// An IPA behind an `http:` or `https:` address.
    case url(String)
    /// An IPA on this machine, by an absolute path.
    case file(String)

    /// Longest source, in bytes.
    public static let maximumBytes = 2_048

    /// Reads `gh:owner/repo`, an `http:` or `https:` address, or an absolute path (also `file:`);
    /// `nil` for anything else.
    public init?(_ text: String) {
        guard (1...Self.maximumBytes).contains(text.utf8.count),
            !text.unicodeScalars.contains(where: { $0.value <= 0x20 || $0.value == 0x7F })
                || text.hasPrefix("/"),
            !text.unicodeScalars.contains(where: { $0.value < 0x20 || $0.value == 0x7F })
        else { return nil }
        if text.hasPrefix("gh:") {
            let parts = text.dropFirst(3).split(separator: "/", omittingEmptySubsequences: false)
            guard parts.count == 2, parts.allSatisfy({ Self.isName($0) }) else { return nil }
            self = .github(owner: String(parts[0]), repository: String(parts[1]))
        } else if let place = WebPlace(text) {
            // A password would stand in tables, topics and messages.
            guard !place.hasCredentials else { return nil }
            self = .url(text)
        } else if text.hasPrefix("/") {
            self = .file(text)
        } else if text.hasPrefix("file:///") {
            self = .file(String(text.dropFirst(7)))
        } else {
            return nil
        }
    }

    private static func isName(_ name: Substring) -> Bool {
        !name.isEmpty && name.utf8.count <= 100 && name != "." && name != ".."
            && name.utf8.allSatisfy {
                $0 >= 0x30 && $0 <= 0x39 || $0 >= 0x41 && $0 <= 0x5A || $0 >= 0x61 && $0 <= 0x7A
                    || $0 == 0x2D || $0 == 0x2E || $0 == 0x5F
            }
    }

    public var description: String {
        switch self {
        case .github(let owner, let repository): "gh:\(owner)/\(repository)"
        case .url(let url): url
        case .file(let path): path
        }
    }

    /// Whether releases have a channel.
    public var hasReleases: Bool { if case .github = self { true } else { false } }
}

/// Which releases an installation follows.
public enum UpdateChannel: String, Sendable, CaseIterable {
    /// The latest stable release; also what installations of a certain tag follow.
    case latest
    /// The latest prerelease.
    case preRelease = "pre-release"
}

/// The parts of an `http:` or `https:` address that decide where a request goes.
public struct WebPlace: Hashable, Sendable {
    public var isSecure: Bool
    /// In lower case, an IPv6 address without brackets, without a last point.
    public var host: String
    public var port: Int
    public var hasCredentials: Bool

    /// `nil` for what is no such address.
    public init?(_ url: String) {
        let lower = url.prefix(8).lowercased()
        if lower.hasPrefix("https://") {
            isSecure = true
        } else if lower.hasPrefix("http://") {
            isSecure = false
        } else {
            return nil
        }
        guard !url.unicodeScalars.contains(where: { $0.value <= 0x20 || $0.value == 0x7F })
        else { return nil }
        var authority = url.dropFirst(isSecure ? 8 : 7)
            .prefix { $0 != "/" && $0 != "?" && $0 != "#" && $0 != "\\" }
        hasCredentials = false
        if let at = authority.lastIndex(of: "@") {
            hasCredentials = true
            authority = authority[authority.index(after: at)...]
        }
        var name: Substring
        var rest: Substring
        if authority.hasPrefix("[") {
            guard let end = authority.firstIndex(of: "]") else { return nil }
            name = authority[authority.index(after: authority.startIndex)..<end]
            rest = authority[authority.index(after: end)...]
        } else {
            name = authority.prefix { $0 != ":" }
            rest = authority[name.endIndex...]
        }
        port = isSecure ? 443 : 80
        if !rest.isEmpty {
            guard rest.removeFirst() == ":", let number = Int(rest), (1...65_535).contains(number)
            else { return nil }
            port = number
        }
        if name.hasSuffix(".") { name.removeLast() }
        guard !name.isEmpty else { return nil }
        host = name.lowercased()
    }

    /// Whether both are the same server, so that credentials for one are for the other.
    public func isSameServer(as other: WebPlace) -> Bool {
        isSecure == other.isSecure && host == other.host && port == other.port
    }
}

/// Resolves what a redirect says against the address that said it (RFC 3986, section 5.2).
public enum Redirect {
    /// `nil` for what does not lead to an `http:` or `https:` address.
    public static func target(_ location: String, from base: String) -> String? {
        if WebPlace(location) != nil { return location }
        let hasScheme = location.prefix { $0 != "/" && $0 != "?" && $0 != "#" }.contains(":")
        guard !hasScheme, WebPlace(base) != nil, let start = base.firstRange(of: "://") else {
            return nil
        }
        let authority =
            base[..<start.upperBound]
            + base[start.upperBound...].prefix { $0 != "/" && $0 != "?" && $0 != "#" }
        let path = base[authority.endIndex...].prefix { $0 != "?" && $0 != "#" }
        var target: String
        if location.hasPrefix("//") {
            target = String(base[..<start.lowerBound]) + ":" + location
        } else if location.hasPrefix("/") {
            target = authority + location
        } else if location.hasPrefix("?") {
            target = authority + path + location
        } else {
            let folder =
                path.contains("/") ? path[...(path.lastIndex(of: "/") ?? path.startIndex)] : "/"
            target = authority + folder + location
        }
        if let fragment = target.firstIndex(of: "#") { target = String(target[..<fragment]) }
        return WebPlace(target) == nil ? nil : target
    }
}
