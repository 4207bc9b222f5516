internal import Schemas

/// What a rebuild does with the tables of a pipeline.
struct RebuiltTable: Sendable, Equatable {
    /// How the rows that were built anew take the place of the live ones.
    enum Way: Sendable, Equatable {
        /// Each row has its time, and never changes: those of the rebuilt time are exchanged, older ones
        /// stay. `identity`: columns that are never null and by which rows are found.
        case history(time: String, identity: [String])
        /// What holds now, by key: rows that were built take the place of live ones. Only a rebuild from
        /// the very beginning knows that a row should not be.
        case state
        /// About people, who may have blocked or left each other since: rows are added, and none is taken
        /// away.
        case people(time: String)
    }

    var schema: TableSchema
    var way: Way

    /// Why a table is never rebuilt; `nil` if it is.
    static func reasonToKeep(_ table: String) -> String? {
        switch table {
        case "alerts": "who was woken was woken, and what was sent hangs on its rows"
        case "connections": "people hold on to them"
        case "pushes": "what was delivered stands in no topic"
        default: nil
        }
    }

    /// - Returns: `nil` for a table that is never rebuilt, or that another schema of the pipeline names.
    init?(_ schema: TableSchema) {
        let way: Way? =
            switch schema.name {
            case "device_status", "installations", "update_attempts", "rollout_by_partition": .state
            case "device_state_ended":
                .history(time: "ended_at", identity: ["device_id", "transition"])
            case "fleet_minutes_by_partition":
                .history(time: "minute", identity: ["minute", "partition", "state"])
            case "config_versions":
                .history(time: "changed_at", identity: ["device_id", "version"])
            case "config_delivery":
                .history(time: "delivered_at", identity: ["device_id", "version"])
            case "telemetry_minutes":
                .history(time: "minute", identity: ["device_id", "name", "minute"])
            case "agent_logs":
                .history(time: "received_at", identity: ["device_id", "received_at"])
            case "waves": .people(time: "waved_at")
            case "encounter_reports": .people(time: "reported_at")
            case "encounters": .people(time: "met_at")
            case "messages": .people(time: "received_at")
            default: nil
            }
        guard let way, schema.mode != .delete, schema.mode != .update else { return nil }
        self.schema = schema
        self.way = way
    }
}

/// Where a rebuild of one partition begins.
struct RebuildStart: Sendable, Equatable {
    /// A state that was kept, or none: the beginning of the pipeline.
    struct Base: Sendable, Equatable {
        /// The first offset whose effects were not in the tables.
        var nextOffset: Int64
        /// The first offset that the state does not include.
        var snapshotOffset: Int64
        var keptAt: EventTime
    }

    var partition: Int32
    /// Effects count from here on.
    var nextOffset: Int64
    /// Records are applied from here on.
    var snapshotOffset: Int64
    /// `nil`: from the beginning, without any state.
    var base: Base?
    /// Rows of this time and later follow from what is applied; `nil`: all rows do.
    var exactFrom: EventTime?

    /// Stamps of one partition differ by less: front-ends have clocks of their own.
    static let margin: Int64 = 60_000

    /// The start that rebuilds most, or with `from` the latest that rebuilds all from there on.
    ///
    /// - Parameters:
    ///   - begin: the offset at which the pipeline began; `nil` if what follows from it is not all that
    ///     the state follows from.
    ///   - next: the live pipeline's next offset.
    ///   - earliest: the first offset that the log still holds.
    ///   - rests: whether the state rests on recent records alone.
    /// - Returns: `nil` if neither the beginning nor a state after the log's start is there.
    static func choose(
        _ partition: Int32, begin: Int64?, bases: [Base], next: Int64, earliest: Int64, rests: Bool,
        from: EventTime?
    ) -> RebuildStart? {
        var candidates: [RebuildStart] = []
        if let begin, begin >= earliest {
            candidates.append(
                RebuildStart(
                    partition: partition, nextOffset: begin, snapshotOffset: begin, base: nil,
                    exactFrom: nil))
        }
        for base in bases.sorted(by: { $0.nextOffset < $1.nextOffset })
        where base.nextOffset <= next && base.nextOffset >= earliest
            && (rests || base.snapshotOffset >= earliest)
        {
            candidates.append(
                RebuildStart(
                    partition: partition, nextOffset: base.nextOffset,
                    snapshotOffset: base.snapshotOffset, base: base,
                    exactFrom: EventTime(milliseconds: base.keptAt.milliseconds + margin)))
        }
        guard let from else { return candidates.first }
        return candidates.last { start in start.exactFrom.map { $0 <= from } ?? true }
            ?? candidates.first
    }
}
