internal import Postgres
internal import Bytes
internal import EventLog
internal import Metrics
internal import Processors
internal import Schemas
internal import Sinks
internal import System

/// What follows from the database's answers.
extension Worker {
    mutating func takeReplies() {
        while let reply = store.nextReply() { take(reply) }
    }

    private mutating func take(_ reply: StoreReply) {
        switch reply.outcome {
        case .ingestSilent, .outboxDeleted: takeAside(reply)
        case .failed(let failure):
            let index = slot(of: reply.partition)
            if index >= 0, partitions[index].call?.ticket == reply.ticket {
                takeFailure(failure, of: index)
            } else {
                takeAside(reply)
            }
        case .claimed, .committed, .fenced, .verified:
            let index = slot(of: reply.partition)
            // A reply to what an earlier owner of the slot asked says nothing to this one.
            guard index >= 0, let call = partitions[index].call, call.ticket == reply.ticket
            else { return }
            changeStatus()
            switch reply.outcome {
            case .claimed(let claim): takeClaim(claim, of: index)
            case .committed(let rejected): finishCommit(index, rejected: rejected)
            case .fenced: takeFence(index)
            case .verified(let epoch, let nextOffset, let rejected):
                takeVerification(index, epoch: epoch, nextOffset: nextOffset, rejected: rejected)
            case .ingestSilent, .outboxDeleted, .failed: break
            }
        }
    }

    /// Answers that belong to no partition's call.
    private mutating func takeAside(_ reply: StoreReply) {
        let isDone = if case .failed = reply.outcome { false } else { true }
        if case .ingestSilent(let isOpen, let event) = reply.outcome {
            watch.take(reply.ticket, isOpen: isOpen, now: now)
            watchOutbox.append(event)
            changeStatus()
            return
        }
        if watch.takeFailure(of: reply.ticket, now: now) { return }
        if watchOutbox.take(deletion: reply.ticket, isDone: isDone, now: now) { return }
        let index = slot(of: reply.partition)
        guard index >= 0 else { return }
        if partitions[index].outbox.take(deletion: reply.ticket, isDone: isDone, now: now) {
            return
        }
        _ = partitions[index].rejected.take(deletion: reply.ticket, isDone: isDone, now: now)
    }

    // MARK: - Commits

    private mutating func finishCommit(_ index: Int, rejected: OutboxBuffer) {
        let commit = partitions[index].commit
        status.commits += 1
        status.rows += Int64(commit.rowCount - rejected.count)
        status.deadLetters += Int64(rejected.count)
        if commit.snapshot != nil {
            status.snapshots += 1
            partitions[index].snapshotOffset = commit.nextOffset
        }
        if let call = partitions[index].call {
            status.commitDurations.record(milliseconds: now - call.begunAt)
        }
        partitions[index].noteStored()
        partitions[index].committedOffset = commit.nextOffset
        partitions[index].storedSequence = commit.outboxSequence
        if let stored = commit.settings { partitions[index].storedRevision = stored.revision }
        partitions[index].outbox.append(commit.outbox)
        partitions[index].rejected.append(rejected)
        partitions[index].claimFailures = 0
        partitions[index].call = nil
        clearFault(index)
        consumer.noteCommitted(partitions[index].partition, next: commit.nextOffset)
        // After the last use of the copy above, so that the buffers are cleared in place.
        partitions[index].commit.clear()
    }

    /// The commit changed nothing: the partition is another's, or an earlier try that was thought
    /// lost came through.
    private mutating func takeFence(_ index: Int) {
        if partitions[index].call?.kind == .commit, partitions[index].call?.isInDoubt == true {
            askAgain(.verify, index)
            return
        }
        giveWay(index)
    }

    private mutating func takeVerification(
        _ index: Int, epoch: Int64, nextOffset: Int64, rejected: OutboxBuffer
    ) {
        guard epoch == partitions[index].epoch else { return giveWay(index) }
        let expected = partitions[index].commit.expectedOffset
        if nextOffset == expected, nextOffset == partitions[index].commit.nextOffset {
            // A snapshot alone: the offset does not tell, and stored twice it is the same.
            askAgain(.commit, index)
        } else if nextOffset == partitions[index].commit.nextOffset {
            // Older ones wait in the queue already.
            let first = partitions[index].commit.firstRejectedSequence
            finishCommit(index, rejected: rejected.suffix(from: first))
        } else if nextOffset == expected {
            // It may still come through; then the repetition is fenced and looked at again.
            askAgain(.commit, index)
        } else {
            giveWay(index)
        }
    }

