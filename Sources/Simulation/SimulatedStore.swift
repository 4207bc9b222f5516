public import Bytes
public import Schemas
public import Sinks

/// Tables as a simulated database holds them: what PostgreSQL would after the same writes.
public struct SimulatedTables: Equatable, Sendable {
    /// Column name → bytes; absent: null.
    public typealias Row = [String: [UInt8]]

    /// Keyed tables, by name and by the key's fields.
    public private(set) var keyed: [String: [[[UInt8]]: Row]] = [:]
    /// Tables without a key, by name: rows in any order.
    public private(set) var appended: [String: [Row: Int]] = [:]
    /// Promises about `RowBuffer` that were broken.
    public private(set) var violations: [String] = []

    public init() {}

    public mutating func write(_ buffers: [RowBuffer]) {
        for buffer in buffers { write(buffer) }
    }

    private mutating func write(_ buffer: RowBuffer) {
        let table = buffer.table
        var lastKey: [[UInt8]]?
        for index in 0..<buffer.count {
            let row = Self.decode(buffer, index)
            if table.mode == .append {
                appended[table.name, default: [:]][row, default: 0] += 1
                continue
            }
            let key = table.key.map { row[table.columns[$0].name] ?? [] }
            if let lastKey, !Self.precedes(lastKey, key) {
                violations.append("\(table.name): rows are not unique and sorted by key")
            }
            lastKey = key
            let old = keyed[table.name]?[key]
            switch table.mode {
            case .append: break
            case .insertNew: if old == nil { keyed[table.name, default: [:]][key] = row }
            case .update:
                if let old {
                    keyed[table.name]?[key] = old.merging(row) { $1 }
                }
            case .upsert:
                var new = row
                for column in table.columns where column.keepsOldWhenNull {
                    if new[column.name] == nil { new[column.name] = old?[column.name] }
                }
                keyed[table.name, default: [:]][key] = new
            case .delete:
                keyed[table.name] = keyed[table.name]?.filter { _, old in
                    !table.key.allSatisfy {
                        old[table.columns[$0].name] == row[table.columns[$0].name]
                    }
                }
            }
        }
    }

    /// The same tables without the rows of `table` whose text column holds `value`.
    public func without(_ table: String, where column: String, _ value: String) -> SimulatedTables {
        var rest = self
        rest.keyed[table] = keyed[table]?.filter { $1[column] != Array(value.utf8) }
        return rest
    }

    /// The first rows that differ, for a test's message; empty if the tables are equal.
    public func difference(from other: SimulatedTables) -> String {
        var lines: [String] = []
        for name in Set(keyed.keys).union(other.keyed.keys).sorted() {
            let (mine, others) = (keyed[name] ?? [:], other.keyed[name] ?? [:])
            for key in Set(mine.keys).union(others.keys) where mine[key] != others[key] {
                lines.append(
                    "\(name): \(Self.text(mine[key])) instead of \(Self.text(others[key]))")
            }
        }
        for name in Set(appended.keys).union(other.appended.keys).sorted() {
            let (mine, others) = (appended[name] ?? [:], other.appended[name] ?? [:])
            for row in Set(mine.keys).union(others.keys) where mine[row] != others[row] {
                lines.append(
                    "\(name): \(mine[row] ?? 0) × instead of \(others[row] ?? 0) × \(Self.text(row))"
                )
            }
        }
        return lines.prefix(4).joined(separator: "\n")
    }

    private static func text(_ row: Row?) -> String {
        guard let row else { return "nothing" }
        return row.sorted { $0.key < $1.key }.map { name, bytes in
            let isText = bytes.allSatisfy { $0 >= 0x20 && $0 < 0x7F }
            let value =
                isText
                ? String(decoding: bytes, as: UTF8.self)
                : bytes.count == 8
                    ? "\(bytes.reduce(Int64(0)) { $0 << 8 | Int64($1) })" : "\(bytes)"
            return "\(name)=\(value)"
        }.joined(separator: " ")
    }

