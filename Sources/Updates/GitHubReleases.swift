internal import Bytes
internal import Curl
internal import Foundation
internal import Synchronization

/// Releases of repositories, by GitHub's releases API.
///
/// What was read is kept with its ETag and asked for by it again, and a limit that the server set is
/// kept to: until it ends, what is known is what is answered.
/// - SeeAlso: GitHub REST API, "Releases", "Rate limits", "Use conditional requests".
final class GitHubReleases: Sendable {
    private struct Key: Hashable {
        var repository: String
        var channel: UpdateChannel
        var credential: SourceCredential?
    }

    private struct Known {
        var tag: String?
        var state: SourceState
    }

    private struct Board {
        var known: [Key: Known] = [:]
        /// Until when a credential, or who has none, must not ask; milliseconds since 1970.
        var limitedUntil: [SourceCredential?: Int64] = [:]
    }

    private let board = Mutex(Board())
    private let configuration: UpdatesConfiguration.GitHub

    /// Repositories that are remembered.
    private static let maximumKnown = 1_000
    /// Longest pause after a limit without a time, in milliseconds.
    private static let pause: Int64 = 60_000

    init(_ configuration: UpdatesConfiguration.GitHub) { self.configuration = configuration }

    /// - Parameter now: milliseconds since 1970.
    func state(
        owner: String, repository: String, channel: UpdateChannel, credential: SourceCredential?,
        _ fetcher: SourceFetcher, limits: CurlFetch.Limits, now: Int64,
        goesOn: @escaping () -> Bool
    ) throws(SourceFault) -> SourceState {
        let credential = credential ?? configuration.credential
        let key = Key(
            repository: "\(owner)/\(repository)", channel: channel, credential: credential)
        let (known, limit) = board.withLock { ($0.known[key], $0.limitedUntil[credential] ?? 0) }
        if limit > now {
            if let known { return known.state }
            throw Self.limited(until: limit, now)
        }
        let path = channel == .latest ? "releases/latest" : "releases?per_page=50"
        var headers = [
            (name: "Accept", value: "application/vnd.github+json"),
            (name: "X-GitHub-Api-Version", value: "2022-11-28"),
        ]
        if let tag = known?.tag { headers.append((name: "If-None-Match", value: tag)) }
        let answer = SmallAnswer()
        try fetcher.run(
            SourceFetcher.Request(
                url: "\(configuration.api)/repos/\(key.repository)/\(path)", headers: headers,
                credential: credential, limits: limits), into: answer, goesOn: goesOn)
        noteLimit(answer, credential, now)
        switch answer.status {
        case 200:
            guard !answer.isTooLarge else {
                throw SourceFault(.permanent, "The list of releases is too large.")
            }
            let state = try Self.read(answer.body, key.repository, channel)
            remember(key, Known(tag: answer.headers["etag"], state: state))
            return state
        case 304:
            if let known { return known.state }
            throw SourceFault(.transient, "The releases API answered 304 to what it was not asked.")
        case 404:
            if channel == .latest {
                // Also what a repository without a stable release answers.
                return SourceState(
                    version: nil, assets: [],
                    reason: "gh:\(key.repository) has no stable release that can be seen.")
            }
            throw SourceFault(
                .permanent, "gh:\(key.repository) is not there, or is not to be seen.")
        case 401:
            throw SourceFault(.permanent, "The releases API does not take the credential.")
        case 403, 429:
            let until = board.withLock { $0.limitedUntil[credential] ?? 0 }
            if until > now {
                if let known { return known.state }
                throw Self.limited(until: until, now)
            }
            throw SourceFault(.permanent, "The releases API refuses gh:\(key.repository).")
        default:
            throw SourceFault(
                answer.status >= 500 ? .transient : .permanent,
                "The releases API answered \(answer.status).")
        }
    }

