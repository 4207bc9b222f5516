import Bytes
import Crypto
import EventLog
import Foundation
import HTTP
import Ingest
import Postgres
import Schemas
import System
import TestSupport
import Testing
import Updates

/// A front-end that serves updates, a source of apps, an installer that does as the test says, and an
/// operator's hands on all of it.
final class UpdateRig {
    static let secretKey = [UInt8](repeating: 0x5A, count: 32)

    let database: TestDatabase
    let source = AppSourceServer()
    let folder: String
    let log: EmbeddedLog
    let registry: Registry
    private(set) var frontEnd: FrontEnd<EmbeddedLog>?
    private var settings: FrontEndSettings
    private let reading: EventReader

    /// - Parameters:
    ///   - hasInstaller: whether commands are configured.
    ///   - proxied: the client's address is what `X-Forwarded-For` says.
    init(
        hasInstaller: Bool = true, proxied: Bool = false,
        _ change: (inout UpdateSettings) -> Void = { _ in }
    ) throws {
        database = try TestDatabase.make()
        folder = try FileSystem.makeTemporaryDirectory("/tmp/heartline-updates-")
        var logSettings = EmbeddedLogSettings()
        logSettings.mapBytes = 1 << 30
        log = try EmbeddedLog(directory: folder + "/log", settings: logSettings)
        try log.createTopics(
            [.heartbeats, .configChanges, .deviceConfigs, .alerts, .updates].map {
                TopicSettings($0, partitions: 2)
            })
        registry = try Registry(database.connect(), secretKey: Self.secretKey)
        try registry.prepareNetwork(NetworkSettings())
        reading = try EventReader(log)
        settings = FrontEndSettings(
            server: try ServerConfiguration(host: "127.0.0.1", port: 0, loops: 2),
            secretKey: Self.secretKey)
        settings.name = "updates"
        var updates = UpdateSettings(directory: folder + "/updates")
        updates.configuration.gitHub.api = source.url
        updates.configuration.allowedHosts = ["127.0.0.1"]
        if proxied { updates.trustedProxies = [ClientNetwork("127.0.0.1")!] }
        if hasInstaller { updates.configuration.installer = Self.installer(folder) }
        change(&updates)
        settings.updates = updates
        source.put(.init("Example.ipa", AppSourceServer.app(200_000)))
        try start()
    }

    deinit {
        source.release()
        release()
        frontEnd?.stop()
        log.close()
        source.stop()
        FileSystem.removeTree(folder)
    }

    func start() throws {
        let made = try FrontEnd(log: log, databaseURL: database.url, settings: settings)
        try made.start()
        frontEnd = made
    }

    func stop() {
        frontEnd?.stop()
        frontEnd = nil
    }

    // MARK: - The installer

    /// Scripts that write down what they are given, and wait or fail where a file says so.
    private static func installer(_ folder: String) -> UpdatesConfiguration.Installer {
        func script(_ name: String, _ body: String, _ arguments: String...) -> [String] {
            let frame = """
                d=\(folder); echo "\(name) $*" >> $d/commands
                \(body)
                while [ -e $d/hold-\(name) ]; do sleep 0.02; done
                if [ -e $d/fail-\(name) ]; then cat $d/fail-\(name); exit 3; fi
                """
            return ["/bin/sh", "-c", frame, name] + arguments
        }
        var installer = UpdatesConfiguration.Installer(
            sign: script(
                "sign",
                """
                echo "progress 1/2: unpacking"; echo "warning: the profile is old"
                cp "$1" "$2"; cp "$3" $d/metadata.plist; cp "$1" $d/last.ipa
                """, "{ipa}", "{signed}", "{metadata}", "{team}"),
            install: script(
                "install", "test -e \"$2\" && echo copying", "{device}", "{signed}", "{version}"))
        installer.running = [
            "/bin/sh", "-c",
            "echo running >> \(folder)/commands; exit $(cat \(folder)/running || echo 0)",
        ]
        installer.open = script("open", ":", "{device}")
        return installer
    }

    func hold(_ command: String) throws { try write("", "hold-\(command)") }
    func release(_ command: String) { FileSystem.remove("\(folder)/hold-\(command)") }
    private func release() { for name in ["sign", "install", "open"] { release(name) } }

    /// - Parameter text: what the command says before it fails.
    func fail(_ command: String, _ text: String = "") throws { try write(text, "fail-\(command)") }

    /// The exit status of the check whether an app runs.
    func setRunning(_ status: Int) throws { try write("\(status)\n", "running") }

