import Bytes
import Processors
import Schemas
import Testing

/// The rollout of app updates; the tables of decisions are the cases of pipelines/update-rollout.yaml.
@Suite("The rollout of app updates") struct UpdateRolloutTests {
    private static let start: Int64 = 1_790_000_000_000
    private static let source = "gh:owner/repo"
    private static let i1 = DeviceID(high: 1, low: 1)
    private static let a1 = DeviceID(high: 2, low: 1)

    private struct Run {
        var rollout = UpdateRollout(partition: 3, settings: UpdateRolloutSettings())
        var effects = Effects(tables: UpdateRollout.tables)
        var counter: UInt64 = 0
        var offset: Int64 = 0

        mutating func say(
            _ kind: UpdatesEvent.Kind, at seconds: Int64, boot: UInt64 = 1,
            counter given: UInt64? = nil
        ) {
            counter += 1
            let event = UpdatesEvent(
                origin: EventOrigin(boot: boot, counter: given ?? counter),
                installation: UpdateRolloutTests.i1, source: UpdateRolloutTests.source, kind: kind)
            offset += 1
            rollout.apply(
                event,
                at: RecordPlace(
                    partition: 3, offset: offset,
                    timestamp: EventTime(
                        milliseconds: UpdateRolloutTests.start + seconds * 1_000)),
                into: &effects)
        }

        mutating func attempt(_ stage: UpdatesEvent.Stage, at seconds: Int64, _ id: DeviceID? = nil)
        {
            say(
                .attempt(
                    UpdatesEvent.Attempt(
                        id: id ?? UpdateRolloutTests.a1, action: .install, release: "v2",
                        stage: stage)), at: seconds)
        }

        mutating func drained() -> [String: Int] {
            rollout.drain(into: &effects)
            let counts = effects.rows.reduce(into: [String: Int]()) {
                $0[$1.table.name] = $1.count
            }
            effects.removeAll()
            return counts
        }

        var snapshot: [UInt8] {
            var bytes = ByteBuffer()
            rollout.snapshot(into: &bytes)
            return bytes.bytes
        }
    }

    @Test("a record that comes again changes nothing, and one of another run does")
    func repeats() {
        var run = Run()
        run.attempt(.step(.install), at: 0)
        _ = run.drained()
        run.say(.cloned, at: 5, counter: 1)
        #expect(run.rollout.repeats == 1)
        #expect(run.drained().values.allSatisfy { $0 == 0 })
        run.say(.cloned, at: 5, boot: 2, counter: 1)
        #expect(run.drained()["installations"] == 1 && run.rollout.repeats == 1)
    }

    @Test("what changed is a row once, however often it changed")
    func rows() {
        var run = Run()
        for step in UpdatesEvent.Step.allCases { run.attempt(.step(step), at: 1) }
        #expect(run.rollout.pendingRows == 3)
        #expect(
            run.drained() == ["installations": 1, "update_attempts": 1, "rollout_by_partition": 1])
        #expect(run.rollout.pendingRows == 0)
        run.say(.clock, at: 2)
        #expect(run.rollout.pendingRows == 0)
    }

    @Test("a restored state goes on as the one that was stored, byte for byte")
    func snapshots() throws {
        var run = Run()
        run.say(
            .checked(
                UpdatesEvent.Check(
                    channel: "latest", current: "v1", latest: "v2", isAvailable: true)), at: 0)
        run.attempt(.step(.sign), at: 1)
        run.attempt(.disconnected, at: 2)
        run.attempt(.lost("stopped"), at: 3)
        run.attempt(.step(.download), at: 4, DeviceID(high: 2, low: 2))
        run.say(.cloned, at: 5)
        _ = run.drained()
        let stored = run.snapshot
        var other = run
        other.rollout = try UpdateRollout(
            restoring: stored.span, partition: 3, settings: UpdateRolloutSettings())
        #expect(other.snapshot == stored)
        #expect(other.rollout.attemptsInProgress == 1 && other.rollout.installationCount == 1)
        for index in 0..<2 {
            let late = Int64(3_600 * (index + 1))
            run.say(.clock, at: late)
            other.say(.clock, at: late)
            run.attempt(.result(warnings: 0), at: late + 1)
            other.attempt(.result(warnings: 0), at: late + 1)
            run.rollout.drain(into: &run.effects)
            other.rollout.drain(into: &other.effects)
            #expect(run.effects.rows.map(\.bytes) == other.effects.rows.map(\.bytes))
            #expect(run.snapshot == other.snapshot)
        }
    }

    @Test("damaged and foreign snapshots are refused")
    func damage() {
        var run = Run()
        run.attempt(.step(.sign), at: 1)
        _ = run.drained()
        let stored = run.snapshot
        for count in 0..<stored.count {
            #expect(throws: SnapshotError.self) {
                try UpdateRollout(
                    restoring: Array(stored[..<count]).span, partition: 3,
                    settings: UpdateRolloutSettings())
            }
        }
        #expect(throws: SnapshotError.unknownVersion(0x4344_0001)) {
            var bytes = ByteBuffer()
            bytes.appendLittleEndian(UInt32(0x4344_0001))
            _ = try UpdateRollout(
                restoring: bytes.span, partition: 3, settings: UpdateRolloutSettings())
        }
    }

    @Test("of many attempts only a few are kept, and each has had its row")
    func memory() {
        var run = Run()
        for number in 0..<1_000 {
            let id = DeviceID(high: 9, low: UInt64(number))
            run.attempt(.step(.install), at: Int64(number))
            run.attempt(.error("no"), at: Int64(number), id)
            #expect((run.drained()["update_attempts"] ?? 0) >= 1)
        }
        #expect(run.rollout.attemptsInProgress == 1)
        #expect(run.snapshot.count < 4_000)
    }

    @Test("another limit holds from where it is set")
    func settings() {
        var run = Run()
        run.attempt(.step(.install), at: 0)
        run.say(.clock, at: 600)
        #expect(run.rollout.attemptsInProgress == 1)
        var settings = UpdateRolloutSettings()
        settings.unconfirmedAfter = 300_000
        run.rollout.reconfigure(settings)
        run.say(.clock, at: 601)
        #expect(run.rollout.attemptsInProgress == 0)
    }
}
