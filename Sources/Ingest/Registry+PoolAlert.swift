internal import Bytes
internal import Postgres
internal import Schemas
internal import System

/// The operators' alert that no address is left for a new device: at most one is open.
///
/// All of this is called in a transaction that holds the network's lock.
extension Registry {
    static let openPoolAlert = PreparedStatement(
        "open_pool_alert",
        """
        SELECT alert_id FROM heartline.alerts \
        WHERE kind = 'pool-exhausted' AND resolved_at IS NULL LIMIT 1
        """)

    /// The entity of alerts that concern no single device.
    private static let entity = ByteBuffer("fleet".utf8)
    private static let reason: StaticString = "no-free-address"

    /// Opens the alert; the caller knows that none is open.
    func raisePoolAlert(_ pipeline: inout PostgresPipeline, _ events: inout RegistryEvents) throws {
        let last = try connection.execute(
            """
            SELECT max(episode) FROM heartline.alerts \
            WHERE kind = 'pool-exhausted' AND entity = 'fleet'
            """
        ).only().optionalInt8(0)
        let episode = (last ?? -1) + 1
        let id = AlertID.make(kind: .poolExhausted, entity: Self.entity.span, episode: episode)
        let time = EventTime(milliseconds: SystemClock.wallMilliseconds())
        pipeline.append(
            """
            INSERT INTO heartline.alerts \
            (alert_id, kind, entity, episode, partition, reason, opened_at) \
            VALUES ($1, 'pool-exhausted', 'fleet', $2, 0, $3, $4)
            """,
            PostgresParameters(
                .uuid(id.high, id.low), .int8(episode), .text("\(Self.reason)"),
                .timestamptz(time.postgresMicroseconds)))
        tell(id, isOpen: true, time, &events)
    }

    /// Resolves an open alert.
    func resolvePoolAlert(
        _ id: DeviceID, _ pipeline: inout PostgresPipeline, _ events: inout RegistryEvents
    ) {
        let time = EventTime(milliseconds: SystemClock.wallMilliseconds())
        pipeline.append(
            "UPDATE heartline.alerts SET resolved_at = greatest($2, opened_at) WHERE alert_id = $1",
            PostgresParameters(
                .uuid(id.high, id.low), .timestamptz(time.postgresMicroseconds)))
        tell(id, isOpen: false, time, &events)
    }

    private func tell(
        _ id: DeviceID, isOpen: Bool, _ time: EventTime, _ events: inout RegistryEvents
    ) {
        var value = ByteBuffer()
        value.append(
            alert: id, kind: .poolExhausted, isOpen: isOpen, entity: Self.entity.span,
            reason: Self.reason, at: time)
        events.append(.alerts, Self.entity, value)
    }

    /// Resolves the alert, if it is open: for whoever has given addresses back, such as by removing a
    /// device, in the same transaction.
    func addressesWereFreed() throws {
        let rows = try connection.execute(Self.openPoolAlert)
        guard let row = rows.first else { return }
        let (high, low) = try row.uuid(0)
        var pipeline = PostgresPipeline()
        var events = RegistryEvents()
        resolvePoolAlert(DeviceID(high: high, low: low), &pipeline, &events)
        events.add(to: &pipeline)
        try connection.run(pipeline)
    }
}