    private func write(_ text: String, _ name: String) throws {
        try FileSystem.write(text, to: "\(folder)/\(name)", mode: 0o600)
    }

    /// Commands that were run, with their arguments.
    var commands: [String] {
        ((try? FileSystem.read("\(folder)/commands")) ?? "").split(separator: "\n").map(String.init)
    }

    func ran(_ command: String) -> Int { commands.count { $0.hasPrefix(command) } }

    var lastApp: ByteBuffer? {
        (try? FileSystem.bytes(of: "\(folder)/last.ipa")).map { ByteBuffer($0) }
    }

    func metadata() throws -> [String: Any] {
        let data = Data(try FileSystem.bytes(of: "\(folder)/metadata.plist"))
        let read = try unsafe PropertyListSerialization.propertyList(
            from: data, options: [], format: nil)
        return try #require(read as? [String: Any])
    }

    /// The id that the last app was signed with.
    func newID() throws -> String {
        let hub = try #require(try metadata()["IPAHub"] as? [String: Any])
        let url = try #require((hub["updateURL"] as? [String])?.first)
        return try #require(
            url.split(separator: "/").first { $0.count == 48 }.map(String.init))
    }

    // MARK: - Installations

    struct App {
        var record: DeviceID
        var id: String
    }

    func add(
        _ source: String? = nil, _ change: (inout Registry.InstallationSettings) -> Void = { _ in }
    ) throws -> App {
        var settings = Registry.InstallationSettings(
            device: "phone", app: "Example", source: source ?? "gh:owner/repo")
        settings.version = "v1"
        change(&settings)
        let made = try registry.addInstallation(
            settings, by: OperatorRequest(actor: "test"))
        return App(record: made.id, id: try #require(made.token))
    }

    /// A release v2 of one IPA, and an app that has v1.
    func addWithUpdate(
        _ change: (inout Registry.InstallationSettings) -> Void = { _ in }
    ) throws -> App {
        source.publish(.init("v2", files: ["Example.ipa"]))
        return try add(nil, change)
    }

    func link(_ app: App, isAnywhere: Bool = true) throws -> String {
        let made = try registry.createLink(
            of: app.record, isAnywhere: isAnywhere, by: OperatorRequest(actor: "test"))
        return "/global-update/\(try #require(made.token))"
    }

    // MARK: - Clients

    var base: String {
        let address = frontEnd!.boundAddress
        return "http://\(address.host):\(address.port)"
    }

    /// One request by curl.
    func curl(
        _ path: String, method: String = "GET", from address: String? = nil
    ) throws -> Answer {
        let stream = try CurlStream(base + path, method: method, from: address, folder)
        stream.waitForEnd()
        return try #require(stream.answer, "\(path): \(stream.text)")
    }

    func stream(
        _ path: String, method: String = "POST", from address: String? = nil
    ) throws -> CurlStream {
        try CurlStream(base + path, method: method, from: address, folder)
    }

    /// The client of the contract's text, in Python.
    func python(_ arguments: [String]) throws -> [[String: Any]] {
        let script = URL(filePath: #filePath).deletingLastPathComponent()
            .appending(path: "updates_client.py").path(percentEncoded: false)
        var settings = ChildProcess.Settings("/usr/bin/env", ["python3", script] + arguments)
        settings.environment = ProcessInfo.processInfo.environment
        let (status, output) = try ChildProcess.run(settings)
        #expect(status == .exited(0), "\(output)")
        return output.split(separator: "\n").compactMap {
            (try? JSONSerialization.jsonObject(with: Data($0.utf8))) as? [String: Any]
        }
    }

    // MARK: - What was recorded

    /// All events of topic `updates` so far.
    func events() throws -> [UpdatesEvent] { try reading.read() }

    /// The attempts' stages so far, in words.
    func stages() throws -> [String] {
        try events().compactMap { event in
            guard case .attempt(let attempt) = event.kind else { return nil }
            return switch attempt.stage {
            case .step(let step): "\(attempt.action.rawValue) \(step)"
            case .selection: "\(attempt.action.rawValue) selection"
            case .result: "\(attempt.action.rawValue) result"
            case .error(let message): "\(attempt.action.rawValue) error \(message)"
            case .lost: "\(attempt.action.rawValue) lost"
            case .disconnected: "\(attempt.action.rawValue) disconnected"
            }
        }
    }

    func version(_ app: App) throws -> String? {
        try registry.installation(app.record)?.version
    }

    /// Files of downloads that are under way or done.
    var cached: [String] {
        ((try? FileSystem.names(in: folder + "/updates/cache")) ?? []).filter {
            !$0.hasSuffix(".validator")
        }
    }
}

/// Reads topic `updates` from its beginning on.
private final class EventReader {
    private let consumer: EmbeddedLog.Consumer
    private let decoder = UpdatesDecoder()
    private var events: [UpdatesEvent] = []

    init(_ log: EmbeddedLog) throws {
        consumer = try log.makeConsumer(of: .updates, group: "test", waker: Waker())
    }

    func read() throws -> [UpdatesEvent] {
        while let change = try consumer.nextAssignmentChange() {
            if case .assigned(let partitions) = change {
                for partition in partitions { try consumer.start(partition, at: 0) }
            }
        }
        while try consumer.poll(
            limit: 1_000,
            { _, _, value in
                switch decoder.decode(value.bytes) {
                case .event(let event): events.append(event)
                case .skipped: break
                case .malformed(let reason): Issue.record("a record is malformed: \(reason)")
                }
            }) > 0
        {}
        return events
    }
}

/// An answer as curl printed it.
struct Answer {
    var status: Int
    var headers: [String: String]
    var body: String

    var json: [String: Any] {
        ((try? JSONSerialization.jsonObject(with: Data(body.utf8))) as? [String: Any]) ?? [:]
    }

    var isNDJSON: Bool { headers["content-type"] == "application/x-ndjson" }
    var error: String? { json["error"] as? String }
    var isAvailable: Bool? { json["available"] as? Bool }

    /// Whole lines of a stream.
    var lines: [[String: Any]] {
        body.split(separator: "\n").compactMap {
            (try? JSONSerialization.jsonObject(with: Data($0.utf8))) as? [String: Any]
        }
    }

    /// The steps that progress was told of, each once; then the type of the last line.
    var story: [String] {
        var words: [String] = []
        for line in lines {
            if let progress = line["progress"] as? [String: Any],
                let step = progress["step"] as? String
            {
                if words.last != step { words.append(step) }
            } else if let type = line["type"] as? String {
                words.append(type)
            }
        }
        return words
    }
}

/// `curl -N` as another process; its output can be looked at while it runs.
final class CurlStream {
    private let process: ChildProcess
    private let file: String
    private var hasEnded = false

    init(_ url: String, method: String, from address: String?, _ folder: String) throws {
        file = "\(folder)/curl-\(UUID().uuidString)"
        let output = try FileSystem.openForWriting(file, mode: 0o600)
        defer { FileSystem.close(output) }
        var arguments = ["-N", "-s", "-i", "--max-time", "180", "-X", method]
        if let address { arguments += ["-H", "X-Forwarded-For: \(address)"] }
        var settings = ChildProcess.Settings("/usr/bin/curl", arguments + [url])
        settings.output = output
        process = try ChildProcess.start(settings)
    }

    /// What came so far.
    var text: String { (try? FileSystem.read(file)) ?? "" }

    /// `nil` before the head is there.
    var answer: Answer? {
        let parts = text.split(
            separator: "\r\n\r\n", maxSplits: 1, omittingEmptySubsequences: false)
        guard parts.count == 2 else { return nil }
        let lines = parts[0].split(separator: "\r\n")
        guard let status = lines.first?.split(separator: " ").dropFirst().first.flatMap({ Int($0) })
        else { return nil }
        var headers: [String: String] = [:]
        for line in lines.dropFirst() {
            let sides = line.split(separator: ":", maxSplits: 1)
            if sides.count == 2 {
                headers[sides[0].lowercased()] = String(sides[1].drop { $0 == " " })
            }
        }
        return Answer(status: status, headers: headers, body: String(parts[1]))
    }

    var story: [String] { answer?.story ?? [] }

    /// Waits until progress of a step was told.
    func reaches(_ step: String) throws -> Bool {
        try eventually(milliseconds: 120_000) { story.contains(step) }
    }

    /// The client goes away.
    func leave() {
        guard !hasEnded else { return }
        process.send(signal: SIGKILL)
        waitForEnd()
    }

    /// - Returns: curl's exit status; 0 if the answer was whole.
    @discardableResult
    func waitForEnd() -> ChildProcess.ExitStatus {
        guard !hasEnded else { return .exited(-1) }
        hasEnded = true
        return process.wait()
    }

    deinit { leave() }
}
