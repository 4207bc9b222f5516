internal import Bytes
internal import Postgres
internal import Schemas
internal import System

/// Reads what the page shows from the database, each thing at its own pace, and remembers it in between.
///
/// For one thread at a time.
struct FleetReader: ~Copyable {
    private let databaseURL: String
    private let logEnd: (@Sendable (TopicPartition) -> Int64?)?
    private var connection: PostgresConnection?
    private var reading = FleetReading(now: EventTime(milliseconds: 0))
    private var isEmpty = true
    private var history = FleetHistory()

    private enum Piece: Int, CaseIterable {
        case states, history, alerts, examples, partitions, configurations, rollout
    }

    private var paces = Piece.allCases.map { piece in
        switch piece {
        case .states, .alerts, .examples, .partitions: Pace(every: 900)
        case .history: Pace(every: 10_000)
        case .configurations, .rollout: Pace(every: 3_000)
        }
    }

    /// Sums at some moment, of which two make a rate.
    private struct Sums {
        var at: Int64
        var taken: Int64?
        var stored: Int64
    }
    private var sums: [Sums] = []
    /// A rate is over this time.
    private static let rateMilliseconds: Int64 = 5_000

    /// Longest statement.
    private static let statementMilliseconds: Int64 = 10_000
    private static let alertKinds = [
        "offline", "stale", "down", "flapping", "front-end-lost", "ingest-silent", "mass-offline",
        "pool-exhausted",
    ]

    init(databaseURL: String, logEnd: (@Sendable (TopicPartition) -> Int64?)?) {
        self.databaseURL = databaseURL
        self.logEnd = logEnd
    }

    // MARK: - The fleet

    /// Brings up to date what is due. When the database does not answer, what was known before is returned,
    /// with the reason.
    /// - Returns: `nil` if nothing was ever read.
    mutating func fleet() -> FleetReading? {
        reading.now = EventTime(milliseconds: SystemClock.wallMilliseconds())
        do {
            try refresh(try open())
            reading.fault = nil
        } catch {
            reading.fault = explain(error)
        }
        return isEmpty ? nil : reading
    }

    /// Counts the devices, if that is due, while the tables have too little for a picture.
    /// - Returns: whether that goes on.
    mutating func countForHistory() -> Bool {
        do {
            let connection = try open()
            try readIfDue(.states, connection)
            try readIfDue(.history, connection)
        } catch {
            // Who looks is told.
            _ = explain(error)
        }
        return history.isYoung
    }

    /// Why nothing was ever read.
    var fault: String? { reading.fault }

    private mutating func refresh(_ connection: PostgresConnection) throws(PostgresError) {
        // What takes too long keeps nothing else from being read.
        var late: PostgresError?
        let start = SystemClock.monotonicMilliseconds()
        for piece in Piece.allCases {
            // Who asks for a device waits meanwhile; what is left is due in the next round.
            if late != nil,
                SystemClock.monotonicMilliseconds() - start >= Self.statementMilliseconds
            {
                break
            }
            do throws(PostgresError) {
                try readIfDue(piece, connection)
            } catch {
                guard error.sqlState == .queryCanceled, !error.isConnectionBroken else {
                    throw error
                }
                late = late ?? error
            }
        }
        reading.history = history.samples(now: reading.now)
        if let late { throw late }
    }

    private mutating func readIfDue(
        _ piece: Piece, _ connection: PostgresConnection
    ) throws(PostgresError) {
        let start = SystemClock.monotonicMilliseconds()
        guard paces[piece.rawValue].isDue(start) else { return }
        do throws(PostgresError) {
            try read(piece, connection)
            note(piece, since: start)
        } catch {
            // It has cost as much. Of a fleet that nobody has counted yet the next try finds more in memory.
            if error.sqlState == .queryCanceled, !isEmpty { note(piece, since: start) }
            throw error
        }
    }

    private mutating func note(_ piece: Piece, since start: Int64) {
        let end = SystemClock.monotonicMilliseconds()
        paces[piece.rawValue].took(end - start, now: end)
    }

    private mutating func read(
        _ piece: Piece, _ connection: PostgresConnection
    ) throws(PostgresError) {
        switch piece {
        case .states: try readStates(connection)
        case .history: try readHistory(connection)
        case .alerts:
            // Only what was read whole takes the place of what was known.
            var alerts: [FleetReading.AlertCount] = []
            for row in try connection.execute(PageQueries.alertCounts) {
                alerts.append(
                    .init(kind: try row.text(0), open: try row.int8(1), oldest: try row.time(2)))
            }
            reading.alerts = alerts
        case .examples: try readExamples(connection)
        case .partitions: try readPartitions(connection)
        case .configurations: try readConfigurations(connection)
        case .rollout: try readRollout(connection)
        }
    }

