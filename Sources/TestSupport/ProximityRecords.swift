internal import Bytes
internal import Schemas
public import Simulation

/// Seeded records about people, as front-ends would write them: in some disorder, with repeats, and
/// now and then by a clock that is wrong.
public struct ProximityRecords {
    public static let start: Int64 = 1_790_000_000_000
    private var random: SplitMix64
    private var counter: UInt64 = 0
    /// Records of topic `waves`, of 1,000, that are blocks.
    public var blocks = 40

    public init(seed: UInt64) { random = SplitMix64(seed: seed) }

    private mutating func origin() -> EventOrigin {
        counter += 1
        return EventOrigin(boot: 1 + counter % 3, counter: counter)
    }

    private mutating func people(_ partition: Int) -> [AccountID] {
        (0..<(3 + random.below(5))).map {
            AccountID(high: UInt64(partition) << 32 | UInt64($0), low: random.next())
        }
    }

    private mutating func two(of people: [AccountID]) -> (AccountID, AccountPair) {
        let first = random.below(people.count)
        let second = (first + 1 + random.below(people.count - 1)) % people.count
        guard let pair = AccountPair(people[first], people[second]) else {
            preconditionFailure("two people are one")
        }
        return (people[first], pair)
    }

    private mutating func token() -> InlineText {
        let id = DeviceID(high: 7, low: 0xAB00 + UInt64(random.below(6)))
        return switch random.below(4) {
        case 0: InlineText("\(id)".uppercased())
        case 1: InlineText("\(id)")
        default: InlineText("token-\(random.below(5))")
        }
    }

    private func record(_ pair: AccountPair, _ value: ByteBuffer, _ time: Int64) -> SimulatedRecord
    {
        var key = ByteBuffer()
        key.append(pair)
        return SimulatedRecord(
            key: key, value: value, timestamp: EventTime(milliseconds: Self.start + time))
    }

    /// - Parameters:
    ///   - life: about how long what is made counts, in milliseconds; times are made to fit it.
    ///   - write: makes a record's value for one of a pair.
    private mutating func records(
        partitions: Int, count: Int, life: Int64,
        _ write: (inout ProximityRecords, AccountID, AccountPair) -> ByteBuffer
    ) -> [[SimulatedRecord]] {
        (0..<partitions).map { partition in
            let people = people(partition)
            var records: [SimulatedRecord] = []
            var time: Int64 = 0
            for _ in 0..<count {
                time +=
                    random.chance(20)
                    ? life + Int64(random.below(Int(life)))
                    : Int64(random.below(Int(life / 8)))
                var stamp = time - Int64(random.below(300))
                // A front-end whose clock is wrong by days.
                if random.chance(15) { stamp += random.chance(500) ? 40 * life : -40 * life }
                if !records.isEmpty, random.chance(150) {
                    records.append(records[max(0, records.count - 1 - random.below(20))])
                } else if random.chance(20) {
                    records.append(
                        SimulatedRecord(
                            key: ByteBuffer("k".utf8), value: ByteBuffer("{\"v\":1}".utf8),
                            timestamp: EventTime(milliseconds: Self.start + stamp)))
                } else {
                    let (sender, pair) = two(of: people)
                    records.append(record(pair, write(&self, sender, pair), stamp))
                }
            }
            return records
        }
    }

    /// Records of topic `waves`.
    public mutating func waves(
        partitions: Int, count: Int, life: Int64
    ) -> [[SimulatedRecord]] {
        records(partitions: partitions, count: count, life: life) { this, sender, pair in
            var value = ByteBuffer()
            if this.random.chance(this.blocks) {
                value.append(.block(Block(origin: this.origin(), pair: pair, sender: sender)))
            } else {
                value.append(
                    .wave(
                        Wave(
                            origin: this.origin(), pair: pair, sender: sender,
                            token: this.token())))
            }
            return value
        }
    }

    /// Records of topic `encounters`.
    public mutating func encounters(
        partitions: Int, count: Int, life: Int64
    ) -> [[SimulatedRecord]] {
        records(partitions: partitions, count: count, life: life) { this, sender, pair in
            var value = ByteBuffer()
            value.append(
                Encounter(
                    origin: this.origin(),
                    id: EncounterID(high: 9, low: UInt64(this.random.below(count))), pair: pair,
                    reporter: sender, ownToken: this.token(), remoteToken: this.token(),
                    tier: DistanceTier.allCases[this.random.below(3)],
                    engine: InlineText(this.random.chance(500) ? "uwb" : ""),
                    cell: this.random.chance(500) ? Geohash("u33db") : nil))
            return value
        }
    }

    /// Records of topic `messages`.
    public mutating func messages(partitions: Int, count: Int) -> [[SimulatedRecord]] {
        records(partitions: partitions, count: count, life: 60_000) { this, sender, pair in
            var value = ByteBuffer()
            let id = MessageID(high: 8, low: UInt64(this.random.below(count)))
            value.append(
                MessageEvent(
                    origin: this.origin(), id: id, pair: pair, sender: sender,
                    body: ByteBuffer("{\"id\":\"\(id)\"}".utf8)))
            return value
        }
    }
}
