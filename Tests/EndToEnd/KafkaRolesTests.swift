import EventLog
import Foundation
import Kafka
import Metrics
import Postgres
import Schemas
import System
import TestSupport
import Testing

/// The roles of a large installation on a mock cluster: the executable, as an operator starts it.
@Suite("On Kafka", .realTime) struct KafkaRolesTests {
    struct Installation {
        let folder: TemporaryFolder
        let database: TestDatabase
        let mock: MockKafka
        var environment: [String: String]
        static let metricsToken = String(repeating: "m-", count: 20)

        init() async throws {
            folder = try TemporaryFolder()
            database = try TestDatabase.make(isMigrated: false)
            mock = try MockKafka()
            environment = [
                "SERVER_SALT": "a salt for tests, of some length",
                "HEARTLINE_SECRET_KEY": String(repeating: "5a", count: 32),
                "HEARTLINE_DATABASE": database.url,
                "HEARTLINE_BROKERS": mock.cluster.brokers,
                "HEARTLINE_METRICS_TOKEN": Self.metricsToken,
                "HEARTLINE_KAFKA_CONFIG_FILE": try folder.write(
                    "# for tests\n" + MockKafka.quick.joined(separator: "\n") + "\n",
                    to: "kafka.properties"),
            ]
            let outcome = try await run(["migrate"])
            try #require(outcome.status == 0, "\(outcome.errors)")
        }

        func run(_ words: [String]) async throws -> Executable.Outcome {
            try await Executable.run(words, environment: environment)
        }

        /// The mock has no admin interface.
        func makeTopics(partitions: Int32) throws {
            for topic in Topic.allCases {
                try mock.cluster.createTopic(topic.rawValue, partitions: partitions)
            }
        }

        func start(_ words: [String]) throws -> HeartlineProcess {
            try HeartlineProcess(
                words + ["--data", "\(folder.path)/\(words[0])"], environment: environment)
        }
    }

