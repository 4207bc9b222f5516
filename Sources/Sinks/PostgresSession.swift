internal import Bytes
internal import Postgres
internal import Schemas
internal import System

/// The connection of a `PostgresSink` and what it does with it. Belongs to the sink's thread.
final class PostgresSession {
    let settings: PostgresSink.Settings
    let tables: [TableStatements]
    let statements: SessionStatements
    var connection: PostgresConnection?
    var columns = RowColumns()
    /// The day (since 1970, UTC) for which the day partitions were made.
    private var partitionedDay: Int64 = .min
    /// Monotonic milliseconds before which it is not tried again.
    private var partitionsDue: Int64 = .min
    /// The last connection that was not made. Requests that follow at once get the same answer: each
    /// might wait for seconds otherwise.
    private var refusal: (error: PostgresError, time: Int64)?
    private static let refusalMilliseconds: Int64 = 100
    /// The end of a transaction was sent and its answer has not come: if the connection is lost now,
    /// nobody knows what happened.
    var isInDoubt = false
    /// Staging tables that the connection has.
    var staged: Set<Int> = []

    init(_ settings: PostgresSink.Settings) {
        self.settings = settings
        tables = settings.tables.enumerated().map {
            TableStatements($1, index: $0, schema: settings.schema)
        }
        statements = SessionStatements(schema: PreparedStatement.quoted(settings.schema))
    }

    func close() {
        connection?.close()
        connection = nil
    }

    func carryOut(_ request: StoreRequest) -> StoreReply.Outcome {
        do throws(PostgresError) {
            return try perform(request, try connect())
        } catch {
            dropIfBroken()
            return .failed(failure(error, mayHaveCommitted: false))
        }
    }

    private func perform(
        _ request: StoreRequest, _ connection: PostgresConnection
    ) throws(PostgresError) -> StoreReply.Outcome {
        let partition = request.partition
        switch request.action {
        case .claim(let start): return try claim(partition, start: start, connection)
        case .commit(let commit): return self.commit(commit, of: partition, connection)
        case .verify: return try verify(partition, connection)
        case .deleteOutbox(let source, let through):
            return try deleteOutbox(source, partition, through: through, connection)
        case .openIngestSilent(let since):
            return try openIngestSilent(since: since, connection)
        case .resolveIngestSilent(let beacon):
            return try resolveIngestSilent(beacon, connection)
        }
    }

    private func deleteOutbox(
        _ source: OutboxSource, _ partition: Int32, through: Int64,
        _ connection: PostgresConnection
    ) throws(PostgresError) -> StoreReply.Outcome {
        try connection.execute(
            statements.deletion, .text(source.name(pipeline: settings.pipeline)), .int4(partition),
            .int8(through))
        return .outboxDeleted
    }

    /// A broken connection is given up; the next request makes a new one.
    func dropIfBroken() {
        guard let connection else { return }
        connection.rollBack()
        if !connection.isUsable || connection.transactionStatus != .idle { close() }
    }

    func failure(_ error: PostgresError, mayHaveCommitted: Bool) -> StoreFailure {
        let kind: StoreFailure.Kind =
            if error.isConnectionLoss || error.isConnectionBroken {
                mayHaveCommitted ? .outcomeUnknown : .unavailable
            } else if error.sqlState?.classCode == "53" {
                .outOfResources
            } else if error
                .isRetryable
            { .unavailable } else { .refused }
        return StoreFailure(kind, error.description)
    }

    // MARK: - Connecting

    private func connect() throws(PostgresError) -> PostgresConnection {
        let today = SystemClock.wallMilliseconds() / 86_400_000
        if let connection, connection.isUsable {
            if today != partitionedDay, SystemClock.monotonicMilliseconds() >= partitionsDue {
                makeDayPartitions(today, connection)
            }
            return connection
        }
        if let refusal,
            SystemClock.monotonicMilliseconds() - refusal.time < Self.refusalMilliseconds
        {
            throw refusal.error
        }
        close()
        staged.removeAll()
        var options = PostgresOptions(applicationName: "heartline \(settings.pipeline)")
        options.connectTimeout = .seconds(5)
        let made: PostgresConnection
        do throws(PostgresError) {
            made = try PostgresConnection(settings.address, options: options)
        } catch {
            refusal = (error, SystemClock.monotonicMilliseconds())
            throw error
        }
        refusal = nil
        // A session that we lost must not hold its row locks for long.
        try made.run("SET idle_in_transaction_session_timeout = '60s'")
        connection = made
        makeDayPartitions(today, made)
        return made
    }

