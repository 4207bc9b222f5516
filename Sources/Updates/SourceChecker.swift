internal import Curl
internal import Foundation
internal import System

/// Asks sources what they hold now. One for each thread; they share what is known of releases.
public final class SourceChecker {
    /// What all checkers share.
    public final class Shared: Sendable {
        let configuration: UpdatesConfiguration
        let releases: GitHubReleases

        public init(_ configuration: UpdatesConfiguration) {
            self.configuration = configuration
            releases = GitHubReleases(configuration.gitHub)
        }
    }

    private let shared: Shared
    private let fetcher: SourceFetcher

    public init(_ shared: Shared) throws {
        self.shared = shared
        fetcher = try SourceFetcher(shared.configuration)
    }

    /// What the app's source holds now. Only its source, channel and credential are looked at, so one
    /// answer is good for all apps that have the same.
    /// - Parameter goesOn: asked about once a second.
    public func ask(
        _ app: TrackedApp, goesOn: @escaping () -> Bool
    ) -> Result<SourceState, SourceFault> {
        do throws(SourceFault) {
            return .success(try state(of: app, goesOn))
        } catch {
            return .failure(error)
        }
    }

    private var limits: CurlFetch.Limits {
        var limits = CurlFetch.Limits()
        let sources = shared.configuration.sources
        limits.silence = .milliseconds(sources.silence)
        limits.timeout = .milliseconds(sources.checkTimeout)
        return limits
    }

    private func state(
        of app: TrackedApp, _ goesOn: @escaping () -> Bool
    ) throws(SourceFault) -> SourceState {
        switch app.source {
        case .github(let owner, let repository):
            return try shared.releases.state(
                owner: owner, repository: repository, channel: app.channel,
                credential: app.credential, fetcher, limits: limits,
                now: SystemClock.wallMilliseconds(), goesOn: goesOn)
        case .url(let url): return try remote(url, app.credential, goesOn)
        case .file(let path): return try Self.local(path)
        }
    }

    private static func local(_ path: String) throws(SourceFault) -> SourceState {
        guard let size = FileSystem.fileBytes(path), let time = FileSystem.modified(path) else {
            throw SourceFault(.permanent, "The source's file is not there.")
        }
        let name = String(path.split(separator: "/").last ?? "app.ipa")
        return SourceState(
            version: nil,
            assets: [
                ReleaseAsset(
                    id: name, name: name, url: path, sizeBytes: size,
                    fingerprint: "file:\(size):\(time)")
            ])
    }

    private func remote(
        _ url: String, _ credential: SourceCredential?, _ goesOn: @escaping () -> Bool
    ) throws(SourceFault) -> SourceState {
        var answer = SmallAnswer(wantsBody: false)
        var request = SourceFetcher.Request(
            url: url, method: .head, credential: credential, limits: limits)
        try fetcher.run(request, into: answer, goesOn: goesOn)
        if answer.status != 200 {
            // Some servers know no HEAD; the body of a GET is not taken.
            request.method = .get
            answer = SmallAnswer(wantsBody: false)
            try fetcher.run(request, into: answer, goesOn: goesOn)
        }
        let host = WebPlace(url)?.host ?? ""
        guard answer.status == 200 else {
            throw SourceFault(
                answer.status >= 500 ? .transient : .permanent, "\(host) answered \(answer.status)."
            )
        }
        guard !answer.headers.isWebPage else {
            throw SourceFault(.permanent, "\(host) answered with a web page and not with an app.")
        }
        let name = Self.name(of: url)
        let length = answer.headers.contentLength
        let fingerprint = Self.fingerprint(answer.headers)
        return SourceState(
            version: nil,
            assets: [
                ReleaseAsset(
                    id: name, name: name, url: url, sizeBytes: length,
                    fingerprint: fingerprint ?? "")
            ],
            reason: fingerprint == nil
                ? "The server tells neither an ETag, a time nor a length of the file, so it cannot be compared reliably."
                : nil)
    }

    /// What tells one content of an address from another (RFC 9110, section 8.8).
    private static func fingerprint(_ headers: SourceHeaders) -> String? {
        if let tag = headers["etag"], !tag.isEmpty { return "etag:\(tag.prefix(500))" }
        let length = headers.contentLength.map { "\($0)" }
        if let time = headers["last-modified"], !time.isEmpty {
            return "modified:\(time.prefix(100)):\(length ?? "")"
        }
        return length.map { "length:\($0)" }
    }

    static func name(of url: String) -> String {
        let path = url.prefix { $0 != "?" && $0 != "#" }
        let last = path.split(separator: "/").last.map(String.init) ?? ""
        let name = (last.removingPercentEncoding ?? last).filter { $0 != "/" && !$0.isNewline }
        return name.isEmpty ? "app.ipa" : String(name.prefix(200))
    }
}