    private func noteLimit(_ answer: SmallAnswer, _ credential: SourceCredential?, _ now: Int64) {
        var until: Int64 = 0
        let isRefused = answer.status == 403 || answer.status == 429
        if let seconds = answer.headers["retry-after"].flatMap({ Int64($0) }), isRefused {
            until = now + min(max(seconds, 1), 86_400) * 1_000
        } else if answer.headers["x-ratelimit-remaining"] == "0" {
            let reset = answer.headers["x-ratelimit-reset"].flatMap { Int64($0) }
            until = reset.map { min($0, Int64.max / 1_000) * 1_000 } ?? now + Self.pause
            until = min(until, now + 86_400_000)
        } else if answer.status == 429 {
            until = now + Self.pause
        }
        guard until > now else { return }
        board.withLock { board in
            if board.limitedUntil.count >= Self.maximumKnown { board.limitedUntil = [:] }
            board.limitedUntil[credential] = until
        }
    }

    private func remember(_ key: Key, _ known: Known) {
        board.withLock { board in
            if board.known.count >= Self.maximumKnown, board.known[key] == nil { board.known = [:] }
            board.known[key] = known
        }
    }

    private static func limited(until: Int64, _ now: Int64) -> SourceFault {
        SourceFault(
            .transient,
            "The releases API has had enough questions for now; ask again in \((until - now + 59_999) / 60_000) min."
        )
    }

    // MARK: - Reading

    private struct ReleaseText: Decodable {
        var tag_name: String
        var draft: Bool?
        var prerelease: Bool?
        var published_at: String?
        var assets: [AssetText]?
    }

    private struct AssetText: Decodable {
        var id: Int64
        var name: String
        var size: Int64?
        var url: String?
        var browser_download_url: String
        var updated_at: String?
        var digest: String?
        var state: String?
    }

    static func read(
        _ body: ByteBuffer, _ repository: String, _ channel: UpdateChannel
    ) throws(SourceFault) -> SourceState {
        let releases: [ReleaseText]
        do {
            let data = Data(body.span.array)
            releases =
                channel == .latest
                ? [try JSONDecoder().decode(ReleaseText.self, from: data)]
                : try JSONDecoder().decode([ReleaseText].self, from: data)
        } catch {
            throw SourceFault(.permanent, "What the releases API answered is no list of releases.")
        }
        let wanted = releases.filter {
            $0.draft != true && ($0.prerelease ?? false) == (channel == .preRelease)
        }
        // Times are RFC 3339 in UTC, so text order is time's order; one without a time is the oldest.
        let newest = wanted.enumerated().max { a, b in
            let (left, right) = (a.element.published_at ?? "", b.element.published_at ?? "")
            return left != right ? left < right : a.offset > b.offset
        }?.element
        guard let newest else {
            let word = channel == .latest ? "stable release" : "prerelease"
            return SourceState(
                version: nil, assets: [], reason: "gh:\(repository) has no \(word).")
        }
        let assets = (newest.assets ?? []).filter { ($0.state ?? "uploaded") == "uploaded" }
        return SourceState(
            version: shown(newest.tag_name),
            assets: assets.map { asset in
                let digest = asset.digest?.lowercased()
                let sum = digest.flatMap { $0.hasPrefix("sha256:") ? String($0.dropFirst(7)) : nil }
                return ReleaseAsset(
                    id: "\(asset.id)", name: shown(asset.name),
                    url: asset.browser_download_url,
                    privateURL: asset.url, sizeBytes: asset.size,
                    digest: sum.flatMap { $0.utf8.count == 64 ? $0 : nil },
                    fingerprint:
                        "\(asset.id):\(asset.size ?? 0):\(asset.updated_at ?? ""):\(sum ?? "")")
            })
    }

    /// A name as tables, streams and commands may have it.
    private static func shown(_ name: String) -> String {
        let plain = name.unicodeScalars.map {
            $0.value < 0x20 || (0x7F...0x9F).contains($0.value) ? "\u{FFFD}" : Character($0)
        }
        return String(plain.prefix(200))
    }
}
