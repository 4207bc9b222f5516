internal import Bytes
internal import Schemas
internal import YAML

extension PipelineCase {
    /// One person's report of having been near another; what is not said has a value that fits.
    struct CaseEncounter: Sendable {
        var from: String
        var to: String
        /// A name for the client's id; `nil`: another one for each report.
        var id: String?
        var ownToken: String?
        var token: String?
        var tier: DistanceTier
        var engine: String
        var cell: Geohash?
    }

    /// What must hold of an account or a pair of them. What is not said is not compared.
    struct ProximityExpectation: Sendable {
        /// Tokens of the mutual waves, or names of the messages, that an account is told of.
        var told: [String]?
        /// Tokens that an account waved at and that are kept.
        var waves: [String]?
        /// Doorbells of an account.
        var rings: Int64?
        /// Reports of an account.
        var reports: Int64?
        var isConnected: Bool?
        /// Mutual encounters of a pair.
        var encounters: Int64?
        var tier: Int64?
        var engine: String?
        var cell: String?
        /// Names of a pair's messages.
        var messages: [String]?
    }

    func compareProximity(
        _ expectation: Expectation, _ people: People, _ tables: CaseTables,
        into differences: inout [PipelineCaseDifference]
    ) {
        func check(_ what: String, _ expected: String?, _ got: String) {
            guard let expected, expected != got else { return }
            differences.append(
                PipelineCaseDifference(
                    mark: expectation.mark, what: "\(expectation.entity): \(what)",
                    expected: expected, got: got))
        }
        func list(_ values: [String]) -> String {
            values.isEmpty ? "none" : values.joined(separator: ", ")
        }
        let said = expectation.proximity
        switch expectation.entity {
        case .device, .frontEnd, .installation, .attempt, .release: break
        case .account(let name):
            let id = people.account(name)
            check("told", said.told.map(list), list(tables.told(id)))
            check("waves", said.waves.map(list), list(tables.waves(of: id)))
            check("rings", said.rings.map { "\($0)" }, "\(tables.rings(of: id))")
            check("reports", said.reports.map { "\($0)" }, "\(tables.reports(of: id))")
        case .pair(let a, let b):
            guard let pair = AccountPair(people.account(a), people.account(b)) else { return }
            let connected = tables.connection(of: pair)
            let met = tables.encounters(of: pair)
            check("connected", said.isConnected.map { "\($0)" }, "\(connected != nil)")
            check("encounters", said.encounters.map { "\($0)" }, "\(met.count)")
            check("messages", said.messages.map(list), list(tables.messages(of: pair)))
            let at = connected ?? met.last?.at
            check(
                "at", expectation.at.map { DurationText.text(milliseconds: $0) },
                at.map { DurationText.text(milliseconds: $0 - Self.start) } ?? "never")
            check("tier", said.tier.map { "\($0)" }, met.last.map { "\($0.tier)" } ?? "none")
            check("engine", said.engine, met.last?.engine ?? "none")
            check("geohash", said.cell, met.last?.cell ?? "none")
        }
    }

    /// Gives the names of a case ids, and makes events of its records.
    struct People {
        private var accounts: [String: AccountID] = [:]
        private var ids: [String: UInt64] = [:]
        private var counter: UInt64 = 0

        func account(_ name: String) -> AccountID { accounts[name] ?? AccountID(high: 0, low: 0) }

        private mutating func meet(_ a: String, _ b: String) -> (AccountID, AccountPair)? {
            for name in [a, b] where accounts[name] == nil {
                let id = PipelineCase.deviceID(name, index: accounts.count)
                accounts[name] = AccountID(high: id.high, low: id.low)
            }
            return AccountPair(account(a), account(b)).map { (account(a), $0) }
        }

        private mutating func origin() -> EventOrigin {
            counter += 1
            return EventOrigin(boot: 1, counter: counter)
        }

        /// The number behind a name of an encounter or a message.
        private mutating func number(_ name: String) -> UInt64 {
            if let known = ids[name] { return known }
            ids[name] = UInt64(ids.count + 1)
            return UInt64(ids.count)
        }

        mutating func wavesEvent(_ record: Record) -> WavesEvent? {
            switch record.action {
            case .wave(let from, let to, let token):
                return meet(from, to).map {
                    .wave(
                        Wave(origin: origin(), pair: $1, sender: $0, token: InlineText(token)))
                }
            case .block(let from, let to):
                return meet(from, to).map {
                    .block(Block(origin: origin(), pair: $1, sender: $0))
                }
            default: return nil
            }
        }