    @Test(
        "a front-end that finds no broker, or no topics, is not ready and says why, until they are there",
        .timeLimit(.minutes(5)))
    func waitsForTheCluster() async throws {
        let installation = try await Installation()
        installation.mock.cluster.setBroker(isUp: false)
        let ingest = try installation.start([
            "ingest", "--partitions", "2", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0",
        ])
        #expect(
            await holds(within: 60) {
                let answer = ingest.askReadiness()
                return answer?.status == 503
                    && answer?.text.contains("connecting to Kafka at 127.0.0.1:") == true
            }, "\(ingest.errors())")
        #expect(ingest.errors().contains("Kafka does not answer"))
        installation.mock.cluster.setBroker(isUp: true)
        #expect(
            await holds(within: 60) {
                ingest.askReadiness()?.text.contains("make the topics with heartline topics create")
                    == true
            }, "\(ingest.errors())")
        try installation.makeTopics(partitions: 2)
        #expect(
            await holds(within: 60) { ingest.askReadiness()?.status == 200 }, "\(ingest.errors())")
        ingest.send(SIGTERM)
        #expect(await ingest.waitForEnd() == 0)
    }

    @Test(
        "a heartbeat goes from a front-end over the cluster through a worker to the tables",
        .timeLimit(.minutes(5)))
    func endToEnd() async throws {
        let installation = try await Installation()
        try installation.makeTopics(partitions: 3)
        let ingest = try installation.start([
            "ingest", "--partitions", "3", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0",
        ])
        let process = try installation.start(["process", "--partitions", "3"])
        let second = try installation.start(["process", "--partitions", "3"])
        let added = try await installation.run(["device", "add"])
        let device = try #require(DeviceID(String(added.output.dropLast())), "\(added.errors)")
        #expect(
            await holds(within: 120) { ingest.output().contains("/readyz") },
            "\(ingest.errors())")
        let words = ingest.output().split { $0.isWhitespace }
        let url = try #require(words.first { $0.hasPrefix("http://127.0.0.1:") })
        let port = try #require(
            UInt16(url.dropFirst("http://127.0.0.1:".count).prefix { $0.isNumber }))
        let connection = try installation.database.connect()
        #expect(
            try await holds(within: 120) {
                let answer = try RawClient(host: "127.0.0.1", port: port).request(
                    "POST", "/api/v1/heartbeat",
                    body: "{\"device_id\":\"\(device)\",\"tunnel_up\":true}".utf8)
                guard answer.status == 200 else { return false }
                return try connection.execute(
                    "SELECT count(*) FROM heartline.device_status WHERE last_seen IS NOT NULL"
                ).only().int8(0) == 1
            }, "\(process.errors()) \(second.errors())")
        let status = try await installation.run(["status", "--json"])
        #expect(status.status == 0, "\(status.errors)")
        #expect(status.output.contains("\"lag\":"), "\(status.output)")
        let admin = try #require(
            words.first { $0.hasSuffix("/readyz") }.flatMap { URL(string: String($0)) })
        let page = try RawClient(
            host: "127.0.0.1", port: UInt16(try #require(admin.port))
        ).request(
            "GET", "/metrics", body: [],
            headers: ["Authorization: Bearer \(Installation.metricsToken)"])
        #expect(page.status == 200)
        let reading = MetricsReading(page.text)
        #expect(reading.sum("heartline_heartbeats_total", ["result": "accepted"]) ?? 0 >= 1)
        #expect(reading.sum("heartline_spool_bytes") == 0)
        #expect(reading.sum("heartline_spool_limit_bytes") == Double(4_096 << 20))
        #expect(reading.sum("heartline_spool_active") == 0)
        #expect(reading.sum("heartline_part_ready", ["part": "kafka"]) == 1)
        for running in [ingest, process, second] {
            running.send(SIGTERM)
            #expect(await running.waitForEnd() == 0, "\(running.errors())")
        }
    }

    @Test(
        "a worker that is stopped past its session goes on after another took over, and the tables are right",
        .timeLimit(.minutes(10)))
    func stoppedWorkers() async throws {
        let installation = try await Installation()
        try installation.makeTopics(partitions: 4)
        let pipelines = "\(installation.folder.path)/pipelines"
        try FileSystem.makeDirectory(pipelines, mode: 0o755)
        _ = try installation.folder.write(
            SplitInstallation.pipeline("refresh: 0s"), to: "pipelines/health.yaml")
        let ingest = try installation.start([
            "ingest", "--partitions", "4", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0",
        ])
        let first = try installation.start([
            "process", "--partitions", "4", "--pipelines", pipelines,
        ])
        let added = try await installation.run(["device", "add", "--count", "40"])
        let devices = added.output.split(separator: "\n").compactMap { DeviceID(String($0)) }
        try #require(devices.count == 40, "\(added.errors)")
        #expect(
            await holds(within: 120) { ingest.output().contains("/readyz") },
            "\(ingest.errors())")
        let words = ingest.output().split { $0.isWhitespace }
        let url = try #require(words.first { $0.hasPrefix("http://") })
        let load = HeartbeatLoad(.init(devices, connections: 8, perSecond: 200))
        load.send(to: String(url.dropLast("/api/v1/heartbeat".count)))
        let connection = try installation.database.connect()
        func stored() throws -> Int64 {
            try CleanPass.committed(connection).values.reduce(0, +)
        }
        #expect(try await holds(within: 120) { try stored() > 200 }, "\(first.errors())")
        let second = try installation.start([
            "process", "--partitions", "4", "--pipelines", pipelines,
        ])

        for stopped in [first, second] {
            stopped.send(SIGSTOP)
            let before = try CleanPass.committed(connection)
            #expect(
                try await holds(within: 120) {
                    let now = try CleanPass.committed(connection)
                    return (0..<4).allSatisfy { now[$0, default: 0] > before[$0, default: 0] + 100 }
                }, "the other took over: \(first.errors()) \(second.errors())")
            stopped.send(SIGCONT)
            let after = try stored()
            #expect(try await holds(within: 120) { try stored() > after + 200 })
        }
        let book = load.stop()
        #expect(Array(book.statuses.keys) == [200], "\(book.refusal ?? "")")
        ingest.send(SIGTERM)
        #expect(await ingest.waitForEnd() == 0, "\(ingest.errors())")

        let log = try installation.mock.makeLog()
        defer { log.close() }
        var total: Int64 = 0
        for partition in Int32(0)..<4 {
            total += try log.offsets(of: TopicPartition(.heartbeats, partition)).next
        }
        #expect(try await holds(within: 120) { try stored() == total })
        for running in [first, second] {
            running.send(SIGTERM)
            #expect(await running.waitForEnd() == 0, "\(running.errors())")
        }

        // The same records at the same offsets, for a clean pass.
        let mirror = try EmbeddedLog(directory: "\(installation.folder.path)/mirror")
        defer { mirror.close() }
        try mirror.createTopics([TopicSettings(.heartbeats, partitions: 4)])
        let waker = Waker()
        let consumer = try log.makeConsumer(of: .heartbeats, group: "mirror", waker: waker)
        try consumer.startAll(waker)
        var batch = RecordBatch(.heartbeats)
        for record in try consumer.collect(Int(total), waker) {
            let value = record.value ?? []
            batch.append(
                partition: record.place.partition, timestamp: record.place.timestamp,
                key: record.key.span, value: value.span)
        }
        try mirror.store(batch)
        let (pass, difference) = try CleanPass.check(mirror, connection, pipelines: pipelines)
        #expect(difference.isEmpty, "\(difference)")
        #expect(pass.lastSeen.count == 40)
    }

    @Test(
        "what was answered while the brokers were away is in the log in its order, also after kill -9",
        .timeLimit(.minutes(10)))
    func spools() async throws {
        let installation = try await Installation()
        try installation.makeTopics(partitions: 2)
        let words = [
            "ingest", "--partitions", "2", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0",
            "--heartbeats", "acked", "--spool-mib", "1",
        ]
        let ingest = try installation.start(words)
        let added = try await installation.run(["device", "add"])
        let device = try #require(DeviceID(String(added.output.dropLast())), "\(added.errors)")
        #expect(
            await holds(within: 120) { ingest.output().contains("/readyz") },
            "\(ingest.errors())")
        var next = 0
        var accepted: [Int] = []
        func post(_ process: HeartlineProcess) throws -> RawResponse {
            let port = try #require(process.heartbeatPort)
            let answer = try RawClient(host: "127.0.0.1", port: port).request(
                "POST", "/api/v1/heartbeat",
                body: """
                    {"device_id":"\(device)","tunnel_up":true,"state":"n\(next)"}
                    """.utf8)
            if answer.status == 200 { accepted.append(next) }
            next += 1
            return answer
        }
        for _ in 0..<20 { #expect(try post(ingest).status == 200) }
        installation.mock.cluster.setBroker(isUp: false)
        // The spool takes them, until it is full.
        var answer = try post(ingest)
        #expect(answer.status == 200)
        while answer.status == 200, next < 50_000 { answer = try post(ingest) }
        try #require(answer.status == 503)
        #expect(accepted.count > 1_000)
        var waits: Set<Int> = []
        for _ in 0..<60 {
            let refused = try post(ingest)
            guard refused.status == 503 else { continue }
            let seconds = try #require(refused.headers["retry-after"].flatMap { Int($0) })
            #expect((1...10).contains(seconds))
            waits.insert(seconds)
        }
        #expect(waits.count > 1, "devices would all come again at once")
        // That nothing is heard of device-configs meanwhile takes no front-end out of service.
        #expect(
            await holds(within: 120) { ingest.errors().contains("following device-configs") })
        #expect(ingest.askReadiness()?.status == 200)

        ingest.send(SIGKILL)
        _ = await ingest.waitForEnd()
        let second = try installation.start(words)
        installation.mock.cluster.setBroker(isUp: true)
        #expect(
            await holds(within: 120) { second.output().contains("/readyz") },
            "\(second.errors())")
        #expect(
            await holds(within: 120) { second.errors().contains("the spool is empty") },
            "\(second.errors())")
        #expect(try post(second).status == 200)
        // An end in order, also with beacons that no broker takes.
        installation.mock.cluster.setBroker(isUp: false)
        #expect(
            await holds(within: 120) { second.errors().contains("Kafka does not answer") })
        second.send(SIGTERM)
        #expect(await second.waitForEnd() == 0, "\(second.errors())")
        #expect(!second.errors().contains("was cut"), "\(second.errors())")
        installation.mock.cluster.setBroker(isUp: true)

        let log = try installation.mock.makeLog()
        defer { log.close() }
        let waker = Waker()
        let consumer = try log.makeConsumer(of: .heartbeats, group: "all", waker: waker)
        try consumer.startAll(waker)
        var total = 0
        for partition in Int32(0)..<2 {
            total += Int(try log.offsets(of: TopicPartition(.heartbeats, partition)).next)
        }
        var first: [Int] = []
        var seen: Set<Int> = []
        for record in try consumer.collect(total, waker) {
            let text = String(decoding: record.value ?? [], as: UTF8.self)
            guard let place = text.firstRange(of: "\"n"),
                let number = Int(text[place.upperBound...].prefix { $0.isNumber })
            else { continue }
            if seen.insert(number).inserted { first.append(number) }
        }
        let missing = accepted.filter { !seen.contains($0) }
        #expect(missing.isEmpty, "\(missing.count) of \(accepted.count)")
        #expect(first == first.sorted())
    }

    @Test(
        "a worker says that the cluster has gone, ends in order without it, and goes on with it",
        .timeLimit(.minutes(5)))
    func clusterGoes() async throws {
        let installation = try await Installation()
        try installation.makeTopics(partitions: 2)
        let words = ["process", "--partitions", "2", "--admin", "127.0.0.1:0"]
        let worker = try installation.start(words)
        #expect(await holds(within: 120) { worker.askReadiness()?.status == 200 })
        installation.mock.cluster.setBroker(isUp: false)
        #expect(
            await holds(within: 120) {
                let answer = worker.askReadiness()
                return answer?.status == 503
                    && answer?.text.contains("connecting to Kafka at") == true
            })
        installation.mock.cluster.setBroker(isUp: true)
        #expect(await holds(within: 120) { worker.askReadiness()?.status == 200 })
        installation.mock.cluster.setBroker(isUp: false)
        #expect(await holds(within: 120) { worker.askReadiness()?.status == 503 })
        worker.send(SIGTERM)
        #expect(await worker.waitForEnd() == 0, "\(worker.errors())")
        #expect(!worker.errors().contains("was cut"), "\(worker.errors())")
        installation.mock.cluster.setBroker(isUp: true)
    }

    @Test(
        "a worker more than there are partitions is ready, and takes over", .timeLimit(.minutes(5)))
    func spareWorkers() async throws {
        let installation = try await Installation()
        try installation.makeTopics(partitions: 1)
        let words = ["process", "--partitions", "1", "--admin", "127.0.0.1:0"]
        let first = try installation.start(words)
        #expect(
            await holds(within: 120) { first.output().contains("/readyz") }, "\(first.errors())")
        let second = try installation.start(words)
        #expect(
            await holds(within: 120) { second.output().contains("/readyz") }, "\(second.errors())")
        let connection = try installation.database.connect()
        func owner() throws -> String {
            try connection.execute(
                "SELECT owner FROM heartline.stream_partitions WHERE pipeline = 'tunnel-health'"
            ).only().text(0)
        }
        #expect(try owner().hasSuffix("/\(first.processID)"))
        first.send(SIGTERM)
        #expect(await first.waitForEnd() == 0, "\(first.errors())")
        #expect(try await holds(within: 120) { try owner().hasSuffix("/\(second.processID)") })
        second.send(SIGTERM)
        #expect(await second.waitForEnd() == 0, "\(second.errors())")
    }

    @Test(
        "a stored offset that the log no longer holds is told with the command that decides",
        .timeLimit(.minutes(5)))
    func logBeginsLater() async throws {
        let installation = try await Installation()
        try installation.makeTopics(partitions: 1)
        let words = ["process", "--partitions", "1", "--admin", "127.0.0.1:0"]
        let before = try installation.start(words)
        #expect(
            await holds(within: 120) { before.output().contains("/readyz") }, "\(before.errors())")
        before.send(SIGTERM)
        #expect(await before.waitForEnd() == 0, "\(before.errors())")

        let log = try installation.mock.makeLog(MockKafka.quick + ["compression.type=none"])
        defer { log.close() }
        // The mock keeps 5 MiB of a partition.
        let value = String(repeating: "x", count: 500_000)
        for _ in 0..<20 {
            var batch = RecordBatch(.heartbeats)
            batch.append(0, "k", value)
            try log.store(batch)
        }
        let range = try log.offsets(of: TopicPartition(.heartbeats, 0))
        try #require(range.earliest > 0)

        let worker = try installation.start(words)
        let command = "heartline pipeline resume tunnel-health --partition 0"
        #expect(
            await holds(within: 120) {
                guard let answer = worker.askReadiness() else { return false }
                return answer.status == 503 && answer.text.contains("heartbeats/0")
                    && answer.text.contains("from offset 0")
                    && answer.text.contains("begins at \(range.earliest)")
                    && answer.text.contains(command)
            }, "\(worker.askReadiness()?.text ?? "") \(worker.errors())")
        // Each pipeline on the topic has an offset of its own.
        for pipeline in ["tunnel-health", "config-delivery"] {
            let resumed = try await installation.run([
                "pipeline", "resume", pipeline, "--partition", "0",
            ])
            #expect(resumed.status == 0, "\(resumed.errors)")
        }
        #expect(
            await holds(within: 120) { worker.askReadiness()?.status == 200 },
            "\(worker.askReadiness()?.text ?? "") \(worker.errors())")
        worker.send(SIGTERM)
        #expect(await worker.waitForEnd() == 0, "\(worker.errors())")
    }

    @Test("settings that cannot be are told before anything is started") func refusedSettings()
        async throws
    {
        for (words, message) in [
            (["topics", "check", "--brokers", "nowhere:x"], "brokers are host:port"),
            (
                ["up", "--brokers", "a:1", "--kafka-config", "partitioner=random"],
                "Kafka property partitioner cannot be set: Heartline chooses"
            ),
            (["up", "--kafka-config", "sasl.username=x"], "--kafka-config needs --brokers"),
            (["up", "--brokers", "a:1", "--kafka-config", "x"], "is written name=value"),
        ] as [([String], String)] {
            let outcome = try await Executable.run(words)
            #expect(outcome.status == 2, "\(outcome.errors)")
            #expect(outcome.errors.contains(message), "\(outcome.errors)")
        }
    }
}
