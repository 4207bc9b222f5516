internal import Bytes
internal import Schemas
public import Simulation

/// Seeded records of topic `updates`: apps that check, installations that go well, fail, fall silent or are
/// heard of late, front-ends that repeat themselves, and the time.
public struct UpdateRecords {
    private static let start: Int64 = 1_790_000_000_000
    private static let source = "gh:owner/repo"
    private var random: SplitMix64
    private var counters: [UInt64] = [0, 0]

    public init(seed: UInt64) { random = SplitMix64(seed: seed) }

    private struct App {
        var id: DeviceID
        var version = 1
        var attempt: (id: DeviceID, version: Int, step: Int)?
        var last: (id: DeviceID, version: Int)?
    }

    public mutating func records(partitions: Int, count: Int) -> [[SimulatedRecord]] {
        (0..<partitions).map { partition in
            var apps = (0..<(2 + random.below(5))).map {
                App(id: DeviceID(high: UInt64(partition) << 32 | UInt64($0), low: random.next()))
            }
            var records: [SimulatedRecord] = []
            var time: Int64 = 0
            for _ in 0..<count {
                // Mostly seconds pass, sometimes an hour.
                time += Int64(random.chance(60) ? 3_600_000 : random.below(9_000))
                if !records.isEmpty, random.chance(150) {
                    records.append(records[max(0, records.count - 1 - random.below(10))])
                } else if random.chance(20) {
                    records.append(record("broken", ByteBuffer("{\"v\":1".utf8), time))
                } else {
                    let index = random.below(apps.count)
                    let kind = kind(of: &apps[index])
                    let boot = random.below(2)
                    counters[boot] += 1
                    var value = ByteBuffer()
                    value.append(
                        UpdatesEvent(
                            origin: EventOrigin(boot: UInt64(boot + 1), counter: counters[boot]),
                            installation: apps[index].id, source: Self.source, kind: kind))
                    records.append(record("\(apps[index].id)", value, time))
                }
            }
            return records
        }
    }

    private mutating func kind(of app: inout App) -> UpdatesEvent.Kind {
        if random.chance(60) { return .clock }
        if random.chance(30) { return .cloned }
        if random.chance(250) {
            var confirmed: DeviceID?
            if let last = app.last, random.chance(300) {
                confirmed = last.id
                app.version = last.version
            }
            let isAvailable = random.chance(500)
            return .checked(
                UpdatesEvent.Check(
                    channel: "latest", current: "v\(app.version)",
                    latest: "v\(app.version + (isAvailable ? 1 : 0))", isAvailable: isAvailable,
                    confirmed: confirmed))
        }
        var attempt =
            app.attempt
            ?? (DeviceID(high: random.next(), low: random.next()), app.version + 1, 0)
        let action: UpdatesEvent.Action = attempt.id.low % 4 == 0 ? .prefetch : .install
        let stage: UpdatesEvent.Stage
        switch random.below(12) {
        case 0: stage = .disconnected
        case 1: stage = .error("it failed")
        case 2: stage = .lost("stopped")
        case 3: stage = .selection(key: "asset")
        case 4...5 where attempt.step > 2: stage = .result(warnings: 1)
        default:
            stage = .step(UpdatesEvent.Step.allCases[min(attempt.step, 3)])
            attempt.step += 1
        }
        app.attempt = attempt
        switch stage {
        case .step, .disconnected: break
        default:
            if case .result = stage, action == .install { app.version = attempt.version }
            if action == .install { app.last = (attempt.id, attempt.version) }
            // Now and then it is heard of again.
            if !random.chance(200) { app.attempt = nil }
        }
        // Some fall silent.
        if random.chance(40) { app.attempt = nil }
        return .attempt(
            UpdatesEvent.Attempt(
                id: attempt.id, action: action, release: "v\(attempt.version)", stage: stage))
    }

    private func record(_ key: String, _ value: ByteBuffer, _ time: Int64) -> SimulatedRecord {
        SimulatedRecord(
            key: ByteBuffer(key.utf8), value: value,
            timestamp: EventTime(milliseconds: Self.start + time))
    }
}
