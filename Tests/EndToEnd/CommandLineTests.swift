import Testing

@Suite("The command line") struct CommandLineTests {
    @Test("Without a command the overview goes to standard error, with exit code 2")
    func noCommand() async throws {
        let outcome = try await Executable.run([])
        #expect(outcome.status == 2)
        #expect(outcome.output == "")
        #expect(outcome.errors.contains("usage: heartline COMMAND"))
    }

    @Test("Help goes to standard output, with exit code 0", arguments: ["--help", "-h", "help"])
    func help(_ word: String) async throws {
        let outcome = try await Executable.run([word])
        #expect(outcome.status == 0)
        #expect(outcome.errors == "")
        for command in ["up", "demo", "device add", "pipeline lint", "status", "simulate"] {
            #expect(outcome.output.contains("\n  \(command) "), "\(command)")
        }
    }

    @Test("Every command has help of its own with its options") func commandHelp() async throws {
        let overview = try await Executable.run(["--help"]).output
        let rows = overview.split(separator: "\n").filter { $0.hasPrefix("  ") }
        #expect(rows.count >= 12)
        for row in rows {
            let name = String(row.dropFirst(2).prefix { $0 != " " })
            let second = row.dropFirst(2 + name.count + 1).prefix { $0 != " " }
            let words = second.isEmpty ? [name] : [name, String(second)]
            let outcome = try await Executable.run(words + ["--help"])
            #expect(outcome.status == 0, "\(words)")
            #expect(outcome.output.hasPrefix("usage: heartline \(words.joined(separator: " "))"))
            #expect(outcome.output.contains("--help"))
        }
    }

    @Test("A mistyped command or option is told with the nearest name, with exit code 2")
    func mistyped() async throws {
        let command = try await Executable.run(["pipelin"])
        #expect(command.status == 2)
        #expect(command.errors.contains("did you mean heartline pipeline?"))
        let second = try await Executable.run(["pipeline", "lnt"])
        #expect(second.status == 2)
        #expect(second.errors.contains("did you mean heartline pipeline lint?"))
        let option = try await Executable.run(["version", "--jsno"])
        #expect(option.status == 2)
        #expect(option.output == "")
        #expect(option.errors.contains("unknown option --jsno: did you mean --json?"))
        #expect(option.errors.contains("heartline version --help"))
    }

    @Test(
        "A value that cannot be is refused before anything is done",
        arguments: [
            (["up", "--listen", "example.org:80"], "--listen is an IP address and a port"),
            (["up", "--listen", "127.0.0.1:99999"], "--listen is an IP address and a port"),
            (["up", "--data"], "--data needs a value"),
            (["up", "--data", "/tmp/a", "--data=/tmp/b"], "--data is given twice"),
            (["up", "here"], "unexpected \"here\""),
            (["up", "-d", "x"], "options are long"),
            (["demo", "--duration", "60"], "--duration is a time with its unit"),
            (["device", "add", "--count", "0"], "--count is a whole number from 1 to"),
            (["device", "show"], "missing ID"),
            (["version", "--json=maybe"], "--json is true or false"),
        ] as [([String], String)])
    func refused(_ words: [String], _ message: String) async throws {
        let outcome = try await Executable.run(words)
        #expect(outcome.status == 2)
        #expect(outcome.output == "")
        #expect(outcome.errors.contains(message), "\(outcome.errors)")
    }

    @Test("Options come as two words, as one, and from the environment") func options() async throws
    {
        let folder = try TemporaryFolder()
        let path = try folder.write("name: x\n", to: "x.yaml")
        for (words, environment) in [
            (["pipeline", "lint", "--pipelines", folder.path], [:]),
            (["pipeline", "lint", "--pipelines=\(folder.path)"], [:]),
            (["pipeline", "lint"], ["HEARTLINE_PIPELINES": folder.path]),
            (
                ["pipeline", "lint", "--pipelines=\(folder.path)"],
                ["HEARTLINE_PIPELINES": "/nowhere"]
            ),
            (["pipeline", "lint", "--", path], [:]),
        ] as [([String], [String: String])] {
            let outcome = try await Executable.run(words, environment: environment)
            #expect(outcome.status == 1)
            #expect(outcome.errors.contains("\(path):1:1: the pipeline has no source"), "\(words)")
        }
    }

    @Test("The version is printed for people and for programs") func version() async throws {
        let plain = try await Executable.run(["version"])
        #expect(plain.output.hasPrefix("heartline "))
        let json = try await Executable.run(["version"], environment: ["HEARTLINE_JSON": "1"])
        #expect(json.output.hasPrefix("{\"version\":\""))
    }

    @Test("The cases of a file are run, and one that does not hold fails the command")
    func pipelineTest() async throws {
        let folder = try TemporaryFolder()
        let path = try folder.write(
            """
            name: health
            source: { topic: heartbeats }
            processor: { tunnel-health: {} }
            sinks: [ { topic: alerts } ]
            tests:
              - name: holds
                given: [ { at: 0s, heartbeat: { device: d1, tunnel_up: true, handshake_age: 1s } } ]
                expect: [ { device: d1, state: healthy } ]
              - name: does not hold
                given: [ { at: 0s, heartbeat: { device: d1, tunnel_up: true, handshake_age: 1s } } ]
                expect: [ { device: d1, state: down } ]

            """, to: "health.yaml")
        let outcome = try await Executable.run(["pipeline", "test", path])
        #expect(outcome.status == 1)
        #expect(outcome.output.contains("ok      holds"))
        #expect(outcome.output.contains("FAILED  does not hold (\(path):9:5)"))
        #expect(
            outcome.output.contains(
                "\(path):11:15: d1: state\n    expected  down\n    got       healthy"))
        #expect(outcome.output.contains("1 passed, 1 failed"))
    }
}
