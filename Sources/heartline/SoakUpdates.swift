import Bytes
import Curl
import HTTP
import Ingest
import Schemas
import Synchronization
import System

/// Apps in a soak that check for updates and install them, release after release, as a rollout goes; on
/// a thread of its own, with a book of how the streams ended.
final class SoakUpdates: Sendable {
    /// What must be found afterwards.
    struct Book: Sendable {
        /// Checks that were answered 200.
        var checks = 0
        /// Streams that ended with a result.
        var installed = 0
        /// Streams that ended otherwise, answers other than 200, and none at all.
        var failed = 0
        var firstFailure: String?
    }

    /// Commands of the installer, as `updates.yaml` has them. What is to become part of an app is left
    /// beside it, so that the app can show its new id.
    static func configuration(in directory: String) -> String {
        """
        allow_hosts: [ 127.0.0.1 ]
        installer:
          sign: [ /bin/sh, -c, 'cp "$1" "$2" && cp "$3" "$4"', sh, "{ipa}", "{signed}", "{metadata}", "\(directory)/{device}.plist" ]
          install: [ /bin/true ]

        """
    }

    fileprivate enum Action {
        case check(Int)
        case install(Int)
    }

    private static let parallel = 4
    private static let actionsPerSecond = 4

    private let url: String
    private let directory: String
    private let source: SoakSource
    private let thread = SoakThread<Book>("updates")
    /// The first id of each app, in the order of their devices.
    private let apps: [String]

    /// - Parameters:
    ///   - url: where the update routes are.
    ///   - directory: where the installer leaves what becomes part of an app.
    init(_ url: String, _ source: SoakSource, apps: [String], directory: String) {
        self.url = url
        self.source = source
        self.apps = apps
        self.directory = directory
    }

    static func device(_ number: Int) -> String { "phone-\(number)" }

    func start() { thread.start { [self] in try run() } }

    /// Waits for the streams that have begun.
    func stop() throws -> Book { try thread.stop() }

    // MARK: - The thread

    private func run() throws -> Book {
        var transfers = try CurlTransfers(
            maximumTransfers: Self.parallel, maximumConnections: Self.parallel)
        var book = Book()
        var ids = apps
        // Of this release, each app first checks and then installs.
        var due: [Action] = []
        var running: [UInt64: Action] = [:]
        var started: UInt64 = 0
        let began = SystemClock.monotonicMilliseconds()
        while true {
            if thread.isStopping, transfers.running == 0 { return book }
            if due.isEmpty, running.isEmpty {
                source.publish()
                due = apps.indices.reversed().flatMap { [.install($0), .check($0)] }
            }
            let elapsed = Int(SystemClock.monotonicMilliseconds() - began)
            while !thread.isStopping, !transfers.isFull,
                Int(started) < elapsed * Self.actionsPerSecond / 1_000, let action = due.last
            {
                // An app does one thing at a time.
                if case .install(let app) = action,
                    running.values.contains(where: { $0.app == app })
                {
                    break
                }
                due.removeLast()
                started += 1
                running[started] = action
                let path = action.isCheck ? "/check?prefetch=false" : ""
                let request = try CurlRequest(
                    .post, "\(url)/api/app/\(ids[action.app])/update\(path)",
                    usesEnvironmentProxy: false)
                try transfers.start(request, tag: started)
            }
            try transfers.poll(milliseconds: 20) { completion, answer in
                guard let action = running.removeValue(forKey: completion.tag) else { return }
                let last = answer.text.split(separator: "\n").last ?? ""
                let isGood = completion.error == nil && completion.status == 200
                switch action {
                case .check where isGood: book.checks += 1
                case .install(let app) where isGood && last.hasPrefix("{\"type\":\"result\""):
                    book.installed += 1
                    ids[app] = newID(app) ?? ids[app]
                case .check, .install:
                    book.failed += 1
                    book.firstFailure =
                        book.firstFailure
                        ?? "\(action): \(completion.error.map { "\($0)" } ?? "\(completion.status) \(last)")"
                }
            }
        }
    }

    /// What the installer was given for the app, which stands in an address.
    private func newID(_ app: Int) -> String? {
        guard let text = try? FileSystem.read("\(directory)/\(Self.device(app)).plist"),
            let match = text.firstMatch(of: #/api/app/([0-9a-f]{48})/update/#)
        else { return nil }
        return String(match.output.1)
    }
}

extension SoakUpdates.Action {
    fileprivate var isCheck: Bool { if case .check = self { true } else { false } }
    fileprivate var app: Int {
        switch self {
        case .check(let app), .install(let app): app
        }
    }
}

/// Where the apps come from: one file on the loopback address, another one with each release.
final class SoakSource: Sendable {
    private final class Handler: RequestHandler {
        private let release: Release
        private let content: ByteBuffer

        init(_ release: Release) {
            self.release = release
            // As an IPA begins, and of some length.
            content = ByteBuffer(
                [0x50, 0x4B, 0x03, 0x04] + [UInt8](repeating: 0x5A, count: 65_532))
        }

        func handle(_ request: borrowing Request, _ exchange: borrowing Exchange) {
            let number = release.number.load(ordering: .relaxed)
            let headers = [Header("ETag", "\"release-\(number)\"")]
            let content = content
            exchange.respond(
                .ok, contentType: "application/octet-stream", headers: headers, content.span)
        }
    }

    private final class Release: Sendable {
        let number = Atomic(0)
    }

    private let release = Release()
    private let server: Server

    init() throws {
        server = try Server(
            configuration: ServerConfiguration(host: "127.0.0.1", port: 0, name: "source")
        ) { [release] _ in Handler(release) }
        try server.start()
    }

    var url: String { "http://127.0.0.1:\(server.boundAddress.port)/app.ipa" }

    /// From here on there is another release.
    func publish() { release.number.add(1, ordering: .relaxed) }

    func stop() { server.stop() }
}
