internal import CSystem
internal import Glibc

/// The signals that a service answers, taken by a thread that waits for them: nothing runs in a
/// signal handler.
public enum Signals {
    public enum Signal: Int32, CaseIterable, Sendable {
        case hangup = 1
        case interrupt = 2
        case terminate = 15
    }

    /// Keeps the signals for `wait` in this thread and in all that it starts later; call it before
    /// the first thread. Writing to a closed pipe becomes an error of that write.
    public static func hold() {
        var set = sigset()
        unsafe pthread_sigmask(SIG_BLOCK, &set, nil)
        _ = signal(SIGPIPE, SIG_IGN)
    }

    /// Waits for one of the held signals.
    /// - Returns: `nil` if none came within `milliseconds`.
    public static func wait(milliseconds: Int64) -> Signal? {
        var set = sigset()
        let time = max(0, milliseconds)
        var timeout = timespec(
            tv_sec: Int(time / 1_000), tv_nsec: Int(time % 1_000) * 1_000_000)
        let number = unsafe sigtimedwait(&set, nil, &timeout)
        return number > 0 ? Signal(rawValue: number) : nil
    }

    private static func sigset() -> sigset_t {
        var set = sigset_t()
        unsafe sigemptyset(&set)
        for signal in Signal.allCases { unsafe sigaddset(&set, signal.rawValue) }
        return set
    }
}
