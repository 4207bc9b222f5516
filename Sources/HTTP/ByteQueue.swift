internal import Glibc

/// Bytes appended at the end and taken from the front; owns no memory while it is empty and freed.
///
/// An idle connection holds three of these, which is why they are not arrays: nothing is allocated
/// until a byte is kept, and `free` gives the memory back. A class, since run-time checks for
/// exclusive access to a struct inside of a connection took 6 % of a request.
@safe final class ByteQueue {
    private var storage: UnsafeMutableRawPointer?
    private var capacity = 0
    private var start = 0
    private var end = 0

    init() { unsafe storage = nil }

    deinit { unsafe Glibc.free(storage) }

    var count: Int { end - start }
    var isEmpty: Bool { end == start }

    /// The kept bytes; valid until the next change.
    var bytes: UnsafeRawBufferPointer {
        guard let storage = unsafe storage else {
            return unsafe UnsafeRawBufferPointer(start: nil, count: 0)
        }
        return unsafe UnsafeRawBufferPointer(start: storage + start, count: count)
    }

    func append(_ source: UnsafeRawBufferPointer) {
        guard let base = source.baseAddress, source.count > 0 else { return }
        reserve(source.count)
        unsafe memcpy(storage! + end, base, source.count)
        end += source.count
    }

    /// Makes room for `count` more bytes; the kept ones may move.
    func reserve(_ count: Int) {
        if end + count <= capacity { return }
        if start > 0 {
            unsafe memmove(storage!, storage! + start, end - start)
            end -= start
            start = 0
        }
        if end + count <= capacity { return }
        capacity = max(512, max(capacity * 2, end + count))
        guard let grown = unsafe realloc(storage, capacity) else {
            fatalError("keeping \(capacity) bytes of a connection: the system has no memory left")
        }
        unsafe storage = grown
    }

    func removeFirst(_ count: Int) {
        precondition(count >= 0 && count <= self.count)
        start += count
        if start == end { (start, end) = (0, 0) }
    }

    /// Keeps the first `count` bytes only.
    func truncate(to count: Int) {
        precondition(count >= 0 && count <= self.count)
        end = start + count
    }

    /// Drops the bytes and gives the memory back.
    func free() {
        if capacity == 0 { return }
        unsafe Glibc.free(storage)
        unsafe storage = nil
        capacity = 0
        (start, end) = (0, 0)
    }
}
