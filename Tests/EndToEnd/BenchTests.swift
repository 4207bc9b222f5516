import Foundation
import System
import TestSupport
import Testing

/// Every measurement with the smallest sizes, so that none of them rots. What they measure here says
/// nothing of speed.
@Suite("Measurements") struct BenchTests {
    private static let root = URL(filePath: #filePath).deletingLastPathComponent()
        .appending(path: "../..").standardizedFileURL.path(percentEncoded: false)

    private struct Journal: Decodable {
        struct Figure: Decodable {
            var measure: String
            var value: Double
            var unit: String
            var yardstick: String?
            var yardstick_value: Double?
            var ratio: Double?
        }
        struct Section: Decodable {
            var name: String
            var lines: [String]
            var figures: [Figure]
        }
        struct Machine: Decodable { var cores: Int }
        var machine: Machine
        var sections: [Section]
    }

    private static func isThere(_ program: String) -> Bool {
        ["/usr/sbin/", "/usr/bin/", "/usr/local/bin/"].contains {
            FileSystem.isExecutable($0 + program)
        }
    }

    private func read(_ path: String) throws -> Journal {
        try JSONDecoder().decode(Journal.self, from: Data(contentsOf: URL(filePath: path)))
    }

    /// What each measurement stands beside in the same run.
    static let measurements: [(name: String, yardstick: String)] = [
        ("processor", "a straight line from 1000 devices"),
        ("worker", "raw drain of the same log"),
        ("changes", "best batch upsert of the same rows"),
        ("restart", "COPY of the device table"),
        ("replay", "the pipeline's own first reading"),
        ("telemetry", "heartbeats on the same front-end"),
        ("provision", "X25519 key pairs on one core"),
        ("rollout", "a heartbeat's round trip"),
        ("coldstart", "what it may take"),
        ("return", "the second in which they came"),
        ("kafka", "raw librdkafka drain of the same topic"),
    ]

    @Test(
        "works, and prints its ratio beside its yardstick", .timeLimit(.minutes(10)),
        arguments: measurements)
    func measures(_ measurement: (name: String, yardstick: String)) async throws {
        let folder = try TemporaryFolder()
        let file = "\(folder.path)/figures.json"
        let outcome = try await Executable.run([
            "bench", measurement.name, "--quick", "--json", file,
        ])
        try #require(outcome.status == 0, "\(outcome.errors)")
        let journal = try read(file)
        #expect(journal.machine.cores > 0)
        #expect(journal.sections.map(\.name) == [measurement.name])
        let section = try #require(journal.sections.first)
        #expect(section.lines.joined(separator: "\n") + "\n" == outcome.output)
        let beside = section.figures.filter { $0.yardstick == measurement.yardstick }
        #expect(!beside.isEmpty, "\(section.figures)")
        for figure in beside {
            let yardstick = try #require(figure.yardstick_value)
            #expect(figure.value > 0 && yardstick > 0, "\(figure)")
            #expect(abs(try #require(figure.ratio) - figure.value / yardstick) < 1e-6)
        }
    }

    @Test("those without a yardstick work too", .timeLimit(.minutes(10)))
    func others() async throws {
        let folder = try TemporaryFolder()
        let file = "\(folder.path)/figures.json"
        let outcome = try await Executable.run([
            "bench", "waves", "updates", "--quick", "--json", file,
        ])
        try #require(outcome.status == 0, "\(outcome.errors)")
        let journal = try read(file)
        #expect(journal.sections.map(\.name) == ["waves", "updates"])
        #expect(journal.sections.allSatisfy { $0.figures.allSatisfy { $0.value > 0 } })
        #expect(outcome.output.contains("first event: p50"))
        // The page of a run, with the measures that it lacks.
        try FileSystem.rename(file, to: "\(folder.path)/heartline.json")
        let page = try HeartlineProcess(
            [
                folder.path, "--page", "\(folder.path)/page.md", "--json",
                "\(folder.path)/page.json",
            ],
            executable: "\(Self.root)/scripts/performance")
        try #require(await page.waitForEnd() == 0, "\(page.errors())")
        let text = try FileSystem.read("\(folder.path)/page.md")
        #expect(text.contains("| memory of a stream of updates |"))
        #expect(text.contains("Not measured in this run: heartbeats accepted beside nginx"))
        #expect(try read("\(folder.path)/page.json").sections.count == 2)
    }

    @Test(
        "heartbeats are measured beside nginx", .timeLimit(.minutes(10)),
        .enabled(
            if: isThere("nginx") && isThere("wrk"), "scripts/bootstrap test installs what it needs"
        ))
    func besideNginx() async throws {
        let folder = try TemporaryFolder()
        let bench = try HeartlineProcess(
            [
                "--heartline", Executable.url.path, "--rounds", "1", "--seconds", "1", "--devices",
                "20", "--connections", "4", "--json", "\(folder.path)/heartbeats.json",
            ], executable: "\(Self.root)/scripts/bench")
        try #require(await bench.waitForEnd() == 0, "\(bench.errors())")
        #expect(bench.output().contains("  ratio "))
        struct Ratio: Decodable { var ratio: Double }
        let data = try Data(contentsOf: URL(filePath: "\(folder.path)/heartbeats.json"))
        #expect(try JSONDecoder().decode(Ratio.self, from: data).ratio > 0)
    }

    @Test("pushes are measured from outside", .timeLimit(.minutes(10)))
    func fromOutside() async throws {
        let folder = try TemporaryFolder()
        let bench = try HeartlineProcess(
            [
                "--heartline", Executable.url.path, "--json", "\(folder.path)/pushes.json",
                "--pairs", "5",
            ], executable: "\(Self.root)/Benchmarks/pushes.py")
        try #require(await bench.waitForEnd() == 0, "\(bench.errors())")
        #expect(bench.output().contains("  ratio "), "\(bench.output())")
        // The page takes it in, and says what it lacks.
        _ = try folder.write(
            """
            {"version":"0","started":"now","machine":{"processor":"p","cores":1,"memory_mib":1,\
            "kernel":"k","load":0},"devices":1,"sections":[]}
            """, to: "heartline.json")
        let page = try HeartlineProcess(
            [
                folder.path, "--page", "\(folder.path)/page.md", "--json",
                "\(folder.path)/page.json",
            ],
            executable: "\(Self.root)/scripts/performance")
        try #require(await page.waitForEnd() == 0, "\(page.errors())")
        let text = try FileSystem.read("\(folder.path)/page.md")
        #expect(text.contains("| second wave to both pushes, p99 |"))
        #expect(
            text.contains("Not measured in this run: heartbeats accepted beside nginx, memory of"))
    }

