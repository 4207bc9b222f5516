internal import Bytes
internal import Crypto
internal import Schemas
public import Simulation

/// Seeded records about configurations: what a registry, an outbox that repeats itself, and front-ends
/// that lag would write.
public struct ConfigRecords {
    private static let start: Int64 = 1_790_000_000_000
    private var random: SplitMix64
    private var counter: UInt64 = 0

    public init(seed: UInt64) { random = SplitMix64(seed: seed) }

    private struct Device {
        var id: DeviceID
        var version: Int64 = 0
        var isSuspended = false
        var isRemoved = false
        var keys: UInt8 = 0
        var forwards: [PortForward] = []
    }

    private mutating func devices(_ partition: Int) -> [Device] {
        (0..<(2 + random.below(5))).map {
            Device(id: DeviceID(high: UInt64(partition) << 32 | UInt64($0), low: random.next()))
        }
    }

    /// Mostly seconds pass, sometimes hours.
    private mutating func pass(_ time: inout Int64) {
        time += Int64(random.chance(30) ? 4_000_000 + random.below(8_000_000) : random.below(9_000))
    }

    /// Records of topic `config-changes`.
    public mutating func changes(partitions: Int, count: Int) -> [[SimulatedRecord]] {
        (0..<partitions).map { partition in
            var fleet = devices(partition)
            var records: [SimulatedRecord] = []
            var time: Int64 = 0
            for _ in 0..<count {
                pass(&time)
                if !records.isEmpty, random.chance(200) {
                    records.append(records[max(0, records.count - 1 - random.below(10))])
                } else if random.chance(30) {
                    records.append(broken(time))
                } else {
                    let index = random.below(fleet.count)
                    if fleet[index].isRemoved { continue }
                    let change = self.change(of: &fleet[index])
                    var value = ByteBuffer()
                    value.append(change)
                    records.append(record(change.device, value, time))
                }
            }
            return records
        }
    }

    private mutating func change(of device: inout Device) -> ConfigChange {
        device.version += 1
        var kind = ConfigChange.Kind.provisioned
        if device.version > 1 {
            switch random.below(12) {
            case 0: kind = .removed
            case 1...3: kind = device.isSuspended ? .resumed : .suspended
            case 4...5: kind = .rotated
            case 6: kind = .interval
            default: kind = .forwards
            }
        }
        switch kind {
        case .removed: device.isRemoved = true
        case .suspended: device.isSuspended = true
        case .resumed: device.isSuspended = false
        case .rotated: device.keys += 1
        case .forwards:
            device.forwards = (0..<random.below(4)).map { _ in
                PortForward(
                    transport: random.chance(500) ? "tcp" : "udp",
                    listenPort: UInt16(8_000 + random.below(4)), targetHost: "10.0.0.1",
                    targetPort: 80)
            }
        default: break
        }
        let fingerprint = SHA256.hash(ByteBuffer([device.keys]).span)
        return ConfigChange(
            device: device.id, kind: kind, version: device.version,
            isSuspended: device.isSuspended, actor: "operator",
            requestID: random.chance(500) ? "request-\(random.below(1_000))" : nil,
            tunnel: TunnelConfiguration(
                internalAddress: "10.64.0.2", privateKeyFingerprint: fingerprint,
                presharedKeyFingerprint: fingerprint,
                network: NetworkConfiguration(
                    serverPublicKey: String(repeating: "0a", count: 32),
                    endpoint: "vpn.example.net:51820", serverAddress: "10.64.0.1",
                    dns: "1.1.1.1", allowedIPs: "0.0.0.0/0")),
            forwards: device.forwards)
    }

    /// Records of topic `heartbeats` with the versions that were answered.
    public mutating func deliveries(partitions: Int, count: Int) -> [[SimulatedRecord]] {
        (0..<partitions).map { partition in
            var fleet = devices(partition)
            var records: [SimulatedRecord] = []
            var time: Int64 = 0
            for _ in 0..<count {
                pass(&time)
                counter += 1
                let origin = EventOrigin(boot: UInt64(1 + random.below(2)), counter: counter)
                let index = random.below(fleet.count)
                if random.chance(150) { fleet[index].version += 1 + Int64(random.below(2)) }
                if !records.isEmpty, random.chance(100) {
                    records.append(records[max(0, records.count - 1 - random.below(20))])
                    continue
                }
                var value = ByteBuffer()
                switch random.below(40) {
                case 0:
                    records.append(broken(time))
                    continue
                case 1...3:
                    value.append(
                        Beacon(
                            frontEnd: InlineText("front-end"), origin: origin,
                            monotonicMilliseconds: time))
                case 4:
                    fleet[index].version += 1
                    value.append(
                        Lifecycle(
                            device: fleet[index].id,
                            kind: Lifecycle.Kind.allCases[random.below(4)],
                            version: fleet[index].version))
                default:
                    var heartbeat = Heartbeat(device: fleet[index].id, origin: origin)
                    heartbeat.configVersion = max(
                        0, fleet[index].version - (random.chance(200) ? 1 : 0))
                    value.append(heartbeat)
                }
                records.append(record(fleet[index].id, value, time))
            }
            return records
        }
    }

    private func broken(_ time: Int64) -> SimulatedRecord {
        SimulatedRecord(
            key: ByteBuffer("broken".utf8), value: ByteBuffer("{\"v\":1,\"type\":\"rotated\"".utf8),
            timestamp: EventTime(milliseconds: Self.start + time))
    }

    private func record(_ device: DeviceID, _ value: ByteBuffer, _ time: Int64) -> SimulatedRecord {
        var key = ByteBuffer()
        key.append(device)
        return SimulatedRecord(
            key: key, value: value, timestamp: EventTime(milliseconds: Self.start + time))
    }
}