    private mutating func askAgain(_ kind: WorkerPartition<P>.Call.Kind, _ index: Int) {
        partitions[index].call?.kind = kind
        partitions[index].call?.ticket = nil
        partitions[index].call?.notBefore = now
    }

    /// Another worker has taken the partition over: its state here is worth nothing any more. If the
    /// group still says that it is ours, it is claimed again after a while, in which the group can
    /// tell us otherwise.
    private mutating func giveWay(_ index: Int) {
        let partition = partitions[index].partition
        Log.warning(
            "another worker owns the partition",
            ["pipeline": settings.pipeline, "partition": "\(partition)"])
        retryClaim(index)
    }

    mutating func retryClaim(_ index: Int) {
        partitions[index].claimFailures += 1
        let wait = 500 + Backoff().delay(afterFailures: partitions[index].claimFailures)
        consumer.pause(partitions[index].partition)
        partitions[index].restart(at: now + wait, settings: processorSettings)
        partitions[index].isPaused = true
        changeStatus()
    }

    /// The partition cannot go on; `reason` tells an operator what to do. It is tried again, because
    /// what is mended should be taken up without a restart.
    mutating func fail(_ index: Int, _ reason: String) {
        if partitions[index].fault != reason {
            Log.error(
                "a partition cannot go on",
                [
                    "pipeline": settings.pipeline,
                    "partition": "\(partitions[index].partition)", "reason": reason,
                ])
        }
        retryClaim(index)
        partitions[index].fault = reason
    }

    private mutating func takeFailure(_ failure: StoreFailure, of index: Int) {
        guard var call = partitions[index].call else { return }
        call.failures += 1
        call.ticket = nil
        call.notBefore = now + Backoff().delay(afterFailures: call.failures)
        if failure.kind == .outcomeUnknown, call.kind != .claim {
            call.kind = .verify
            call.isInDoubt = true
        }
        partitions[index].call = call
        let reason =
            "pipeline \(settings.pipeline), partition \(partitions[index].partition): \(failure)"
        if partitions[index].fault == nil {
            Log.warning("the database did not do as asked", ["reason": reason])
        }
        // The first failure of a commit may be a blip; from the second on it is a state.
        if call.failures > 1 || failure.kind == .refused || failure.kind == .outOfResources {
            partitions[index].fault = reason
        }
        changeStatus()
    }

    private mutating func clearFault(_ index: Int) {
        guard partitions[index].fault != nil else { return }
        partitions[index].fault = nil
        Log.notice(
            "the partition goes on",
            [
                "pipeline": settings.pipeline, "partition": "\(partitions[index].partition)",
            ])
    }

    // MARK: - Claims

    private mutating func takeClaim(_ claim: PartitionClaim, of index: Int) {
        let partition = partitions[index].partition
        let place = TopicPartition(P.source, partition)
        do {
            let range = try consumer.offsets(of: partition)
            let restored = try restore(claim, place: place, range: range)
            try consumer.start(partition, at: restored.position)
            partitions[index].adopt(restored, claim)
            if partitions[index].isPaused {
                partitions[index].isPaused = false
                consumer.resume(partition)
            }
            if let events = claim.leftovers[.pipeline] { partitions[index].outbox.append(events) }
            if let events = claim.leftovers[.rejectedRows] {
                partitions[index].rejected.append(events)
            }
            if let events = claim.leftovers[.ingestSilent] { watchOutbox.append(events) }
            partitions[index].call = nil
            partitions[index].lastCommit = now
            clearFault(index)
        } catch let error as EventLogError where error.kind == .unavailable {
            noteLogFault(error)
            retryClaim(index)
        } catch {
            fail(index, "pipeline \(settings.pipeline), \(place): \(error)")
        }
    }

