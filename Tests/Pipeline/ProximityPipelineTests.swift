import Bytes
import Pipeline
import Processors
import Schemas
import Simulation
import TestSupport
import Testing

@Suite("Pipelines about people") struct ProximityPipelineTests {
    private static let waves = "{ postgres: { tables: [waves, pushes] } }, { topic: pushes }"

    @Test("The life of a wave and the window of an encounter can be set, and nothing else")
    func settings() throws {
        let waves = try PipelineFileTests.parse(
            ConfigPipelineTests.text(
                "{ mutual-waves: { wave_ttl: 2h } }", source: "waves", sinks: Self.waves))
        guard case .mutualWaves(let settings) = waves.processor else {
            Issue.record("not mutual waves")
            return
        }
        #expect(settings.waveLife == 7_200_000)
        #expect(waves.commitInterval == 0)
        #expect(waves.omittedTables == ["connections"])
        let encounters = try PipelineFileTests.parse(
            ConfigPipelineTests.text(
                "{ encounters: { window: 90s } }", source: "encounters",
                sinks: "{ postgres: { tables: [encounters] } }"))
        guard case .encounters(let settings) = encounters.processor else {
            Issue.record("not encounters")
            return
        }
        #expect(settings.window == 90_000)
        #expect(encounters.commitInterval == 200)
        let revisions = PipelineFile.builtIn.map(\.settingsRevision)
        #expect(!revisions.contains(waves.settingsRevision))
        #expect(!revisions.contains(encounters.settingsRevision))
        for kind in PipelineFile.Kind.all.suffix(3) {
            // `mutual-waves:` alone is mutual waves with their defaults.
            let tables = kind.tables.map(\.rawValue).joined(separator: ", ")
            let file = try PipelineFileTests.parse(
                ConfigPipelineTests.text(
                    "{ \(kind.name): }", source: kind.source.rawValue,
                    sinks: "{ postgres: { tables: [\(tables)] } }"))
            #expect(file.processor == kind)
        }
    }

    @Test("Settings come back from the text that snapshots keep")
    func texts() throws {
        var waves = MutualWavesSettings()
        waves.waveLife = 5_000
        let stored = ProcessorSettings(waves)
        #expect(stored.read(stored.text)?.waveLife == 5_000)
        #expect(stored.read("") == nil)
        #expect(stored.read("window 5000\n") == nil)
        #expect(stored.read("wave_ttl -1\n") == nil)
        var encounters = EncountersSettings()
        encounters.window = 6_000
        let kept = ProcessorSettings(encounters)
        #expect(kept.read(kept.text)?.window == 6_000)
        #expect(kept.read(stored.text) == nil)
    }

    @Test(
        "What cannot be is refused with its place",
        arguments: [
            (
                "{ mutual-waves: { wave_ttl: 7d } }", "waves", waves,
                "f.yaml:3:40: wave_ttl is 7d but must be from 1m to 6d"
            ),
            (
                "{ mutual-waves: { wave_ttl: 168h } }", "waves", waves,
                "f.yaml:3:40: wave_ttl is 168h but must be from 1m to 6d"
            ),
            (
                "{ mutual-waves: { ttl: 1h } }", "waves", waves,
                "f.yaml:3:30: unknown key \"ttl\" in mutual-waves"
            ),
            (
                "{ mutual-waves: {} }", "encounters", waves,
                "f.yaml:2:18: the processor mutual-waves reads the topic waves, not encounters"
            ),
            (
                "{ mutual-waves: {} }", "waves",
                "{ postgres: { tables: [waves] } }, { topic: pushes }",
                "f.yaml:4:32: tables lacks pushes: the doorbells would ring for nothing"
            ),
            (
                "{ messages: { a: 1 } }", "messages", waves,
                "f.yaml:3:26: unknown key \"a\" in messages"
            ),
            (
                "{ encounters: { window: 0s } }", "encounters",
                "{ postgres: { tables: [encounters] } }",
                "f.yaml:3:36: window is 0s but must be from 1s to 12h"
            ),
        ])
    func wrong(_ processor: String, _ source: String, _ sinks: String, _ expected: String) {
        let errors = PipelineFileTests.errors(
            in: ConfigPipelineTests.text(processor, source: source, sinks: sinks))
        #expect(errors.contains { $0.hasPrefix(expected) }, "\(errors)")
    }

    private static func cases(
        _ given: String, _ expect: String, _ kind: String = "mutual-waves",
        source: String = "waves"
    ) -> String {
        ConfigPipelineTests.text(
            "{ \(kind): {} }", source: source,
            sinks: "{ postgres: { tables: [\(kind == "encounters" ? kind : "pushes")] } }",
            more: """
                tests:
                  - name: case
                    given: [ \(given) ]
                    expect: [ \(expect) ]

                """)
    }

    private static let wave = "{ at: 0s, wave: { from: a, to: b } }"

