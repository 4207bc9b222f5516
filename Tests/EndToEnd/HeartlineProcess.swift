import Foundation
import Synchronization
import System
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

/// One started process; its output goes to files, so that it never waits for us. It ends with the
/// tests, however those end.
final class HeartlineProcess: Sendable {
    /// What its thread finds out.
    private final class Life: Sendable {
        private struct State {
            var start: Result<Int32, SystemError>?
            var status: Int32?
            var waiters: [CheckedContinuation<Int32, Never>] = []
        }

        private let state = Mutex(State())
        private let started = DispatchSemaphore(value: 0)

        /// Runs on a thread that lives as long as the process: its end is what ends the process when
        /// the tests are killed.
        func live(_ settings: ChildProcess.Settings) {
            let child: ChildProcess
            do throws(SystemError) {
                child = try ChildProcess.start(settings)
            } catch {
                state.withLock { $0.start = .failure(error) }
                started.signal()
                return
            }
            state.withLock { $0.start = .success(child.processID) }
            started.signal()
            let status: Int32 =
                switch child.wait() {
                case .exited(let code): code
                case .signalled: -1
                }
            let waiters = state.withLock { state in
                state.status = status
                defer { state.waiters = [] }
                return state.waiters
            }
            for waiter in waiters { waiter.resume(returning: status) }
        }

        func processID() throws -> Int32 {
            started.wait()
            guard let start = state.withLock({ $0.start }) else {
                preconditionFailure("a process was neither started nor not started")
            }
            return try start.get()
        }

        var hasEnded: Bool { state.withLock { $0.status != nil } }

        func end() async -> Int32 {
            await withCheckedContinuation { continuation in
                let status = state.withLock { state in
                    if state.status == nil { state.waiters.append(continuation) }
                    return state.status
                }
                if let status { continuation.resume(returning: status) }
            }
        }
    }

    let processID: Int32
    private let folder: TemporaryFolder
    private let life = Life()
    private let thread: SystemThread

    /// - Parameters:
    ///   - executable: another program than the built one.
    ///   - input: what it reads from its standard input; `nil`: that of the tests.
    init(
        _ words: [String], environment: [String: String] = [:], in directory: String? = nil,
        executable: String = Executable.url.path, input: String? = nil
    ) throws {
        folder = try TemporaryFolder()
        let redirection = input == nil ? "" : " <\"${out%/*}/input\""
        if let input { _ = try folder.write(input, to: "input") }
        // The shell puts output and errors apart and is gone then.
        var settings = ChildProcess.Settings(
            "/bin/sh",
            [
                "-c",
                "out=$1 err=$2; shift 2; exec \"$@\" >\"$out\" 2>\"$err\"\(redirection)", "sh",
                folder.path + "/output", folder.path + "/errors", executable,
            ] + words)
        settings.deathSignal = SIGKILL
        settings.workingDirectory = directory
        // Nothing of the environment that the tests run in decides what they see.
        settings.environment = ProcessInfo.processInfo.environment.filter {
            !$0.key.hasPrefix("HEARTLINE_")
        }.merging(environment) { $1 }
        let (life, started) = (life, settings)
        thread = SystemThread.start("heartline") { life.live(started) }
        do {
            processID = try life.processID()
        } catch {
            thread.join()
            throw error
        }
    }

    var hasEnded: Bool { life.hasEnded }

    /// The exit code; -1 if a signal ended it.
    func waitForEnd() async -> Int32 { await life.end() }

    func send(_ signal: Int32) { if !hasEnded { kill(processID, signal) } }

    func output() -> String {
        (try? String(contentsOfFile: folder.path + "/output", encoding: .utf8)) ?? ""
    }
    func errors() -> String {
        (try? String(contentsOfFile: folder.path + "/errors", encoding: .utf8)) ?? ""
    }

    deinit {
        send(SIGKILL)
        thread.join()
    }
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