    /// The state as of the stored offset, or as of a snapshot before it.
    private func restore(
        _ claim: PartitionClaim, place: TopicPartition, range: OffsetRange
    ) throws -> RestoredPartition<P> {
        guard claim.nextOffset >= range.earliest else {
            throw RestoreFault.logBeginsLater(claim.nextOffset, range, settings.pipeline, place)
        }
        guard claim.nextOffset <= range.next else {
            throw RestoreFault.logEndsBefore(claim.nextOffset, range)
        }
        guard let sealed = claim.snapshot else {
            // The first commit brings the first snapshot.
            guard claim.nextOffset == claim.startOffset else {
                throw RestoreFault.noSnapshot(claim.nextOffset)
            }
            return RestoredPartition(
                processor: P(partition: place.partition, settings: processorSettings.values),
                settings: processorSettings, sequence: claim.outboxSequence,
                position: claim.nextOffset)
        }
        let snapshot: Snapshot
        do throws(SnapshotFault) {
            snapshot = try Snapshot.open(sealed.span, pipeline: settings.pipeline)
        } catch { throw RestoreFault.damaged(error) }
        guard snapshot.offset <= claim.nextOffset else {
            throw RestoreFault.damaged(.state("it is newer than the stored offset"))
        }
        // A start after the snapshot: an operator accepted the gap.
        var position = max(snapshot.offset, min(claim.startOffset, claim.nextOffset))
        // What retention has taken of recent records is older than what the state could rest on.
        if P.restsOnRecentRecords { position = max(position, range.earliest) }
        guard position >= range.earliest || position == claim.nextOffset else {
            throw RestoreFault.logBeginsLater(position, range, settings.pipeline, place)
        }
        var inForce = processorSettings
        if snapshot.settings != processorSettings.text, settings.passedOver == nil {
            if let values = processorSettings.read(snapshot.settings) {
                inForce = ProcessorSettings(
                    values, text: snapshot.settings, read: processorSettings.read)
            } else {
                Log.warning(
                    "stored settings are not readable; the current ones are used",
                    ["pipeline": settings.pipeline, "partition": "\(place.partition)"])
            }
        }
        do throws(SnapshotError) {
            return RestoredPartition(
                processor: try P(
                    restoring: sealed.span.extracting(snapshot.state), partition: place.partition,
                    settings: inForce.values),
                settings: inForce, sequence: snapshot.sequence, position: position,
                replays: snapshot.replays)
        } catch { throw RestoreFault.damaged(.state("\(error)")) }
    }
}

/// A state at some offset at or before the stored one.
struct RestoredPartition<P: Processor> {
    var processor: P
    var settings: ProcessorSettings<P.Settings>
    var sequence: Int64
    var position: Int64
    var replays = ReplayedRecords()
}

extension WorkerPartition {
    mutating func adopt(_ restored: RestoredPartition<P>, _ claim: PartitionClaim) {
        processor = restored.processor
        replays = restored.replays
        settings = restored.settings
        epoch = claim.epoch
        committedOffset = claim.nextOffset
        position = restored.position
        snapshotOffset = restored.position
        storedSequence = claim.outboxSequence
        storedRevision = claim.settingsRevision
        effects.removeAll()
        effects.nextSequence = restored.sequence
        effects.isDiscarding = true
        phase = .restoring(until: claim.nextOffset)
        if position >= claim.nextOffset { endRestoring() }
    }
}

/// Why a partition's state cannot be had. Nothing is skipped or rebuilt silently.
enum RestoreFault: Error, CustomStringConvertible {
    case logBeginsLater(Int64, OffsetRange, String, TopicPartition)
    case logEndsBefore(Int64, OffsetRange)
    case noSnapshot(Int64)
    case damaged(SnapshotFault)

    var description: String {
        switch self {
        case .logBeginsLater(let offset, let range, let pipeline, let place):
            """
            restoring from offset \(offset): the log of \(place) begins at \(range.earliest), so \
            \(range.earliest - offset) records are gone; decide with \
            `heartline pipeline resume \(pipeline) --partition \(place.partition)`, which goes on \
            at \(range.earliest) without them
            """
        case .logEndsBefore(let offset, let range):
            """
            restoring from offset \(offset): the log ends at \(range.next); it is not the log that \
            the tables were made from. Start with the data directory or brokers that belong to this \
            database
            """
        case .noSnapshot(let offset):
            """
            restoring at offset \(offset): no snapshot is stored. Restore table heartline.snapshots \
            from a backup, or begin anew with an empty database
            """
        case .damaged(let fault):
            """
            reading the stored snapshot: \(fault). Restore table heartline.snapshots from a backup, \
            or use the release that wrote it
            """
        }
    }
}