        mutating func encounter(_ record: Record) -> Encounter? {
            guard case .encounter(let said) = record.action,
                let (sender, pair) = meet(said.from, said.to)
            else { return nil }
            let origin = origin()
            return Encounter(
                origin: origin,
                id: EncounterID(high: 2, low: number(said.id ?? " \(origin.counter)")),
                pair: pair, reporter: sender,
                ownToken: InlineText(said.ownToken ?? "\(said.from)-token"),
                remoteToken: InlineText(said.token ?? "\(said.to)-token"), tier: said.tier,
                engine: InlineText(said.engine), cell: said.cell)
        }

        mutating func message(_ record: Record) -> MessageEvent? {
            guard case .message(let from, let to, let id) = record.action,
                let (sender, pair) = meet(from, to)
            else { return nil }
            return MessageEvent(
                origin: origin(), id: MessageID(high: 3, low: number(id)), pair: pair,
                sender: sender, body: ByteBuffer("{\"id\":\"\(id)\"}".utf8))
        }
    }
}

// MARK: - Tables

extension CaseTables {
    private static func bytes(_ id: some ProximityID) -> [UInt8] {
        bytes(DeviceID(high: id.high, low: id.low))
    }

    private func rows(
        _ table: String, _ column: String, _ id: some ProximityID, by time: String
    )
        -> [Row]
    {
        let value = Self.bytes(id)
        return rows(table).filter { $0[column] == value }
            .sorted {
                (Self.time($0[time]), Self.text($0["token"] ?? $0["body"]))
                    < (Self.time($1[time]), Self.text($1["token"] ?? $1["body"]))
            }
    }

    /// What follows `name` in a JSON text, up to the next quote.
    private static func string(after name: String, in row: Row) -> String {
        let text = text(row["body"])
        guard let start = text.firstRange(of: "\"\(name)\":\"")?.upperBound else { return text }
        return String(text[start...].prefix { $0 != "\"" })
    }

    /// Tokens or messages that the account is told of, oldest first.
    func told(_ account: AccountID) -> [String] {
        rows("pushes", "account_id", account, by: "created_at").map { row in
            Self.string(
                after: Self.text(row["kind"]) == "mutual" ? "remoteToken" : "id", in: row)
        }
    }

    /// Tokens that the account waved at, the longest ago first.
    func waves(of account: AccountID) -> [String] {
        rows("waves", "from_account", account, by: "waved_at").map { Self.text($0["token"]) }
    }

    func reports(of account: AccountID) -> Int {
        rows("encounter_reports", "reporter", account, by: "reported_at").count
    }

    /// Since when the pair is connected; `nil`: it is not.
    func connection(of pair: AccountPair) -> EventTime? {
        rows("connections", "connection_id", pair.connection, by: "connected_at").first
            .map { Self.time($0["connected_at"]) }
    }

    struct Meeting {
        var at: EventTime
        var tier: Int64
        var engine: String
        var cell: String
    }

    /// The pair's mutual encounters, oldest first.
    func encounters(of pair: AccountPair) -> [Meeting] {
        let second = Self.bytes(pair.second)
        return rows("encounters", "first_account", pair.first, by: "met_at")
            .filter { $0["second_account"] == second }
            .map {
                Meeting(
                    at: Self.time($0["met_at"]), tier: Self.number($0["tier"]),
                    engine: Self.text($0["engine"]),
                    cell: $0["geohash"].map { Self.text($0) } ?? "none")
            }
    }

    /// Names of the pair's messages, oldest first.
    func messages(of pair: AccountPair) -> [String] {
        rows("messages", "connection_id", pair.connection, by: "received_at")
            .map { Self.string(after: "id", in: $0) }
    }
}

// MARK: - Reading

extension PipelineFileReader {
    /// What is expected of an account; a pair has the other keys.
    private static let accountKeys: Set<String> = ["told", "waves", "rings", "reports"]

    static func proximityKeys(_ processor: PipelineFile.Kind) -> [String] {
        switch processor {
        case .tunnelHealth, .configHash, .configDelivery, .updateRollout, .telemetryRollup: []
        case .mutualWaves: ["told", "waves", "rings", "connected"]
        case .encounters: ["reports", "encounters", "tier", "engine", "geohash"]
        case .messages: ["told", "rings", "messages"]
        }
    }

    /// Who an expectation is about.
    mutating func person(
        _ fields: [String: YAMLEntry]
    ) -> PipelineCase.Expectation.Entity? {
        if let entry = fields["account"] {
            for (key, entry) in fields
            where !Self.accountKeys.contains(key) && key != "account" {
                fail(entry.keyMark, "an account has no \(key)")
            }
            return text(entry.value, of: "account").map { .account($0) }
        }
        guard let entry = fields["pair"] else { return nil }
        for (key, entry) in fields where Self.accountKeys.contains(key) {
            fail(entry.keyMark, "a pair has no \(key)")
        }
        guard let items = list(entry.value, of: "pair") else { return nil }
        let names = items.compactMap { text($0, of: "an account") }
        guard names.count == 2, names[0] != names[1] else {
            fail(entry.value.mark, "a pair is two accounts")
            return nil
        }
        return .pair(names[0], names[1])
    }

