internal import Glibc
internal import Synchronization
internal import System

/// Keeps one server process running: the only one that starts, ends and reaps it.
///
/// The thread that starts a process lives as long as the process, because the death signal that ends
/// the process with us is tied to that thread.
final class PrivateDatabaseServer: Sendable {
    struct State {
        var processID: Int32?
        /// Answered once; from then on an end is a crash, after which it is started again.
        var hasAnswered = false
        var isStopping = false
        /// The thread has ended: why.
        var end: String?
    }

    private let state = Mutex(State())
    private let changed = Waker()
    private let thread = Mutex<SystemThread?>(nil)
    private let command: ChildProcess.Settings
    /// What the server writes before its own log begins.
    private let outputPath: String
    private let restartsAfterCrash: Bool
    /// A server that an earlier process of ours left behind, and its cluster.
    private let adopted: (file: PostmasterFile, cluster: String)?

    init(
        _ command: ChildProcess.Settings, outputPath: String, restartsAfterCrash: Bool,
        adopted: (file: PostmasterFile, cluster: String)?
    ) {
        self.command = command
        self.outputPath = outputPath
        self.restartsAfterCrash = restartsAfterCrash
        self.adopted = adopted
        state.withLock { $0.processID = adopted?.file.processID }
        let started = SystemThread.start("postgres") { [self] in keepRunning() }
        thread.withLock { $0 = started }
    }

    var processID: Int32? { state.withLock { $0.processID } }

    /// Why nothing runs any more; `nil` as long as something does.
    var end: String? { state.withLock { $0.end } }

    func markAnswered() { state.withLock { $0.hasAnswered = true } }

    /// Waits for a change of state, or for `milliseconds`.
    func wait(milliseconds: Int64) { changed.wait(milliseconds: milliseconds) }

    /// Ends the server, gently first, and the thread.
    func stop(timeout: Duration) {
        state.withLock { $0.isStopping = true }
        changed.signal()
        // "Fast": sessions are cut off, transactions roll back, a checkpoint is written. Then
        // "immediate", which the next start recovers from.
        for (signal, patience) in [
            (SIGINT, timeout), (SIGQUIT, .seconds(10)), (SIGKILL, .seconds(10)),
        ] {
            if let process = processID { ChildProcess.send(signal: signal, to: process) }
            let start = ContinuousClock.now
            while end == nil, ContinuousClock.now - start < patience {
                changed.wait(milliseconds: 20)
            }
            if end != nil { break }
        }
        if let thread = thread.withLock({ $0.take() }) { thread.join() }
    }

    // MARK: The thread

    private func keepRunning() {
        var failures = 0
        while true {
            let isAdopted = adopted != nil && failures == 0
            let (cause, output) = isAdopted ? watchAdopted() : runOnce()
            let again = state.withLock { state in
                state.processID = nil
                if state.isStopping { return false }
                if state.hasAnswered { return restartsAfterCrash }
                // It was on its way down when we found it; or processes of a server that was killed
                // are still ending.
                return isAdopted || (isPassing(output) && failures < 50)
            }
            if !again {
                state.withLock { $0.end = output.isEmpty ? cause : "\(cause): \(output)" }
                changed.signal()
                return
            }
            failures += 1
            if state.withLock({ $0.hasAnswered }) {
                Log.error(
                    "the private PostgreSQL ended; starting it again",
                    ["postgres.end": cause, "postgres.output": output])
            }
            let start = ContinuousClock.now
            while ContinuousClock.now - start < .milliseconds(min(2_000, 100 * failures)),
                !state.withLock({ $0.isStopping })
            {
                changed.wait(milliseconds: 50)
            }
        }
    }

    private func isPassing(_ output: String) -> Bool {
        output.contains("shared memory block") || output.contains("lock file")
    }

    /// Waits for the end of a process that is not our child.
    private func watchAdopted() -> (cause: String, output: String) {
        let pause = Waker()
        while let adopted, adopted.file.isServer(of: adopted.cluster) {
            pause.wait(milliseconds: 50)
        }
        return ("the server that was taken over has ended", "")
    }

    /// Runs the server to its end.
    /// - Returns: how it ended, and the last that it said.
    private func runOnce() -> (cause: String, output: String) {
        do throws(SystemError) {
            let output = try FileSystem.openForWriting(outputPath, mode: 0o600)
            defer { FileSystem.close(output) }
            var command = command
            command.output = output
            let process = try ChildProcess.start(command)
            let isStopping = state.withLock { state in
                state.processID = process.processID
                return state.isStopping
            }
            if isStopping { process.send(signal: SIGINT) }
            let cause =
                switch process.wait() {
                case .exited(let code): "the server ended with code \(code)"
                case .signalled(let signal): "the server was ended by signal \(signal)"
                }
            return (cause, lastLines())
        } catch {
            return (error.description, "")
        }
    }

    private func lastLines() -> String {
        let text = (try? FileSystem.read(outputPath)) ?? ""
        return text.split(whereSeparator: \.isNewline).suffix(4).joined(separator: "; ")
    }
}
