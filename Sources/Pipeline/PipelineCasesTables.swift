internal import Bytes
internal import Schemas

/// What the tables would hold after the rows of a case, by the write modes of their schemas.
struct CaseTables {
    /// Columns by name; a null is absent.
    typealias Row = [String: [UInt8]]

    private var keyed: [String: [[UInt8]: Row]] = [:]
    private var appended: [String: [Row]] = [:]
    /// What topic `device-configs` keeps of each device: the newest value, as its compaction does; a
    /// tombstone is `nil`.
    private var bells: [String: String?] = [:]

    /// How often the doorbell of an account rang, by its id.
    private var doorbells: [String: Int] = [:]

    func rings(of account: AccountID) -> Int { doorbells["\(account)"] ?? 0 }

    /// Applies what one commit would publish.
    mutating func apply(_ events: OutboxBuffer) {
        for entry in events.entries where entry.topic == .pushes {
            doorbells[events.bytes.span.extracting(entry.key).text, default: 0] += 1
        }
        for entry in events.entries where entry.topic == .deviceConfigs {
            let value = events.bytes.span.extracting(entry.value)
            bells[events.bytes.span.extracting(entry.key).text] =
                entry.isTombstone ? .some(nil) : value.text
        }
    }

    /// Applies what one commit would write.
    mutating func apply(_ buffers: [RowBuffer]) {
        for buffer in buffers {
            for start in buffer.starts { apply(buffer, start) }
        }
    }

    private mutating func apply(_ buffer: RowBuffer, _ start: Int) {
        let table = buffer.table
        var reader = ByteReader(buffer.bytes.span.extracting(start..<buffer.bytes.count))
        guard let count = reader.bigEndian(Int16.self), count == table.columns.count else {
            preconditionFailure(
                "a row of \(table.name) has another number of columns than its table")
        }
        var row: Row = [:]
        var key: [UInt8] = []
        for (index, column) in table.columns.enumerated() {
            guard let size = reader.bigEndian(Int32.self) else {
                preconditionFailure("a row of \(table.name) is cut off")
            }
            if size < 0 { continue }
            guard let range = reader.take(Int(size)) else {
                preconditionFailure("a row of \(table.name) is cut off")
            }
            let bytes = buffer.bytes.span
                .extracting((start + range.lowerBound)..<(start + range.upperBound)).array
            row[column.name] = bytes
            if table.key.contains(index) { key.append(contentsOf: bytes + [0]) }
        }
        let old = keyed[table.name]?[key]
        switch table.mode {
        case .append: appended[table.name, default: []].append(row)
        case .insertNew: if old == nil { keyed[table.name, default: [:]][key] = row }
        case .update:
            guard var old else { return }
            old.merge(row) { $1 }
            keyed[table.name, default: [:]][key] = old
        case .upsert:
            for column in table.columns where column.keepsOldWhenNull && row[column.name] == nil {
                row[column.name] = old?[column.name]
            }
            keyed[table.name, default: [:]][key] = row
        case .delete:
            keyed[table.name] = keyed[table.name]?.filter { _, old in
                !table.key.allSatisfy {
                    old[table.columns[$0].name] == row[table.columns[$0].name]
                }
            }
        }
    }

    func rows(_ table: String) -> [Row] { keyed[table].map { Array($0.values) } ?? [] }

    static func bytes(_ id: DeviceID) -> [UInt8] {
        var buffer = ByteBuffer()
        buffer.appendBigEndian(id.high)
        buffer.appendBigEndian(id.low)
        return buffer.bytes
    }

    static func text(_ bytes: [UInt8]?) -> String {
        bytes.map { $0.span.text } ?? "null"
    }

    static func number(_ bytes: [UInt8]?) -> Int64 {
        (bytes ?? []).reduce(0) { $0 << 8 | Int64($1) }
    }

    static func time(_ bytes: [UInt8]?) -> EventTime {
        EventTime(postgresMicroseconds: number(bytes))
    }

    /// The device's row of `device_status`.
    func status(
        of device: DeviceID
    ) -> (
        state: String, reason: String, since: EventTime, isFlapping: Bool
    )? {
        let id = Self.bytes(device)
        guard let row = rows("device_status").first(where: { $0["device_id"] == id }) else {
            return nil
        }
        return (
            Self.text(row["state"]), Self.text(row["reason"]), Self.time(row["since"]),
            row["flapping"] == [1]
        )
    }

