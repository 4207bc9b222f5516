import Pipeline
import Processors
import Schemas
import Testing
import YAML

@Suite("Pipeline files") struct PipelineFileTests {
    /// A file in which one line is exchanged.
    static func text(
        processor: String = "{ tunnel-health: {} }", source: String = "{ topic: heartbeats }",
        sinks: String = "[ { postgres: { tables: [device_status] } } ]", more: String = ""
    ) -> String {
        "name: health\nsource: \(source)\nprocessor: \(processor)\nsinks: \(sinks)\n\(more)"
    }

    static func parse(_ text: String) throws(PipelineFileErrors) -> PipelineFile {
        try PipelineFile.parse(Array(text.utf8), path: "f.yaml")
    }

    static func errors(in text: String) -> [String] {
        do throws(PipelineFileErrors) {
            _ = try parse(text)
            return []
        } catch { return error.errors.map(\.description) }
    }

    @Test("Every setting of tunnel health can be written") func everySetting() throws {
        let file = try Self.parse(
            Self.text(
                processor: """

                      tunnel-health:
                        stale_after: 20s
                        offline_after: 10s
                        jitter: 200ms
                        missed_intervals: 4
                        recover_after: 3
                        down_after: 5
                        clock_skew_after: 2m
                        flapping: { transitions: 4, within: 1h }
                        refresh: 0s
                        beacons: { silence: 15s, expulsion: 45s }
                    """,
                sinks: "[ { postgres: { tables: [alerts, device_status] } }, { topic: alerts } ]",
                more: "commit_interval: 0s\n"))
        var expected = TunnelHealthSettings()
        expected.staleAfter = 20_000
        expected.offlineAfter = 10_000
        expected.jitter = 200
        expected.missedIntervals = 4
        expected.recoverAfter = 3
        expected.downAfter = 5
        expected.clockSkewAfter = 120_000
        expected.flappingTransitions = 4
        expected.flappingWithin = 3_600_000
        expected.refresh = 0
        expected.frontEndSilence = 15_000
        expected.frontEndExpulsion = 45_000
        #expect(file.processor == .tunnelHealth(expected))
        #expect(file.tables == [.alerts, .deviceStatus])
        #expect(file.topics == [.alerts])
        #expect(file.commitInterval == 0)
        // A setting that is added to the type must be added to files, too.
        #expect(Mirror(reflecting: expected).children.count == 12)
    }

    @Test("A processor without settings has the defaults") func defaults() throws {
        let file = try Self.parse(Self.text())
        #expect(file.processor == PipelineFile.builtIn[0].processor)
        #expect(file.commitInterval == 200)
        #expect(file.connections == 2)
    }

    @Test("Connections are the file's, and wait for the next start") func connections() throws {
        let one = try Self.parse(
            Self.text(sinks: "[ { postgres: { tables: [device_status], connections: 1 } } ]"))
        #expect(one.connections == 1)
        #expect(try one.waitingForStart(comparedTo: Self.parse(Self.text())) == ["sinks"])
    }

    @Test("The revision follows what is said, not how it is written") func revision() throws {
        let plain = try Self.parse(Self.text())
        let spelled = try Self.parse(
            Self.text(processor: "{ tunnel-health: { stale_after: 3m, recover_after: 2 } }"))
        let other = try Self.parse(
            Self.text(processor: "{ tunnel-health: { stale_after: 181s } }"))
        #expect(plain.settingsRevision == spelled.settingsRevision)
        #expect(plain.settingsRevision != other.settingsRevision)
        #expect(plain.settingsRevision.utf8.count == 16)
    }

    @Test("Settings come back from the text that snapshots keep") func canonicalText() throws {
        var settings = TunnelHealthSettings()
        settings.staleAfter = 20_000
        settings.flappingWithin = 61_000
        let stored = ProcessorSettings(settings)
        #expect(stored.read(stored.text) == settings)
        #expect(stored.read("stale_after 20000\n")?.staleAfter == 20_000)
        #expect(stored.read("no_such_setting 1\n") == nil)
        #expect(stored.read("recover_after 0\n") == nil)
    }

    struct Wrong: Sendable, CustomTestStringConvertible {
        var testDescription: String
        var text: String
        var error: String

        init(_ description: String, _ text: String, _ error: String) {
            testDescription = description
            self.text = text
            self.error = error
        }

        init(setting: String, _ error: String) {
            self.init(
                setting, PipelineFileTests.text(processor: "{ tunnel-health: { \(setting) } }"),
                "f.yaml:3:" + error)
        }
    }