    private static func precedes(_ a: [[UInt8]], _ b: [[UInt8]]) -> Bool {
        for (x, y) in zip(a, b) where x != y { return x.lexicographicallyPrecedes(y) }
        return false
    }

    /// Reads one row's fields as the sink would send them.
    public static func decode(_ buffer: RowBuffer, _ index: Int) -> Row {
        var row: Row = [:]
        let bytes = buffer.bytes.span
        var reader = ByteReader(bytes.extracting(buffer.starts[index]..<bytes.count))
        let count = reader.bigEndian(Int16.self)
        precondition(count == Int16(buffer.table.columns.count), "a row with other columns")
        for column in buffer.table.columns {
            guard let size = reader.bigEndian(Int32.self) else {
                preconditionFailure("a row that ends early")
            }
            guard size >= 0 else { continue }
            guard let range = reader.take(Int(size)) else {
                preconditionFailure("a field that ends early")
            }
            row[column.name] =
                bytes.extracting(
                    (buffer.starts[index] + range.lowerBound)..<(buffer.starts[index]
                        + range.upperBound)
                ).array
        }
        return row
    }
}

/// A database in memory, with the faults of a real one: requests take time, answers get lost, a
/// commit can come through long after its sender gave it up. Used by one thread.
public final class SimulatedStore {
    struct Partition {
        var epoch: Int64 = 0
        var nextOffset: Int64
        var startOffset: Int64
        var outboxSequence: Int64 = 0
        var revision = ""
        var snapshot: ByteBuffer?
    }

    struct Alert {
        var episode: Int64
        var opened: Int64
        var resolved: Int64?
    }

    var random: SplitMix64
    var now: Int64 = 0
    var isDown = false
    var isCalm = false
    /// Of each session, among which the partitions are shared.
    var connections = 1
    var partitions: [Int32: Partition] = [:]
    var outbox: [OutboxSource: [Int32: OutboxBuffer]] = [:]
    var late: [(due: Int64, partition: Int32, commit: PartitionCommit)] = []
    var alerts: [Alert] = []
    public private(set) var tables = SimulatedTables()
    /// Settings that took effect, by partition: first offset and revision.
    public private(set) var settingsHistory: [Int32: [(offset: Int64, revision: String)]] = [:]
    /// Commits that were made.
    public private(set) var commits = 0
    /// Rows that are rejected: origin offsets, by partition.
    public var poisoned: Set<Int64> = []

    /// Told of every commit that was made, after it was.
    public var observer: ((_ partition: Int32, PartitionCommit) -> Void)?

    public init(seed: UInt64) { random = SplitMix64(seed: seed) }

    public func setDown(_ isDown: Bool) { self.isDown = isDown }

    public func calm() {
        isCalm = true
        isDown = false
    }

    public func connect() -> SimulatedSession { SimulatedSession(store: self) }

    public func nextOffset(of partition: Int32) -> Int64? { partitions[partition]?.nextOffset }

    public func snapshot(of partition: Int32) -> ByteBuffer? { partitions[partition]?.snapshot }

    public func setSnapshot(_ bytes: ByteBuffer?, of partition: Int32) {
        partitions[partition]?.snapshot = bytes
    }

    public func setOffsets(of partition: Int32, start: Int64, next: Int64) {
        partitions[partition]?.startOffset = start
        partitions[partition]?.nextOffset = next
    }

    /// Events that wait in the outbox table.
    public var outboxCount: Int {
        outbox.values.reduce(0) { $0 + $1.values.reduce(0) { $0 + $1.count } }
    }

    /// Opened and resolved times of `ingest-silent`.
    public var ingestSilentAlerts: [(opened: Int64, resolved: Int64?)] {
        alerts.map { ($0.opened, $0.resolved) }
    }

    public func advance(to now: Int64) {
        self.now = now
        let due = late.filter { $0.due <= now || isCalm }
        late.removeAll { $0.due <= now || isCalm }
        for item in due { _ = apply(item.commit, of: item.partition) }
    }

