internal import Glibc

/// A point on the monotonic clock.
struct Deadline {
    private let nanoseconds: UInt64

    init(after duration: Duration) {
        nanoseconds = Deadline.now() + UInt64(duration.wholeMilliseconds) * 1_000_000
    }

    /// Milliseconds that are left, rounded up; 0 when it has passed.
    var milliseconds: Int64 {
        let now = Deadline.now()
        return now >= nanoseconds ? 0 : Int64((nanoseconds - now + 999_999) / 1_000_000)
    }

    private static func now() -> UInt64 {
        var time = timespec()
        unsafe clock_gettime(CLOCK_MONOTONIC, &time)
        return UInt64(time.tv_sec) * 1_000_000_000 + UInt64(time.tv_nsec)
    }
}

/// Waits until a descriptor is readable (or writable, if that is asked for), or another is readable.
/// - Returns: whether that came before `timeout` passed.
func waitForSocket(
    _ descriptor: Int32, orWritable: Bool = false, orReadable other: Int32 = -1, timeout: Duration
) -> Bool {
    let deadline = Deadline(after: timeout)
    var items = [
        pollfd(
            fd: descriptor, events: Int16(orWritable ? POLLIN | POLLOUT : POLLIN), revents: 0),
        pollfd(fd: other, events: Int16(POLLIN), revents: 0),
    ]
    while true {
        let ready = unsafe poll(&items, 2, Int32(clamping: deadline.milliseconds))
        if ready >= 0 { return ready > 0 }
        precondition(errno == EINTR, "waiting for a socket: the descriptor is not one")
    }
}
