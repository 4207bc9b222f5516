import Bytes
import Processors
import Schemas
import Testing

/// One partition of `encounters` in the hands of a test.
private struct EncountersPartition {
    var processor = Encounters(partition: 0, settings: EncountersSettings())
    var effects = Effects(tables: Encounters.tables)
    private var offset: Int64 = 0

    mutating func report(
        _ from: AccountID, _ to: AccountID, _ number: UInt64, at seconds: Double,
        tier: DistanceTier = .bluetooth, engine: String = "ble", cell: String? = nil,
        own: String = "own", remote: String = "remote"
    ) {
        processor.apply(
            Encounter(
                origin: EventOrigin(boot: 1, counter: UInt64(offset)),
                id: EncounterID(high: 1, low: number), pair: AccountPair(from, to)!,
                reporter: from, ownToken: InlineText(own), remoteToken: InlineText(remote),
                tier: tier, engine: InlineText(engine), cell: cell.flatMap { Geohash($0) }),
            at: RecordPlace(partition: 0, offset: offset, timestamp: Partition.time(seconds)),
            into: &effects)
        offset += 1
    }

    func rows(_ table: Int) -> [Fields] {
        var scratch = effects
        var copy = processor
        copy.drain(into: &scratch)
        return (0..<scratch.rows[table].count).map { Fields(scratch.rows[table], $0) }
    }
}

@Suite("Encounters") struct EncountersTests {
    @Test("Each report is a row; two within five minutes are one mutual encounter, in any order")
    func mutual() throws {
        var ids: Set<String> = []
        for (first, second) in [(alice, bob), (bob, alice)] {
            var partition = EncountersPartition()
            let isAliceFirst = first == alice
            partition.report(
                first, second, isAliceFirst ? 1 : 2, at: 10, tier: .area, engine: "server",
                cell: "u33dbfc", own: isAliceFirst ? "a" : "b", remote: "?")
            #expect(partition.rows(1).isEmpty)
            partition.report(
                second, first, isAliceFirst ? 2 : 1, at: 309.999, tier: .ultraWideband,
                engine: "uwb", own: isAliceFirst ? "b" : "a", remote: "?")
            #expect(partition.rows(0).count == 2)
            let row = try #require(partition.rows(1).first)
            ids.insert("\(row.uuid(0))")
            // By the order of the accounts, whoever reported first.
            #expect([row.text(1), row.text(2)] == ["a", "b"])
            #expect(row.number(3) == 1)
            #expect(row.text(4) == "uwb")
            #expect(row.text(5) == "u33db")
            let time = EventTime(postgresMicroseconds: row.number(6))
            #expect(time.milliseconds % 60_000 == 0)
            #expect(time <= Partition.time(309.999) && Partition.time(250) < time)
        }
        // What it is does not depend on who was first.
        #expect(ids.count == 1)
    }

    @Test(
        "The nearer report's way counts, also where it came first; a place that neither told is null"
    )
    func nearer() throws {
        var partition = EncountersPartition()
        partition.report(alice, bob, 1, at: 0, tier: .ultraWideband, engine: "uwb")
        partition.report(bob, alice, 2, at: 1, tier: .area, engine: "server")
        let row = try #require(partition.rows(1).first)
        #expect(row.number(3) == 1)
        #expect(row.text(4) == "uwb")
        #expect(row.isNull(5))
    }

    @Test("Reports five minutes apart are two people who missed each other")
    func apart() {
        var partition = EncountersPartition()
        partition.report(alice, bob, 1, at: 0)
        partition.report(bob, alice, 2, at: 300)
        #expect(partition.rows(1).isEmpty)
        partition.report(alice, bob, 3, at: 301)
        #expect(partition.rows(1).count == 1)
    }

    @Test("The same report again is the same row, and no other encounter")
    func repeated() {
        var partition = EncountersPartition()
        for second in 0..<3 { partition.report(alice, bob, 1, at: Double(second)) }
        for second in 3..<6 { partition.report(bob, alice, 2, at: Double(second)) }
        partition.report(alice, bob, 1, at: 7)
        #expect(partition.rows(0).count == 2)
        #expect(partition.rows(1).count == 1)
    }

    @Test("Long tokens and engines are kept whole until the other's report comes")
    func long() throws {
        let text = String(repeating: "\u{1F44B}", count: 30)
        var partition = EncountersPartition()
        partition.report(alice, bob, 1, at: 0, tier: .ultraWideband, engine: text, own: text)
        partition.report(bob, alice, 2, at: 1, own: "short")
        let row = try #require(partition.rows(1).first)
        #expect(row.text(1) == text)
        #expect(row.text(2) == "short")
        #expect(row.text(4) == text)
    }
}

@Suite("Messages") struct MessagesTests {
    @Test("A message is a row and a push with the client's own object, and its recipient is rung")
    func message() throws {
        var processor = Messages(partition: 0, settings: MessagesSettings())
        var effects = Effects(tables: Messages.tables)
        let pair = try #require(AccountPair(alice, bob))
        let body = "{ \"id\":\"x\", \"ciphertext\" : \"\u{e9}\\u00e9\" }"
        for offset in Int64(0)..<2 {
            processor.apply(
                MessageEvent(
                    origin: EventOrigin(boot: 1, counter: 1), id: MessageID(high: 1, low: 2),
                    pair: pair, sender: bob, body: ByteBuffer(body.utf8)),
                at: RecordPlace(
                    partition: 0, offset: offset,
                    timestamp: Partition.time(Double(offset))), into: &effects)
        }
        processor.drain(into: &effects)
        #expect(effects.rows.map(\.count) == [1, 1])
        let row = Fields(effects.rows[0], 0)
        #expect(row.text(3) == body)
        // The first stays.
        #expect(
            EventTime(postgresMicroseconds: row.number(4)) == Partition.time(0))
        let push = Fields(effects.rows[1], 0)
        let id = PushID(messageTo: alice, of: pair.connection, message: MessageID(high: 1, low: 2))
        #expect(push.uuid(0) == DeviceID(high: alice.high, low: alice.low))
        #expect(push.uuid(1) == DeviceID(high: id.high, low: id.low))
        #expect(push.uuid(2) == DeviceID(high: bob.high, low: bob.low))
        #expect(push.text(3) == "message")
        #expect(push.text(4) == "{\"type\":\"message\",\"message\":\(body),\"id\":\"\(id)\"}")
        #expect(effects.outbox.entries.count == 2)
        let entry = try #require(effects.outbox.entries.first)
        #expect(entry.topic == .pushes)
        #expect(effects.outbox.bytes.span.extracting(entry.key).text == "\(alice)")
    }
}