    /// Outside of any commit. Without them rows go to the default partition, so a failure is not one
    /// of the commit.
    private func makeDayPartitions(_ today: Int64, _ connection: PostgresConnection) {
        partitionedDay = today
        do throws(PostgresError) {
            try connection.execute(
                """
                SELECT set_config('lock_timeout', '500ms', true), heartline.ensure_day_partitions(
                    (now() AT TIME ZONE 'UTC')::date, (now() AT TIME ZONE 'UTC')::date + 2)
                """)
        } catch {
            // Whoever waits for long makes those wait who read. Tried again in a minute: there are two days left.
            partitionedDay = .min
            partitionsDue = SystemClock.monotonicMilliseconds() + 60_000
            Log.warning("making day partitions did not work", ["error": "\(error)"])
        }
    }

    // MARK: - Claims

    private func claim(
        _ partition: Int32, start: Int64, _ connection: PostgresConnection
    ) throws(PostgresError) -> StoreReply.Outcome {
        let name = PostgresValue.text(settings.pipeline)
        let claimed = try connection.execute(
            statements.claim, name, .int4(partition), .int8(start), .text(settings.owner),
            .text(settings.source.rawValue)
        ).only()
        let epoch = try claimed.int8(0)
        let topic = try claimed.text(1)
        guard topic == settings.source.rawValue else {
            return .failed(
                StoreFailure(
                    .refused,
                    """
                    claiming: the offsets of pipeline \(settings.pipeline) are those of topic \
                    \(topic), and it reads \(settings.source.rawValue) now; give the pipeline \
                    another name
                    """))
        }
        // One view of offset, state and outbox.
        try connection.run("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        let row = try connection.execute(statements.load, name, .int4(partition)).only()
        var snapshot: ByteBuffer?
        let chunks = try connection.execute(statements.loadSnapshot, name, .int4(partition))
        for chunk in chunks {
            let bytes = try chunk.bytea(0)
            if snapshot == nil { snapshot = bytes } else { snapshot?.append(bytes) }
        }
        var leftovers: [OutboxSource: OutboxBuffer] = [:]
        for source in OutboxSource.allCases where source != .ingestSilent || partition == 0 {
            let events = try outbox(source, partition, connection)
            if !events.isEmpty { leftovers[source] = events }
        }
        try connection.run("COMMIT")
        let stored = try row.int8(0)
        guard stored == epoch else { return .fenced }
        return .claimed(
            PartitionClaim(
                epoch: epoch, nextOffset: try row.int8(1), startOffset: try row.int8(2),
                outboxSequence: try row.int8(3), settingsRevision: try row.text(4),
                snapshot: snapshot, leftovers: leftovers))
    }

    private func outbox(
        _ source: OutboxSource, _ partition: Int32, _ connection: PostgresConnection
    ) throws(PostgresError) -> OutboxBuffer {
        var events = OutboxBuffer()
        let rows = try connection.execute(
            statements.loadOutbox, .text(source.name(pipeline: settings.pipeline)),
            .int4(partition))
        for row in rows {
            let name = try row.text(1)
            guard let topic = Topic(rawValue: name) else {
                throw PostgresError(
                    .reading, "heartline.outbox", "topic \(name) is not known to this release")
            }
            let value = try row.optionalBytea(3)
            let time = EventTime(postgresMicroseconds: try row.timestamptz(4))
            let sequence = try row.int8(0)
            let key = try row.bytea(2)
            if let value {
                events.append(
                    sequence: sequence, topic: topic, key: key.span, time: time, origin: -1
                ) { $0.append(value) }
            } else {
                events.append(
                    tombstone: key.span, sequence: sequence, topic: topic, time: time, origin: -1)
            }
        }
        return events
    }

    private func verify(
        _ partition: Int32, _ connection: PostgresConnection
    ) throws(PostgresError) -> StoreReply.Outcome {
        let rows = try connection.execute(
            statements.load, .text(settings.pipeline), .int4(partition))
        guard let row = rows.first else { return .fenced }
        return .verified(
            epoch: try row.int8(0), nextOffset: try row.int8(1),
            rejected: try outbox(.rejectedRows, partition, connection))
    }

    // MARK: - ingest-silent

    private static let lastSilence = PreparedStatement(
        "last silence",
        """
        SELECT episode, opened_at, resolved_at FROM heartline.alerts
         WHERE kind = 'ingest-silent' AND entity = 'fleet' ORDER BY episode DESC LIMIT 1
        """)

    private func openIngestSilent(
        since: EventTime?, _ connection: PostgresConnection
    ) throws(PostgresError) -> StoreReply.Outcome {
        var episode: Int64 = 0
        let found = try connection.execute(Self.lastSilence).first
        if let last = found {
            let lastResolved = try last.optionalTimestamptz(2)
            guard let resolved = lastResolved else {
                return .ingestSilent(isOpen: true, event: OutboxBuffer())
            }
            // Another worker saw a later beacon than we: there is no silence.
            if let since, resolved > since.postgresMicroseconds {
                return .ingestSilent(isOpen: false, event: OutboxBuffer())
            }
            episode = try last.int8(0) + 1
        }
        let time = since ?? EventTime(milliseconds: SystemClock.wallMilliseconds())
        let entity = ByteBuffer("fleet".utf8)
        let id = AlertID.make(kind: .ingestSilent, entity: entity.span, episode: episode)
        let event = silenceEvent(id, isOpen: true, episode: episode, at: time)
        var pipeline = PostgresPipeline()
        pipeline.append(
            """
            INSERT INTO heartline.alerts
                (alert_id, kind, entity, episode, partition, reason, opened_at)
            VALUES ($1, 'ingest-silent', 'fleet', $2, 0, 'no-beacons', $3)
            ON CONFLICT (alert_id) DO NOTHING
            """,
            PostgresParameters(
                .uuid(id.high, id.low), .int8(episode), .timestamptz(time.postgresMicroseconds)))
        insert(event, .ingestSilent, 0, into: &pipeline)
        try connection.run(pipeline)
        return .ingestSilent(isOpen: true, event: event)
    }

    private func resolveIngestSilent(
        _ beacon: EventTime, _ connection: PostgresConnection
    ) throws(PostgresError) -> StoreReply.Outcome {
        let found = try connection.execute(Self.lastSilence).first
        guard let last = found else { return .ingestSilent(isOpen: false, event: OutboxBuffer()) }
        let resolved = try last.optionalTimestamptz(2)
        if resolved != nil { return .ingestSilent(isOpen: false, event: OutboxBuffer()) }
        // A beacon from before the silence, read late, ends nothing.
        let opened = try last.timestamptz(1)
        if opened >= beacon.postgresMicroseconds {
            return .ingestSilent(isOpen: true, event: OutboxBuffer())
        }
        let episode = try last.int8(0)
        let entity = ByteBuffer("fleet".utf8)
        let id = AlertID.make(kind: .ingestSilent, entity: entity.span, episode: episode)
        let event = silenceEvent(id, isOpen: false, episode: episode, at: beacon)
        var pipeline = PostgresPipeline()
        pipeline.append(
            """
            UPDATE heartline.alerts SET resolved_at = $2
             WHERE alert_id = $1 AND resolved_at IS NULL
            """,
            PostgresParameters(
                .uuid(id.high, id.low), .timestamptz(beacon.postgresMicroseconds)))
        insert(event, .ingestSilent, 0, into: &pipeline)
        try connection.run(pipeline)
        return .ingestSilent(isOpen: false, event: event)
    }

    private func silenceEvent(
        _ id: DeviceID, isOpen: Bool, episode: Int64, at time: EventTime
    ) -> OutboxBuffer {
        var event = OutboxBuffer()
        let entity = ByteBuffer("fleet".utf8)
        event.append(
            sequence: episode * 2 + (isOpen ? 0 : 1), topic: .alerts, key: entity.span, time: time,
            origin: -1
        ) {
            $0.append(
                alert: id, kind: .ingestSilent, isOpen: isOpen, entity: entity.span,
                reason: isOpen ? "no-beacons" : "reports-again", at: time)
        }
        return event
    }
}
