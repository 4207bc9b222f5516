import Foundation
import Postgres
import System
import TestSupport
import Testing

/// `heartline doctor` before real faults.
@Suite("heartline doctor") struct DoctorTests {
    struct Report: Decodable {
        struct Check: Decodable, CustomStringConvertible {
            var check: String
            var outcome: String
            var finding: String
            var remedy: String?
            var description: String { "\(outcome) \(check): \(finding) → \(remedy ?? "")" }
        }
        var healthy: Bool
        var checks: [Check]

        func all(_ check: String) -> [Check] { checks.filter { $0.check == check } }
        var failed: [Check] { checks.filter { $0.outcome == "failed" } }
    }

    /// - Parameter environment: of the command.
    static func ask(
        _ words: [String], environment: [String: String] = [:], in folder: String? = nil
    ) async throws -> (status: Int32, report: Report) {
        let outcome = try await Executable.run(
            ["doctor", "--json"] + words, environment: environment, in: folder)
        let report = try JSONDecoder().decode(Report.self, from: Data(outcome.output.utf8))
        #expect(outcome.errors.isEmpty, "\(outcome.errors)")
        // What is not well says what to do; what is well does not.
        for check in report.checks {
            #expect((check.remedy == nil) == (check.outcome == "ok"), "\(check)")
            #expect(!check.finding.isEmpty, "\(check)")
        }
        #expect(report.healthy == report.failed.isEmpty)
        #expect(outcome.status == (report.healthy ? 0 : 1))
        return (outcome.status, report)
    }

    @discardableResult
    private func openssl(_ arguments: [String]) throws -> Int32 {
        let process = Process()
        process.executableURL = URL(fileURLWithPath: "/usr/bin/openssl")
        process.arguments = arguments
        process.standardInput = FileHandle.nullDevice
        process.standardError = FileHandle.nullDevice
        process.standardOutput = FileHandle.nullDevice
        try process.run()
        process.waitUntilExit()
        return process.terminationStatus
    }

    @Test("a healthy instance: every check says so, before, while and after it runs")
    func healthy() async throws {
        let heartline = try await RunningHeartline()
        let (status, report) = try await Self.ask([
            "--data", heartline.data, "--pipelines", "\(heartline.folder.path)/pipelines",
        ])
        #expect(status == 0, "\(report.failed)")
        #expect(report.checks.allSatisfy { $0.outcome == "ok" }, "\(report.checks)")
        for check in [
            "data directory", "disk", "secrets", "database", "schema", "clock", "secret key",
            "log", "pipelines' places", "pipeline files", "instance", "instance's clock",
        ] {
            #expect(report.all(check).count == 1, "\(check)")
        }
        // As people see it.
        let text = try await Executable.run([
            "doctor", "--data", heartline.data, "--pipelines",
            "\(heartline.folder.path)/pipelines",
        ])
        #expect(text.output.hasSuffix("\nAll is well.\n"))
        #expect(text.output.contains("ok       database"))
        #expect(!text.output.contains("\u{1B}"))
        #expect(await heartline.stop() == 0)
        let after = try await Self.ask([
            "--data", heartline.data, "--pipelines", "\(heartline.folder.path)/pipelines",
        ])
        #expect(after.status == 0, "\(after.report.failed)")
        #expect(after.report.all("instance").first?.finding.contains("none runs") == true)
    }

    @Test(
        "secrets that others can read, and one that is gone, are told with the command that mends")
    func secrets() async throws {
        let heartline = try await RunningHeartline()
        let key = "\(heartline.data)/secret-key"
        try FileSystem.setMode(key, 0o644)
        let (_, open) = try await Self.ask(["--data", heartline.data])
        #expect(open.failed.contains { $0.remedy == "chmod 600 \(key)" }, "\(open.failed)")
        let saved = try String(contentsOfFile: key, encoding: .utf8)
        #expect(open.checks.allSatisfy { !$0.description.contains(saved.prefix(16)) })
        // Another installation's key.
        FileSystem.remove(key)
        try FileSystem.write(String(repeating: "ab", count: 32) + "\n", to: key, mode: 0o600)
        let (_, wrong) = try await Self.ask(["--data", heartline.data])
        #expect(wrong.failed.map(\.check) == ["secret key"], "\(wrong.failed)")
        FileSystem.remove(key)
        let (_, gone) = try await Self.ask(["--data", heartline.data])
        #expect(gone.failed.contains { $0.finding.contains("secret-key is gone") })
        // It looks, and makes nothing.
        #expect(!FileSystem.exists(key))
        try FileSystem.write(saved, to: key, mode: 0o600)
        #expect(try await Self.ask(["--data", heartline.data]).status == 0)
        #expect(await heartline.stop() == 0)
    }