    @Test("idle sockets are measured from outside", .timeLimit(.minutes(10)))
    func sockets() async throws {
        let folder = try TemporaryFolder()
        let bench = try HeartlineProcess(
            [
                "--heartline", Executable.url.path, "--json", "\(folder.path)/sockets.json",
                "--count", "40",
            ], executable: "\(Self.root)/Benchmarks/sockets.py")
        try #require(await bench.waitForEnd() == 0, "\(bench.errors())")
        struct Outcome: Decodable { var open: Int }
        let data = try Data(contentsOf: URL(filePath: "\(folder.path)/sockets.json"))
        #expect(try JSONDecoder().decode(Outcome.self, from: data).open == 40)
        #expect(bench.output().contains("KiB each"), "\(bench.output())")
    }

    private struct SoakResult: Decodable {
        struct Check: Decodable {
            var what: String
            var expected: String
            var found: String
            var holds: Bool
        }
        struct Kill: Decodable {
            var process: String
            var recovered_ms: Int?
        }
        struct Memory: Decodable { var process: String }
        var checks: [Check]
        var kills: [Kill]
        var memory: [Memory]
    }

    @Test(
        "a short soak: workers are killed, nothing is lost, and the tables are a clean pass's",
        .timeLimit(.minutes(15)))
    func soak() async throws {
        let folder = try TemporaryFolder()
        let (json, page) = ("\(folder.path)/soak.json", "\(folder.path)/soak.md")
        let outcome = try await Executable.run([
            "soak", "--duration", "30s", "--kill-every", "7s", "--devices", "60", "--people", "15",
            "--rate", "100", "--apps", "6", "--json", json, "--report", page,
        ])
        let result = try JSONDecoder().decode(
            SoakResult.self, from: Data(contentsOf: URL(filePath: json)))
        // Half a minute says nothing of memory, so that alone may be why it says that not all held.
        for check in result.checks { #expect(check.holds, "\(check)") }
        #expect(outcome.errors.contains("a clean pass of tunnel-health"))
        #expect(Set(result.kills.map(\.process)) == ["heartbeats", "others"])
        #expect(result.kills.contains { $0.recovered_ms != nil })
        #expect(result.memory.map(\.process) == ["front-end", "heartbeats", "others"])
        // It is worth nothing if little happened.
        for (table, least) in [
            ("device_state_ended", 20), ("alerts", 1), ("config_versions", 61),
            ("config_delivery", 20), ("connections", 5), ("pushes", 20), ("encounter_reports", 5),
            ("messages", 5), ("agent_logs", 50), ("installations", 6), ("update_attempts", 12),
        ] {
            let check = try #require(result.checks.first { $0.what.hasPrefix("rows of \(table) ") })
            #expect(try #require(Int(check.expected)) >= least, "\(table)")
        }
        #expect(try FileSystem.read(page).hasPrefix("# Soak\n"))
    }
}
