internal import Bytes
internal import Postgres
internal import Schemas
internal import System

/// Events that tell of changes of the registry, in the order in which they were made, for its
/// outbox: all of them go there with one statement, in the transaction of the changes.
struct RegistryEvents {
    private var count = 0
    private var topics: [String] = []
    /// Elements of arrays in PostgreSQL's binary format.
    private var keys = ByteBuffer()
    private var values = ByteBuffer()

    var isEmpty: Bool { count == 0 }

    /// What a change is told by: the change itself, the bell that empties the front-ends' caches,
    /// and for the judges of the device its lifecycle.
    ///
    /// The bell is rung from here, and not only by the pipeline that follows `config-changes`: a
    /// suspension holds on every front-end even while no pipeline runs.
    /// - Parameter lifecycle: `nil` where liveness is not concerned.
    mutating func append(_ change: ConfigChange, _ lifecycle: Lifecycle?) {
        var key = ByteBuffer()
        key.append(change.device)
        var value = ByteBuffer()
        if let lifecycle {
            value.append(lifecycle)
            append(.heartbeats, key, value)
            value.removeAll()
        }
        value.append(change)
        append(.configChanges, key, value)
        guard change.kind != .removed else {
            append(.deviceConfigs, key, nil)
            return
        }
        value.removeAll()
        value.append(
            bellOf: change.device, version: change.version, change.hashes,
            isSuspended: change.isSuspended)
        append(.deviceConfigs, key, value)
    }

    /// - Parameter value: `nil` is a tombstone.
    mutating func append(_ topic: Topic, _ key: ByteBuffer, _ value: ByteBuffer?) {
        count += 1
        topics.append(topic.rawValue)
        keys.appendBigEndian(Int32(key.count))
        keys.append(key)
        if let value {
            values.appendBigEndian(Int32(value.count))
            values.append(value)
        } else {
            values.appendBigEndian(Int32(-1))
        }
    }

    // Sorted within, so that the numbers are drawn in the order of the events.
    private static let insert = PreparedStatement(
        "insert_registry_events",
        """
        INSERT INTO heartline.outbox \
        (source, partition, sequence, topic, key, value, record_time) \
        SELECT 'registry', 0, nextval('heartline.registry_outbox_sequence'), topic, key, value, $4 \
        FROM (SELECT * FROM unnest($1::text[], $2::bytea[], $3::bytea[]) WITH ORDINALITY \
        AS event (topic, key, value, place) ORDER BY place) events
        """)

    /// Appends the statements that store the events and wake their publisher.
    func add(to pipeline: inout PostgresPipeline) {
        if isEmpty { return }
        var parameters = PostgresParameters(.textArray(topics))
        parameters.append(arrayOf: .bytea, count: count, elements: keys.span)
        parameters.append(arrayOf: .bytea, count: count, elements: values.span)
        let time = EventTime(milliseconds: SystemClock.wallMilliseconds())
        parameters.append(timestamptz: time.postgresMicroseconds)
        pipeline.append(Self.insert, parameters)
        pipeline.append("NOTIFY heartline_outbox")
    }
}
