import Bytes
import Processors
import Schemas
import Testing

let alice = AccountID("aaaaaaaa-0000-4000-8000-000000000001")!
let bob = AccountID("bbbbbbbb-0000-4000-8000-000000000002")!
let carol = AccountID("cccccccc-0000-4000-8000-000000000003")!

/// One partition of `waves` in the hands of a test: times are seconds after a fixed start.
struct WavesPartition {
    var processor: MutualWaves
    var effects = Effects(tables: MutualWaves.tables)
    var offset: Int64 = 0
    private var counter: UInt64 = 0

    init(life seconds: Int64 = 86_400, segmentBytes: Int = 65_536) {
        processor = MutualWaves(
            partition: 0, settings: Self.settings(life: seconds, segmentBytes: segmentBytes))
    }

    static func settings(
        life seconds: Int64 = 86_400, segmentBytes: Int = 65_536
    )
        -> MutualWavesSettings
    {
        var settings = MutualWavesSettings()
        settings.waveLife = seconds * 1_000
        settings.segmentBytes = segmentBytes
        return settings
    }

    mutating func apply(_ event: WavesEvent, _ seconds: Double) {
        processor.apply(
            event,
            at: RecordPlace(partition: 0, offset: offset, timestamp: Partition.time(seconds)),
            into: &effects)
        offset += 1
    }

    mutating func wave(
        _ from: AccountID, _ to: AccountID, _ token: String = "token", at seconds: Double
    ) {
        counter += 1
        apply(
            .wave(
                Wave(
                    origin: EventOrigin(boot: 1, counter: counter), pair: AccountPair(from, to)!,
                    sender: from, token: InlineText(token))), seconds)
    }

    mutating func block(_ from: AccountID, _ to: AccountID, at seconds: Double) {
        counter += 1
        apply(
            .block(
                Block(
                    origin: EventOrigin(boot: 1, counter: counter), pair: AccountPair(from, to)!,
                    sender: from)), seconds)
    }

    /// Rows of a table as they would be written now.
    func rows(_ name: String) -> [Fields] {
        var scratch = effects
        var copy = processor
        copy.drain(into: &scratch)
        guard let buffer = scratch.rows.first(where: { $0.table.name == name }) else { return [] }
        return (0..<buffer.count).map { Fields(buffer, $0) }
    }

    var connections: Int { rows("connections").count }

    /// Bodies of the pushes to an account.
    func told(_ account: AccountID) -> [String] {
        rows("pushes").filter { $0.uuid(0) == DeviceID(high: account.high, low: account.low) }
            .map { $0.text(4) }
    }

    /// Accounts whose doorbells rang, in order.
    var rings: [String] {
        effects.outbox.entries.map { effects.outbox.bytes.span.extracting($0.key).text }
    }

    var snapshot: ByteBuffer {
        var bytes = ByteBuffer()
        processor.snapshot(into: &bytes)
        return bytes
    }
}

@Suite("Mutual waves") struct MutualWavesTests {
    static func body(_ account: AccountID, _ peer: AccountID, _ token: String) -> String {
        let connection = AccountPair(account, peer)!.connection
        return """
            {"type":"mutual","remoteToken":"\(token)","connectionID":"\(connection)",\
            "id":"\(PushID(mutualTo: account, of: connection))"}
            """
    }

    @Test("Two waves make one connection, two pushes and two doorbells, whoever is first")
    func eitherOrder() {
        for (first, second) in [(alice, bob), (bob, alice)] {
            var partition = WavesPartition()
            partition.wave(first, second, "seen by the first", at: 0)
            #expect(partition.connections == 0)
            #expect(partition.rings.isEmpty)
            partition.wave(second, first, "seen by the second", at: 1)
            #expect(partition.connections == 1)
            #expect(partition.told(first) == [Self.body(first, second, "seen by the first")])
            #expect(partition.told(second) == [Self.body(second, first, "seen by the second")])
            #expect(Set(partition.rings) == ["\(alice)", "\(bob)"])
            #expect(partition.rings.count == 2)
            #expect(partition.rows("waves").count == 2)
        }
    }

    @Test("Waves that are repeated or read again make nothing new")
    func repeated() {
        var partition = WavesPartition()
        for _ in 0..<3 { partition.wave(alice, bob, at: 0) }
        for _ in 0..<3 { partition.wave(bob, alice, at: 1) }
        partition.wave(alice, bob, at: 2)
        #expect(partition.connections == 1)
        #expect(partition.rings.count == 2)
        #expect(partition.processor.matches == 1)
        #expect(partition.rows("waves").count == 2)
    }

