internal import Bytes
internal import Postgres
internal import Schemas
internal import System

/// One partition's commit: one transaction, in one of three ways.
///
/// - A small one is one pipeline, which is one transaction and one round trip.
/// - A large one copies its rows to staging tables first.
/// - After PostgreSQL rejected a row, the commit is made again with savepoints, which find the row;
///   it becomes a dead letter in the same transaction.
extension PostgresSession {
    /// What the fence says.
    private static let divisionByZero = "22012"
    private static let chunkBytes = 4 << 20
    /// Outbox events in one statement.
    private static let outboxRows = 8_192

    func commit(
        _ commit: PartitionCommit, of partition: Int32, _ connection: PostgresConnection
    ) -> StoreReply.Outcome {
        isInDoubt = false
        let rows = commit.rows.map { buffer in
            var sorted = buffer
            sorted.sortByKey()
            return sorted
        }
        let isLarge =
            rows.contains {
                $0.count > settings.copyRows || $0.bytes.count > settings.copyBytes
            } || (commit.snapshot?.count ?? 0) > Self.chunkBytes
        do throws(PostgresError) {
            do throws(PostgresError) {
                if isLarge {
                    return try commitLarge(commit, rows, partition, connection)
                }
                return try commitSmall(commit, rows, partition, connection)
            } catch {
                guard error.isDataError, error.sqlState?.code != Self.divisionByZero else {
                    throw error
                }
                connection.rollBack()
                return try commitIsolating(commit, rows, partition, connection)
            }
        } catch {
            if error.sqlState?.code == Self.divisionByZero {
                dropIfBroken()
                return .fenced
            }
            dropIfBroken()
            return .failed(failure(error, mayHaveCommitted: isInDoubt))
        }
    }

    // MARK: - Small

    private func commitSmall(
        _ commit: PartitionCommit, _ rows: [RowBuffer], _ partition: Int32,
        _ connection: PostgresConnection
    ) throws(PostgresError) -> StoreReply.Outcome {
        var pipeline = PostgresPipeline()
        pipeline.append(statements.fence, fenceParameters(commit, partition))
        for (index, buffer) in rows.enumerated() where !buffer.isEmpty {
            let parameters = columns.parameters(
                buffer, 0..<buffer.count, types: tables[index].types)
            pipeline.append(tables[index].fromArrays, parameters)
        }
        insert(commit.outbox, .pipeline, partition, into: &pipeline)
        if let snapshot = commit.snapshot {
            pipeline.append(statements.deleteSnapshot, snapshotKey(partition))
            pipeline.append(
                statements.insertSnapshot,
                chunk(snapshot, 0..<snapshot.count, 0, commit, partition))
            if let parameters = baseParameters(commit, partition) {
                pipeline.append(statements.keepBase, parameters)
            }
        }
        // The transaction ends with the pipeline: from here on its answer can be lost.
        isInDoubt = true
        do throws(PostgresError) { try connection.run(pipeline) } catch {
            // An answer that came is no lost one.
            isInDoubt = error.isConnectionBroken || error.isConnectionLoss
            throw error
        }
        return .committed(rejected: OutboxBuffer())
    }

    private func fenceParameters(
        _ commit: PartitionCommit, _ partition: Int32
    ) -> PostgresParameters {
        var parameters = PostgresParameters(
            .text(settings.pipeline), .int4(partition), .int8(commit.epoch),
            .int8(commit.expectedOffset), .int8(commit.nextOffset), .int8(commit.outboxSequence))
        if let stored = commit.settings {
            parameters.append(text: stored.revision)
            parameters.append(int8: stored.offset)
        } else {
            parameters.appendNull(.text)
            parameters.appendNull(.int8)
        }
        return parameters
    }

    // MARK: - Large

