internal import Bytes
internal import EventLog
internal import Processors
internal import Schemas
internal import Sinks

/// One assigned partition of a worker: its processor, what waits to be stored, and what was asked
/// of the database.
struct WorkerPartition<P: Processor>: Sendable {
    enum Phase: Sendable, Equatable {
        /// The claim is on its way, or waits for its time.
        case claiming
        /// Records up to `until` are applied again; their effects are stored already.
        case restoring(until: Int64)
        case running
    }

    /// The one request to the database that the partition waits for.
    struct Call: Sendable {
        enum Kind: Sendable { case claim, commit, verify }
        var kind: Kind
        /// Set while the request is with the store.
        var ticket: UInt64?
        var sentAt: Int64 = 0
        /// When it was to be sent for the first time.
        var begunAt: Int64 = 0
        /// Not to be sent before this time.
        var notBefore: Int64
        /// Times it was sent and failed.
        var failures = 0
        /// A try of this commit may have been made without our knowing.
        var isInDoubt = false
    }

    let partition: Int32
    let pipeline: String
    var phase = Phase.claiming
    var call: Call?
    var epoch: Int64 = 0
    var committedOffset: Int64 = 0
    var position: Int64 = 0
    var processor: P
    /// Dead letters that were published again and applied.
    var replays = ReplayedRecords()
    /// Of a rebuild; `nil` otherwise.
    var rebuild: RebuiltPartition?
    var effects: Effects
    /// What is being stored; its buffers and those of `effects` take turns.
    var commit: PartitionCommit
    var settings: ProcessorSettings<P.Settings>
    var storedRevision = ""
    var lastCommit: Int64
    var lastSnapshot: Int64?
    /// The first offset that the stored snapshot does not include.
    var snapshotOffset: Int64 = 0
    /// Commits that were fenced, claims that failed: each waits longer.
    var claimFailures = 0
    var isRevoked = false
    var isPaused = false
    /// Why there is no progress; for the status.
    var fault: String?
    var outbox: OutboxQueue
    var rejected: OutboxQueue
    /// Counted since the last time they were added to the worker's totals.
    var newRecords: Int64 = 0
    var newDeadLetters: Int64 = 0

    /// When the first record was received that no commit has taken yet, and the first of those in the
    /// commit that is under way; 0 if there is none.
    private var pendingSince: Int64 = 0
    private var committingSince: Int64 = 0
    /// The latest receipt of all records so far.
    private var newest: Int64 = 0

    /// When the oldest record that is not stored was received.
    var oldestPending: EventTime? {
        let oldest = committingSince != 0 ? committingSince : pendingSince
        return oldest == 0 ? nil : EventTime(milliseconds: oldest)
    }

    init(
        partition: Int32, pipeline: String, settings: ProcessorSettings<P.Settings>, now: Int64
    ) {
        self.partition = partition
        self.pipeline = pipeline
        self.settings = settings
        processor = P(partition: partition, settings: settings.values)
        effects = Effects(tables: P.tables)
        commit = PartitionCommit(tables: P.tables)
        lastCommit = now
        outbox = OutboxQueue(.pipeline, partition: partition)
        rejected = OutboxQueue(.rejectedRows, partition: partition)
    }

    /// Applies one record. Records before the position are repeats of the log's and ignored; so are
    /// replays of dead letters that are another pipeline's, or were applied before.
    /// - Returns: whether it was a beacon.
    mutating func take(
        _ place: RecordPlace, key: Span<UInt8>, value: borrowing RecordValue,
        with decoder: P.Decoder
    ) -> Bool {
        guard place.offset >= position, !isRevoked else { return false }
        if case .restoring(let until) = phase, place.offset >= until { endRestoring() }
        newRecords += 1
        if pendingSince == 0 { pendingSince = place.timestamp.milliseconds }
        newest = max(newest, place.timestamp.milliseconds)
        position = place.offset + 1
        var isBeacon = false
        if let rebuild, rebuild.passedOver.contains(place.offset) {
            // Somebody else sees to it.
        } else if !value.headers.isEmpty, !isMine(value.headers, at: place.offset) {
            // Its place is taken, and nothing follows from it.
        } else if value.isTombstone {
            putAside(place, key: key, value: nil, "it has no value")
        } else {
            switch decoder.decode(value.bytes) {
            case .event(let event):
                isBeacon = P.isBeacon(event)
                processor.apply(event, at: place, into: &effects)
            case .skipped: break
            case .malformed(let reason):
                putAside(place, key: key, value: value.bytes, reason)
            }
        }
        if case .restoring(let until) = phase, position >= until { endRestoring() }
        return isBeacon
    }

    /// `false` for a replay of a dead letter that is not to be applied.
    private mutating func isMine(_ headers: Span<UInt8>, at offset: Int64) -> Bool {
        guard let mark = ReplayMark(headers: headers) else { return true }
        guard mark.pipeline == pipeline else { return false }
        return replays.isFirst(
            ReplayedRecords.Origin(partition: mark.partition, offset: mark.offset), at: offset)
    }

