import Bytes
import Processors
import Schemas
import Testing

/// One partition of `config-changes` in the hands of a test.
struct ChangesPartition {
    var processor = ConfigHash(partition: 3, settings: ConfigHashSettings())
    var effects = Effects(tables: ConfigHash.tables)
    var offset: Int64 = 0

    /// Changes as the registry writes them, read back as the worker does.
    mutating func change(
        _ device: DeviceID, _ kind: ConfigChange.Kind, _ version: Int64, at seconds: Double = 0,
        suspended: Bool = false, address: String = "10.64.0.2", forwards: [PortForward] = [],
        by actor: String = "ops", request: String? = nil
    ) {
        let digits = ByteBuffer(String(repeating: "0a", count: 32).utf8)
        var json = ByteBuffer()
        json.append(
            text: """
                {"v":1,"type":"\(kind.text)","device_id":"\(device)","version":\(version),\
                "suspended":\(suspended),"actor":"\(actor)",\
                \(request.map { "\"request_id\":\"\($0)\"," } ?? "")\
                "internal_ip":"\(address)","private_key_sha256":"\(digits.span.text)",\
                "preshared_key_sha256":"\(digits.span.text)","server_pub":"\(digits.span.text)",\
                "endpoint":"vpn.example.net:51820","server_wg_ip":"10.64.0.1","dns":"1.1.1.1",\
                "allowed_ips":"0.0.0.0/0","forwards":[\(forwards.map {
                    "\"\($0.transport) \($0.listenPort) \($0.targetHost) \($0.targetPort)\""
                }.joined(separator: ","))]}
                """)
        guard case .event(let event) = ConfigChangesDecoder().decode(json.span) else {
            Issue.record("cannot be decoded: \(json.span.text)")
            return
        }
        apply(event, at: seconds)
    }

    mutating func apply(_ event: ConfigChange, at seconds: Double) {
        processor.apply(
            event,
            at: RecordPlace(partition: 3, offset: offset, timestamp: Partition.time(seconds)),
            into: &effects)
        offset += 1
    }

    /// Each row of `config_versions`: version, kind, what changed, by whom.
    func rows() -> [String] {
        var copy = processor
        var scratch = effects
        copy.drain(into: &scratch)
        let rows = scratch.rows[0]
        return (0..<rows.count).map { index in
            let fields = Fields(rows, index)
            return
                "\(fields.number(2)) \(fields.text(3)) \(fields.text(4).dropFirst()) \(fields.text(10))"
        }
    }

    /// Each event of `device-configs`: `key version` or `key -`.
    func bells() -> [String] {
        effects.outbox.entries.filter { $0.topic == .deviceConfigs }.map { entry in
            let bytes = effects.outbox.bytes.span
            let key = bytes.extracting(entry.key).text
            if entry.isTombstone { return "\(key) -" }
            let value = bytes.extracting(entry.value).text
            let version = value.split(separator: "\"version\":")[1].prefix { $0.isNumber }
            return "\(key) \(version)"
        }
    }

    var snapshot: ByteBuffer {
        var bytes = ByteBuffer()
        processor.snapshot(into: &bytes)
        return bytes
    }
}

/// The fields of one row.
struct Fields {
    private var fields: [[UInt8]?] = []

    init(_ rows: RowBuffer, _ index: Int) {
        let bytes = rows.bytes.span
        let end = index + 1 < rows.count ? rows.starts[index + 1] : bytes.count
        var reader = ByteReader(bytes.extracting(rows.starts[index]..<end))
        let count = reader.bigEndian(Int16.self) ?? 0
        for _ in 0..<count {
            let size = reader.bigEndian(Int32.self) ?? -1
            guard size >= 0, let range = reader.take(Int(size)) else {
                fields.append(nil)
                continue
            }
            let start = rows.starts[index]
            fields.append(
                bytes.extracting((start + range.lowerBound)..<(start + range.upperBound)).array)
        }
    }

    func text(_ column: Int) -> String {
        fields[column].map { String(decoding: $0, as: UTF8.self) } ?? "null"
    }

    func number(_ column: Int) -> Int64 { (fields[column] ?? []).reduce(0) { $0 << 8 | Int64($1) } }

    func isNull(_ column: Int) -> Bool { fields[column] == nil }

    func uuid(_ column: Int) -> DeviceID {
        let bytes = (fields[column] ?? []).map(UInt64.init)
        return DeviceID(
            high: bytes.prefix(8).reduce(0) { $0 << 8 | $1 },
            low: bytes.dropFirst(8).reduce(0) { $0 << 8 | $1 })
    }
}

