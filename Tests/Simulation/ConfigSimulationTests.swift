import Bytes
import Pipeline
import Processors
import Schemas
import Simulation
import TestSupport
import Testing

/// The worker with the processors of configurations: a storm leaves what one clean pass leaves, and
/// versions only grow.
@Suite struct ConfigSimulationTests {
    @Test(arguments: SimulationSeeds.blocks)
    func aStormOfChangesLeavesTheVersionsAndBellsOfACleanPass(_ seeds: Range<UInt64>) {
        for seed in seeds where seed % 4 == 0 || seeds.count == 1 {
            var records = ConfigRecords(seed: seed ^ 0xC0F1)
            var simulation = WorkerStorm<ConfigHash>(
                seed: seed,
                records: records.changes(
                    partitions: 1 + Int(seed % 3), count: 40 + Int(seed % 80)),
                settings: [ProcessorSettings(ConfigHashSettings())])
            do {
                let stormy = try simulation.run(steps: 100 + Int(seed % 400))
                let calm = simulation.cleanPass()
                let difference = stormy.tables.difference(from: calm.tables)
                #expect(difference == "", "HEARTLINE_SEED=\(seed): tables differ")
                #expect(stormy.events == calm.events, "HEARTLINE_SEED=\(seed): events differ")
                #expect(
                    Self.fallingBell(in: stormy.events) == nil,
                    "HEARTLINE_SEED=\(seed): a bell has an older version than the one before")
            } catch {
                Issue.record("HEARTLINE_SEED=\(seed): \(error)")
            }
        }
    }

    @Test(arguments: SimulationSeeds.blocks)
    func aStormOfHeartbeatsLeavesTheDeliveriesOfACleanPass(_ seeds: Range<UInt64>) {
        for seed in seeds where seed % 4 == 1 || seeds.count == 1 {
            var generator = ConfigRecords(seed: seed ^ 0xDE11)
            let records = generator.deliveries(
                partitions: 1 + Int(seed % 3), count: 60 + Int(seed % 120))
            var simulation = WorkerStorm<ConfigDelivery>(
                seed: seed, records: records,
                settings: [ProcessorSettings(ConfigDeliverySettings())])
            do {
                let stormy = try simulation.run(steps: 100 + Int(seed % 400))
                let calm = simulation.cleanPass()
                let difference = stormy.tables.difference(from: calm.tables)
                #expect(difference == "", "HEARTLINE_SEED=\(seed): tables differ")
                #expect(stormy.events == calm.events, "HEARTLINE_SEED=\(seed): events differ")
                let rows = stormy.tables.keyed["config_delivery", default: [:]]
                #expect(!rows.isEmpty)
                for (device, versions) in Self.risingVersions(in: records) {
                    let found = rows.keys.filter { $0[0] == device }.map { key in
                        key[1].reduce(Int64(0)) { $0 << 8 | Int64($1) }
                    }
                    #expect(found.sorted() == versions, "HEARTLINE_SEED=\(seed): \(device)")
                }
            } catch {
                Issue.record("HEARTLINE_SEED=\(seed): \(error)")
            }
        }
    }

    /// By device, each version that was answered and is above all that were answered before: what the
    /// table must hold. Without devices that were removed.
    private static func risingVersions(in records: [[SimulatedRecord]]) -> [[UInt8]: [Int64]] {
        let decoder = HeartbeatsDecoder()
        var versions: [[UInt8]: [Int64]] = [:]
        var removed: Set<[UInt8]> = []
        func bytes(_ id: DeviceID) -> [UInt8] {
            var buffer = ByteBuffer()
            buffer.appendBigEndian(id.high)
            buffer.appendBigEndian(id.low)
            return buffer.bytes
        }
        for record in records.joined() {
            guard case .event(let event) = decoder.decode(record.value.span) else { continue }
            switch event {
            case .heartbeat(let heartbeat):
                let last = versions[bytes(heartbeat.device)]?.last ?? 0
                if heartbeat.configVersion > last {
                    versions[bytes(heartbeat.device), default: []].append(heartbeat.configVersion)
                }
            case .lifecycle(let lifecycle) where lifecycle.kind == .removed:
                removed.insert(bytes(lifecycle.device))
            default: break
            }
        }
        return versions.filter { !removed.contains($0.key) }
    }

    /// The key of a bell whose version is not above the one before it; a tombstone begins anew.
    private static func fallingBell(
        in events: [String: [Int64: SimulatedLog.PublishedEvent]]
    ) -> String? {
        for events in events.values {
            var versions: [String: Int64] = [:]
            for (_, event) in events.sorted(by: { $0.key < $1.key })
            where event.topic == .deviceConfigs {
                let key = event.key.span.text
                if event.isTombstone {
                    versions[key] = nil
                    continue
                }
                let text = event.value.span.text
                guard let start = text.firstRange(of: "\"version\":")?.upperBound,
                    let version = Int64(text[start...].prefix { $0.isNumber })
                else { return "\(key): \(text)" }
                if let last = versions[key], version <= last { return key }
                versions[key] = version
            }
        }
        return nil
    }
}