    mutating func proximity(
        _ fields: [String: YAMLEntry]
    ) -> PipelineCase.ProximityExpectation {
        func texts(_ key: String, _ reader: inout PipelineFileReader) -> [String]? {
            guard let entry = fields[key], let items = reader.list(entry.value, of: key) else {
                return nil
            }
            return items.compactMap { reader.text($0, of: key) }
        }
        func number(_ key: String, _ reader: inout PipelineFileReader) -> Int64? {
            fields[key].flatMap { reader.count($0.value, of: key, 0...1_000_000) }
        }
        var said = PipelineCase.ProximityExpectation()
        said.told = texts("told", &self)
        said.waves = texts("waves", &self)
        said.messages = texts("messages", &self)
        said.rings = number("rings", &self)
        said.reports = number("reports", &self)
        said.encounters = number("encounters", &self)
        said.tier = number("tier", &self)
        said.isConnected = fields["connected"].flatMap { bool($0.value, of: "connected") }
        said.engine = fields["engine"].flatMap { text($0.value, of: "engine") }
        said.cell = fields["geohash"].flatMap { text($0.value, of: "geohash") }
        return said
    }

    private mutating func ends(
        _ fields: [String: YAMLEntry], of what: String, _ mark: YAMLMark
    ) -> (from: String, to: String)? {
        for key in ["from", "to"] where fields[key] == nil { fail(mark, "\(what) has no \(key)") }
        guard let from = fields["from"].flatMap({ text($0.value, of: "from") }),
            let to = fields["to"].flatMap({ text($0.value, of: "to") })
        else { return nil }
        guard from != to else {
            fail(mark, "\(what) is from \(from) to the same: a front-end drops it")
            return nil
        }
        return (from, to)
    }

    mutating func wave(_ node: YAMLNode) -> PipelineCase.Record.Action? {
        guard let fields = fields(node, of: "wave", ["from", "to", "token"]),
            let ends = ends(fields, of: "the wave", node.mark)
        else { return nil }
        let token = fields["token"].flatMap { text($0.value, of: "token") } ?? "\(ends.to)-token"
        guard token.utf8.count <= InlineText.capacity else {
            fail(node.mark, "token is longer than \(InlineText.capacity) bytes")
            return nil
        }
        return .wave(from: ends.from, to: ends.to, token: token)
    }

    mutating func block(_ node: YAMLNode) -> PipelineCase.Record.Action? {
        guard let fields = fields(node, of: "block", ["from", "to"]),
            let ends = ends(fields, of: "the block", node.mark)
        else { return nil }
        return .block(from: ends.from, to: ends.to)
    }

    mutating func message(_ node: YAMLNode) -> PipelineCase.Record.Action? {
        guard let fields = fields(node, of: "message", ["from", "to", "id"]),
            let ends = ends(fields, of: "the message", node.mark)
        else { return nil }
        guard let id = fields["id"].flatMap({ text($0.value, of: "id") }) else {
            if fields["id"] == nil { fail(node.mark, "the message has no id") }
            return nil
        }
        return .message(from: ends.from, to: ends.to, id: id)
    }

    mutating func encounter(_ node: YAMLNode) -> PipelineCase.Record.Action? {
        let keys = ["from", "to", "id", "own_token", "token", "tier", "engine", "geohash"]
        guard let fields = fields(node, of: "encounter", keys),
            let ends = ends(fields, of: "the encounter", node.mark)
        else { return nil }
        let tier = fields["tier"].flatMap { count($0.value, of: "tier", 1...3) } ?? 1
        var cell: Geohash?
        if let entry = fields["geohash"], let text = text(entry.value, of: "geohash") {
            cell = Geohash(text)
            if cell == nil {
                fail(entry.value.mark, "geohash is 5 to 12 characters of base 32, not \"\(text)\"")
            }
        }
        return .encounter(
            PipelineCase.CaseEncounter(
                from: ends.from, to: ends.to,
                id: fields["id"].flatMap { text($0.value, of: "id") },
                ownToken: fields["own_token"].flatMap { text($0.value, of: "own_token") },
                token: fields["token"].flatMap { text($0.value, of: "token") },
                tier: DistanceTier(rawValue: UInt8(tier)) ?? .ultraWideband,
                engine: fields["engine"].flatMap { text($0.value, of: "engine") } ?? "uwb",
                cell: cell))
    }
}
