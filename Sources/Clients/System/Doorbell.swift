internal import CSystem
internal import Glibc

/// Counters in a small file that processes share through memory: one process rings, the others
/// wake. A ring between two looks is seen at the second; how often it rang may be lost.
///
/// `@unchecked Sendable`: the shared words are touched by atomic operations only.
@safe public final class Doorbell: @unchecked Sendable {
    /// Bells of one doorbell, numbered from 0. Whoever waits, waits for any of them.
    public static let bells = 63
    private static let sizeBytes = 4_096

    /// Word 0 counts all rings and is what waiters sleep on; word 1 + n counts those of bell n.
    private let words: UnsafeMutablePointer<UInt32>

    /// Maps the file at `path`, which is made (mode 0600) if it is missing.
    public init(path: String) throws(DoorbellError) {
        let descriptor = unsafe open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0o600)
        guard descriptor >= 0 else { throw DoorbellError(path: path, code: errno) }
        defer { close(descriptor) }
        // Allocated, not only sized: touching a page that the disk has no room for is a SIGBUS.
        let full = posix_fallocate(descriptor, 0, off_t(Self.sizeBytes))
        guard full == 0 else { throw DoorbellError(path: path, code: full) }
        let mapped = unsafe mmap(
            nil, Self.sizeBytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0)
        guard let mapped = unsafe mapped, unsafe mapped != MAP_FAILED else {
            throw DoorbellError(path: path, code: errno)
        }
        unsafe words = mapped.bindMemory(to: UInt32.self, capacity: Self.bells + 1)
    }

    deinit { unsafe munmap(words, Self.sizeBytes) }

    /// Counts a ring of `bell` and wakes all that wait, in every process.
    public func ring(_ bell: Int) {
        precondition(bell >= 0 && bell < Self.bells)
        unsafe heartline_doorbell_ring(words + 1 + bell)
        unsafe heartline_doorbell_ring(words)
    }

    /// Rings of all bells so far; wraps around.
    public var count: UInt32 { unsafe heartline_doorbell_read(words) }

    /// Rings of one bell so far; wraps around.
    public func count(of bell: Int) -> UInt32 {
        precondition(bell >= 0 && bell < Self.bells)
        return unsafe heartline_doorbell_read(words + 1 + bell)
    }

    /// Waits while `count` still is `seen`, at most `milliseconds`. May return early.
    public func wait(while seen: UInt32, milliseconds: Int64) {
        unsafe _ = heartline_futex_wait(words, seen, milliseconds)
    }
}

/// A doorbell's file that could not be used.
public struct DoorbellError: Error, Hashable, Sendable, CustomStringConvertible {
    public let path: String
    /// An `errno`.
    public let code: Int32

    public var isDiskFull: Bool { code == ENOSPC || code == EDQUOT }

    public var description: String {
        unsafe "mapping \(path): \(String(cString: strerror(code)))"
    }
}
