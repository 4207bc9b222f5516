internal import CSystem
internal import Glibc

/// A process that this one has started. Wait for it exactly once.
public struct ChildProcess: Sendable {
    public struct Settings: Sendable {
        /// A path, not searched for.
        public var executable: String
        public var arguments: [String]
        /// All that the child sees of an environment.
        public var environment: [String: String] = [
            "PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C.UTF-8", "TZ": "UTC",
        ]
        /// The user that it runs as; `nil` is this process's. Takes root.
        public var account: UnixAccount?
        /// Sent to the child when the *thread* that started it ends; 0 for none.
        public var deathSignal: Int32 = 0
        /// Out of reach of the terminal's signals.
        public var startsSession = false
        /// Gets standard output and errors; -1 leaves ours.
        public var output: Int32 = -1
        public var workingDirectory: String?

        public init(_ executable: String, _ arguments: [String] = []) {
            self.executable = executable
            self.arguments = arguments
        }
    }

    public let processID: Int32

    /// Starts a process; its standard input is empty.
    /// - Throws: also what kept the child from running: no such file, no such directory.
    public static func start(_ settings: Settings) throws(SystemError) -> ChildProcess {
        let strings = settings.environment.map { "\($0.key)=\($0.value)" }.sorted()
        let words = [settings.executable] + settings.arguments
        var arguments: [UnsafeMutablePointer<CChar>?] = unsafe words.map { unsafe strdup($0) }
        unsafe arguments.append(nil)
        var environment: [UnsafeMutablePointer<CChar>?] = unsafe strings.map { unsafe strdup($0) }
        unsafe environment.append(nil)
        defer {
            unsafe arguments.forEach { unsafe free($0) }
            unsafe environment.forEach { unsafe free($0) }
        }
        let result = unsafe heartline_spawn(
            settings.executable, arguments, environment,
            settings.account.map { Int64($0.userID) } ?? -1,
            settings.account.map { Int64($0.groupID) } ?? -1,
            settings.deathSignal, settings.startsSession ? 1 : 0, settings.output,
            settings.workingDirectory)
        guard result > 0 else {
            throw SystemError("starting \(settings.executable)", code: -result)
        }
        return ChildProcess(processID: result)
    }

    public enum ExitStatus: Hashable, Sendable {
        case exited(Int32)
        case signalled(Int32)
    }

    /// Waits until it has ended.
    public func wait() -> ExitStatus {
        var status: Int32 = 0
        while unsafe waitpid(processID, &status, 0) < 0 {
            if errno != EINTR { return .exited(-1) }
        }
        let signal = status & 0x7F
        return signal == 0 ? .exited((status >> 8) & 0xFF) : .signalled(signal)
    }

    public func send(signal: Int32) { ChildProcess.send(signal: signal, to: processID) }

    /// Signals any process.
    public static func send(signal: Int32, to processID: Int32) {
        precondition(processID > 1, "signalling a group of processes")
        kill(processID, signal)
    }

    /// Whether a process of that id runs, whoever it belongs to. One that has ended and that its parent
    /// has not taken note of (a zombie) does not run any more: where process 1 is no init, as in many
    /// containers, such a one stays for good.
    public static func exists(_ processID: Int32) -> Bool {
        guard processID > 0, kill(processID, 0) == 0 || errno == EPERM else { return false }
        guard let stat = try? FileSystem.read("/proc/\(processID)/stat"),
            let afterName = stat.lastIndex(of: ")")
        else { return true }
        let state = stat[stat.index(after: afterName)...].drop { $0 == " " }.first
        return state != "Z" && state != "X"
    }

    /// The command line of any process, without its own name; empty if there is none.
    public static func arguments(of processID: Int32) -> [String] {
        guard let text = try? FileSystem.read("/proc/\(processID)/cmdline") else { return [] }
        return text.split(separator: "\0", omittingEmptySubsequences: false)
            .dropFirst().map(String.init)
    }

    /// Runs a command to its end.
    /// - Returns: how it ended, and what it wrote to its standard output and errors.
    public static func run(
        _ settings: Settings
    ) throws(SystemError) -> (status: ExitStatus, output: String) {
        var ends: [Int32] = [-1, -1]
        guard unsafe pipe(&ends) == 0 else { throw SystemError("making a pipe") }
        for end in ends { _ = fcntl(end, F_SETFD, FD_CLOEXEC) }
        defer { close(ends[0]) }
        var settings = settings
        settings.output = ends[1]
        let child: ChildProcess
        do throws(SystemError) {
            child = try start(settings)
        } catch {
            close(ends[1])
            throw error
        }
        close(ends[1])
        let output = FileSystem.readAll(ends[0])
        return (child.wait(), output)
    }
}
