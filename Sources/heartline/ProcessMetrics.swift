import Metrics
import System

/// What any process tells of itself.
enum ProcessMetrics {
    /// - Parameter data: the data directory.
    static func write(to page: inout MetricsPage, data: String) {
        let usage = ProcessUsage.current
        page.counter(
            "process_cpu_seconds_total", "Processor time used, in seconds.", usage.cpuSeconds)
        page.gauge(
            "process_resident_memory_bytes", "Memory in use, in bytes.", usage.residentBytes)
        page.gauge(
            "process_virtual_memory_bytes", "Address space in use, in bytes.", usage.virtualBytes)
        page.gauge("process_threads", "Threads.", usage.threads)
        page.gauge("process_open_fds", "Open file descriptors.", usage.openDescriptors)
        if let limit = usage.maximumDescriptors {
            page.gauge("process_max_fds", "Limit of open file descriptors.", limit)
        }
        page.gauge(
            "process_start_time_seconds", "When the process started, in seconds since 1970.",
            usage.startSeconds)
        page.gauge(
            "heartline_allocated_bytes", "Memory allocated and not freed, in bytes.",
            SystemMemory.allocatedBytes)
        page.gauge(
            "heartline_build_info", "1; the version is the label.", 1,
            .init("version", configured: Version.current))
        if let space = DiskSpace(of: data) {
            page.gauge(
                "heartline_data_free_bytes",
                "Room left on the file system of the data directory.", space.freeBytes)
            page.gauge(
                "heartline_data_size_bytes", "Size of the file system of the data directory.",
                space.totalBytes)
        }
        for (level, count) in Log.counts {
            page.counter(
                "heartline_log_messages_total",
                "Log messages by level, those that were held back included.", count,
                .init("level", configured: level))
        }
        page.counter(
            "heartline_log_held_messages_total",
            "Log messages that were only counted, because many like them were written.",
            Log.heldCount)
    }
}
