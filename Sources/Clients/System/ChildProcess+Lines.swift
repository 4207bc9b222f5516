internal import Glibc

extension ChildProcess {
    /// How a command ended that was watched.
    public enum Ending: Hashable, Sendable {
        case ended(ExitStatus)
        /// It took too long and was killed.
        case timedOut
        /// It was killed since `goesOn` said so.
        case cancelled
    }

    /// Longest line that is handed out; what is longer is cut.
    public static let maximumLine = 8 << 10

    /// Runs a command to its end and hands out each line of its output and errors as it comes.
    ///
    /// The command has a session of its own, so that it can be ended with all that it has started: it
    /// is, when it takes too long or is not wanted any more.
    /// - Parameters:
    ///   - milliseconds: the longest that it may take.
    ///   - goesOn: asked several times a second, on this thread.
    ///   - line: called on this thread, with text that is UTF-8 and has no line end.
    /// - Throws: what kept it from running.
    public static func run(
        _ settings: Settings, milliseconds: Int64, goesOn: () -> Bool, line: (String) -> Void
    ) throws(SystemError) -> Ending {
        var ends: [Int32] = [-1, -1]
        guard unsafe pipe(&ends) == 0 else { throw SystemError("making a pipe") }
        for end in ends { _ = fcntl(end, F_SETFD, FD_CLOEXEC) }
        defer { close(ends[0]) }
        var settings = settings
        settings.output = ends[1]
        settings.startsSession = true
        let child: ChildProcess
        do throws(SystemError) {
            child = try start(settings)
        } catch {
            close(ends[1])
            throw error
        }
        close(ends[1])
        let end = SystemClock.monotonicMilliseconds() + milliseconds
        var reader = LineReader(ends[0])
        // A daemon that it leaves behind can keep the pipe open after the command itself has ended.
        while true {
            let isOpen = reader.read(waiting: 100, line)
            if let status = child.statusIfEnded() {
                reader.readRest(line)
                return .ended(status)
            }
            let isCancelled = !goesOn()
            if isCancelled || SystemClock.monotonicMilliseconds() >= end {
                child.killSession()
                _ = child.wait()
                reader.readRest(line)
                return isCancelled ? .cancelled : .timedOut
            }
            if !isOpen { usleep(20_000) }
        }
    }

    /// Kills the command, which nobody has waited for yet, and all of its process group.
    private func killSession() {
        precondition(processID > 1, "signalling a group of processes")
        kill(-processID, SIGKILL)
    }

    private func statusIfEnded() -> ExitStatus? {
        var status: Int32 = 0
        let result = unsafe waitpid(processID, &status, WNOHANG)
        guard result == processID else { return result < 0 && errno == ECHILD ? .exited(-1) : nil }
        let signal = status & 0x7F
        return signal == 0 ? .exited((status >> 8) & 0xFF) : .signalled(signal)
    }
}

/// Cuts what comes from a descriptor into lines.
private struct LineReader {
    private let descriptor: Int32
    private var line: [UInt8] = []
    private var isAtEnd = false

    init(_ descriptor: Int32) {
        self.descriptor = descriptor
        _ = fcntl(descriptor, F_SETFL, O_NONBLOCK)
    }

    /// - Returns: whether more may come.
    mutating func read(waiting milliseconds: Int32, _ body: (String) -> Void) -> Bool {
        if isAtEnd { return false }
        var item = pollfd(fd: descriptor, events: Int16(POLLIN), revents: 0)
        guard unsafe poll(&item, 1, milliseconds) > 0 else { return true }
        readAvailable(body)
        return !isAtEnd
    }

    /// What is there now, and the line that has no end.
    mutating func readRest(_ body: (String) -> Void) {
        if !isAtEnd { readAvailable(body) }
        if !line.isEmpty { finish(body) }
    }

    private mutating func readAvailable(_ body: (String) -> Void) {
        var piece = [UInt8](repeating: 0, count: 16 << 10)
        while true {
            let count = unsafe Glibc.read(descriptor, &piece, piece.count)
            if count < 0 && errno == EINTR { continue }
            if count < 0 && errno == EAGAIN { return }
            guard count > 0 else {
                isAtEnd = true
                return
            }
            for byte in piece[..<count] {
                if byte == 0x0A {
                    finish(body)
                } else if line.count < ChildProcess.maximumLine {
                    line.append(byte)
                }
            }
        }
    }

    private mutating func finish(_ body: (String) -> Void) {
        if line.last == 0x0D { line.removeLast() }
        body(String(decoding: line, as: UTF8.self))
        line.removeAll(keepingCapacity: true)
    }
}
