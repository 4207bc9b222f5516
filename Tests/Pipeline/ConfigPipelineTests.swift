import Bytes
import Crypto
import Pipeline
import Processors
import Schemas
import Sinks
import Simulation
import TestSupport
import Testing

@Suite("Pipelines of configurations") struct ConfigPipelineTests {
    @Test("Without files every processor has a pipeline of its name with all that it writes")
    func builtIn() {
        let files = PipelineFile.builtIn
        #expect(
            files.map(\.name) == [
                "tunnel-health", "config-hash", "config-delivery", "mutual-waves", "encounters",
                "messages", "update-rollout", "telemetry-rollup",
            ])
        #expect(
            files.map(\.source) == [
                .heartbeats, .configChanges, .heartbeats, .waves, .encounters, .messages, .updates,
                .telemetry,
            ])
        #expect(
            files.map(\.topics) == [
                [.alerts], [.deviceConfigs], [], [.pushes], [], [.pushes], [], [],
            ])
        #expect(files.map(\.commitInterval) == [200, 0, 200, 0, 200, 0, 200, 500])
        for file in files {
            #expect(file.omittedTables.isEmpty && file.omittedTopics.isEmpty)
            #expect(file.settingsRevision.utf8.count == 16)
            #expect(
                file.processor.tables.allSatisfy { table in
                    file.processor.type.tables.contains { $0.name == table.storedName }
                })
        }
    }

    static func text(
        _ processor: String, source: String, sinks: String, more: String = ""
    ) -> String {
        "name: p\nsource: { topic: \(source) }\nprocessor: \(processor)\nsinks: [ \(sinks) ]\n\(more)"
    }

    @Test(
        "A file names the processor's own topic, tables and topics, and no settings",
        arguments: [
            (
                "{ config-hash: {} }", "heartbeats", "{ topic: device-configs }",
                "f.yaml:2:18: the processor config-hash reads the topic config-changes, not heartbeats"
            ),
            (
                "{ config-hash: { a: 1 } }", "config-changes", "{ topic: device-configs }",
                "f.yaml:3:29: unknown key \"a\" in config-hash"
            ),
            (
                "{ config-hash: {} }", "config-changes", "{ topic: alerts }",
                "f.yaml:4:19: the processor config-hash writes no events for the topic alerts: it has device-configs"
            ),
            (
                "{ config-delivery: {} }", "heartbeats", "{ topic: alerts }",
                "f.yaml:4:19: the processor config-delivery writes no events for the topic alerts: it has none"
            ),
            (
                "{ config-delivery: {} }", "heartbeats",
                "{ postgres: { tables: [config_version] } }",
                "f.yaml:4:33: the processor config-delivery has no table \"config_version\""
            ),
            (
                "{ config-delivery: {}, config-hash: {} }", "heartbeats", "{ topic: alerts }",
                "f.yaml:3:12: a pipeline has one processor"
            ),
            (
                "{}", "heartbeats", "{ topic: alerts }",
                "f.yaml:3:12: processor names none of: tunnel-health, config-hash, config-delivery, mutual-waves, encounters, messages, update-rollout, telemetry-rollup"
            ),
        ])
    func wrong(_ processor: String, _ source: String, _ sinks: String, _ expected: String) {
        let errors = PipelineFileTests.errors(
            in: Self.text(processor, source: source, sinks: sinks))
        #expect(errors.contains { $0.hasPrefix(expected) }, "\(errors)")
    }

    @Test("What a reload cannot take over is named")
    func waiting() throws {
        let running = try PipelineFileTests.parse(PipelineFileTests.text())
        var other = running
        #expect(other.waitingForStart(comparedTo: running).isEmpty)
        other.commitInterval += 1
        #expect(other.waitingForStart(comparedTo: running) == ["commit_interval"])
        other.tables.append(.alerts)
        #expect(other.waitingForStart(comparedTo: running) == ["sinks", "commit_interval"])
        let replaced = PipelineFile(builtIn: .configHash(ConfigHashSettings()))
        #expect(
            replaced.waitingForStart(comparedTo: running)
                == ["source", "processor", "sinks", "commit_interval"])
        var settings = TunnelHealthSettings()
        settings.staleAfter = 1_000
        other = running
        other.processor = .tunnelHealth(settings)
        #expect(other.waitingForStart(comparedTo: running).isEmpty)
    }

    @Test("A case that does not hold tells what was expected and what came")
    func failingCase() throws {
        let file = try PipelineFileTests.parse(
            Self.text(
                "{ config-hash: {} }", source: "config-changes",
                sinks: "{ postgres: { tables: [config_versions] } }",
                more: """
                    tests:
                      - name: wrong
                        given: [ { at: 1s, change: { device: d1, kind: provisioned } } ]
                        expect: [ { device: d1, version: 2, versions: [], at: 0s, kind: removed, changed: [], suspended: true, by: x, bell: none } ]

                    """))
        let differences = try #require(file.runCases().first).differences
        #expect(
            differences.map { "\($0.what): \($0.expected) / \($0.got)" } == [
                "d1: versions: none / 1", "d1: bell: none / 1", "d1: version: 2 / 1",
                "d1: at: 0s / 1s", "d1: kind: removed / provisioned",
                "d1: changed: none / config", "d1: suspended: true / false", "d1: by: x / ",
            ])
    }

    // MARK: - The worker

    static func change(_ version: Int64, _ kind: ConfigChange.Kind = .forwards) -> SimulatedRecord {
        let fingerprint = SHA256.hash(ByteBuffer("key".utf8).span)
        var key = ByteBuffer()
        key.append(DeviceID(high: 1, low: 2))
        var value = ByteBuffer()
        value.append(
            ConfigChange(
                device: DeviceID(high: 1, low: 2), kind: kind, version: version,
                isSuspended: false, actor: "ops",
                tunnel: TunnelConfiguration(
                    internalAddress: "10.64.0.2", privateKeyFingerprint: fingerprint,
                    presharedKeyFingerprint: fingerprint,
                    network: NetworkConfiguration(
                        serverPublicKey: "0a", endpoint: "vpn:51820", serverAddress: "10.64.0.1",
                        dns: "1.1.1.1", allowedIPs: "0.0.0.0/0")), forwards: []))
        return SimulatedRecord(
            key: key, value: value, timestamp: EventTime(milliseconds: 1_790_000_000_000))
    }

    private func bench(_ records: [SimulatedRecord]) -> WorkerBench<ConfigHash> {
        WorkerBench(ProcessorSettings(ConfigHashSettings()), records: [records])
    }

    @Test("A malformed change is a dead letter, and the next one rings")
    func malformed() throws {
        let broken = SimulatedRecord(
            key: ByteBuffer("k".utf8), value: ByteBuffer("{\"v\":1}".utf8),
            timestamp: EventTime(milliseconds: 0))
        let bench = bench([Self.change(1, .provisioned), broken, Self.change(2)])
        bench.start()
        bench.run(500)
        #expect(bench.status.deadLetters == 1)
        let letter = try #require(bench.published(.deadLetters).first)
        #expect(letter.contains("\"topic\":\"config-changes\",\"partition\":0,\"offset\":1"))
        #expect(bench.published(.deviceConfigs).count == 2)
    }

    @Test("A removed device's tombstone comes out of the outbox as one, also after a crash")
    func tombstone() {
        let bench = bench([Self.change(1, .provisioned), Self.change(2, .removed)])
        bench.log.setDown(true)
        bench.start()
        bench.log.setDown(false)
        bench.run(500)
        let bells = bench.log.published.filter { $0.topic == .deviceConfigs }
        #expect(bells.map(\.isTombstone) == [false, true])
        #expect(bells.last?.origin == "bench/0/1")
    }

    @Test("What is stored after the last snapshot gets one when nothing more comes")
    func quiet() throws {
        let bench = bench([Self.change(1, .provisioned)])
        bench.start()
        bench.run(500)
        let first = try #require(bench.store.snapshot(of: 0))
        bench.log.append(Self.change(2), to: 0)
        bench.run(500)
        #expect(bench.store.nextOffset(of: 0) == 2)
        #expect(bench.store.snapshot(of: 0) == first)
        bench.run(40_000)
        let second = try #require(bench.store.snapshot(of: 0))
        #expect(try Snapshot.open(second.span, pipeline: "bench").offset == 2)
        let snapshots = bench.status.snapshots
        bench.run(200_000)
        #expect(bench.status.snapshots == snapshots)
        // Retention takes what the snapshot holds; the next start does not miss it.
        bench.crash()
        bench.log.truncate(0, before: 2)
        bench.start()
        bench.run(2_000)
        #expect(bench.status.isReady, "\(bench.status.faults)")
        bench.log.append(Self.change(2), to: 0)
        bench.log.append(Self.change(3), to: 0)
        bench.run(500)
        #expect(bench.published(.deviceConfigs).count == 3)
    }

    @Test("An orderly end leaves a snapshot of everything")
    func orderlyEnd() throws {
        let bench = bench([Self.change(1, .provisioned)])
        bench.start()
        bench.run(500)
        bench.log.append(Self.change(2), to: 0)
        bench.run(500)
        bench.stop()
        bench.run(500)
        #expect(bench.isStopped)
        let snapshot = try #require(bench.store.snapshot(of: 0))
        #expect(try Snapshot.open(snapshot.span, pipeline: "bench").offset == 2)
    }
}
