internal import Glibc
internal import CSystem

/// Wakes one waiting thread from any other. Signals are kept: one that comes before the wait ends
/// it at once. Backed by an `eventfd`, so an event loop can wait on `descriptor` as well.
public final class Waker: Sendable {
    /// Readable while a signal is kept.
    public let descriptor: Int32

    public init() {
        descriptor = eventfd(0, Int32(EFD_NONBLOCK | EFD_CLOEXEC))
        precondition(descriptor >= 0, "making an eventfd: no file descriptors left")
    }

    deinit { close(descriptor) }

    public func signal() {
        var one: UInt64 = 1
        unsafe _ = write(descriptor, &one, 8)
    }

    /// Waits for a signal and takes it.
    /// - Returns: whether one came within `milliseconds`.
    @discardableResult
    public func wait(milliseconds: Int64) -> Bool {
        var item = pollfd(fd: descriptor, events: Int16(POLLIN), revents: 0)
        let timeout = Int32(clamping: max(0, milliseconds))
        let ready = unsafe poll(&item, 1, timeout) > 0
        if ready { drain() }
        return ready
    }

    /// Waits for `milliseconds`, however many signals come, as long as `goesOn` says so; it is asked
    /// again at each signal.
    public func wait(milliseconds: Int64, while goesOn: () -> Bool) {
        let end = SystemClock.monotonicMilliseconds() + milliseconds
        while goesOn() {
            let left = end - SystemClock.monotonicMilliseconds()
            if left <= 0 { return }
            wait(milliseconds: left)
        }
    }

    /// Takes a signal, if there is one, without waiting.
    public func drain() {
        var value: UInt64 = 0
        unsafe _ = read(descriptor, &value, 8)
    }
}