    @Test("the database away: the check of it and the instance that needs it fail")
    func databaseAway() async throws {
        let server = try TestServer()
        defer { server.remove() }
        let database = try server.makeDatabase(isMigrated: false)
        let heartline = try await RunningHeartline(["--database", database.url])
        let words = ["--data", heartline.data]
        #expect(try await Self.ask(words).status == 0)
        server.stop()
        #expect(try await holds(within: 60) { try heartline.ready().status == 503 })
        let (status, report) = try await Self.ask(words)
        #expect(status == 1)
        #expect(report.all("database").map(\.outcome) == ["failed"])
        #expect(report.all("database").first?.remedy?.contains("PostgreSQL runs") == true)
        #expect(report.all("instance").contains { $0.outcome == "failed" }, "\(report.checks)")
        // What does not need it is looked at all the same.
        #expect(report.all("log").map(\.outcome) == ["ok"])
        try server.start()
        #expect(try await holds(within: 60) { try heartline.ready().status == 200 })
        #expect(try await Self.ask(words).status == 0)
        #expect(await heartline.stop() == 0)
    }

    @Test("a migration behind, a newer database, one that is none of ours")
    func schema() async throws {
        let database = try TestDatabase.make()
        let connection = try database.connect()
        defer { connection.close() }
        let words = ["--database", database.url, "--data", "/tmp/heartline-none"]
        func schema() async throws -> Report.Check {
            try #require(try await Self.ask(words).report.all("schema").first)
        }
        #expect(try await schema().outcome == "ok")
        let newest = try connection.execute(
            "DELETE FROM heartline.schema_migrations WHERE number = (SELECT max(number) FROM heartline.schema_migrations) RETURNING number"
        ).only().int4(0)
        var check = try await schema()
        #expect(check.outcome == "failed")
        #expect(check.finding.contains("migration \(newest) is not applied"))
        #expect(check.remedy?.contains("heartline migrate") == true)
        try connection.execute(
            "INSERT INTO heartline.schema_migrations (number, name, checksum) VALUES (9999, 'x', 'x')"
        )
        check = try await schema()
        #expect(check.outcome == "failed")
        #expect(check.finding.contains("9999"))
        let empty = try TestDatabase.make(isMigrated: false)
        let (status, report) = try await Self.ask([
            "--database", empty.url, "--data", "/tmp/heartline-none",
        ])
        #expect(status == 1)
        #expect(report.all("schema").first?.outcome == "failed")
    }