    @Test("Each is told the token that they waved at last, in the letters that they sent")
    func rotation() {
        let lower = "f47ac10b-58cc-4372-a567-0e02b2c3d479"
        for token in [lower, lower.uppercased(), "F47ac10b-58cc-4372-a567-0e02b2c3d479", "\"x\\"] {
            var partition = WavesPartition()
            partition.wave(alice, bob, "old", at: 0)
            partition.wave(alice, bob, token, at: 400)
            partition.wave(bob, alice, "newer", at: 800)
            let text = token.replacing("\\", with: "\\\\").replacing("\"", with: "\\\"")
            #expect(partition.told(alice) == [Self.body(alice, bob, text)])
            #expect(partition.told(bob) == [Self.body(bob, alice, "newer")])
            // The old token is kept too: it finds the peer's key.
            #expect(partition.rows("waves").count == 3)
        }
    }

    @Test("A wave at a newer token after the match is a row and nothing else")
    func afterTheMatch() {
        var partition = WavesPartition()
        partition.wave(alice, bob, "b1", at: 0)
        partition.wave(bob, alice, "a1", at: 1)
        partition.effects.removeAll()
        partition.wave(alice, bob, "b2", at: 500)
        #expect(partition.rows("waves").map { $0.text(2) } == ["b2"])
        #expect(partition.connections == 0)
        #expect(partition.rings.isEmpty)
    }

    @Test("A wave is alive until its life is over, by the stamps of both")
    func expired() {
        for (seconds, connects) in [(86_399.999, true), (86_400, false)] {
            for sign in [1.0, -1] {
                var partition = WavesPartition()
                // The second stamp may be the earlier one: front-ends' clocks differ.
                partition.wave(alice, bob, at: 200_000)
                partition.wave(bob, alice, at: 200_000 + sign * seconds)
                #expect(partition.connections == (connects ? 1 : 0), "\(seconds) \(sign)")
            }
        }
    }

    @Test("A stranger's clock far in the future ends nobody's wave")
    func wrongClock() {
        var partition = WavesPartition(segmentBytes: 300)
        partition.wave(alice, bob, at: 0)
        for count in 0..<50 {
            let other = AccountID(high: 5, low: UInt64(count))
            partition.wave(other, carol, at: count % 3 == 0 ? 90_000_000 : Double(count))
        }
        partition.wave(bob, alice, at: 100)
        #expect(partition.connections == 1)
    }

    @Test("After a pause of days, what comes in quick succession still meets")
    func afterAPause() {
        var partition = WavesPartition(segmentBytes: 300)
        for count in 0..<20 {
            partition.wave(AccountID(high: 5, low: UInt64(count)), carol, at: Double(count))
        }
        for day in 1..<40 {
            partition.wave(alice, bob, at: Double(day) * 300_000)
            partition.wave(bob, alice, at: Double(day) * 300_000 + 1)
        }
        // Each time anew; the rows stay those of the first.
        #expect(partition.processor.matches == 39)
        #expect(partition.connections == 1)
    }

    @Test("A block deletes both waves, refuses later ones, and takes the rows back")
    func blocked() {
        for blocker in [alice, bob] {
            var partition = WavesPartition()
            partition.wave(alice, bob, at: 0)
            partition.block(blocker, blocker == alice ? bob : alice, at: 1)
            partition.effects.removeAll()
            partition.wave(bob, alice, at: 2)
            partition.wave(alice, bob, at: 3)
            #expect(partition.connections == 0)
            #expect(partition.rings.isEmpty)
            #expect(partition.processor.refusals == 2)
            #expect(partition.rows("waves").isEmpty)
            // Others are not concerned.
            partition.wave(carol, alice, at: 4)
            partition.wave(alice, carol, at: 5)
            #expect(partition.connections == 1)
        }
        var partition = WavesPartition()
        partition.block(alice, bob, at: 0)
        let buffer = partition.effects.rows[1]
        #expect(buffer.table.mode == .delete)
        #expect(buffer.count == 2)
    }

    @Test("What is over is forgotten, and the replay begins after it")
    func forgotten() {
        var partition = WavesPartition(life: 100, segmentBytes: 1_000)
        for count in 0..<10_000 {
            partition.wave(
                AccountID(high: 5, low: UInt64(count)), AccountID(high: 6, low: UInt64(count)),
                at: Double(count))
            partition.effects.removeAll()
        }
        #expect(partition.processor.edgeCount < 250)
        #expect(partition.processor.replayOffset > 9_700)
        #expect(partition.processor.replayOffset < 9_900)
        #expect(partition.processor.memoryBytes < 60_000)
    }