    // MARK: - Transactions

    func claim(_ partition: Int32, start: Int64) -> PartitionClaim {
        var row = partitions[partition] ?? Partition(nextOffset: start, startOffset: start)
        row.epoch += 1
        partitions[partition] = row
        var leftovers: [OutboxSource: OutboxBuffer] = [:]
        for source in OutboxSource.allCases where source != .ingestSilent || partition == 0 {
            leftovers[source] = outbox[source]?[partition]
        }
        return PartitionClaim(
            epoch: row.epoch, nextOffset: row.nextOffset, startOffset: row.startOffset,
            outboxSequence: row.outboxSequence, settingsRevision: row.revision,
            snapshot: row.snapshot, leftovers: leftovers)
    }

    /// `nil`: fenced.
    func apply(_ commit: PartitionCommit, of partition: Int32) -> OutboxBuffer? {
        guard var row = partitions[partition], row.epoch == commit.epoch,
            row.nextOffset == commit.expectedOffset
        else { return nil }
        commits += 1
        let (accepted, rejected) = separate(commit, of: partition)
        tables.write(accepted)
        row.nextOffset = commit.nextOffset
        row.outboxSequence = commit.outboxSequence
        if let snapshot = commit.snapshot { row.snapshot = snapshot }
        if let settings = commit.settings {
            row.revision = settings.revision
            settingsHistory[partition, default: []].append((settings.offset, settings.revision))
        }
        partitions[partition] = row
        outbox[.pipeline, default: [:]][partition, default: OutboxBuffer()].append(commit.outbox)
        outbox[.rejectedRows, default: [:]][partition, default: OutboxBuffer()].append(rejected)
        observer?(partition, commit)
        return rejected
    }

    private func separate(
        _ commit: PartitionCommit, of partition: Int32
    ) -> ([RowBuffer], OutboxBuffer) {
        var rejected = OutboxBuffer()
        guard !poisoned.isEmpty else { return (commit.rows, rejected) }
        var sequence = commit.firstRejectedSequence
        let accepted = commit.rows.map { buffer in
            var kept = RowBuffer(buffer.table)
            for index in 0..<buffer.count {
                guard poisoned.contains(buffer.origins[index]) else {
                    kept.appendRow(index, of: buffer)
                    continue
                }
                let key = ByteBuffer("heartbeats/\(partition)".utf8)
                rejected.append(
                    sequence: sequence, topic: .deadLetters, key: key.span,
                    time: EventTime(milliseconds: now), origin: buffer.origins[index]
                ) {
                    $0.append(text: "rejected \(buffer.table.name) \(buffer.origins[index])")
                }
                sequence += 1
            }
            return kept
        }
        return (accepted, rejected)
    }

    func deleteOutbox(_ source: OutboxSource, _ partition: Int32, through: Int64) {
        guard let old = outbox[source]?[partition] else { return }
        var kept = OutboxBuffer()
        for entry in old.entries where entry.sequence > through { kept.append(entry, of: old) }
        outbox[source]?[partition] = kept
    }

    /// What a worker asks for; also for tests, as another worker.
    @discardableResult
    public func openIngestSilent(since: EventTime?) -> Bool {
        if let last = alerts.last {
            guard let resolved = last.resolved else { return true }
            if let since, resolved > since.milliseconds { return false }
        }
        alerts.append(Alert(episode: Int64(alerts.count), opened: since?.milliseconds ?? now))
        return true
    }

    func resolveIngestSilent(beacon: EventTime) -> Bool {
        guard let last = alerts.last, last.resolved == nil else { return false }
        if last.opened >= beacon.milliseconds { return true }
        alerts[alerts.count - 1].resolved = beacon.milliseconds
        return false
    }
}

