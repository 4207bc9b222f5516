internal import CSystem

/// How malloc deals with memory.
public enum SystemMemory {
    /// Gives large blocks back to the system when they are freed. Without it glibc learns from the
    /// first large block that is freed to keep blocks of its size, and a storm's memory stays for good.
    /// Call it once, before other threads start.
    /// - SeeAlso: mallopt(3), "dynamic mmap threshold".
    public static func returnLargeBlocks() {
        heartline_set_malloc_thresholds(1 << 20, 16 << 20)
    }

    /// Bytes that this process has allocated and not freed, by malloc(3), whoever asked for them.
    public static var allocatedBytes: Int { Int(heartline_allocated_bytes()) }
}
