import Foundation
import Pipeline
import Processors
import Testing

@Suite("Pipeline of telemetry") struct TelemetryPipelineTests {
    private static func text(_ processor: String, more: String = "") -> String {
        """
        name: t
        source: { topic: telemetry }
        processor: { telemetry-rollup: \(processor) }
        sinks: [ { postgres: { tables: [telemetry_minutes, agent_logs] } } ]
        \(more)
        """
    }

    @Test("The delivered file has the defaults, and its cases hold")
    func delivered() throws {
        let path = URL(filePath: #filePath).deletingLastPathComponent()
            .appending(path: "../../pipelines/telemetry-rollup.yaml").path
        let file = try PipelineFile.load(path)
        let builtIn = PipelineFile(builtIn: .telemetryRollup(TelemetryRollupSettings()))
        #expect(file.processor == builtIn.processor)
        #expect(file.tables == builtIn.tables && file.commitInterval == builtIn.commitInterval)
        let results = file.runCases()
        #expect(results.count >= 6)
        for result in results { #expect(result.differences == [], "\(result.name)") }
    }

    @Test("Every setting can be written, and is stored as its canonical text")
    func settings() throws {
        let file = try PipelineFileTests.parse(
            Self.text("{ close_after: 90s, names_per_device: 7, sums: 1000 }"))
        var expected = TelemetryRollupSettings()
        expected.closeAfter = 90_000
        expected.namesPerDevice = 7
        expected.sums = 1_000
        #expect(file.processor == .telemetryRollup(expected))
        #expect(Mirror(reflecting: expected).children.count == 3)
        let stored = ProcessorSettings(expected)
        #expect(stored.text == "close_after 90000\nnames_per_device 7\nsums 1000\n")
        #expect(stored.read(stored.text) == expected)
        #expect(stored.read("sums 1\n") == nil)
        #expect(stored.read("more 1\n") == nil)
        #expect(
            try PipelineFileTests.parse(Self.text("{}")).settingsRevision != file.settingsRevision)
    }

    @Test(
        "Faults are told with their place",
        arguments: [
            ("{ close_after: 31m }", "f.yaml:3:47: close_after is 31m but must be from 0s to 30m"),
            ("{ sums: 99 }", "f.yaml:3:40: sums is 99 but must be from 100 to 10000000"),
            ("{ names: 1 }", "f.yaml:3:34: unknown key \"names\" in telemetry-rollup"),
        ])
    func faults(_ processor: String, _ expected: String) {
        let errors = PipelineFileTests.errors(in: Self.text(processor))
        #expect(errors.contains { $0.hasPrefix(expected) }, "\(errors)")
    }

    @Test("A case that does not hold tells what was expected and what came")
    func failingCase() throws {
        let file = try PipelineFileTests.parse(
            Self.text(
                "{}",
                more: """
                    tests:
                      - name: wrong
                        given:
                          - { at: 0s, sample: { device: d1, name: a, value: 1.5, age: 3s } }
                          - { at: 1s, log: { device: d1, tag: wg, message: up } }
                          - { at: 10m, sample: { device: d1, name: a, value: 1 } }
                        expect:
                          - { device: d1, name: a, minute: 0s, rows: 2, samples: 2, late: 1, sum: 1, min: 2, logs: [ down ] }
                          - { device: d1, name: b, sum: 1 }

                    """))
        let differences = try #require(file.runCases().first).differences
        #expect(
            differences.map { "\($0.what): \($0.expected) / \($0.got)" } == [
                "d1: logs: down / info wg up", "d1: rows: 2 / 1", "d1: samples: 2 / 1",
                "d1: late: 1 / 0", "d1: sum: 1.0 / 1.5", "d1: min: 2.0 / 1.5",
                "d1: minute: one row / 0 rows of telemetry_minutes",
            ])
    }

    @Test("Steps and expectations of other pipelines are errors in this one")
    func steps() {
        let errors = PipelineFileTests.errors(
            in: Self.text(
                "{}",
                more: """
                    tests:
                      - name: t
                        given: [ { at: 0s, heartbeat: { device: d1 } }, { at: 0s, sample: { device: d1, name: a, value: x } } ]
                        expect: [ { device: d1, state: healthy } ]

                    """))
        #expect(errors.contains { $0.contains("unknown key \"heartbeat\" in a step") }, "\(errors)")
        #expect(errors.contains { $0.contains("value is a number") }, "\(errors)")
        #expect(errors.contains { $0.contains("unknown key \"state\"") }, "\(errors)")
    }
}