@Suite("Versions of configurations") struct ConfigHashTests {
    static let forward = PortForward(
        transport: "tcp", listenPort: 8080, targetHost: "10.0.0.5", targetPort: 80)
    static let other = PortForward(
        transport: "udp", listenPort: 53, targetHost: "nas.local", targetPort: 53)

    @Test("Each version is a row that says what differs from the one before, and a bell")
    func versions() {
        var changes = ChangesPartition()
        changes.change(d1, .provisioned, 1, by: "provision")
        changes.change(d1, .forwards, 2, forwards: [Self.forward])
        changes.change(d1, .suspended, 3, suspended: true, forwards: [Self.forward], request: "r")
        changes.change(d1, .reprovisioned, 4, suspended: true, address: "10.64.0.3", forwards: [])
        changes.change(d1, .interval, 5, suspended: true, address: "10.64.0.3")
        changes.change(d1, .resumed, 6, address: "10.64.0.3")
        #expect(
            changes.rows() == [
                "1 provisioned [\"config\"] provision", "2 forwards [\"forwards\"] ops",
                "3 suspended [\"suspended\"] ops",
                "4 reprovisioned [\"config\",\"forwards\"] ops", "5 interval [] ops",
                "6 resumed [\"suspended\"] ops",
            ])
        #expect(changes.bells() == (1...6).map { "\(d1) \($0)" })
        #expect(changes.processor.version(of: d1) == 6)
    }

    @Test("The hashes are those of the specification, in the row and in the bell")
    func hashes() {
        var changes = ChangesPartition()
        changes.change(d1, .provisioned, 1, forwards: [Self.forward])
        let entry = changes.effects.outbox.entries[0]
        let bell = changes.effects.outbox.bytes.span.extracting(entry.value).text
        let fields = Fields(changes.effects.rows[0], 0)
        for (column, name) in [(5, "config_hash"), (6, "forwards_hash"), (7, "reload_hash")] {
            #expect(fields.text(column).utf8.count == 64)
            #expect(bell.contains("\"\(name)\":\"\(fields.text(column))\""))
        }
        #expect(
            fields.text(6) == "be908699a9bf1a9d3c12e0f42e159c32dc34447741f3e3f5516b05f0a34e64de")
        #expect(bell.contains("\"suspended\":false"))
    }

    @Test(
        "A permuted or duplicated list of forwards changes nothing; a port, host or protocol does")
    func forwards() {
        var changes = ChangesPartition()
        changes.change(d1, .provisioned, 1, forwards: [Self.forward, Self.other])
        changes.change(d1, .forwards, 2, forwards: [Self.other, Self.forward, Self.other])
        var version: Int64 = 2
        let edits: [(inout PortForward) -> Void] = [
            { $0.listenPort = 8081 }, { $0.targetPort = 81 }, { $0.targetHost = "10.0.0.6" },
            { $0.transport = "udp" },
        ]
        for edit in edits {
            var forward = Self.forward
            edit(&forward)
            version += 1
            changes.change(d1, .forwards, version, forwards: [forward, Self.other])
        }
        #expect(
            changes.rows().dropFirst() == [
                "2 forwards [] ops", "3 forwards [\"forwards\"] ops",
                "4 forwards [\"forwards\"] ops", "5 forwards [\"forwards\"] ops",
                "6 forwards [\"forwards\"] ops",
            ])
    }

    @Test("A change that is repeated, or older than what is known, has no effect")
    func repeats() {
        var changes = ChangesPartition()
        changes.change(d1, .provisioned, 4)
        changes.change(d1, .provisioned, 4)
        changes.change(d1, .suspended, 3, suspended: true)
        changes.change(d2, .provisioned, 1)
        #expect(
            changes.rows() == ["4 provisioned [\"config\"] ops", "1 provisioned [\"config\"] ops"])
        #expect(changes.bells() == ["\(d1) 4", "\(d2) 1"])
        #expect(changes.processor.repeats == 2)
    }

    @Test("A removed device leaves a tombstone, and what is told again of it brings nothing back")
    func removed() {
        var changes = ChangesPartition()
        changes.change(d1, .provisioned, 1)
        changes.change(d1, .removed, 2, at: 10)
        changes.change(d1, .provisioned, 1, at: 20)
        changes.change(d1, .removed, 2, at: 20)
        #expect(changes.bells() == ["\(d1) 1", "\(d1) -"])
        #expect(changes.processor.version(of: d1) == nil)
        #expect(changes.processor.deviceCount == 1)
        // An hour later nothing of it is kept.
        changes.change(d2, .provisioned, 1, at: 3_610)
        #expect(changes.processor.deviceCount == 1)
        #expect(changes.processor.version(of: d2) == 1)
    }

    @Test("What is told again long after a removal is no second row of its commit")
    func toldAgainLater() {
        var changes = ChangesPartition()
        changes.change(d2, .provisioned, 9)
        changes.change(d1, .provisioned, 1, by: "first")
        changes.change(d1, .removed, 2, at: 10)
        changes.change(d2, .forwards, 10, at: 9_000)
        changes.change(d1, .provisioned, 1, at: 9_001, by: "again")
        changes.change(d1, .removed, 2, at: 9_002, by: "again")
        var effects = changes.effects
        changes.processor.drain(into: &effects)
        let rows = (0..<effects.rows[0].count).map { Fields(effects.rows[0], $0) }
        #expect(rows.map { $0.number(2) } == [1, 2, 9, 10])
        #expect(rows.map { $0.text(10) } == ["first", "ops", "ops", "ops"])
        #expect(changes.bells().last == "\(d1) -")
    }

    @Test("A removed device that returns with a newer version is new")
    func returned() {
        var changes = ChangesPartition()
        changes.change(d1, .provisioned, 1, suspended: true)
        changes.change(d1, .removed, 2, at: 10, suspended: true)
        changes.change(d1, .provisioned, 3, at: 20)
        #expect(changes.rows().last == "3 provisioned [\"config\"] ops")
        changes.change(d2, .provisioned, 1, at: 4_000)
        #expect(changes.processor.version(of: d1) == 3)
    }

    @Test("A thousand devices come and go, and the table knows the ones that stayed")
    func churn() {
        var changes = ChangesPartition()
        var known: [DeviceID: Int64] = [:]
        let ids = (0..<3_000).map { DeviceID(high: UInt64($0 * 77), low: UInt64($0) << 40 | 5) }
        for round in 0..<4 {
            for (index, id) in ids.enumerated() where (index + round) % 3 != 0 {
                let version = Int64(round * 2 + 1)
                let seconds = Double(round * 10_000)
                changes.change(id, .provisioned, version, at: seconds)
                known[id] = version
                if index % (round + 2) == 0 {
                    changes.change(id, .removed, version + 1, at: seconds + 1)
                    known[id] = nil
                }
            }
            #expect(known.allSatisfy { changes.processor.version(of: $0.key) == $0.value })
        }
        changes.change(d1, .provisioned, 1, at: 100_000)
        known[d1] = 1
        #expect(changes.processor.deviceCount == known.count)
        #expect(ids.allSatisfy { changes.processor.version(of: $0) == known[$0] })
    }

    @Test("A snapshot restores everything, and damage to it is found")
    func snapshot() throws {
        var changes = ChangesPartition()
        changes.change(d1, .provisioned, 1, forwards: [Self.forward])
        changes.change(d2, .suspended, 7, suspended: true)
        changes.change(d3, .removed, 2, at: 5)
        let bytes = changes.snapshot
        var restored = ChangesPartition()
        restored.processor = try ConfigHash(
            restoring: bytes.span, partition: 3, settings: ConfigHashSettings())
        #expect(restored.snapshot == bytes)
        changes.effects.removeAll()
        for partition in [0, 1] {
            var one = partition == 0 ? changes : restored
            one.change(d1, .forwards, 2, forwards: [Self.forward])
            one.change(d2, .resumed, 8)
            one.change(d3, .provisioned, 1)
            #expect(
                one.rows() == ["2 forwards [] ops", "8 resumed [\"suspended\"] ops"])
        }
        for size in 0..<bytes.count {
            #expect(throws: SnapshotError.self) {
                _ = try ConfigHash(
                    restoring: bytes.span.extracting(0..<size), partition: 3,
                    settings: ConfigHashSettings())
            }
        }
        #expect(throws: SnapshotError.self) {
            _ = try ConfigDelivery(
                restoring: bytes.span, partition: 3, settings: ConfigDeliverySettings())
        }
    }

    @Test("While discarding, state and numbers of events go on, and nothing is written")
    func discarding() {
        var changes = ChangesPartition()
        changes.effects.isDiscarding = true
        changes.change(d1, .provisioned, 1)
        changes.change(d1, .removed, 2)
        #expect(changes.effects.count == 0)
        #expect(changes.effects.nextSequence == 2)
        changes.effects.isDiscarding = false
        changes.change(d1, .provisioned, 1)
        #expect(changes.effects.count == 0)
    }
}
