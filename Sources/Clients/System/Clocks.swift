internal import Glibc
internal import CSystem

/// The machine's clocks. Only shells read them; processors are handed their time.
public enum SystemClock {
    /// Milliseconds since 1970-01-01T00:00:00Z; may jump when the clock is set.
    public static func wallMilliseconds() -> Int64 { read(CLOCK_REALTIME) }

    /// Milliseconds since some fixed point; never goes back. Stands still while suspended.
    public static func monotonicMilliseconds() -> Int64 { read(CLOCK_MONOTONIC) }

    /// Nanoseconds since some fixed point; never goes back.
    public static func monotonicNanoseconds() -> UInt64 {
        var time = timespec()
        unsafe clock_gettime(CLOCK_MONOTONIC, &time)
        return UInt64(time.tv_sec) * 1_000_000_000 + UInt64(time.tv_nsec)
    }

    /// CPU time that this process has used, in nanoseconds.
    public static func processCPUNanoseconds() -> UInt64 { heartline_process_cpu_nanoseconds() }

    /// CPU time that the calling thread has used, in nanoseconds.
    public static func threadCPUNanoseconds() -> UInt64 {
        var time = timespec()
        unsafe clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time)
        return UInt64(time.tv_sec) * 1_000_000_000 + UInt64(time.tv_nsec)
    }

    private static func read(_ clock: clockid_t) -> Int64 {
        var time = timespec()
        unsafe clock_gettime(clock, &time)
        return Int64(time.tv_sec) * 1000 + Int64(time.tv_nsec) / 1_000_000
    }
}