    @Test(
        "What is wrong is told with file, line and column",
        arguments: [
            Wrong(
                "an unknown key", text(more: "snks: []\n"),
                "f.yaml:5:1: unknown key \"snks\" in a pipeline: did you mean sinks?"),
            Wrong(
                "an unknown processor", text(processor: "{ tunel-health: {} }"),
                "f.yaml:3:14: unknown key \"tunel-health\" in processor: did you mean tunnel-health?"
            ),
            Wrong(
                "the wrong source", text(source: "{ topic: waves }"),
                "f.yaml:2:18: the processor tunnel-health reads the topic heartbeats, not waves"),
            Wrong(
                "an unknown topic", text(source: "{ topic: heartbeat }"),
                "f.yaml:2:18: unknown topic \"heartbeat\": did you mean heartbeats?"),
            Wrong(
                "an unknown table",
                text(sinks: "[ { postgres: { tables: [device_status, alrts] } } ]"),
                "f.yaml:4:48: the processor tunnel-health has no table \"alrts\": did you mean alerts?"
            ),
            Wrong(
                "a topic it does not write",
                text(sinks: "[ { postgres: { tables: [device_status] } }, { topic: pushes } ]"),
                "f.yaml:4:62: the processor tunnel-health writes no events for the topic pushes"),
            Wrong(
                "no connections",
                text(sinks: "[ { postgres: { tables: [device_status], connections: 0 } } ]"),
                "f.yaml:4:62: connections is 0 but must be from 1 to 32"),
            Wrong("no sinks", text(sinks: "[]"), "f.yaml:4:8: sinks names nothing"),
            Wrong("a name", "name: Tunnel Health\n", "f.yaml:1:7: name is up to 63"),
            Wrong("nothing", "", "f.yaml:1:1: the pipeline has no name"),
            Wrong("no YAML", "name: [\n", "f.yaml:2:1:"),
            Wrong(setting: "stale_after: 180", "44: stale_after is a time with its unit"),
            Wrong(setting: "stale_after: 0s", "44: stale_after is 0s but must be from 1s to 1d"),
            Wrong(setting: "stale_after: -5s", "44: stale_after is a time"),
            Wrong(setting: "stale_after: 3 m", "44: stale_after is a time"),
            Wrong(setting: "stale_after: 99999999999999999d", "44: stale_after is a time"),
            Wrong(setting: "recover_after: 0", "46: recover_after is 0 but must be from 1 to 100"),
            Wrong(setting: "recover_after: 2.5", "46: recover_after is a whole number"),
            Wrong(setting: "recover_after: \"2\"", "46: recover_after is a whole number"),
            Wrong(
                setting: "flapping: { transitions: 7 }",
                "56: flapping.transitions is 7 but must be from 0 to 6"),
            Wrong(setting: "flapping: { transitions: 1 }", "56: flapping.transitions is 1"),
            Wrong(
                setting: "ofline_after: 90s",
                "31: unknown key \"ofline_after\" in tunnel-health: did you mean offline_after?"),
            Wrong(
                setting: "offline_after: 1s, jitter: 2s",
                "58: jitter (2s) must be shorter than offline_after (1s)"),
            Wrong(setting: "stale_after: [1s]", "44: stale_after is a time with its unit"),
        ])
    func wrong(_ example: Wrong) {
        let errors = Self.errors(in: example.text)
        #expect(errors.contains { $0.hasPrefix(example.error) }, "\(errors)")
    }

    @Test("All errors of a file are told at once, in order") func allErrors() {
        let errors = Self.errors(
            in: Self.text(
                source: "{ topic: nothing }",
                processor: "{ tunnel-health: { stale_after: 5, recover_after: 0 } }",
                more:
                    "tests:\n  - { name: x, given: [], expect: [ { device: d1, state: ofline } ] }\n"
            ))
        #expect(errors.count == 4, "\(errors)")
    }
}

extension PipelineFileTests {
    static func text(source: String, processor: String, more: String) -> String {
        text(processor: processor, source: source, more: more)
    }
}

@Suite("Cases in pipeline files") struct PipelineCasesTests {
    static func file(_ tests: String, settings: String = "{}") throws -> PipelineFile {
        try PipelineFileTests.parse(
            PipelineFileTests.text(
                processor: "{ tunnel-health: \(settings) }", more: "tests:\n\(tests)"))
    }

    static func errors(_ tests: String) -> [String] {
        PipelineFileTests.errors(in: PipelineFileTests.text(more: "tests:\n\(tests)"))
    }

    @Test("The design's own cases hold word for word") func designCases() throws {
        let file = try Self.file(
            """
              - name: silence is offline after three intervals
                given: [ { at: 0s, heartbeat: { device: d1, tunnel_up: true, handshake_age: 10s } }, { beacons: every 5s, until: 95s } ]
                expect: [ { device: d1, state: offline, at: 90s } ]
              - name: no beacons, no judgement
                given: [ { at: 0s, heartbeat: { device: d1, tunnel_up: true, handshake_age: 10s } }, { at: 1h, beacon: true } ]
                expect: [ { device: d1, state: healthy } ]

            """)
        let results = file.runCases()
        #expect(results.count == 2)
        #expect(results.allSatisfy { $0.differences.isEmpty }, "\(results)")
    }

