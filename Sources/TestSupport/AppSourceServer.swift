public import Bytes
internal import Crypto
internal import Synchronization
internal import System

/// A source of apps on the loopback address, as GitHub's releases API and a file server are, with every
/// fault that a source can have.
public final class AppSourceServer: Sendable {
    /// How a file is sent.
    public enum Behaviour: Sendable {
        case normal
        /// Sends so many bytes and waits for `release()`.
        case held(after: Int)
        /// Closes the connection after so many bytes of each answer.
        case dies(after: Int)
        /// Announces other than it sends.
        case announces(bytes: Int)
        /// Answers a page, as a portal does.
        case page
        case redirect(String)
        case status(Int)
    }

    public struct File: Sendable {
        public var name: String
        public var content: ByteBuffer
        public var behaviour = Behaviour.normal
        public var hasValidators = true
        public var takesRanges = true
        public var takesHead = true
        /// SHA-256 that the API tells, `nil` for none.
        public var digest: String?
        /// Size that the API tells; `nil`: the true one.
        public var announcedSize: Int?
        /// Counted up when the file is replaced.
        public var revision = 1
        var id = 0

        public init(_ name: String, _ content: ByteBuffer) {
            self.name = name
            self.content = content
        }
    }

    public struct Release: Sendable {
        public var tag: String
        public var isPrerelease: Bool
        public var publishedAt: String
        public var files: [String]

        public init(
            _ tag: String, files: [String], isPrerelease: Bool = false,
            publishedAt: String = "2026-01-01T00:00:00Z"
        ) {
            self.tag = tag
            self.files = files
            self.isPrerelease = isPrerelease
            self.publishedAt = publishedAt
        }
    }

    private struct State {
        var files: [String: File] = [:]
        var releases: [Release] = []
        var isReleased = false
        var isHeld = 0
        var isStopped = false
        var isAPIHeld = false
        var limit: (remaining: Int, reset: Int64)?
        var apiStatus: Int?
        var lines: [String] = []
        var credentials: [String] = []
        var nextID = 100
    }

    private let state = Mutex(State())
    private let server = Mutex<HTTPTestServer?>(nil)
    public let url: String
    public let port: UInt16

    public init() {
        let holder = Holder()
        let made = HTTPTestServer { holder.answer($0) }
        url = made.url
        port = made.port
        server.withLock { $0 = made }
        holder.source.withLock { $0 = Weak(self) }
    }

    private struct Weak: Sendable {
        weak let source: AppSourceServer?
        init(_ source: AppSourceServer) { self.source = source }
    }

    /// The server's closure is older than the source.
    private final class Holder: Sendable {
        let source = Mutex<Weak?>(nil)

        func answer(_ request: HTTPTestServer.Request) -> HTTPTestServer.Answer {
            source.withLock { $0 }?.source?.answer(request) ?? .close
        }
    }

    /// Ends all connections. Call it once.
    public func stop() {
        state.withLock { $0.isStopped = true }
        server.withLock { $0.take() }?.stop()
    }

    // MARK: - What it holds

    /// An archive of about so many bytes that begins as an IPA does.
    public static func app(_ bytes: Int, seed: UInt8 = 0) -> ByteBuffer {
        var content = ByteBuffer([0x50, 0x4B, 0x03, 0x04])
        for index in 4..<max(5, bytes) {
            content.append(UInt8(truncatingIfNeeded: index &* 31) &+ seed)
        }
        return content
    }

    public func put(_ file: File) {
        state.withLock { state in
            var file = file
            state.nextID += 1
            file.id = state.nextID
            file.revision = (state.files[file.name]?.revision ?? 0) + 1
            state.files[file.name] = file
        }
    }

    public func change(_ name: String, _ body: (inout File) -> Void) {
        state.withLock { state in
            if var file = state.files[name] {
                body(&file)
                state.files[name] = file
            }
        }
    }

    public func publish(_ release: Release) { state.withLock { $0.releases.append(release) } }

    /// Lets what is held go on, for good.
    public func release() { state.withLock { $0.isReleased = true } }

    /// Holds the API's answers until `release()`.
    public func holdAPI() { state.withLock { $0.isAPIHeld = true } }

    /// Answers that wait for `release()` now.
    public var held: Int { state.withLock { $0.isHeld } }

    /// Headers of a limit in each of the API's answers.
    public func limit(remaining: Int, reset: Int64) {
        state.withLock { $0.limit = (remaining, reset) }
    }

    /// What the API answers to everything; `nil`: as it should.
    public func answerAPI(_ status: Int?) { state.withLock { $0.apiStatus = status } }

    public func fileURL(_ name: String) -> String { "\(url)/files/\(name)" }

    /// First lines of the requests so far.
    public var requests: [String] { state.withLock { $0.lines } }

    /// Requests for a path.
    public func count(_ path: String) -> Int { requests.count { $0.contains(path) } }

    /// `Authorization` of the requests so far, empty where there was none.
    public var credentials: [String] { state.withLock { $0.credentials } }

    // MARK: - Answers

    private func answer(_ request: HTTPTestServer.Request) -> HTTPTestServer.Answer {
        state.withLock { state in
            state.lines.append(request.line)
            state.credentials.append(request.header("authorization") ?? "")
        }
        let words = request.line.split(separator: " ")
        guard words.count == 3 else { return .close }
        let target = String(words[1])
        let path = String(target.prefix { $0 != "?" })
        if path.hasPrefix("/repos/") { return api(path, request) }
        let name: String?
        if path.hasPrefix("/files/") {
            name = String(path.dropFirst(7))
        } else if path.hasPrefix("/assets/") {
            let id = Int(path.dropFirst(8))
            name = state.withLock { $0.files.values.first { $0.id == id }?.name }
        } else {
            name = nil
        }
        guard let name, let file = state.withLock({ $0.files[name] }) else {
            return .status(404, "{}")
        }
        return send(file, request, isHead: words[0] == "HEAD")
    }