    @Test(
        "Faulty cases are refused with their place",
        arguments: [
            ("{ at: 0s, wave: { from: a } }", "{ account: a, told: [] }", "the wave has no to"),
            (
                "{ at: 0s, wave: { from: a, to: a } }", "{ account: a, told: [] }",
                "the wave is from a to the same"
            ),
            (
                "{ at: 0s, heartbeat: { device: d } }", "{ account: a, told: [] }",
                "unknown key \"heartbeat\""
            ),
            (wave, "{ account: a, connected: true }", "an account has no connected"),
            (wave, "{ pair: [a, b], told: [] }", "a pair has no told"),
            (wave, "{ pair: [a], connected: true }", "a pair is two accounts"),
            (wave, "{ told: [] }", "the expectation names neither an account nor a pair"),
            (wave, "{ account: c, told: [] }", "nothing is given of c"),
            (wave, "{ pair: [a, c], connected: true }", "nothing is given of a and c"),
            (wave, "{ device: a }", "unknown key \"device\""),
            (wave, "{ account: a }", "nothing is expected of a"),
        ])
    func faultyCases(_ given: String, _ expect: String, _ expected: String) {
        let errors = PipelineFileTests.errors(in: Self.cases(given, expect))
        #expect(errors.contains { $0.contains(expected) }, "\(errors)")
    }

    @Test("A case that does not hold tells what was expected and what came")
    func failingCases() throws {
        func differences(_ text: String) throws -> [String] {
            let file = try PipelineFileTests.parse(text)
            return try #require(file.runCases().first).differences
                .map { "\($0.what): \($0.expected) / \($0.got)" }
        }
        #expect(
            try differences(
                Self.cases(
                    "\(Self.wave), { at: 5s, wave: { from: b, to: a, token: t } }",
                    """
                    { account: a, told: [], waves: [x], rings: 7 },
                    { pair: [b, a], connected: false, at: 0s }
                    """))
                == [
                    "a: told: none / b-token", "a: waves: x / b-token", "a: rings: 7 / 1",
                    "b and a: connected: false / true", "b and a: at: 0s / 5s",
                ])
        #expect(
            try differences(
                Self.cases(
                    """
                    { at: 0s, encounter: { from: a, to: b } },
                    { at: 60s, encounter: { from: b, to: a, geohash: u33db } }
                    """,
                    """
                    { account: a, reports: 0 },
                    { pair: [a, b], encounters: 0, at: 0s, tier: 3, engine: x, geohash: u33dc }
                    """, "encounters", source: "encounters"))
                == [
                    "a: reports: 0 / 1", "a and b: encounters: 0 / 1", "a and b: at: 0s / 1m",
                    "a and b: tier: 3 / 1", "a and b: engine: x / uwb",
                    "a and b: geohash: u33dc / u33db",
                ])
    }

    // MARK: - The worker

    private static func wave(
        _ from: UInt64, _ to: UInt64, at milliseconds: Int64
    ) -> SimulatedRecord {
        let sender = AccountID(high: 1, low: from)
        var key = ByteBuffer()
        var value = ByteBuffer()
        guard let pair = AccountPair(sender, AccountID(high: 1, low: to)) else {
            preconditionFailure("a wave to oneself")
        }
        key.append(pair)
        value.append(
            .wave(
                Wave(
                    origin: EventOrigin(boot: 1, counter: 1), pair: pair, sender: sender,
                    token: InlineText("t"))))
        return SimulatedRecord(
            key: key, value: value,
            timestamp: EventTime(milliseconds: 1_790_000_000_000 + milliseconds))
    }

    /// Records that live for a second, in segments of a few.
    private func bench(_ records: [SimulatedRecord]) -> WorkerBench<MutualWaves> {
        var settings = MutualWavesSettings()
        settings.waveLife = 1_000
        settings.segmentBytes = 300
        let fixed = settings
        let bench = WorkerBench<MutualWaves>(
            ProcessorSettings(settings, text: "") { _ in fixed }, records: [records])
        bench.settings.commitInterval = 0
        return bench
    }

    @Test(
        "A restart reads from the first record that can still matter, and what retention took cannot"
    )
    func replay() throws {
        let bench = bench((0..<400).map { Self.wave(UInt64($0), 1_000, at: Int64($0) * 1_000) })
        bench.start()
        bench.run(500)
        bench.stop()
        bench.run(500)
        #expect(bench.isStopped)
        let sealed = try #require(bench.store.snapshot(of: 0))
        let offset = try Snapshot.open(sealed.span, pipeline: "bench").offset
        #expect(offset > 250 && offset < 400, "\(offset)")
        #expect(sealed.count < 400)
        // Less than a life is left in the log.
        bench.log.truncate(0, before: offset + 20)
        bench.start()
        bench.log.append(Self.wave(1_000, 399, at: 399_500), to: 0)
        bench.run(2_000)
        #expect(bench.status.isReady, "\(bench.status.faults)")
        #expect(bench.store.tables.keyed["connections"]?.count == 1)
        #expect(bench.published(.pushes).count == 2)
        // Without anything new no snapshot is made again and again.
        bench.run(120_000)
        let snapshots = bench.status.snapshots
        bench.run(200_000)
        #expect(bench.status.snapshots == snapshots)
    }

    @Test("Doorbells ring after the commit, and never without it")
    func doorbells() {
        let bench = bench([Self.wave(1, 2, at: 0), Self.wave(2, 1, at: 1)])
        bench.store.setDown(true)
        bench.start()
        bench.run(5_000)
        #expect(bench.published(.pushes).isEmpty)
        bench.store.setDown(false)
        bench.run(20_000)
        #expect(bench.published(.pushes).count == 2)
        #expect(bench.store.tables.keyed["pushes"]?.count == 2)
    }
}
