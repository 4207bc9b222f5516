/// Who waits for which download: the same file is downloaded once for all who want it.
public struct DownloadBoard<Job: Hashable & Sendable>: Sendable {
    private struct Entry {
        var jobs: [Job] = []
        /// Nobody wanted it any more; those who came since wait for it to begin anew.
        var isCancelled = false
        var next: [Job] = []
    }

    public enum Leaving: Sendable, Hashable {
        /// Others still want it, or it is not known.
        case goesOn
        /// Nobody does: it is to be ended and removed.
        case cancel
    }

    private var entries: [String: Entry] = [:]

    public init() {}

    /// - Returns: whether the download is to be begun.
    public mutating func join(_ job: Job, _ key: String) -> Bool {
        guard entries[key] != nil else {
            entries[key] = Entry(jobs: [job])
            return true
        }
        if entries[key]?.isCancelled == true {
            entries[key]?.next.append(job)
        } else {
            entries[key]?.jobs.append(job)
        }
        return false
    }

    public mutating func leave(_ job: Job, _ key: String) -> Leaving {
        guard var entry = entries[key] else { return .goesOn }
        entry.next.removeAll { $0 == job }
        let wasWaiting = entry.jobs.contains(job)
        entry.jobs.removeAll { $0 == job }
        let isLast = wasWaiting && entry.jobs.isEmpty && !entry.isCancelled
        if isLast { entry.isCancelled = true }
        entries[key] = entry
        return isLast ? .cancel : .goesOn
    }

    /// Who waits for it now.
    public func jobs(_ key: String) -> [Job] { entries[key]?.jobs ?? [] }

    /// Notes that the download ended.
    /// - Returns: who is to be told, and whether it begins anew for those who came meanwhile.
    public mutating func ended(_ key: String) -> (jobs: [Job], beginsAnew: Bool) {
        guard let entry = entries.removeValue(forKey: key) else { return ([], false) }
        guard entry.isCancelled else { return (entry.jobs, false) }
        if entry.next.isEmpty { return ([], false) }
        entries[key] = Entry(jobs: entry.next)
        return ([], true)
    }

    public var count: Int { entries.count }
}
