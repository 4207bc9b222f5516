import Bytes
import EventLog
import Metrics
import Pipeline
import Processors
import Schemas
import Simulation
import Sinks
import TestSupport
import Testing

/// What a worker tells Prometheus.
@Suite("A worker's metrics") struct WorkerMetricsTests {
    private static let start: Int64 = 1_790_000_000_000

    private func page(_ status: WorkerStatus, at milliseconds: Int64 = start) -> MetricsReading {
        var page = MetricsPage()
        status.write(
            to: &page, source: .heartbeats, now: EventTime(milliseconds: milliseconds))
        return MetricsReading(page.render().span.text)
    }

    private func heartbeat(_ number: Int, at milliseconds: Int64) -> SimulatedRecord {
        let device = DeviceID(high: 0x4000, low: UInt64(number) &* 0x9E37_79B9_7F4A_7C15)
        var heartbeat = Heartbeat(
            device: device, origin: EventOrigin(boot: 1, counter: UInt64(number) + 1))
        heartbeat.tunnelUp = true
        heartbeat.lastHandshake = EventTime(milliseconds: milliseconds)
        var (key, value) = (ByteBuffer(), ByteBuffer())
        key.append(device)
        value.append(HeartbeatsEvent.heartbeat(heartbeat))
        return SimulatedRecord(
            key: key, value: value, timestamp: EventTime(milliseconds: milliseconds))
    }

    @Test("records, rows, commits, lag and devices by state are those of the worker")
    func counts() throws {
        let bench = WorkerBench<TunnelHealth>(
            ProcessorSettings(TunnelHealthSettings()),
            records: [
                (0..<10).map { heartbeat($0, at: Self.start) },
                (10..<15).map { heartbeat($0, at: Self.start) },
            ])
        bench.start()
        bench.run(3_000)
        let reading = page(bench.status)
        let name = ["pipeline": "bench"]
        #expect(reading.sum("heartline_pipeline_records_total", name) == 15)
        #expect(reading.sum("heartline_pipeline_rows_total") ?? 0 >= 15)
        let commits = try #require(reading.sum("heartline_pipeline_commits_total"))
        #expect(commits >= 2)
        #expect(
            reading.sum("heartline_pipeline_commit_duration_seconds_count", name) == commits)
        #expect(reading.sum("heartline_devices") == 15)
        #expect(reading.sum("heartline_devices", ["state": "healthy"]) == 15)
        #expect(reading.sum("heartline_pipeline_lag_records", ["partition": "0"]) == 0)
        #expect(reading.sum("heartline_pipeline_lag_seconds", ["partition": "1"]) == 0)
        #expect(reading.sum("heartline_pipeline_ready") == 1)
        #expect(reading.sum("heartline_pipeline_partition_fault") == 0)
    }

    @Test("while the database is away the lag grows, in records and in seconds; then it is gone")
    func lag() throws {
        let bench = WorkerBench<TunnelHealth>(
            ProcessorSettings(TunnelHealthSettings()),
            records: [(0..<10).map { heartbeat($0, at: Self.start) }])
        bench.start()
        bench.run(3_000)
        bench.store.setDown(true)
        for number in 0..<7 {
            bench.log.append(heartbeat(number, at: Self.start + 5_000 + Int64(number)), to: 0)
        }
        bench.run(30_000)
        let reading = page(bench.status, at: Self.start + 35_000)
        #expect(reading.sum("heartline_pipeline_lag_records") == 7)
        // From the oldest that is not stored.
        #expect(reading.sum("heartline_pipeline_lag_seconds") == 30)
        #expect(reading.sum("heartline_pipeline_partition_fault") == 1)
        #expect(reading.sum("heartline_pipeline_ready") == 0)
        bench.store.setDown(false)
        bench.run(60_000)
        let after = page(bench.status, at: Self.start + 95_000)
        #expect(after.sum("heartline_pipeline_lag_records") == 0)
        #expect(after.sum("heartline_pipeline_lag_seconds") == 0)
        #expect(after.sum("heartline_pipeline_ready") == 1)
    }

    @Test("a worker that reads again what is stored does not lag for it")
    func restart() throws {
        let bench = WorkerBench<TunnelHealth>(
            ProcessorSettings(TunnelHealthSettings()),
            records: [(0..<10).map { heartbeat($0, at: Self.start) }])
        bench.start()
        bench.run(3_000)
        // Behind the snapshot, which the first commit brought.
        for number in 0..<5 { bench.log.append(heartbeat(number, at: Self.start + 1), to: 0) }
        bench.run(3_000)
        #expect(bench.status.snapshots == 1)
        bench.crash()
        bench.start()
        bench.run(3_000)
        let reading = page(bench.status, at: Self.start + 3_600_000)
        #expect(reading.sum("heartline_pipeline_lag_seconds") == 0)
        #expect(reading.sum("heartline_devices") == 10)
    }

    @Test(
        "a million devices and a thousand kinds of broken records are as many series as one of each"
    )
    func bounded() throws {
        func series(devices: Int, faults: Int) -> (count: Int, devices: Double?, letters: Double?) {
            let bench = WorkerBench<TunnelHealth>(
                ProcessorSettings(TunnelHealthSettings()), records: [[], []])
            bench.start()
            // In parts, so that the records of all need not be there at once.
            for first in stride(from: 0, to: devices, by: 50_000) {
                for number in first..<min(devices, first + 50_000) {
                    bench.log.append(heartbeat(number, at: Self.start), to: number & 1)
                }
                bench.run(1_000)
            }
            for number in 0..<faults {
                bench.log.append(
                    SimulatedRecord(
                        key: ByteBuffer("key".utf8),
                        value: ByteBuffer("{\"v\":\(number),\"text \(number)\":".utf8),
                        timestamp: EventTime(milliseconds: Self.start)), to: 0)
            }
            bench.run(10_000)
            let reading = page(bench.status)
            return (
                reading.samples.count, reading.sum("heartline_devices"),
                reading.sum("heartline_pipeline_dead_letters_total")
            )
        }
        let few = series(devices: 1, faults: 1)
        let many = series(devices: 1_000_000, faults: 1_000)
        #expect(few.devices == 1 && few.letters == 1)
        #expect(many.devices == 1_000_000 && many.letters == 1_000)
        #expect(many.count == few.count)
        #expect(many.count < 60)
    }
}