    /// One row about a version of a device's configuration, as cases speak of it.
    struct Version {
        var version: Int64
        /// When it was made, or delivered.
        var at: EventTime
        var kind: String
        var changed: String
        var isSuspended: Bool
        var by: String
    }

    /// The device's rows of `config_versions` or `config_delivery`, oldest version first.
    func versions(of device: DeviceID, in table: String) -> [Version] {
        let id = Self.bytes(device)
        return rows(table).filter { $0["device_id"] == id }.map { row in
            Version(
                version: Self.number(row["version"]),
                at: Self.time(row["changed_at"] ?? row["delivered_at"]),
                kind: Self.text(row["kind"]),
                // Behind the format's version.
                changed: Self.text(row["changed"].map { Array($0.dropFirst()) })
                    .filter { !"[\"] ".contains($0) },
                isSuspended: row["suspended"] == [1], by: Self.text(row["changed_by"]))
        }.sorted { $0.version < $1.version }
    }

    /// The device's newest record of `device-configs`: its version, `removed`, or `none`.
    func bell(of device: DeviceID) -> String {
        guard let bell = bells["\(device)"] else { return "none" }
        guard let text = bell, let start = text.firstRange(of: "\"version\":")?.upperBound else {
            return "removed"
        }
        return String(text[start...].prefix { $0.isNumber })
    }

    /// The columns of a row, as cases write them: times in milliseconds of 1970, nulls as `none`.
    ///
    /// - Parameter matches: given a row's column, what stands in it.
    func columns(
        of table: TableSchema, where matches: ((String) -> [UInt8]?) -> Bool
    ) -> [String: String]? {
        guard let row = rows(table.name).first(where: { row in matches { row[$0] } }) else {
            return nil
        }
        var result: [String: String] = [:]
        for column in table.columns {
            guard let bytes = row[column.name] else {
                result[column.name] = "none"
                continue
            }
            result[column.name] =
                switch column.type {
                case .int8, .int4: "\(Self.number(bytes))"
                case .float8:
                    "\(Double(bitPattern: bytes.reduce(0) { $0 << 8 | UInt64($1) }))"
                case .bool: bytes == [1] ? "true" : "false"
                case .timestamptz: "\(Self.time(bytes).milliseconds)"
                case .uuid, .text, .jsonb, .bytea: Self.text(bytes)
                }
        }
        return result
    }

    static func bytes(of id: DeviceID) -> [UInt8] { bytes(id) }

    /// The device's states that are over, in order.
    func endedStates(of device: DeviceID) -> [String] {
        let id = Self.bytes(device)
        return (appended["device_state_ended"] ?? []).filter { $0["device_id"] == id }
            .sorted { Self.number($0["transition"]) < Self.number($1["transition"]) }
            .map { Self.text($0["state"]) }
    }

    /// Kinds of the open alerts on a device (by its id) or a front-end (by its name), sorted.
    func openAlerts(on entity: String) -> [String] {
        rows("alerts").filter { Self.text($0["entity"]) == entity && $0["resolved_at"] == nil }
            .map { Self.text($0["kind"]) }.sorted()
    }

    /// One row of `telemetry_minutes`, as cases speak of it.
    struct Minute {
        var name: String
        var start: EventTime
        var samples: Int64
        var late: Int64
        var sum: Double
        /// `nil` without samples.
        var min, max, last: Double?
    }

    /// The device's rows of `telemetry_minutes`, oldest first.
    func minutes(of device: DeviceID) -> [Minute] {
        let id = Self.bytes(device)
        func number(_ bytes: [UInt8]?) -> Double? {
            bytes.map { Double(bitPattern: UInt64(bitPattern: Self.number($0))) }
        }
        return (appended["telemetry_minutes"] ?? []).filter { $0["device_id"] == id }.map { row in
            Minute(
                name: Self.text(row["name"]), start: Self.time(row["minute"]),
                samples: Self.number(row["samples"]), late: Self.number(row["late"]),
                sum: number(row["sum"]) ?? 0, min: number(row["min"]), max: number(row["max"]),
                last: number(row["last"]))
        }.sorted { ($0.start, $0.name) < ($1.start, $1.name) }
    }

    /// The device's lines of `agent_logs` as level, tag and message, in the order of their receipt.
    func logLines(of device: DeviceID) -> [String] {
        let id = Self.bytes(device)
        return (appended["agent_logs"] ?? []).filter { $0["device_id"] == id }.map { row in
            [row["level"], row["tag"], row["message"]].map(Self.text).filter { !$0.isEmpty }
                .joined(separator: " ")
        }
    }
}
