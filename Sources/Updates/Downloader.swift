internal import Bytes
internal import Crypto
internal import Curl
internal import System

/// A file that is to be in the cache.
public struct DownloadTask: Sendable, Hashable {
    public var key: String
    public var asset: ReleaseAsset
    public var source: UpdateSource
    public var credential: SourceCredential?

    public init(source: UpdateSource, asset: ReleaseAsset, credential: SourceCredential?) {
        self.source = source
        self.asset = asset
        self.credential = credential
        key = DownloadCache.key(source: source, asset: asset, credential: credential)
    }
}

/// How a download ended.
public enum DownloadEnd: Sendable, Hashable {
    case done
    case failed(String)
    /// Nobody wanted it any more; nothing of it is left.
    case cancelled
}

/// Downloads into a cache, and goes on where a download broke off. Blocks its thread; one for each.
public final class Downloader {
    private let fetcher: SourceFetcher
    private let cache: DownloadCache
    private let configuration: UpdatesConfiguration
    /// Pause before the first retry, in milliseconds; twice as long before each that follows.
    private let firstPause: Int64

    /// - Parameter firstPause: in milliseconds.
    public init(
        _ configuration: UpdatesConfiguration, _ cache: DownloadCache, firstPause: Int64 = 500
    ) throws {
        fetcher = try SourceFetcher(configuration)
        self.cache = cache
        self.configuration = configuration
        self.firstPause = firstPause
    }

    /// - Parameters:
    ///   - progress: bytes that are there, and of how many; a few times a second.
    ///   - goesOn: asked at every piece and about once a second.
    ///   - keepsPartial: asked when `goesOn` says no: whether what is there is to be kept for another time.
    public func download(
        _ task: DownloadTask, progress: @escaping (Int64, Int64?) -> Void,
        goesOn: @escaping () -> Bool, keepsPartial: () -> Bool = { false }
    ) -> DownloadEnd {
        if cache.has(task.key) { return .done }
        cache.beginUse(task.key)
        defer { cache.release(task.key) }
        do {
            try attempt(task, progress, goesOn)
            return .done
        } catch let fault as SourceFault {
            if fault.kind == .cancelled {
                if !keepsPartial() { cache.removePartial(task.key) }
                return .cancelled
            }
            if fault.kind == .permanent { cache.removePartial(task.key) }
            return .failed(fault.description)
        } catch {
            // Our own disk.
            Log.error("downloading an app", ["error": "\(error)"])
            return .failed("The app could not be stored; the server's log says why.")
        }
    }

    private func attempt(
        _ task: DownloadTask, _ progress: @escaping (Int64, Int64?) -> Void,
        _ goesOn: @escaping () -> Bool
    ) throws {
        var failures = 0
        var reached: Int64 = 0
        let pause = Waker()
        while true {
            let sink = try DownloadSink(task, cache, configuration, progress)
            do throws(SourceFault) {
                try run(task, sink, goesOn)
                if let fault = sink.fault { throw fault }
            } catch {
                if let failure = sink.diskError { throw failure }
                // What a sink found wrong counts more than that it hung up for it.
                let fault = sink.fault ?? error
                guard fault.kind == .transient else { throw fault }
                // Whoever gets further each time is patient with a bad line.
                failures = sink.count > reached ? 1 : failures + 1
                reached = max(reached, sink.count)
                guard failures <= configuration.sources.retries else { throw fault }
                let milliseconds = min(firstPause << Int64(min(failures - 1, 6)), 30_000)
                pause.wait(milliseconds: milliseconds, while: goesOn)
                guard goesOn() else { throw SourceFault(.cancelled, "It is not wanted any more.") }
                continue
            }
            try sink.finish()
            return
        }
    }

    private func run(
        _ task: DownloadTask, _ sink: DownloadSink, _ goesOn: @escaping () -> Bool
    ) throws(SourceFault) {
        let credential =
            task.credential ?? (task.source.hasReleases ? configuration.gitHub.credential : nil)
        var request = SourceFetcher.Request(url: task.asset.url, credential: credential)
        if let privateURL = task.asset.privateURL, credential != nil {
            request.url = privateURL
        } else if task.source.hasReleases {
            // The API's credential is the API's.
            request.credential = nil
        }
        request.headers = [(name: "Accept", value: "application/octet-stream")]
        request.headers += sink.resumption
        request.limits.silence = .milliseconds(configuration.sources.silence)
        try fetcher.run(request, into: sink, goesOn: goesOn)
    }
}

/// Writes a download into its partial file and looks at what comes.
private final class DownloadSink: SourceSink {
    private let task: DownloadTask
    private let cache: DownloadCache
    private let fileLimit: Int64
    private let progress: (Int64, Int64?) -> Void
    private let file: GrowingFile
    private let host: String
    private var validator: String
    private var total: Int64?
    private var nextReport: Int64 = 0
    private(set) var fault: SourceFault?
    private(set) var diskError: (any Error)?

    private static let reportMilliseconds: Int64 = 200

