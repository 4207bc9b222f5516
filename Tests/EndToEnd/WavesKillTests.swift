import Bytes
import EventLog
import Foundation
import Postgres
import Schemas
import Simulation
import System
import TestSupport
import Testing

extension FaultTests {
    /// Waves in the log, and a pipeline that is killed between any two of its steps.
    @Suite struct WavesKillTests {
        private static let people = 60
        private static let rounds = 8
        private static let waves = 1_500

        private static let pipeline = """
            name: mutual-waves
            source: { topic: waves }
            processor: { mutual-waves: { wave_ttl: 24h } }
            commit_interval: 0s
            sinks:
              - postgres: { tables: [waves, connections, pushes] }
              - topic: pushes

            """

        private static func account(_ index: Int) -> AccountID {
            AccountID(high: 0x5A7E_0000_0000_4000, low: 1 << 63 | UInt64(index))
        }

        @Test(
            "kill -9 between any two steps: who waved at each other is connected once, and told once",
            .timeLimit(.minutes(15)))
        func killed() async throws {
            let seed = UInt64.random(in: 0...999_999)
            var random = SplitMix64(seed: seed)
            let installation = try await SplitInstallation(settings: "")
            _ = try installation.folder.write(Self.pipeline, to: "pipelines/waves.yaml")
            let connection = try installation.connect()
            defer { connection.close() }
            for index in 0..<Self.people {
                try connection.run(
                    """
                    INSERT INTO heartline.accounts (account_id, provider, provider_subject)
                    VALUES ('\(Self.account(index))', 'apple', '\(index)')
                    """)
            }
            let log = try EmbeddedLog(of: installation.data)
            defer { log.close() }
            let producer = try log.makeProducer(ProducerSettings())
            defer { producer.close() }

            var directed: Set<[Int]> = []
            for _ in 0..<Self.rounds {
                try Self.append(&random, &directed, to: producer)
                // Before they run: they may be done with all by the time that they say so.
                let start = try Self.committed(connection)
                let process = try await installation.startPipelines()
                let goal = start + Int64(random.below(Self.waves / 2))
                let hasMoved = try await holds(within: 120) {
                    try Self.committed(connection) > goal || process.hasEnded
                }
                #expect(hasMoved && !process.hasEnded, "seed \(seed): \(process.errors())")
                try await Task.sleep(for: .milliseconds(random.below(15)))
                process.send(SIGKILL)
                _ = await process.waitForEnd()
            }
            let process = try await installation.startPipelines()
            let end = Int64(Self.rounds * Self.waves)
            try #require(
                await holds(within: 300) {
                    try Self.committed(connection) == end
                        && connection.number("SELECT count(*) FROM heartline.outbox") == 0
                }, "seed \(seed): \(process.errors())")
            process.send(SIGTERM)
            #expect(await process.waitForEnd() == 0)

            let mutual = Set(
                directed.filter { $0[0] < $0[1] && directed.contains([$0[1], $0[0]]) })
            #expect(mutual.count > 500, "the test is worth nothing if few are connected")
            let expected = Set(
                mutual.compactMap {
                    AccountPair(Self.account($0[0]), Self.account($0[1]))?.connection.description
                })
            let connected = try connection.execute(
                "SELECT connection_id::text FROM heartline.connections"
            ).map { try $0.text(0) }
            #expect(connected.count == expected.count, "seed \(seed)")
            #expect(Set(connected) == expected, "seed \(seed)")
            #expect(
                try connection.number("SELECT count(*) FROM heartline.pushes")
                    == Int64(2 * expected.count), "seed \(seed)")
            #expect(
                try connection.number(
                    """
                    SELECT count(*) FROM heartline.connections c WHERE 2 <> (
                        SELECT count(*) FROM heartline.pushes p WHERE p.kind = 'mutual'
                         AND p.body::jsonb ->> 'connectionID' = c.connection_id::text
                         AND (p.account_id, p.peer) IN (
                            (c.first_account, c.second_account), (c.second_account, c.first_account)))
                    """) == 0, "seed \(seed)")
            // Each was told the token that they waved at themselves.
            #expect(
                try connection.number(
                    """
                    SELECT count(*) FROM heartline.pushes p WHERE NOT EXISTS (
                        SELECT FROM heartline.waves w
                         WHERE w.from_account = p.account_id AND w.to_account = p.peer
                           AND w.token = p.body::jsonb ->> 'remoteToken')
                    """) == 0, "seed \(seed)")
            #expect(
                try connection.number(
                    "SELECT count(DISTINCT (from_account, to_account)) FROM heartline.waves")
                    == Int64(directed.count), "seed \(seed)")
            // Nobody's doorbell was forgotten. A crash may ring one twice.
            let rung = try log.records(of: .pushes).map(\.key)
            #expect(rung.count >= 2 * expected.count, "seed \(seed)")
            let told = Set(mutual.flatMap { $0 }.map { Self.account($0).description })
            #expect(Set(rung) == told, "seed \(seed)")
            #expect(try log.count(of: .deadLetters) == 0)
        }

        private static func committed(_ connection: PostgresConnection) throws -> Int64 {
            try connection.number(
                """
                SELECT COALESCE(sum(next_offset), 0)::int8 FROM heartline.stream_partitions
                 WHERE pipeline = 'mutual-waves'
                """)
        }

        private static func append(
            _ random: inout SplitMix64, _ directed: inout Set<[Int]>, to producer: EmbeddedProducer
        ) throws {
            var batch = RecordBatch(.waves)
            for number in 0..<waves {
                let from = random.below(people)
                let to = (from + 1 + random.below(people - 1)) % people
                guard let pair = AccountPair(account(from), account(to)) else { continue }
                directed.insert([from, to])
                var key = ByteBuffer()
                key.append(pair)
                var value = ByteBuffer()
                value.append(
                    .wave(
                        Wave(
                            origin: EventOrigin(boot: 1, counter: UInt64(number)), pair: pair,
                            sender: account(from),
                            token: InlineText("of \(to), \(random.below(3))"))))
                batch.append(
                    partition: Partitioner.partition(of: key.span, count: 2),
                    timestamp: EventTime(milliseconds: SystemClock.wallMilliseconds()),
                    key: key.span, value: value.span)
            }
            guard case .accepted = producer.send(batch, receipt: nil),
                producer.flush(milliseconds: 60_000)
            else { throw RunningHeartline.StartFailure(description: "the log takes no waves") }
        }
    }
}