    @Test("Thousands of pairs, added, repeated and blocked in any order, are found again")
    func many() {
        var partition = WavesPartition(segmentBytes: 4_096)
        var seed: UInt64 = 42
        func next(_ bound: UInt64) -> UInt64 {
            seed = seed &* 6_364_136_223_846_793_005 &+ 1_442_695_040_888_963_407
            return (seed >> 33) % bound
        }
        // What it must be, by the plainest means: (from, to) → waved.
        var waved: Set<[UInt64]> = []
        var blocked: Set<[UInt64]> = []
        var matched: Set<[UInt64]> = []
        for step in 0..<30_000 {
            let a = next(150)
            let b = (a + 1 + next(149)) % 150
            let pair = [min(a, b), max(a, b)]
            let (from, to) = (AccountID(high: 1, low: a), AccountID(high: 1, low: b))
            if next(60) == 0 {
                partition.block(from, to, at: Double(step) / 10)
                blocked.insert(pair)
                waved.remove([a, b])
                waved.remove([b, a])
            } else {
                partition.wave(from, to, "t\(next(1_000))", at: Double(step) / 10)
                waved.insert([a, b])
                if !blocked.contains(pair), waved.contains([b, a]) { matched.insert(pair) }
            }
            if step % 100 == 0 { partition.effects.removeAll() }
        }
        #expect(partition.processor.matches == Int64(matched.count))
        #expect(partition.processor.edgeCount == waved.count + blocked.count)
    }

    @Test("Applying the records from the replay's offset makes the same state", arguments: 0..<20)
    func restore(_ seed: UInt64) throws {
        let settings = WavesPartition.settings(life: 200, segmentBytes: 400)
        var partition = WavesPartition(life: 200, segmentBytes: 400)
        var events: [(WavesEvent, Double)] = []
        var state = seed &+ 7
        func next(_ bound: UInt64) -> UInt64 {
            state = state &* 6_364_136_223_846_793_005 &+ 1_442_695_040_888_963_407
            return (state >> 33) % bound
        }
        for step in 0..<600 {
            let a = next(12)
            let b = (a + 1 + next(11)) % 12
            let pair = try #require(
                AccountPair(AccountID(high: 1, low: a), AccountID(high: 1, low: b)))
            let sender = AccountID(high: 1, low: a)
            let origin = EventOrigin(boot: 1, counter: UInt64(step))
            let event: WavesEvent =
                next(30) == 0
                ? .block(Block(origin: origin, pair: pair, sender: sender))
                : .wave(
                    Wave(
                        origin: origin, pair: pair, sender: sender,
                        token: InlineText("t\(next(200))")))
            var time = Double(step) * 3 + Double(next(5))
            if next(25) == 0 { time += next(2) == 0 ? 100_000 : -100_000 }
            events.append((event, time))
        }
        for stop in stride(from: 50, to: 600, by: 50) {
            while partition.offset < stop {
                let (event, time) = events[Int(partition.offset)]
                partition.apply(event, time)
                if partition.offset == 220 {
                    partition.processor.reconfigure(
                        WavesPartition.settings(life: 50, segmentBytes: 400))
                }
                if partition.offset == 330 { partition.processor.reconfigure(settings) }
            }
            let first = partition.processor.replayOffset
            var restored = WavesPartition(life: 200, segmentBytes: 400)
            restored.processor = try MutualWaves(
                restoring: partition.snapshot.span, partition: 0, settings: settings)
            restored.offset = first
            restored.effects.isDiscarding = true
            while restored.offset < stop {
                restored.apply(events[Int(restored.offset)].0, events[Int(restored.offset)].1)
            }
            #expect(restored.effects.count == 0)
            let isSame = restored.snapshot == partition.snapshot
            #expect(isSame, "at \(stop)")
            #expect(restored.processor.edgeCount == partition.processor.edgeCount)
            // And from here on they do the same.
            var (a, b) = (partition, restored)
            a.effects = Effects(tables: MutualWaves.tables)
            b.effects = Effects(tables: MutualWaves.tables)
            for (event, time) in events[stop...] {
                a.apply(event, time)
                b.apply(event, time)
            }
            let ringSame = a.rings == b.rings
            let writeSame = a.effects.rows.map(\.bytes) == b.effects.rows.map(\.bytes)
            #expect(ringSame && writeSame, "from \(stop) on")
        }
        #expect(partition.processor.replayOffset > 100)
    }

    @Test("A snapshot of another processor, or one that is cut, is refused")
    func badSnapshots() {
        var partition = WavesPartition()
        partition.wave(alice, bob, at: 0)
        let good = partition.snapshot
        #expect(throws: SnapshotError.damaged) {
            let cut = ByteBuffer(good.bytes.dropLast())
            _ = try MutualWaves(
                restoring: cut.span, partition: 0, settings: MutualWavesSettings())
        }
        #expect(throws: SnapshotError.unknownVersion(0x4D57_0001)) {
            _ = try Encounters(
                restoring: good.span, partition: 0, settings: EncountersSettings())
        }
    }
}