    /// A record that cannot be processed becomes a dead letter, and the next one is read.
    private mutating func putAside(
        _ place: RecordPlace, key: Span<UInt8>, value: Span<UInt8>?, _ reason: String
    ) {
        if !effects.isDiscarding {
            newDeadLetters += 1
            rebuild?.unread.insert(place.offset)
        }
        let letter = DeadLetter(
            topic: P.source, partition: place.partition, offset: place.offset,
            reason: "decoding the record: \(reason)")
        // A closure cannot capture a `Span`, so the value is written first.
        var json = ByteBuffer()
        if !effects.isDiscarding { letter.append(to: &json, key: key, value: value) }
        effects.emit(to: .deadLetters, key: key, at: place.timestamp, origin: place.offset) {
            $0.append(json)
        }
    }

    /// What was applied so far is stored; from here on effects count.
    mutating func endRestoring() {
        processor.drain(into: &effects)
        effects.removeAll()
        effects.isDiscarding = false
        // The stored sequence is the truth: a release that decodes what its predecessor could not
        // numbers the repeated records differently.
        effects.nextSequence = storedSequence
        pendingSince = 0
        phase = .running
    }

    /// The commit that was under way is stored.
    mutating func noteStored() { committingSince = 0 }

    /// The sequence as of the last commit, for `endRestoring`.
    var storedSequence: Int64 = 0

    // Inlined: a getter that is called would be handed a copy of the whole partition.

    /// Rows and events that wait for a commit, and those of the commit that is under way.
    @inline(__always) var waitingRows: Int {
        changedRows + (call == nil ? 0 : commit.rowCount + commit.outbox.count)
    }

    /// Rows and events that the next commit would take.
    @inline(__always) var changedRows: Int {
        phase == .running ? processor.pendingRows + effects.count : 0
    }

    @inline(__always) var waitingBytes: Int {
        var bytes = effects.outbox.bytes.count
        for buffer in effects.rows { bytes += buffer.bytes.count }
        if call != nil { for buffer in commit.rows { bytes += buffer.bytes.count } }
        return bytes
    }

    /// Whether there is anything that a commit would store. While restoring nothing has changed.
    @inline(__always) var isDirty: Bool { phase == .running && position > committedOffset }

    /// When a quiet partition gets a snapshot of what was stored after the last one; `nil` if there is
    /// no need. Without it a topic on which little happens would lose, to retention, the records
    /// between snapshot and offset that a restart reads again.
    @inline(__always) func snapshotTime(_ settings: WorkerSettings, isStopping: Bool) -> Int64? {
        guard phase == .running, !isDirty, snapshotOffset < committedOffset else { return nil }
        return isStopping ? lastCommit : lastCommit + settings.snapshotInterval
    }

    /// Forgets everything of the partition but that it is assigned, and claims it at `time`.
    mutating func restart(at time: Int64, settings: ProcessorSettings<P.Settings>) {
        var fresh = WorkerPartition(
            partition: partition, pipeline: pipeline, settings: settings, now: time)
        fresh.call = Call(kind: .claim, notBefore: time)
        fresh.claimFailures = claimFailures
        fresh.isRevoked = isRevoked
        fresh.fault = fault
        fresh.rebuild = rebuild
        fresh.newRecords = newRecords
        fresh.newDeadLetters = newDeadLetters
        self = fresh
    }

    /// Fills `commit` with what follows from the records up to the position.
    mutating func prepareCommit(
        _ worker: WorkerSettings, processor newest: ProcessorSettings<P.Settings>, now: Int64
    ) {
        commit.clear()
        if storedRevision.isEmpty {
            commit.settings = (settings.revision, committedOffset)
        } else if newest.revision != storedRevision {
            // Before `drain`: what new settings change is stored in the commit that names them.
            processor.reconfigure(newest.values)
            settings = newest
            commit.settings = (newest.revision, position)
        }
        processor.drain(into: &effects)
        effects.exchange(rows: &commit.rows, outbox: &commit.outbox)
        for index in commit.rows.indices
        where worker.omittedTables.contains(commit.rows[index].table.name) {
            commit.rows[index].removeAll()
        }
        commit.outbox.removeAll(for: worker.omittedTopics)
        commit.epoch = epoch
        committingSince = pendingSince
        pendingSince = 0
        commit.expectedOffset = committedOffset
        commit.nextOffset = position
        commit.outboxSequence = effects.nextSequence
        // New settings force a snapshot: what comes after it was judged by them alone.
        let isOld = lastSnapshot.map { now - $0 >= worker.snapshotInterval } ?? true
        // Whoever takes a revoked partition over starts from the snapshot, not from half a minute of log.
        if isOld || commit.settings != nil || isRevoked || position == committedOffset {
            var bytes = ByteBuffer()
            let offset = P.restsOnRecentRecords ? min(processor.replayOffset, position) : position
            Snapshot.seal(
                pipeline: worker.pipeline, offset: offset, sequence: effects.nextSequence,
                settings: settings.text, replays: replays, into: &bytes
            ) { processor.snapshot(into: &$0) }
            commit.snapshot = bytes
            commit.snapshotOffset = offset
            commit.newest = EventTime(milliseconds: self.newest)
            lastSnapshot = now
        }
        lastCommit = now
        call = Call(kind: .commit, begunAt: now, notBefore: now)
    }
}