    @Test("A case that does not hold tells what was expected and what came") func failing() throws {
        let file = try Self.file(
            """
              - name: wrong
                given:
                  - { at: 0s, heartbeat: { device: d1, tunnel_up: true, handshake_age: 10s } }
                  - { beacons: every 5s, until: 95s }
                expect:
                  - { device: d1, state: healthy, at: 1s, reason: x, flapping: true, alerts: [], history: [stale] }

            """)
        let differences = try #require(file.runCases().first).differences
        #expect(
            differences.map { "\($0.mark) \($0.what): \($0.expected) / \($0.got)" } == [
                "11:9 d1: state: healthy / offline",
                "11:9 d1: at: 1s / 90s",
                "11:9 d1: reason: x / silent",
                "11:9 d1: flapping: true / false",
                "11:9 d1: history: stale / healthy, offline",
                "11:9 d1: alerts: none / offline",
            ])
    }

    @Test("The file's settings are in force") func settings() throws {
        let tests = """
              - name: quick
                given:
                  - { at: 0s, heartbeat: { device: d1, tunnel_up: true, handshake_age: 1s } }
                  - { beacons: every 1s, until: 10s }
                expect: [ { device: d1, state: offline, at: 5s } ]

            """
        let quick = try Self.file(tests, settings: "{ offline_after: 5s }")
        #expect(quick.runCases().allSatisfy { $0.differences.isEmpty })
        let slow = try Self.file(tests)
        #expect(slow.runCases().allSatisfy { !$0.differences.isEmpty })
    }

    @Test("A device that flaps is said to flap") func flapping() throws {
        let file = try Self.file(
            """
              - name: flaps
                given:
                  - { at: 0s, every: 20s, until: 100s, heartbeat: { device: d1, tunnel_up: true, handshake_age: 1s } }
                  - { at: 10s, every: 20s, until: 110s, heartbeat: { device: d1, tunnel_up: false } }
                  - { beacons: every 5s, until: 110s }
                expect: [ { device: d1, flapping: true, alerts: [flapping] } ]

            """, settings: "{ down_after: 1, recover_after: 1 }")
        #expect(file.runCases().allSatisfy { $0.differences.isEmpty }, "\(file.runCases())")
    }

    @Test(
        "What is wrong with a case is told with its place",
        arguments: [
            (
                "  - { name: x, given: [ { heartbeat: { device: d } } ], expect: [ { device: d, state: healthy } ] }\n",
                "f.yaml:6:25: the step has no at"
            ),
            (
                "  - { name: x, given: [ { at: 0s, beacn: true } ], expect: [ { device: d, state: healthy } ] }\n",
                "f.yaml:6:35: unknown key \"beacn\" in a step: did you mean beacon?"
            ),
            (
                "  - { name: x, given: [ { beacons: 5s, until: 9s } ], expect: [] }\n",
                "f.yaml:6:36: beacons is as \"every 5s\", not \"5s\""
            ),
            (
                "  - { name: x, given: [ { beacons: every 5s } ], expect: [] }\n",
                "f.yaml:6:25: the step repeats without an end"
            ),
            (
                "  - { name: x, given: [ { beacons: every 1ms, until: 30d } ], expect: [] }\n",
                "f.yaml:6:25: the step makes more than 100000 records"
            ),
            (
                "  - { name: x, given: [ { at: 0s, heartbeat: { device: d1 } } ], expect: [ { device: d2, state: healthy } ] }\n",
                "f.yaml:6:76: nothing is given of d2: did you mean d1?"
            ),
            (
                "  - { name: x, given: [ { at: 0s, heartbeat: { device: d1 } } ], expect: [ { device: d1, state: helthy } ] }\n",
                "f.yaml:6:97: unknown state \"helthy\": did you mean healthy?"
            ),
            (
                "  - { name: x, given: [ { at: 0s, heartbeat: { device: d1, tunnel_up: 1 } } ], expect: [] }\n",
                "f.yaml:6:71: tunnel_up is true or false, not \"1\""
            ),
            (
                "  - { name: x, given: [ { at: 0s, heartbeat: { device: d1 }, beacon: true } ], expect: [] }\n",
                "f.yaml:6:25: a step is one of heartbeat, beacon"
            ),
            ("  - { name: x, given: [] }\n", "f.yaml:6:5: the test has no expect"),
        ])
    func wrong(_ tests: String, _ expected: String) {
        let errors = Self.errors(tests)
        #expect(errors.contains { $0.hasPrefix(expected) }, "\(errors)")
    }
}