    @Test(
        "a clock that is not the database's: a little is a warning, more than devices are judged by a failure",
        arguments: [(0, "ok"), (5, "warning"), (-90, "failed"), (90, "failed")])
    func clock(seconds: Int, outcome: String) async throws {
        let database = try TestDatabase.make()
        let connection = try database.connect()
        defer { connection.close() }
        // Only sessions that begin later see it.
        try connection.run(
            """
            CREATE SCHEMA elsewhere;
            CREATE FUNCTION elsewhere.clock_timestamp() RETURNS timestamptz LANGUAGE sql
                AS $$ SELECT pg_catalog.clock_timestamp() + interval '\(seconds) s' $$;
            DO $$ BEGIN
                EXECUTE format('ALTER DATABASE %I SET search_path = elsewhere, pg_catalog, public',
                               current_database());
            END $$;
            """)
        let (_, report) = try await Self.ask([
            "--database", database.url, "--data", "/tmp/heartline-none",
        ])
        let check = try #require(report.all("clock").first)
        #expect(check.outcome == outcome, "\(check)")
        if abs(seconds) == 90 {
            #expect(
                check.finding
                    == "90 s \(seconds > 0 ? "behind" : "ahead of") the database's", "\(check)")
        }
    }

    @Test("certificates: good, soon over, over, with another key, and no certificate at all")
    func certificates() async throws {
        let folder = try TemporaryFolder()
        for (name, days) in [("good", 60), ("soon", 3), ("over", -1)] {
            let (key, request) = ("\(folder.path)/\(name).key", "\(folder.path)/\(name).csr")
            let made = try openssl([
                "req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
                "-nodes", "-subj", "/CN=\(name)", "-keyout", key, "-out", request,
            ])
            // Unlike `req -x509`, this takes a negative number of days.
            let signed = try openssl([
                "x509", "-req", "-in", request, "-signkey", key, "-days", "\(days)", "-out",
                "\(folder.path)/\(name).pem",
            ])
            try #require(made == 0 && signed == 0)
            try FileSystem.setMode(key, 0o600)
        }
        let database = try TestDatabase.make()
        func check(_ certificate: String, _ key: String) async throws -> Report.Check {
            let (_, report) = try await Self.ask([
                "--database", database.url, "--data", "/tmp/heartline-none", "--tls-certificate",
                "\(folder.path)/\(certificate).pem", "--tls-key", "\(folder.path)/\(key).key",
            ])
            return try #require(report.all("certificate").first)
        }
        let good = try await check("good", "good")
        #expect(good.outcome == "ok")
        #expect(good.finding.contains("valid for 59 days"), "\(good)")
        let soon = try await check("soon", "soon")
        #expect(soon.outcome == "warning")
        #expect(soon.finding.contains("expires in 2 days"), "\(soon)")
        let over = try await check("over", "over")
        #expect(over.outcome == "failed")
        #expect(over.finding.contains("expired 1 day ago"), "\(over)")
        #expect(over.remedy?.contains("SIGHUP") == true)
        let other = try await check("good", "soon")
        #expect(other.outcome == "failed")
        #expect(other.finding.contains("it is not the key of"), "\(other)")
        #expect(try await check("none", "good").outcome == "failed")
        try FileSystem.setMode("\(folder.path)/good.key", 0o644)
        let (_, open) = try await Self.ask([
            "--database", database.url, "--data", "/tmp/heartline-none", "--tls-certificate",
            "\(folder.path)/good.pem", "--tls-key", "\(folder.path)/good.key",
        ])
        #expect(open.all("secrets").first?.finding.contains("by everybody") == true)
    }

    @Test("files with faults, a data directory that is not there, brokers that do not answer")
    func files() async throws {
        let folder = try TemporaryFolder()
        try FileSystem.makeDirectory("\(folder.path)/pipelines", mode: 0o755)
        _ = try folder.write(
            "name: tunnel-health\nsource: { topic: heartbeats }\nprocessor: { tunnel-helth: {} }\n",
            to: "pipelines/health.yaml")
        _ = try folder.write("receivers: 7\n", to: "alerts.yaml")
        _ = try folder.write("nonsense: true\n", to: "updates.yaml")
        let (status, report) = try await Self.ask(
            ["--brokers", "127.0.0.1:1"], in: folder.path)
        #expect(status == 1)
        #expect(
            Set(report.failed.map(\.check))
                == ["data directory", "pipeline files", "alerts file", "updates file", "log"],
            "\(report.checks)")
        #expect(report.all("pipeline files").first?.finding.contains("health.yaml:3:") == true)
        #expect(report.all("data directory").first?.remedy?.contains("heartline up") == true)
        #expect(report.all("log").first?.finding.contains("Kafka") == true)
    }

    @Test("a log that lost what a pipeline still needs, and one that belongs to another database")
    func log() async throws {
        let heartline = try await RunningHeartline()
        let connection = try heartline.connect()
        defer { connection.close() }
        let words = ["--data", heartline.data]
        let device = try #require(try await heartline.addDevices(1).first)
        #expect(try heartline.heartbeat(device).status == 200)
        // The pipeline must not notice before the doctor does.
        heartline.process.send(SIGSTOP)
        defer { heartline.process.send(SIGCONT) }
        try connection.execute(
            """
            INSERT INTO heartline.stream_partitions (pipeline, partition, topic, next_offset, epoch, owner, outbox_sequence, start_offset)
            SELECT 'other', partition, topic, 1000000, epoch, owner, outbox_sequence, start_offset
              FROM heartline.stream_partitions WHERE pipeline = 'tunnel-health' AND partition = 0
            """)
        try connection.execute(
            "UPDATE heartline.topics SET partitions = 7 WHERE topic = 'waves'")
        let (status, report) = try await Self.ask(words)
        #expect(status == 1)
        #expect(
            report.all("log").contains {
                $0.outcome == "failed" && $0.finding.contains("waves has 4 partitions")
            }, "\(report.checks)")
        #expect(
            report.all("pipelines' places").contains {
                $0.outcome == "failed" && $0.finding.contains("before its place 1000000")
            }, "\(report.checks)")
        // A process that does not answer is told as well.
        #expect(
            report.all("instance").contains {
                $0.outcome == "failed" && $0.remedy?.contains("kill") == true
            }, "\(report.checks)")
    }
}