    private mutating func readStates(_ connection: PostgresConnection) throws(PostgresError) {
        var counts = StateCounts()
        for row in try connection.execute(PageQueries.states) {
            if let state = FleetState(rawValue: try row.text(0)) { counts[state] = try row.int8(1) }
        }
        reading.counts = counts
        reading.countedAt = EventTime(milliseconds: SystemClock.wallMilliseconds())
        isEmpty = false
        history.append(.init(at: reading.countedAt, counts: counts))
    }

    private mutating func readHistory(_ connection: PostgresConnection) throws(PostgresError) {
        let now = EventTime(milliseconds: SystemClock.wallMilliseconds())
        let from = now + -FleetHistory.span
        var minutes: [FleetHistory.Minute] = []
        for row in try connection.execute(
            PageQueries.history, .timestamptz(from.postgresMicroseconds))
        {
            let start = try row.time(0)
            if minutes.last?.start != start {
                minutes.append(
                    .init(start: start, counts: StateCounts(), partitions: try row.int8(3)))
            }
            if let state = FleetState(rawValue: try row.text(1)) {
                minutes[minutes.count - 1].counts[state] = try row.int8(2)
            }
        }
        history.replace(minutes)
    }

    private mutating func readExamples(_ connection: PostgresConnection) throws(PostgresError) {
        var troubles: [FleetReading.Trouble] = []
        for row in try connection.execute(
            PageQueries.troubles, .textArray(FleetState.troubled.map(\.rawValue)))
        {
            troubles.append(
                .init(
                    device: try row.device(0), state: try row.text(1), reason: try row.text(2),
                    since: try row.time(3), lastSeen: try row.optionalTime(4)))
        }
        reading.troubles = troubles
        var newest: [AlertReading] = []
        for row in try connection.execute(
            PageQueries.newestAlerts, .textArray(Self.alertKinds))
        {
            newest.append(try AlertReading(row))
        }
        reading.newestAlerts = newest
    }

    private mutating func readPartitions(_ connection: PostgresConnection) throws(PostgresError) {
        var partitions: [FleetReading.Partition] = []
        var ends: [TopicPartition: Int64] = [:]
        var isAnswering = true
        for row in try connection.execute(PageQueries.partitions) {
            let (topic, number) = (try row.text(1), try row.int4(2))
            var end: Int64?
            if let known = Topic(rawValue: topic), let logEnd, isAnswering {
                let place = TopicPartition(known, number)
                end = ends[place] ?? logEnd(place)
                ends[place] = end
                // Each question to a cluster that is away takes its time.
                isAnswering = end != nil
            }
            partitions.append(
                .init(
                    pipeline: try row.text(0), topic: topic, partition: number,
                    committed: try row.int8(3), committedAt: try row.time(4),
                    owner: try row.text(5), end: end))
        }
        reading.outbox = try connection.execute(PageQueries.outbox).only().int8(0)
        reading.partitions = partitions
        note(
            Sums(
                at: SystemClock.monotonicMilliseconds(),
                taken: ends.isEmpty || !isAnswering ? nil : ends.values.reduce(0, +),
                stored: reading.partitions.map(\.committed).reduce(0, +)))
    }

    private mutating func note(_ newest: Sums) {
        sums.removeAll { newest.at - $0.at > 2 * Self.rateMilliseconds }
        reading.rates = FleetReading.Rates()
        // The oldest that is not too old, or the youngest of the older ones.
        if let before = sums.first(where: { newest.at - $0.at <= Self.rateMilliseconds })
            ?? sums.last,
            newest.at > before.at
        {
            let seconds = Double(newest.at - before.at) / 1_000
            // A topic that is gone would make it negative.
            reading.rates.stored = max(0, Double(newest.stored - before.stored) / seconds)
            if let taken = newest.taken, let earlier = before.taken {
                reading.rates.taken = max(0, Double(taken - earlier) / seconds)
            }
        }
        sums.append(newest)
    }