    private func commitLarge(
        _ commit: PartitionCommit, _ rows: [RowBuffer], _ partition: Int32,
        _ connection: PostgresConnection
    ) throws(PostgresError) -> StoreReply.Outcome {
        for (index, buffer) in rows.enumerated() where isCopied(buffer) {
            guard let create = tables[index].createStaging, !staged.contains(index) else {
                continue
            }
            try connection.run(create)
            staged.insert(index)
        }
        try connection.run("BEGIN")
        try connection.execute(statements.fence, parameters: fenceParameters(commit, partition))
        for (index, buffer) in rows.enumerated() where !buffer.isEmpty {
            if isCopied(buffer) {
                try connection.copyIn(tables[index].copy, tuples: buffer.bytes)
                if let write = tables[index].fromStaging { try connection.execute(write) }
            } else {
                let parameters = columns.parameters(
                    buffer, 0..<buffer.count, types: tables[index].types)
                try connection.execute(tables[index].fromArrays, parameters: parameters)
            }
        }
        try storeRest(commit, rejected: OutboxBuffer(), partition, connection)
        try end(connection)
        return .committed(rejected: OutboxBuffer())
    }

    private func isCopied(_ buffer: RowBuffer) -> Bool {
        buffer.count > settings.copyRows || buffer.bytes.count > settings.copyBytes
    }

    /// Outbox and snapshot.
    private func storeRest(
        _ commit: PartitionCommit, rejected: OutboxBuffer, _ partition: Int32,
        _ connection: PostgresConnection
    ) throws(PostgresError) {
        var pipeline = PostgresPipeline()
        insert(commit.outbox, .pipeline, partition, into: &pipeline)
        insert(rejected, .rejectedRows, partition, into: &pipeline)
        if !pipeline.isEmpty { try connection.run(pipeline) }
        guard let snapshot = commit.snapshot else { return }
        try connection.execute(statements.deleteSnapshot, parameters: snapshotKey(partition))
        var start = 0
        var number: Int32 = 0
        while start < snapshot.count {
            let end = min(snapshot.count, start + Self.chunkBytes)
            try connection.execute(
                statements.insertSnapshot,
                parameters: chunk(snapshot, start..<end, number, commit, partition))
            start = end
            number += 1
        }
        if let parameters = baseParameters(commit, partition) {
            try connection.execute(statements.keepBase, parameters: parameters)
        }
    }

    private func end(_ connection: PostgresConnection) throws(PostgresError) {
        isInDoubt = true
        do throws(PostgresError) {
            guard try connection.run("COMMIT").last?.commandTag == "COMMIT" else {
                throw PostgresError(
                    .executing, "COMMIT", "all was rolled back", sqlState: .inFailedTransaction)
            }
        } catch {
            isInDoubt = error.isConnectionBroken || error.isConnectionLoss
            throw error
        }
    }

    // MARK: - With rejected rows

    private func commitIsolating(
        _ commit: PartitionCommit, _ rows: [RowBuffer], _ partition: Int32,
        _ connection: PostgresConnection
    ) throws(PostgresError) -> StoreReply.Outcome {
        try connection.run("BEGIN")
        try connection.execute(statements.fence, parameters: fenceParameters(commit, partition))
        var rejected = OutboxBuffer()
        for (index, buffer) in rows.enumerated() where !buffer.isEmpty {
            // Parts of a size that one statement takes well, however many rows there are.
            var start = 0
            while start < buffer.count {
                let end = min(buffer.count, start + settings.copyRows)
                try isolate(index, buffer, start..<end, commit, partition, &rejected, connection)
                start = end
            }
        }
        try storeRest(commit, rejected: rejected, partition, connection)
        try end(connection)
        return .committed(rejected: rejected)
    }

    /// Writes a range of rows; where one is rejected, its halves, down to the row itself.
    private func isolate(
        _ index: Int, _ buffer: RowBuffer, _ range: Range<Int>, _ commit: PartitionCommit,
        _ partition: Int32, _ rejected: inout OutboxBuffer, _ connection: PostgresConnection
    ) throws(PostgresError) {
        try connection.run("SAVEPOINT part")
        do throws(PostgresError) {
            let parameters = columns.parameters(buffer, range, types: tables[index].types)
            try connection.execute(tables[index].fromArrays, parameters: parameters)
            try connection.run("RELEASE SAVEPOINT part")
        } catch {
            guard error.isDataError else { throw error }
            try connection.run("ROLLBACK TO SAVEPOINT part; RELEASE SAVEPOINT part")
            if range.count == 1 {
                reject(buffer, range.lowerBound, error, commit, partition, &rejected)
                return
            }
            let middle = range.lowerBound + range.count / 2
            try isolate(
                index, buffer, range.lowerBound..<middle, commit, partition, &rejected, connection)
            try isolate(
                index, buffer, middle..<range.upperBound, commit, partition, &rejected, connection)
        }
    }

