import Bytes
import EventLog
import Foundation
import HTTP
import Ingest
import Postgres
import Schemas
import System
import TestSupport
import Testing

@Suite("Front-end on the embedded log") struct FrontEndEmbeddedLogTests {
    @Test("what was answered is in the log in order, and a bell in the log empties the cache")
    func embedded() throws {
        let directory = NSTemporaryDirectory() + "/heartline-ingest-\(UUID().uuidString)"
        defer { try? FileManager.default.removeItem(atPath: directory) }
        var logSettings = EmbeddedLogSettings()
        logSettings.mapBytes = 1 << 30
        let log = try EmbeddedLog(directory: directory, settings: logSettings)
        defer { log.close() }
        try log.createTopics([
            TopicSettings(.heartbeats, partitions: 4), TopicSettings(.deviceConfigs, partitions: 2),
        ])
        let database = try TestDatabase.make()
        let registry = try Registry(database.connect(), secretKey: testKey)
        try registry.prepareNetwork()
        let devices = try registry.addDevices(count: 20)
        var settings = FrontEndSettings(
            server: try ServerConfiguration(host: "127.0.0.1", port: 0, loops: 2),
            secretKey: testKey)
        settings.durability = .acked
        settings.beaconMilliseconds = 50
        let frontEnd = try FrontEnd(log: log, databaseURL: database.url, settings: settings)
        try frontEnd.start()
        let client = try RawClient(
            host: frontEnd.boundAddress.host, port: frontEnd.boundAddress.port)
        func beat(_ device: DeviceID) throws -> Int {
            try client.request(
                "POST", "/api/v1/heartbeat", body: Rig.body(device).utf8
            ).status
        }
        for _ in 0..<3 { for device in devices { #expect(try beat(device) == 200) } }

        let suspended = try registry.suspend(devices[0])
        var key = ByteBuffer()
        key.append(devices[0])
        let bell = try database.connect().execute(
            "SELECT value FROM heartline.outbox WHERE topic = 'device-configs' "
                + "ORDER BY sequence DESC LIMIT 1"
        ).only().bytea(0)
        var batch = RecordBatch(.deviceConfigs)
        batch.append(
            partition: Partitioner.partition(of: key.span, count: 2),
            timestamp: EventTime(milliseconds: SystemClock.wallMilliseconds()), key: key.span,
            value: bell.span)
        let producer = try log.makeProducer(ProducerSettings())
        #expect(producer.send(batch, receipt: nil) == .accepted)
        #expect(suspended.changed)
        #expect(try eventually { try beat(devices[0]) == 403 })
        #expect(frontEnd.stop())

        let decoder = HeartbeatsDecoder()
        var heartbeats = 0
        var faults: [String] = []
        for partition in Int32(0)..<4 {
            let waker = Waker()
            let consumer = try log.makeConsumer(
                of: .heartbeats, group: "test-\(partition)", waker: waker)
            while let change = try consumer.nextAssignmentChange() {
                if case .assigned = change { try consumer.start(partition, at: 0) }
            }
            var events: [HeartbeatsEvent] = []
            while try consumer.poll(
                limit: 1_000,
                { _, _, value in
                    switch decoder.decode(value.bytes) {
                    case .event(let event): events.append(event)
                    case .skipped: faults.append("skipped")
                    case .malformed(let reason): faults.append(reason)
                    }
                }) > 0
            {}
            guard case .beacon = events.first, case .beacon(let last) = events.last else {
                Issue.record("partition \(partition) has no beacons at its ends")
                continue
            }
            #expect(last.isLeaving)
            heartbeats += events.count { if case .heartbeat = $0 { true } else { false } }
        }
        #expect(faults.isEmpty)
        // Each of the devices three times, and the first again until its bell was heard.
        #expect(heartbeats == Int(frontEnd.counters.accepted))
        #expect(heartbeats >= 60)
    }
}