/// One worker's connections to a simulated store. Requests of one connection are carried out in order, some
/// time later; a session that is dropped with its worker leaves behind what it had sent.
public final class SimulatedSession: StreamStore {
    private let store: SimulatedStore
    private var requests: [(due: Int64, StoreRequest)] = []
    private var replies: [(due: Int64, StoreReply)] = []
    /// Most requests that may wait.
    public var capacity = 64

    init(store: SimulatedStore) { self.store = store }

    /// The connection that carries out a partition's requests.
    private func connection(_ partition: Int32) -> Int { Int(partition) % store.connections }

    public func submit(_ request: StoreRequest) -> Bool {
        guard requests.count < capacity else { return false }
        let delay = Int64(store.random.below(store.random.chance(50) ? 2_000 : 30))
        let last = requests.last { connection($0.1.partition) == connection(request.partition) }
        requests.append((max(store.now + delay, last?.due ?? 0), request))
        return true
    }

    public func nextReply() -> StoreReply? {
        advance()
        guard let next = replies.indices.min(by: { replies[$0].due < replies[$1].due }),
            replies[next].due <= store.now || store.isCalm
        else { return nil }
        return replies.remove(at: next).1
    }

    /// When the next request is carried out or the next reply is there; `nil`: nothing is under way.
    public var nextDue: Int64? { (requests.map(\.due) + replies.map(\.due)).min() }

    /// The worker has crashed: what was on its way is carried out later, or never.
    public func abandon() {
        for (_, request) in requests where store.random.chance(500) {
            guard case .commit(let commit) = request.action else { continue }
            store.late.append(
                (store.now + Int64(store.random.below(5_000)), request.partition, commit))
        }
        requests.removeAll()
        replies.removeAll()
    }

    private func advance() {
        while let next = requests.indices.min(by: { requests[$0].due < requests[$1].due }),
            requests[next].due <= store.now || store.isCalm
        {
            let request = requests.remove(at: next).1
            let outcome = carryOut(request)
            let delay = store.isCalm ? 0 : Int64(store.random.below(20))
            let last = replies.last { connection($0.1.partition) == connection(request.partition) }
            let due = max(store.now + delay, last?.due ?? 0)
            replies.append(
                (
                    due,
                    StoreReply(
                        ticket: request.ticket, partition: request.partition, outcome: outcome)
                ))
        }
    }

    private func carryOut(_ request: StoreRequest) -> StoreReply.Outcome {
        if store.isDown || !store.isCalm && store.random.chance(30) {
            return .failed(StoreFailure(.unavailable, "simulated"))
        }
        let partition = request.partition
        switch request.action {
        case .claim(let start):
            let claim = store.claim(partition, start: start)
            if !store.isCalm, store.random.chance(30) {
                return .failed(StoreFailure(.outcomeUnknown, "simulated"))
            }
            return .claimed(claim)
        case .commit(let commit):
            if !store.isCalm, store.random.chance(100) {
                // The answer is lost: before the commit, after it, or while it still waits.
                switch store.random.below(3) {
                case 0: break
                case 1: _ = store.apply(commit, of: partition)
                default:
                    store.late.append(
                        (store.now + Int64(store.random.below(400)), partition, commit))
                }
                return .failed(StoreFailure(.outcomeUnknown, "simulated"))
            }
            guard let rejected = store.apply(commit, of: partition) else { return .fenced }
            return .committed(rejected: rejected)
        case .verify:
            guard let row = store.partitions[partition] else { return .fenced }
            return .verified(
                epoch: row.epoch, nextOffset: row.nextOffset,
                rejected: store.outbox[.rejectedRows]?[partition] ?? OutboxBuffer())
        case .deleteOutbox(let source, let through):
            store.deleteOutbox(source, partition, through: through)
            return .outboxDeleted
        case .openIngestSilent(let since):
            return .ingestSilent(
                isOpen: store.openIngestSilent(since: since), event: OutboxBuffer())
        case .resolveIngestSilent(let beacon):
            return .ingestSilent(
                isOpen: store.resolveIngestSilent(beacon: beacon), event: OutboxBuffer())
        }
    }
}
