import Bytes
import EventLog
import Foundation
import Postgres
import Schemas
import Synchronization
import System
import TestSupport
import Testing

/// A front-end of the tests' own on an installation's log, whose wall clock is wrong.
final class SkewedFrontEnd: Sendable {
    private struct Orders {
        var isStopping = false
        var silent: Set<DeviceID> = []
        var thread: SystemThread?
    }

    private let log: EmbeddedLog
    private let devices: [DeviceID]
    private let skew: Int64
    private let boot = UInt64.random(in: .min ... .max)
    private let orders = Mutex(Orders())

    /// - Parameter skew: milliseconds by which its clock is fast.
    init(_ log: EmbeddedLog, _ devices: [DeviceID], skew: Int64) {
        self.log = log
        self.devices = devices
        self.skew = skew
        let thread = SystemThread.start("skewed") { [self] in run() }
        orders.withLock { $0.thread = thread }
    }

    func silence(_ devices: [DeviceID]) { orders.withLock { $0.silent.formUnion(devices) } }

    func stop() {
        let thread = orders.withLock { orders in
            orders.isStopping = true
            defer { orders.thread = nil }
            return orders.thread
        }
        thread?.join()
    }

    /// A heartbeat of each device every quarter of a second, a beacon behind them every 5 s.
    private func run() {
        guard let producer = try? log.makeProducer(ProducerSettings()),
            let partitions = try? log.partitionCount(of: .heartbeats)
        else { return }
        let pause = Waker()
        var counter: UInt64 = 0
        func origin() -> EventOrigin {
            counter += 1
            return EventOrigin(boot: boot, counter: counter)
        }
        var lastBeacon: Int64 = 0
        while true {
            let (isStopping, silent) = orders.withLock { ($0.isStopping, $0.silent) }
            let monotonic = SystemClock.monotonicMilliseconds()
            let now = EventTime(milliseconds: SystemClock.wallMilliseconds() + skew)
            var batch = RecordBatch(.heartbeats)
            // A front-end announces itself before it takes anything in.
            for device in devices where lastBeacon != 0 && !silent.contains(device) {
                var heartbeat = Heartbeat(device: device, origin: origin())
                heartbeat.tunnelUp = true
                heartbeat.lastHandshake = now
                let key = ByteBuffer("\(device)".utf8)
                var value = ByteBuffer()
                value.append(heartbeat)
                batch.append(
                    partition: Partitioner.partition(of: key.span, count: partitions),
                    timestamp: now, key: key.span, value: value.span)
            }
            if isStopping || monotonic - lastBeacon >= 5_000 {
                lastBeacon = monotonic
                let key = ByteBuffer("skewed".utf8)
                for partition in 0..<partitions {
                    var value = ByteBuffer()
                    value.append(
                        Beacon(
                            frontEnd: InlineText("skewed"), origin: origin(),
                            monotonicMilliseconds: monotonic, isLeaving: isStopping))
                    batch.append(
                        partition: partition, timestamp: now, key: key.span, value: value.span)
                }
            }
            _ = producer.send(batch, receipt: nil)
            if isStopping { break }
            pause.wait(milliseconds: 250)
        }
        producer.close()
    }
}

@Suite("Front-ends' clocks", .realTime) struct FrontEndClockTests {
    @Test(
        "A front-end's fast clock makes nobody offline, and hides nobody who is",
        .timeLimit(.minutes(10)), arguments: [8_000, 3_600_000])
    func fastClock(_ skew: Int64) async throws {
        let folder = try TemporaryFolder()
        try FileSystem.makeDirectory("\(folder.path)/pipelines", mode: 0o755)
        _ = try folder.write(
            RunningHeartline.pipeline(offlineAfter: "6s"), to: "pipelines/health.yaml")
        let heartline = try await RunningHeartline(in: folder)
        let devices = try await heartline.addDevices(40)
        let (true20, skewed20) = (Array(devices.prefix(20)), Array(devices.suffix(20)))
        let log = try EmbeddedLog(of: heartline.data)
        defer { log.close() }
        let load = HeartbeatLoad(.init(true20, connections: 4, perSecond: 40))
        load.send(to: heartline.places.listen)
        let skewed = SkewedFrontEnd(log, skewed20, skew: skew)
        let connection = try heartline.connect()
        defer { connection.close() }
        let healthy =
            "SELECT count(*) FROM heartline.device_status WHERE state = 'healthy' AND device_id = ANY ($1)"
        try #require(
            try await holds(within: 120) { try connection.number(healthy, devices) == 40 })
        try await Task.sleep(for: .seconds(13))
        let silent = [true20[0], true20[1], skewed20[0], skewed20[1]]
        load.silence(silent)
        skewed.silence(silent)
        #expect(
            try await holds(within: 60) {
                try connection.number(
                    "SELECT count(*) FROM heartline.device_status WHERE state = 'offline' AND device_id = ANY ($1)",
                    silent) == 4
            })
        let rows = try connection.execute(
            """
            SELECT device_id, since, last_seen FROM heartline.device_status WHERE state = 'offline'
            """
        )
        let quiet = load.silentDevices(milliseconds: 5_500)
        for row in rows {
            let id = try row.uuid(0)
            let device = DeviceID(high: id.high, low: id.low)
            if quiet.contains(device) { continue }
            #expect(silent.contains(device), "\(device) was not silent")
            // Six seconds after its last word, as its front-end's clock has it: one of two clocks cannot
            // be told to be wrong, if they differ by little.
            let silence = (try row.timestamptz(1) - (try row.timestamptz(2))) / 1_000
            #expect(silence >= 6_000, "\(device): \(silence) ms")
            #expect(silence < 3_600_000 / 2, "\(device): \(silence) ms")
        }
        skewed.stop()
        #expect(Array(load.stop().statuses.keys) == [200])
        let (_, difference) = try CleanPass.check(
            log, connection, pipelines: "\(folder.path)/pipelines")
        #expect(difference.isEmpty, "\(difference)")
        #expect(await heartline.stop() == 0)
    }
}
