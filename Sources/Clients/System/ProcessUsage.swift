internal import Glibc

/// What this process uses of the machine now.
/// - SeeAlso: proc(5).
public struct ProcessUsage: Sendable {
    public var cpuSeconds: Double
    public var residentBytes: Int
    public var virtualBytes: Int
    public var threads: Int
    public var openDescriptors: Int
    /// The limit of open descriptors; `nil` if there is none.
    public var maximumDescriptors: Int?
    /// Wall time in seconds since 1970.
    public var startSeconds: Double

    public static var current: ProcessUsage {
        var usage = ProcessUsage(
            cpuSeconds: Double(SystemClock.processCPUNanoseconds()) / 1e9, residentBytes: 0,
            virtualBytes: 0, threads: 0, openDescriptors: 0, startSeconds: start)
        // The name in it may hold spaces and parentheses; numbers come after its last one.
        if let text = try? FileSystem.read("/proc/self/stat"), let end = text.lastIndex(of: ")") {
            let fields = text[end...].split(separator: " ")
            // Fields 20, 23 and 24 of proc(5); the first here is what follows field 2.
            if fields.count > 22 {
                usage.threads = Int(fields[18]) ?? 0
                usage.virtualBytes = Int(fields[21]) ?? 0
                usage.residentBytes = (Int(fields[22]) ?? 0) * Int(getpagesize())
            }
        }
        // One of them is that of the listing itself.
        usage.openDescriptors = max(
            0, ((try? FileSystem.names(in: "/proc/self/fd").count) ?? 1) - 1)
        var limit = rlimit()
        if unsafe getrlimit(__rlimit_resource_t(RLIMIT_NOFILE.rawValue), &limit) == 0,
            limit.rlim_cur != rlim_t.max
        {
            usage.maximumDescriptors = Int(clamping: limit.rlim_cur)
        }
        return usage
    }

    /// Found out once: the clock may be set later.
    private static let start: Double = {
        let now = Double(SystemClock.wallMilliseconds()) / 1_000
        guard let text = try? FileSystem.read("/proc/self/stat"),
            let end = text.lastIndex(of: ")"),
            let uptime = try? FileSystem.read("/proc/uptime").split(separator: " ").first,
            let up = Double(uptime)
        else { return now }
        let fields = text[end...].split(separator: " ")
        guard fields.count > 20, let ticks = Double(fields[20]) else { return now }
        return now - up + ticks / Double(max(1, sysconf(Int32(_SC_CLK_TCK))))
    }()
}

/// Room of a file system.
public struct DiskSpace: Sendable, Hashable {
    /// That this user can still fill.
    public var freeBytes: Int
    public var totalBytes: Int

    /// The file system that `path` is on; `nil` if that cannot be told.
    public init?(of path: String) {
        var found = statvfs()
        guard unsafe statvfs(path, &found) == 0 else { return nil }
        // Some file systems without a bound say so by all ones.
        func bytes(_ blocks: UInt) -> Int {
            let (product, overflow) = blocks.multipliedReportingOverflow(by: UInt(found.f_frsize))
            return overflow ? .max : Int(clamping: product)
        }
        freeBytes = bytes(UInt(found.f_bavail))
        totalBytes = bytes(UInt(found.f_blocks))
    }
}