    private func send(
        _ file: File, _ request: HTTPTestServer.Request, isHead: Bool
    ) -> HTTPTestServer.Answer {
        if isHead, !file.takesHead { return .status(405, "") }
        let tag = "\"\(file.revision)-\(file.content.count)\""
        var start = 0
        if file.takesRanges, let range = request.header("range"),
            request.header("if-range") == tag,
            let first = Int(range.dropFirst(6).prefix { $0.isNumber })
        {
            start = first
        }
        var status = start > 0 ? "206 Partial Content" : "200 OK"
        var type = "application/octet-stream"
        var content = ByteBuffer(copying: file.content.span.extracting(start...))
        var length: Int? = content.count
        var headers = ""
        var most = Int.max
        var waits = false
        switch file.behaviour {
        case .normal: break
        case .held(let after):
            most = after
            waits = true
        case .dies(let after): most = after
        case .announces(let bytes): length = bytes
        case .page:
            type = "text/html; charset=utf-8"
            content = ByteBuffer("<html>Sign in</html>".utf8)
            length = content.count
        case .redirect(let target):
            status = "302 Found"
            headers = "Location: \(target)\r\n"
            content = ByteBuffer()
            length = 0
        case .status(let code):
            status = "\(code) X"
            content = ByteBuffer()
            length = 0
        }
        if file.hasValidators {
            headers += "ETag: \(tag)\r\n"
        } else {
            length = nil
        }
        if start > 0 {
            headers +=
                "Content-Range: bytes \(start)-\(file.content.count - 1)/\(file.content.count)\r\n"
        }
        if let length { headers += "Content-Length: \(length)\r\n" }
        let head = ByteBuffer(
            "HTTP/1.1 \(status)\r\nContent-Type: \(type)\r\nConnection: close\r\n\(headers)\r\n"
                .utf8)
        let (body, first, holds) = (content, min(most, content.count), waits)
        return .script { [weak self] write in
            guard write(head), !isHead else { return }
            let span = body.span
            guard write(ByteBuffer(copying: span.extracting(0..<first))) else { return }
            guard holds else { return }
            self?.waitForRelease()
            _ = write(ByteBuffer(copying: body.span.extracting(first...)))
        }
    }

    private func waitForRelease() {
        state.withLock { $0.isHeld += 1 }
        let pause = Waker()
        while !state.withLock({ $0.isReleased || $0.isStopped }) { pause.wait(milliseconds: 5) }
        state.withLock { $0.isHeld -= 1 }
    }

    private func api(_ path: String, _ request: HTTPTestServer.Request) -> HTTPTestServer.Answer {
        if state.withLock({ $0.isAPIHeld }) { waitForRelease() }
        let (releases, files, limit, fixed) = state.withLock {
            ($0.releases, $0.files, $0.limit, $0.apiStatus)
        }
        var headers = ""
        if let limit {
            headers +=
                "X-RateLimit-Remaining: \(limit.remaining)\r\nX-RateLimit-Reset: \(limit.reset)\r\n"
        }
        func answer(_ status: Int, _ body: String, tag: String? = nil) -> HTTPTestServer.Answer {
            let tagged = tag.map { "ETag: \($0)\r\n" } ?? ""
            return .raw(
                "HTTP/1.1 \(status) X\r\nContent-Type: application/json\r\nConnection: close\r\n"
                    + headers + tagged + "Content-Length: \(body.utf8.count)\r\n\r\n" + body)
        }
        if let fixed { return answer(fixed, "{}") }
        guard path.hasPrefix("/repos/owner/repo/releases") else { return answer(404, "{}") }
        let shown: [Release]
        let isLatest = path.hasSuffix("/latest")
        if isLatest {
            let newest = releases.filter { !$0.isPrerelease }
                .max { $0.publishedAt < $1.publishedAt }
            guard let newest else { return answer(404, "{}") }
            shown = [newest]
        } else {
            shown = releases
        }
        let texts = shown.map { text($0, files) }
        let body = isLatest ? texts[0] : "[" + texts.joined(separator: ",") + "]"
        let bytes = ByteBuffer(body.utf8)
        let tag = "W/\"\(SHA256.hash(bytes.span).hex.prefix(16))\""
        if request.header("if-none-match") == tag { return answer(304, "", tag: tag) }
        return answer(200, body, tag: tag)
    }

    private func text(_ release: Release, _ files: [String: File]) -> String {
        let assets = release.files.compactMap { files[$0] }.map { file in
            let digest = file.digest.map { ",\"digest\":\"sha256:\($0)\"" } ?? ""
            return """
                {"id":\(file.id),"name":"\(file.name)","size":\(file.announcedSize ?? file.content.count),\
                "state":"uploaded","updated_at":"2026-01-01T00:00:0\(file.revision % 10)Z",\
                "url":"\(url)/assets/\(file.id)","browser_download_url":"\(fileURL(file.name))"\(digest)}
                """
        }
        return """
            {"tag_name":"\(release.tag)","draft":false,"prerelease":\(release.isPrerelease),\
            "published_at":"\(release.publishedAt)","assets":[\(assets.joined(separator: ","))]}
            """
    }
}