    init(
        _ task: DownloadTask, _ cache: DownloadCache, _ configuration: UpdatesConfiguration,
        _ progress: @escaping (Int64, Int64?) -> Void
    ) throws {
        self.task = task
        self.cache = cache
        self.progress = progress
        fileLimit = configuration.cache.fileBytes
        host = WebPlace(task.asset.url)?.host ?? ""
        file = try GrowingFile(cache.partialPath(task.key))
        validator = (try? FileSystem.read(cache.validatorPath(task.key))) ?? ""
        // Without it nobody can say that the rest would be of the same file.
        if validator.isEmpty { try file.clear() }
    }

    var count: Int64 { file.count }

    /// Headers that ask for the rest (RFC 9110, section 14).
    var resumption: [(name: String, value: String)] {
        guard file.count > 0 else { return [] }
        return [
            (name: "Range", value: "bytes=\(file.count)-"), (name: "If-Range", value: validator),
        ]
    }

    func began(status: Int, headers: SourceHeaders) -> Bool {
        do {
            return try begin(status, headers)
        } catch let error as SourceFault {
            fault = error
        } catch {
            diskError = error
        }
        return false
    }

    private func begin(_ status: Int, _ headers: SourceHeaders) throws -> Bool {
        switch status {
        case 200:
            try file.clear()
            total = headers.contentLength
        case 206:
            guard file.count > 0, let range = ContentRange(headers["content-range"] ?? ""),
                range.first == file.count
            else {
                try file.clear()
                throw SourceFault(.transient, "\(host) sent another part than was asked for.")
            }
            total = range.total ?? headers.contentLength.map { file.count + $0 }
        case 416:
            try file.clear()
            throw SourceFault(.transient, "\(host) has a shorter file than before.")
        case 500...599, 408, 429:
            throw SourceFault(.transient, "\(host) answered \(status).")
        default: throw SourceFault(.permanent, "\(host) answered \(status).")
        }
        guard !headers.isWebPage else {
            throw SourceFault(.permanent, "\(host) answered with a web page and not with an app.")
        }
        if let total, total > fileLimit {
            throw SourceFault(
                .permanent, "The app has \(total) bytes, more than the \(fileLimit) that are taken."
            )
        }
        if let total, let expected = task.asset.sizeBytes, task.source.hasReleases,
            total != expected
        {
            throw SourceFault(
                .permanent, "\(host) sends \(total) bytes of an app that should have \(expected).")
        }
        try keepValidator(headers)
        report(isForced: true)
        return true
    }

    private func keepValidator(_ headers: SourceHeaders) throws {
        // A weak tag does not promise the same bytes (RFC 9110, section 13.1.5).
        let tag = headers["etag"].flatMap { $0.hasPrefix("\"") ? $0 : nil }
        let newest = tag ?? headers["last-modified"] ?? ""
        guard newest != validator else { return }
        validator = newest
        try FileSystem.write(newest, to: cache.validatorPath(task.key), mode: 0o600)
    }

    func received(_ bytes: Span<UInt8>) -> Bool {
        do {
            if file.count == 0, bytes.count > 0, bytes[0] != 0x50 {
                throw SourceFault(
                    .permanent,
                    "\(host) sends no app: an IPA is a ZIP archive, and this is none.")
            }
            try file.append(bytes)
            guard file.count <= fileLimit else {
                throw SourceFault(
                    .permanent, "The app has more than the \(fileLimit) bytes that are taken.")
            }
        } catch let error as SourceFault {
            fault = error
            return false
        } catch {
            diskError = error
            return false
        }
        report(isForced: false)
        return true
    }

    private func report(isForced: Bool) {
        let now = SystemClock.monotonicMilliseconds()
        guard isForced || now >= nextReport else { return }
        nextReport = now + Self.reportMilliseconds
        progress(file.count, total ?? task.asset.sizeBytes)
    }

    /// Checks the whole file and hands it to the cache.
    func finish() throws {
        if let diskError { throw diskError }
        let expected = task.source.hasReleases ? task.asset.sizeBytes ?? total : total
        if let expected, file.count != expected {
            throw SourceFault(
                .permanent,
                "\(host) announced \(expected) bytes and sent \(file.count): the app is not whole.")
        }
        var head: [UInt8] = []
        var hasher = SHA256Hasher()
        try file.readAll { piece in
            if head.count < 4 {
                for index in 0..<min(4 - head.count, piece.count) { head.append(piece[index]) }
            }
            if task.asset.digest != nil { hasher.update(piece) }
        }
        // A local file header (APPNOTE 4.3.7).
        guard head == [0x50, 0x4B, 0x03, 0x04] else {
            throw SourceFault(
                .permanent, "\(host) sends no app: an IPA is a ZIP archive, and this is none.")
        }
        if let digest = task.asset.digest, hasher.finish().hex != digest {
            throw SourceFault(
                .permanent, "What was downloaded has another SHA-256 than the release says.")
        }
        try file.sync()
        progress(file.count, file.count)
        try cache.complete(task.key)
    }
}

/// `bytes 5-9/10` (RFC 9110, section 14.4).
struct ContentRange: Hashable {
    var first: Int64
    var total: Int64?

    init?(_ text: String) {
        guard text.lowercased().hasPrefix("bytes ") else { return nil }
        let parts = text.dropFirst(6).split(separator: "/")
        guard parts.count == 2, let dash = parts[0].firstIndex(of: "-"),
            let first = Int64(parts[0][..<dash]), first >= 0
        else { return nil }
        self.first = first
        total = Int64(parts[1])
    }
}