    private mutating func readConfigurations(_ connection: PostgresConnection) throws(PostgresError)
    {
        let from = reading.now + -86_400_000
        var configurations = FleetReading.Configurations()
        for row in try connection.execute(
            PageQueries.configurations, .timestamptz(from.postgresMicroseconds),
            .int8(PageQueries.configurationLimit))
        {
            if let minute = try row.optionalTime(0) {
                configurations.minutes.append(
                    .init(minute: minute, changed: try row.int8(1), delivered: try row.int8(2)))
            } else {
                configurations.changed = try row.int8(1)
                configurations.delivered = try row.int8(2)
                configurations.suspended = try row.int8(3)
                configurations.medianMilliseconds = try row.optionalInterval(4).map { $0 / 1_000 }
                configurations.longestMilliseconds = try row.optionalInterval(5).map { $0 / 1_000 }
                configurations.lastChange = try row.optionalTime(6)
                configurations.isCut = try row.int8(7) >= PageQueries.configurationLimit
            }
        }
        reading.configurations = configurations
    }

    private mutating func readRollout(_ connection: PostgresConnection) throws(PostgresError) {
        var releases: [FleetReading.Release] = []
        for row in try connection.execute(PageQueries.releases) {
            releases.append(
                .init(
                    source: try row.text(0), release: try row.text(1), offered: try row.int8(2),
                    downloading: try row.int8(3), installed: try row.int8(4),
                    failed: try row.int8(5), unconfirmed: try row.int8(6)))
        }
        reading.releases = releases
        let from = reading.now + -3_600_000
        var matches = FleetReading.Matches()
        for row in try connection.execute(
            PageQueries.matches, .timestamptz(from.postgresMicroseconds))
        {
            matches.minutes.append(.init(minute: try row.time(0), count: try row.int8(1)))
        }
        reading.matches = matches
    }

    // MARK: - Devices

    /// One device, read now.
    /// - Throws: `PageFault`.
    mutating func device(_ device: DeviceID) throws(PageFault) -> DeviceReading {
        var read = DeviceReading(
            now: EventTime(milliseconds: SystemClock.wallMilliseconds()), device: device)
        do throws(PostgresError) {
            try Self.fill(&read, try open())
        } catch {
            throw PageFault(reason: explain(error))
        }
        return read
    }

    private static func fill(
        _ read: inout DeviceReading, _ connection: PostgresConnection
    ) throws(PostgresError) {
        let id = PostgresParameters(.uuid(read.device.high, read.device.low))
        let week = (read.now + -7 * 86_400_000).postgresMicroseconds
        var pipeline = PostgresPipeline()
        pipeline.append(PageQueries.registration, id)
        pipeline.append(PageQueries.status, id)
        pipeline.append(
            PageQueries.intervals,
            PostgresParameters(.uuid(read.device.high, read.device.low), .timestamptz(week)))
        pipeline.append(PageQueries.versions, id)
        pipeline.append(PageQueries.deviceAlerts, id)
        pipeline.append(PageQueries.forwards, id)
        let results = try connection.run(pipeline)
        if let row = results[0].first {
            read.registration = DeviceReading.Registration(
                internalAddress: try row.text(0),
                hardwareID: try row.optionalBytea(1).map { $0.span.text },
                version: try row.int8(2), isSuspended: try row.bool(3),
                expectedIntervalMilliseconds: try row.optionalInterval(4).map { $0 / 1_000 },
                createdAt: try row.time(5))
        }
        // A device that was removed keeps a row until it is pruned.
        if let row = results[1].first {
            read.status = DeviceReading.Status(
                lastSeen: try row.optionalTime(3), lastHandshake: try row.optionalTime(4),
                tunnelUp: try row.optionalBool(5), agentStatus: try row.optionalText(6),
                agentState: try row.optionalText(7), flags: try row.jsonb(8),
                isFlapping: try row.bool(9))
            read.intervals.append(
                .init(
                    state: try row.text(0), reason: try row.text(1), start: try row.time(2),
                    end: nil))
        }
        for row in results[2] {
            read.intervals.append(
                .init(
                    state: try row.text(0), reason: try row.text(1), start: try row.time(2),
                    end: try row.time(3)))
        }
        for row in results[3] {
            read.versions.append(
                .init(
                    version: try row.int8(0), kind: try row.text(1), changedAt: try row.time(2),
                    changedBy: try row.text(3), deliveredAt: try row.optionalTime(4)))
        }
        for row in results[4] { read.alerts.append(try AlertReading(row)) }
        for row in results[5] {
            read.forwards.append(
                "\(try row.text(0)) \(try row.int4(1)) → \(try row.text(2)):\(try row.int4(3))")
        }
    }

