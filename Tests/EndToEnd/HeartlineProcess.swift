import Foundation
import Synchronization
import Testing

/// The built executable, started by tests as a user starts it.
enum Executable {
    /// Beside the test bundle, whichever configuration was built.
    static let url: URL = {
        let me =
            (try? FileManager.default.destinationOfSymbolicLink(atPath: "/proc/self/exe")) ?? ""
        return URL(filePath: me).deletingLastPathComponent().appending(path: "heartline")
    }()

    struct Outcome: Sendable {
        /// -1 if a signal ended it.
        var status: Int32
        var output: String
        var errors: String
    }

    /// Runs `heartline` with these words to its end.
    static func run(
        _ words: [String], environment: [String: String] = [:], in folder: String? = nil
    ) async throws -> Outcome {
        let started = try HeartlineProcess(words, environment: environment, in: folder)
        let status = await started.waitForEnd()
        return Outcome(
            status: status, output: started.output(), errors: started.errors())
    }
}

/// One started process; its output goes to files, so that it never waits for us.
final class HeartlineProcess: Sendable {
    private struct State {
        var status: Int32?
        var waiters: [CheckedContinuation<Int32, Never>] = []
    }

    let processID: Int32
    private let folder: TemporaryFolder
    private let state = Mutex(State())

    init(_ words: [String], environment: [String: String] = [:], in directory: String? = nil) throws
    {
        folder = try TemporaryFolder()
        let process = Process()
        process.executableURL = Executable.url
        process.arguments = words
        // Nothing of the environment that the tests run in decides what they see.
        var variables = ProcessInfo.processInfo.environment.filter {
            !$0.key.hasPrefix("HEARTLINE_")
        }
        variables.merge(environment) { $1 }
        process.environment = variables
        if let directory { process.currentDirectoryURL = URL(filePath: directory) }
        process.standardInput = FileHandle.nullDevice
        process.standardOutput = try Self.file(folder.path + "/output")
        process.standardError = try Self.file(folder.path + "/errors")
        let ended = EndBox()
        process.terminationHandler = { process in
            ended.finish(process.terminationReason == .exit ? process.terminationStatus : -1)
        }
        try process.run()
        processID = process.processIdentifier
        ended.then { [weak self] status in self?.finish(status) }
    }

    private static func file(_ path: String) throws -> FileHandle {
        _ = FileManager.default.createFile(atPath: path, contents: nil)
        return try FileHandle(forWritingTo: URL(filePath: path))
    }

    /// Hands the status over whether the process ends before or after the object is made.
    private final class EndBox: Sendable {
        private let state = Mutex<(status: Int32?, handler: (@Sendable (Int32) -> Void)?)>(
            (nil, nil))

        func finish(_ status: Int32) {
            let handler = state.withLock { state in
                state.status = status
                return state.handler
            }
            handler?(status)
        }

        func then(_ handler: @escaping @Sendable (Int32) -> Void) {
            let status = state.withLock { state in
                state.handler = handler
                return state.status
            }
            if let status { handler(status) }
        }
    }

    private func finish(_ status: Int32) {
        let waiters = state.withLock { state in
            state.status = status
            defer { state.waiters = [] }
            return state.waiters
        }
        for waiter in waiters { waiter.resume(returning: status) }
    }

    var hasEnded: Bool { state.withLock { $0.status != nil } }

    /// The exit code; -1 if a signal ended it.
    func waitForEnd() async -> Int32 {
        await withCheckedContinuation { continuation in
            let status = state.withLock { state in
                if state.status == nil { state.waiters.append(continuation) }
                return state.status
            }
            if let status { continuation.resume(returning: status) }
        }
    }

    func send(_ signal: Int32) { if !hasEnded { kill(processID, signal) } }

    func output() -> String {
        (try? String(contentsOfFile: folder.path + "/output", encoding: .utf8)) ?? ""
    }
    func errors() -> String {
        (try? String(contentsOfFile: folder.path + "/errors", encoding: .utf8)) ?? ""
    }

    deinit { send(SIGKILL) }
}

/// A folder of a test's own under /tmp, removed at the end of its life.
final class TemporaryFolder: Sendable {
    let path: String

    init() throws {
        let url = URL(filePath: "/tmp/heartline-\(UUID().uuidString.prefix(13))")
        try FileManager.default.createDirectory(
            at: url, withIntermediateDirectories: false, attributes: [.posixPermissions: 0o755])
        path = url.path(percentEncoded: false)
    }

    func write(_ text: String, to name: String) throws -> String {
        let file = "\(path)/\(name)"
        try text.write(toFile: file, atomically: true, encoding: .utf8)
        return file
    }

    deinit { try? FileManager.default.removeItem(atPath: path) }
}
