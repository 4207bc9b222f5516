public import EventLog
public import Processors
public import Sinks
public import System
internal import Postgres
internal import Schemas

/// Runs one processor over the partitions of its source topic that are assigned to this member: reads
/// the log, applies records, stores what follows, publishes events. A state machine over clients that
/// never block: `step` does what can be done now and says when to call again.
///
/// All decisions about failures are here and in the types it is made of, so the simulation runs them.
///
/// Exactly once: rows, events, snapshot and offset of a partition are one transaction, fenced by the
/// epoch of its claim; a restart restores the newest snapshot and applies the log again up to the
/// stored offset, discarding effects.
/// - Thread safety: belongs to one thread; `board` may be read from any.
public struct Worker<
    Consumer: EventConsumer, Producer: EventProducer, Store: StreamStore, P: Processor
>: ~Copyable {
    public let settings: WorkerSettings
    public let board: WorkerStatusBoard

    let consumer: Consumer
    var publisher: OutboxPublisher<Producer>
    let store: Store
    let decoder = P.Decoder()
    let receipts: OutboxReceipts
    /// The settings for every partition; taken over at a commit.
    var processorSettings: ProcessorSettings<P.Settings>

    var partitions: ContiguousArray<WorkerPartition<P>> = []
    /// Where each partition stands in `partitions`; -1 if it is not assigned.
    private var slots: ContiguousArray<Int32> = []

    var now: Int64
    private var lastTicket: UInt64 = 0
    private var lastCommitRound: Int64
    private var logFailures = 0
    private var logNotBefore: Int64 = 0
    private var isStopping = false
    private var statusTime: Int64?
    private var isStatusStale = true
    var watch: IngestWatch
    /// Events of `ingest-silent`, which belong to no partition's state.
    var watchOutbox = OutboxQueue(.ingestSilent, partition: 0)
    var status: WorkerStatus

    /// - Parameters:
    ///   - waker: signalled when the log has acknowledged something; the consumer and the store should
    ///     signal it too.
    ///   - board: where the status is published; `nil` makes one.
    ///   - now: as of the clock that `step` is told.
    public init(
        consumer: Consumer, producer: Producer, store: Store, settings: WorkerSettings,
        processor: ProcessorSettings<P.Settings>, waker: Waker, board: WorkerStatusBoard? = nil,
        now: Int64
    ) {
        precondition(
            P.outputTopics.allSatisfy { settings.outputPartitions[$0] != nil },
            "the number of partitions of an output topic is not given")
        self.consumer = consumer
        self.store = store
        self.settings = settings
        processorSettings = processor
        receipts = OutboxReceipts(waker: waker)
        publisher = OutboxPublisher(producer, receipts: receipts, settings: settings)
        self.board = board ?? WorkerStatusBoard(pipeline: settings.pipeline)
        status = WorkerStatus(pipeline: settings.pipeline)
        watch = IngestWatch(limit: settings.ingestSilentAfter, now: now)
        lastCommitRound = now
        self.now = now
    }

    /// Does everything that can be done now.
    /// - Parameter now: milliseconds of a monotonic clock.
    /// - Returns: when to call again, by the same clock, unless the waker is signalled before.
    // Callers are in other modules: without this the loop over records would run unspecialized.
    @specialized(
        where
            Consumer == EmbeddedConsumer, Producer == EmbeddedProducer, Store == PostgresSink,
            P == TunnelHealth
    )
    @specialized(
        where
            Consumer == EmbeddedConsumer, Producer == EmbeddedProducer, Store == PostgresSink,
            P == ConfigDelivery
    )
    @specialized(
        where
            Consumer == EmbeddedConsumer, Producer == EmbeddedProducer, Store == PostgresSink,
            P == MutualWaves
    )
    @specialized(
        where
            Consumer == KafkaLogConsumer, Producer == KafkaLogProducer, Store == PostgresSink,
            P == TunnelHealth
    )
    @specialized(
        where
            Consumer == KafkaLogConsumer, Producer == KafkaLogProducer, Store == PostgresSink,
            P == ConfigDelivery
    )
    @specialized(
        where
            Consumer == KafkaLogConsumer, Producer == KafkaLogProducer, Store == PostgresSink,
            P == MutualWaves
    )
    public mutating func step(now: Int64) -> Int64 {
        self.now = max(now, self.now)
        takeAssignmentChanges()
        takeReplies()
        takeReceipts()
        let polled = poll()
        beginCommits()
        sendCalls()
        publishOutbox()
        watchIngest(polled: polled)
        releaseRevoked()
        publishStatus()
        return polled == settings.pollLimit ? self.now : wakeTime()
    }

    /// From its next commit on, each partition is judged by `newest`.
    public mutating func reconfigure(_ newest: ProcessorSettings<P.Settings>) {
        processorSettings = newest
    }

    /// Reads nothing more, commits what was applied, and gives the partitions up. Keep calling `step`
    /// until `isStopped`, or until no more time is left: whatever was not stored then is read again.
    public mutating func stop() {
        isStopping = true
        for index in partitions.indices { partitions[index].isRevoked = true }
    }

    public var isStopped: Bool { isStopping && partitions.isEmpty }

    // MARK: - Partitions

    /// The index in `partitions`, or -1.
    func slot(of partition: Int32) -> Int {
        partition >= 0 && Int(partition) < slots.count ? Int(slots[Int(partition)]) : -1
    }

    private mutating func takeAssignmentChanges() {
        guard now >= logNotBefore else { return }
        do throws(EventLogError) {
            while let change = try consumer.nextAssignmentChange() {
                isStatusStale = true
                status.hasJoined = true
                switch change {
                case .assigned(let list): for partition in list { add(partition) }
                case .revoked(let list):
                    for partition in list where slot(of: partition) >= 0 {
                        partitions[slot(of: partition)].isRevoked = true
                    }
                case .lost(let list): for partition in list { remove(partition) }
                }
            }
        } catch { noteLogFault(error) }
    }

    private mutating func add(_ partition: Int32) {
        remove(partition)
        while slots.count <= Int(partition) { slots.append(-1) }
        slots[Int(partition)] = Int32(partitions.count)
        var added = WorkerPartition<P>(
            partition: partition, pipeline: settings.pipeline, settings: processorSettings,
            now: now)
        added.call = .init(kind: .claim, notBefore: now)
        added.isRevoked = isStopping
        if let passedOver = settings.passedOver {
            added.rebuild = RebuiltPartition(passedOver: passedOver[partition] ?? [])
        }
        partitions.append(added)
    }

    private mutating func remove(_ partition: Int32) {
        let index = slot(of: partition)
        guard index >= 0 else { return }
        countTotals(of: index)
        partitions.swapAt(index, partitions.count - 1)
        partitions.removeLast()
        slots[Int(partition)] = -1
        if index < partitions.count { slots[Int(partitions[index].partition)] = Int32(index) }
    }

    /// Gives revoked partitions up as soon as nothing of them waits for the database. Events that the
    /// log has not acknowledged are in the outbox table, where the next owner finds them.
    private mutating func releaseRevoked() {
        var index = partitions.count - 1
        while index >= 0 {
            let isDone: Bool
            switch partitions[index].call?.kind {
            case .commit, .verify: isDone = false
            case .claim: isDone = true
            case nil:
                isDone =
                    !partitions[index].isDirty
                    && partitions[index].snapshotTime(settings, isStopping: isStopping)
                        .map { $0 > now } ?? true
            }
            // A worker that stops has the time to publish; a partition that moves does not wait.
            let isPublished =
                !isStopping
                || partitions[index].outbox.isSettled && partitions[index].rejected.isSettled
            if partitions[index].isRevoked, isDone, isPublished {
                let partition = partitions[index].partition
                remove(partition)
                isStatusStale = true
                do throws(EventLogError) { try consumer.release([partition]) } catch {
                    noteLogFault(error)
                }
            }
            index -= 1
        }
    }

    // MARK: - The log

    private mutating func poll() -> Int {
        guard now >= logNotBefore, !isStopping else { return 0 }
        pauseOrResume()
        let consumer = consumer
        let decoder = decoder
        var beacon: Int64?
        do throws(EventLogError) {
            let count = try consumer.poll(limit: settings.pollLimit) { place, key, value in
                let index = slot(of: place.partition)
                guard index >= 0, partitions[index].phase != .claiming else { return }
                if partitions[index].take(place, key: key, value: value, with: decoder) {
                    beacon = max(beacon ?? .min, place.timestamp.milliseconds)
                }
            }
            if logFailures > 0 {
                logFailures = 0
                status.logFault = nil
                isStatusStale = true
            }
            if let beacon { watch.sawBeacon(EventTime(milliseconds: beacon), now: now) }
            return count
        } catch {
            // One partition's damage or loss does not stop the others.
            if error.kind != .unavailable, let place = error.place, slot(of: place.partition) >= 0 {
                fail(slot(of: place.partition), error.description)
            } else {
                noteLogFault(error)
            }
            return 0
        }
    }

    mutating func noteLogFault(_ error: EventLogError) {
        logFailures += 1
        logNotBefore = now + Backoff().delay(afterFailures: logFailures)
        if status.logFault == nil {
            Log.warning(
                "the log does not answer", ["pipeline": settings.pipeline, "error": "\(error)"])
        }
        status.logFault = error.description
        isStatusStale = true
    }

    /// Polling goes on while the database is slow, so that the group keeps this member; what stops is
    /// the flow of records.
    private mutating func pauseOrResume() {
        var rows = 0
        var bytes = 0
        for index in partitions.indices {
            rows += partitions[index].waitingRows
            bytes += partitions[index].waitingBytes
        }
        let share = status.isPaused ? 2 : 1
        let isFull =
            rows >= settings.bufferedRows / share || bytes >= settings.bufferedBytes / share
        if isFull != status.isPaused {
            status.isPaused = isFull
            isStatusStale = true
        }
        for index in partitions.indices where partitions[index].phase != .claiming {
            guard partitions[index].isPaused != isFull else { continue }
            partitions[index].isPaused = isFull
            if isFull {
                consumer.pause(partitions[index].partition)
            } else {
                consumer.resume(partitions[index].partition)
            }
        }
    }

    // MARK: - Commits

    /// Begins a round of commits when one is due and none is under way: while the database is busy the
    /// next batch grows to what it can take.
    private mutating func beginCommits() {
        if isCommitting { return }
        var changed = 0
        for index in partitions.indices { changed += partitions[index].changedRows }
        let isRoundDue =
            changed >= settings.commitRows || now - lastCommitRound >= settings.commitInterval
        for index in partitions.indices where partitions[index].call == nil {
            if partitions[index].isDirty {
                guard mayCommit(index) else { continue }
                let isDue =
                    partitions[index].isRevoked
                    || (partitions[index].changedRows > 0
                        ? isRoundDue
                        : now - partitions[index].lastCommit >= settings.idleCommitInterval)
                guard isDue else { continue }
            } else {
                let due = partitions[index].snapshotTime(settings, isStopping: isStopping)
                guard let due, due <= now else { continue }
            }
            partitions[index].prepareCommit(settings, processor: processorSettings, now: now)
            lastCommitRound = now
            // At once: the database stores this one while the next is made ready.
            sendCalls()
        }
    }

    /// Whether a commit is under way. One that waits for its next try must not hold up the others.
    private var isCommitting: Bool {
        for index in partitions.indices {
            if let call = partitions[index].call, call.kind != .claim, call.failures == 0 {
                return true
            }
        }
        return false
    }

    /// Whether there is room for the events of another commit.
    private func mayCommit(_ index: Int) -> Bool {
        partitions[index].isRevoked || partitions[index].outbox.count < settings.outboxEntries
    }

    /// Hands the requests to the store whose time has come.
    private mutating func sendCalls() {
        for index in partitions.indices {
            guard let call = partitions[index].call, call.ticket == nil, call.notBefore <= now
            else { continue }
            let partition = partitions[index].partition
            let action: StoreRequest.Action
            switch call.kind {
            case .commit: action = .commit(partitions[index].commit)
            case .verify: action = .verify
            case .claim:
                guard !partitions[index].isRevoked else { continue }
                do throws(EventLogError) {
                    // Only a partition that no one had before begins here.
                    action = .claim(start: try consumer.offsets(of: partition).earliest)
                } catch {
                    noteLogFault(error)
                    partitions[index].call?.notBefore = logNotBefore
                    continue
                }
            }
            let ticket = newTicket()
            if store.submit(StoreRequest(ticket: ticket, partition: partition, action: action)) {
                partitions[index].call?.ticket = ticket
                partitions[index].call?.sentAt = now
            } else {
                partitions[index].call?.notBefore = now + 10
            }
        }
    }

    mutating func newTicket() -> UInt64 {
        lastTicket += 1
        return lastTicket
    }

    // MARK: - Events

    private mutating func takeReceipts() {
        for (token, isStored) in receipts.take() {
            let index = slot(of: token.partition)
            switch token.source {
            case .ingestSilent: watchOutbox.take(token, isStored: isStored, now: now)
            case .pipeline where index >= 0:
                partitions[index].outbox.take(token, isStored: isStored, now: now)
            case .rejectedRows where index >= 0:
                partitions[index].rejected.take(token, isStored: isStored, now: now)
            default: break
            }
        }
    }

    private mutating func publishOutbox() {
        for index in partitions.indices {
            partitions[index].outbox.publish(by: &publisher, now: now)
            partitions[index].rejected.publish(by: &publisher, now: now)
            partitions[index].outbox.requestDeletion(store, ticket: &lastTicket, now: now)
            partitions[index].rejected.requestDeletion(store, ticket: &lastTicket, now: now)
        }
        watchOutbox.publish(by: &publisher, now: now)
        watchOutbox.requestDeletion(store, ticket: &lastTicket, now: now)
        status.events = publisher.events
    }

    // MARK: - Status

    private mutating func countTotals(of index: Int) {
        status.records += partitions[index].newRecords
        status.deadLetters += partitions[index].newDeadLetters
        partitions[index].newRecords = 0
        partitions[index].newDeadLetters = 0
    }

    /// Notes that the status has changed.
    mutating func changeStatus() { isStatusStale = true }

    private mutating func publishStatus() {
        guard isStatusStale || now - (statusTime ?? .min / 2) >= 1_000 else { return }
        let readsEnds = now - (statusTime ?? .min / 2) >= 1_000
        var ends: [Int32: Int64] = [:]
        for old in status.partitions { ends[old.partition] = old.end }
        status.partitions.removeAll(keepingCapacity: true)
        for index in partitions.indices {
            countTotals(of: index)
            let partition = partitions[index].partition
            if readsEnds || ends[partition] == nil {
                ends[partition] = try? consumer.offsets(of: partition).next
            }
            status.partitions.append(
                WorkerStatus.Partition(
                    partition: partition, committedOffset: partitions[index].committedOffset,
                    position: partitions[index].position, end: ends[partition],
                    fault: partitions[index].fault ?? silence(of: index),
                    isRestoring: partitions[index].phase != .running,
                    isClaimed: partitions[index].phase != .claiming,
                    oldestPending: partitions[index].oldestPending))
        }
        if readsEnds { countDevices() }
        status.isIngestSilent = watch.isOpen
        status.partitions.sort { $0.partition < $1.partition }
        board.publish(status)
        if readsEnds { statusTime = now }
        isStatusStale = false
    }

    private mutating func countDevices() {
        var sums: [(state: DeviceState, count: Int64)] = []
        for index in partitions.indices {
            for (place, entry) in partitions[index].processor.devicesByState.enumerated() {
                if place < sums.count {
                    sums[place].count += entry.count
                } else {
                    sums.append(entry)
                }
            }
        }
        status.devicesByState = sums
    }

    /// A database that neither answers nor refuses.
    private func silence(of index: Int) -> String? {
        guard let call = partitions[index].call, call.ticket != nil,
            now - call.sentAt >= settings.slowDatabase
        else { return nil }
        return """
            pipeline \(settings.pipeline), partition \(partitions[index].partition): the database \
            has not answered for \((now - call.sentAt) / 1_000) s
            """
    }

    private func wakeTime() -> Int64 {
        var time = now + 1_000
        if logNotBefore > now { time = min(time, logNotBefore) }
        // Who has no partition watches nothing.
        if !partitions.isEmpty, let watchTime = watch.wakeTime { time = min(time, watchTime) }
        if let watchTime = watchOutbox.wakeTime { time = min(time, watchTime) }
        // The end of a commit, and room for events, are announced by the waker.
        let isCommitting = isCommitting
        for index in partitions.indices {
            if let call = partitions[index].call {
                if call.ticket == nil { time = min(time, call.notBefore) }
            } else if !isCommitting, partitions[index].isDirty, mayCommit(index) {
                let due =
                    partitions[index].changedRows > 0
                    ? lastCommitRound + settings.commitInterval
                    : partitions[index].lastCommit + settings.idleCommitInterval
                time = min(time, partitions[index].isRevoked ? now : due)
            } else if !isCommitting,
                let due = partitions[index].snapshotTime(settings, isStopping: isStopping)
            {
                time = min(time, due)
            }
            if let due = partitions[index].outbox.wakeTime { time = min(time, due) }
            if let due = partitions[index].rejected.wakeTime { time = min(time, due) }
        }
        return max(time, now)
    }
}