    private func reject(
        _ buffer: RowBuffer, _ row: Int, _ error: PostgresError, _ commit: PartitionCommit,
        _ partition: Int32, _ rejected: inout OutboxBuffer
    ) {
        let letter = DeadLetter(
            topic: settings.source, partition: partition, offset: buffer.origins[row],
            reason: """
                writing the row: \(error.message)\
                \(error.sqlState.map { " (\($0))" } ?? "")
                """)
        var json = ByteBuffer()
        letter.append(
            to: &json, table: buffer.table.name,
            row: buffer.bytes.span.extracting(buffer.tuple(row)))
        let key = ByteBuffer("\(settings.source.rawValue)/\(partition)".utf8)
        rejected.append(
            sequence: commit.firstRejectedSequence + Int64(rejected.count), topic: .deadLetters,
            key: key.span, time: EventTime(milliseconds: SystemClock.wallMilliseconds()),
            origin: buffer.origins[row]
        ) { $0.append(json) }
    }

    // MARK: - Outbox and snapshot

    func insert(
        _ events: OutboxBuffer, _ source: OutboxSource, _ partition: Int32,
        into pipeline: inout PostgresPipeline
    ) {
        var start = 0
        while start < events.count {
            let end = min(events.count, start + Self.outboxRows)
            var sequences = ByteBuffer()
            var topics = ByteBuffer()
            var keys = ByteBuffer()
            var values = ByteBuffer()
            var times = ByteBuffer()
            let bytes = events.bytes.span
            for entry in events.entries[start..<end] {
                sequences.appendBigEndian(Int32(8))
                sequences.appendBigEndian(entry.sequence)
                topics.appendBigEndian(Int32(entry.topic.rawValue.utf8.count))
                topics.append(text: entry.topic.rawValue)
                keys.appendBigEndian(Int32(entry.key.count))
                keys.append(bytes.extracting(entry.key))
                values.appendBigEndian(Int32(entry.isTombstone ? -1 : entry.value.count))
                values.append(bytes.extracting(entry.value))
                times.appendBigEndian(Int32(8))
                times.appendBigEndian(entry.time.postgresMicroseconds)
            }
            var parameters = PostgresParameters(
                .text(source.name(pipeline: settings.pipeline)), .int4(partition))
            let count = end - start
            parameters.append(arrayOf: .int8, count: count, elements: sequences.span)
            parameters.append(arrayOf: .text, count: count, elements: topics.span)
            parameters.append(arrayOf: .bytea, count: count, elements: keys.span)
            parameters.append(arrayOf: .bytea, count: count, elements: values.span)
            parameters.append(arrayOf: .timestamptz, count: count, elements: times.span)
            pipeline.append(statements.insertOutbox, parameters)
            start = end
        }
    }

    private func snapshotKey(_ partition: Int32) -> PostgresParameters {
        PostgresParameters(.text(settings.pipeline), .int4(partition))
    }

    /// `nil`: this sink keeps no older snapshots.
    private func baseParameters(
        _ commit: PartitionCommit, _ partition: Int32
    ) -> PostgresParameters? {
        guard let bases = settings.baseSnapshots else { return nil }
        var parameters = snapshotKey(partition)
        parameters.append(intervalMicroseconds: bases.every * 1_000)
        parameters.append(intervalMicroseconds: bases.life * 1_000)
        parameters.append(timestamptz: commit.newest.postgresMicroseconds)
        return parameters
    }

    private func chunk(
        _ snapshot: ByteBuffer, _ range: Range<Int>, _ number: Int32, _ commit: PartitionCommit,
        _ partition: Int32
    ) -> PostgresParameters {
        var parameters = snapshotKey(partition)
        parameters.append(int4: number)
        parameters.append(int8: commit.snapshotOffset)
        parameters.append(bytea: snapshot.span.extracting(range))
        return parameters
    }
}