    /// Devices in a state, the newest first.
    mutating func devices(in state: FleetState) throws(PageFault) -> [FoundDevice] {
        try find(
            PageQueries.inState,
            PostgresParameters(.text(state.rawValue), .int8(PageQueries.listLimit)))
    }

    /// Devices whose id, address or hardware id begins with what is looked for.
    mutating func devices(matching term: SearchTerm) throws(PageFault) -> [FoundDevice] {
        let limit = PostgresValue.int8(PageQueries.listLimit)
        var found: [FoundDevice] = []
        if let ids = term.ids {
            found += try find(
                PageQueries.byID,
                PostgresParameters(
                    .uuid(ids.lowerBound.high, ids.lowerBound.low),
                    .uuid(ids.upperBound.high, ids.upperBound.low), limit))
        }
        if let addresses = term.addresses {
            found += try find(
                PageQueries.byAddress,
                PostgresParameters(
                    .inet(Self.text(addresses.lowerBound)), .inet(Self.text(addresses.upperBound)),
                    limit))
        }
        if let hardware = term.hardware {
            found += try find(
                PageQueries.byHardware,
                PostgresParameters(
                    .bytea(ByteBuffer(hardware.from)), .bytea(ByteBuffer(hardware.before)), limit))
        }
        var seen: Set<DeviceID> = []
        return Array(
            found.filter { seen.insert($0.device).inserted }.prefix(Int(PageQueries.listLimit)))
    }

    private static func text(_ address: UInt32) -> String {
        [24, 16, 8, 0].map { String(address >> $0 & 0xFF) }.joined(separator: ".")
    }

    private mutating func find(
        _ statement: PreparedStatement, _ parameters: PostgresParameters
    ) throws(PageFault) -> [FoundDevice] {
        var found: [FoundDevice] = []
        do throws(PostgresError) {
            for row in try open().execute(statement, parameters: parameters) {
                found.append(
                    FoundDevice(
                        device: try row.device(0), address: try row.optionalText(1) ?? "",
                        hardwareID: try row.optionalBytea(2).map { $0.span.text },
                        state: try row.optionalText(3), since: try row.optionalTime(4)))
            }
        } catch {
            throw PageFault(reason: explain(error))
        }
        return found
    }

    // MARK: - The connection

    mutating func close() {
        connection?.close()
        connection = nil
    }

    private mutating func open() throws(PostgresError) -> PostgresConnection {
        if let connection, connection.isUsable { return connection }
        var options = PostgresOptions(applicationName: "heartline page")
        options.connectTimeout = .seconds(3)
        options.statementTimeout = .milliseconds(Self.statementMilliseconds)
        options.responseTimeout = .milliseconds(Self.statementMilliseconds + 2_000)
        let made = try PostgresConnection(databaseURL, options: options)
        try made.run(PageQueries.session)
        connection = made
        return made
    }

    /// What people are told of an error: nothing that only operators of the database should see.
    private mutating func explain(_ error: PostgresError) -> String {
        if connection == nil || error.isConnectionBroken {
            close()
            return "The database does not answer."
        }
        if error.sqlState == .queryCanceled { return "The database took too long to answer." }
        Log.warning("reading for the page", ["error": "\(error)"])
        close()
        return "The database answered with an error; the log has its words."
    }
}

/// Why a request of the page cannot be answered now, for people.
struct PageFault: Error {
    var reason: String
}

extension AlertReading {
    init(_ row: PostgresRow) throws(PostgresError) {
        self.init(
            id: try row.device(0), kind: try row.text(1), entity: try row.text(2),
            device: try row.optionalUUID(3).map { DeviceID(high: $0.high, low: $0.low) },
            reason: try row.text(4), openedAt: try row.time(5),
            resolvedAt: try row.optionalTime(6), acknowledgedBy: try row.optionalText(7),
            devices: try row.optionalInt8(8))
    }
}

extension PostgresRow {
    func time(_ column: Int) throws(PostgresError) -> EventTime {
        EventTime(postgresMicroseconds: try timestamptz(column))
    }

    func optionalTime(_ column: Int) throws(PostgresError) -> EventTime? {
        try optionalTimestamptz(column).map { EventTime(postgresMicroseconds: $0) }
    }

    func device(_ column: Int) throws(PostgresError) -> DeviceID {
        let (high, low) = try uuid(column)
        return DeviceID(high: high, low: low)
    }
}
