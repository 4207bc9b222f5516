import Bytes
import Foundation
import Metrics
import Schemas
import System
import TestSupport
import Testing

/// `/metrics` of a running instance, and what `deploy/` and the documents make of it.
@Suite("Metrics of a running instance", .serialized) struct MetricsTests {
    private static let folder = URL(filePath: #filePath).deletingLastPathComponent()
        .appending(path: "../..").standardizedFileURL

    static func file(_ path: String) throws -> String {
        try String(contentsOf: folder.appending(path: path), encoding: .utf8)
    }

    private static let promtool = "/usr/bin/promtool"

    /// Runs promtool, which Debian's package `prometheus` brings.
    private static func promtool(_ words: [String], input: String? = nil) async throws -> String {
        try #require(
            FileSystem.isExecutable(promtool),
            "the package prometheus is not installed: scripts/bootstrap test does it")
        let process = try HeartlineProcess(words, executable: promtool, input: input)
        let status = await process.waitForEnd()
        let text = process.output() + process.errors()
        #expect(status == 0, "promtool \(words): \(text)")
        return text
    }

    /// Every name of ours in a text: with `heartline_` or `process_`.
    private static func names(in text: String) -> Set<String> {
        Set(
            text.matches(of: /\b(?:heartline|process)_[a-z0-9_]+/).map { String($0.output) })
    }

    /// The family's name, without the ending of a histogram's part.
    private static func family(_ name: String, _ reading: MetricsReading) -> String {
        for ending in ["_bucket", "_sum", "_count"] where name.hasSuffix(ending) {
            let family = String(name.dropLast(ending.count))
            if reading.types[family] == "histogram" { return family }
        }
        return name
    }

    private func page(_ heartline: RunningHeartline, token: String?) throws -> RawResponse {
        let place = try #require(URL(string: heartline.places.admin))
        let client = try RawClient(
            host: try #require(place.host()), port: UInt16(try #require(place.port)))
        return try client.request(
            "GET", "/metrics", body: [],
            headers: token.map { ["Authorization: Bearer \($0)"] } ?? [])
    }

    @Test(
        "promtool takes the page; what rules, dashboard and documents name is on it, and the other way round"
    )
    func names() async throws {
        let heartline = try await RunningHeartline()
        let token = try String(contentsOfFile: heartline.data + "/admin-token", encoding: .utf8)
            .trimmingCharacters(in: .whitespacesAndNewlines)
        let device = try #require(try await heartline.addDevices(1).first)
        #expect(try heartline.heartbeat(device).status == 200)
        // What the database knows comes a moment later than the rest.
        var text = ""
        let isComplete = try await holds(within: 60) {
            text = try page(heartline, token: token).text
            let reading = MetricsReading(text)
            return reading.types["heartline_alerts_open"] != nil
                && reading.sum("heartline_pipeline_commit_duration_seconds_count") ?? 0 > 0
                && reading.sum("heartline_devices") == 1
        }
        #expect(isComplete, "\(text)")
        let answer = try page(heartline, token: token)
        #expect(answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8")
        let checked = try await Self.promtool(["check", "metrics"], input: text)
        // It tells of what it does not like, and ends well all the same.
        #expect(checked.isEmpty, "\(checked)")

        let reading = MetricsReading(text)
        let known = Set(reading.types.keys)
        #expect(
            reading.sum("heartline_heartbeats_total", ["result": "accepted"]) == 1)
        #expect(
            reading.sum(
                "heartline_http_responses_total",
                ["route": "/api/v1/heartbeat", "status": "2xx"]) == 1)
        #expect(reading.sum("heartline_ready") == 1)
        #expect(reading.sum("process_resident_memory_bytes") ?? 0 > 1e6)
        #expect(reading.sum("process_open_fds") ?? 0 > 10)
        // On Kafka, or with TLS, only.
        let elsewhere: Set = [
            "heartline_spool_bytes", "heartline_spool_limit_bytes", "heartline_spool_active",
            "heartline_tls_certificate_expiry_timestamp_seconds",
        ]
        for path in ["deploy/prometheus/heartline.rules.yml", "deploy/grafana/heartline.json"] {
            let used = Self.names(in: try Self.file(path)).map { Self.family($0, reading) }
            #expect(used.count > 10, "\(path)")
            #expect(Set(used).subtracting(known).subtracting(elsewhere).isEmpty, "\(path)")
        }
        // The table of the documents has each of them, and nothing else.
        let document = try Self.file("docs/operations.md")
        let rows = document.matches(of: #/(?m)^\| `((?:heartline|process)_[a-z0-9_]+)` \| (\w+) /#)
        let documented = Dictionary(
            rows.map { (String($0.output.1), String($0.output.2)) }, uniquingKeysWith: { a, _ in a }
        )
        #expect(documented.count == rows.count)
        #expect(Set(documented.keys) == known.union(elsewhere))
        let sources =
            try Self.file("Sources/heartline/Instance.swift")
            + Self.file("Sources/Ingest/FrontEnd+Metrics.swift")
        for name in elsewhere { #expect(sources.contains("\"\(name)\""), "\(name)") }
        for (name, type) in reading.types { #expect(documented[name] == type, "\(name)") }
        // With the words of the page itself.
        for match in text.matches(of: #/(?m)^\# HELP (\w+) (.*)$/#) {
            let (name, help) = (match.output.1, match.output.2)
            #expect(
                document.contains("| `\(name)` | \(documented[String(name)] ?? "") | ")
                    && document.contains(" | \(help) |\n"), "\(name): \(help)")
        }
        #expect(await heartline.stop() == 0)
    }

    /// A Prometheus of the test's own, with the example's configuration but for its places.
    @Test("a real Prometheus reads it by the example, and understands every query of the dashboard")
    func scraped() async throws {
        let server = "/usr/bin/prometheus"
        try #require(
            FileSystem.isExecutable(server),
            "the package prometheus is not installed: scripts/bootstrap test does it")
        let heartline = try await RunningHeartline()
        let device = try #require(try await heartline.addDevices(1).first)
        #expect(try heartline.heartbeat(device).status == 200)
        let folder = heartline.folder
        let example = try Self.file("deploy/prometheus/prometheus.example.yml")
        let target = try #require(URL(string: heartline.places.admin))
        let configuration =
            example
            .replacing("15s", with: "1s")
            .replacing("127.0.0.1:8081", with: "127.0.0.1:\(try #require(target.port))")
            .replacing(
                "/etc/prometheus/heartline-token", with: heartline.data + "/admin-token")
        _ = try folder.write(configuration, to: "prometheus.yml")
        _ = try folder.write(
            try Self.file("deploy/prometheus/heartline.rules.yml"), to: "heartline.rules.yml")
        let prometheus = try HeartlineProcess(
            [
                "--config.file=\(folder.path)/prometheus.yml",
                "--storage.tsdb.path=\(folder.path)/prometheus",
                "--web.listen-address=127.0.0.1:0",
            ], executable: server)
        var port: UInt16?
        let isUp = await holds(within: 60) {
            let found = prometheus.errors().firstMatch(
                of: /"Listening on" address=127\.0\.0\.1:(\d+)/)
            port = found.flatMap { UInt16($0.output.1) }
            return port != nil || prometheus.hasEnded
        }
        let listening = try #require(isUp ? port : nil, "\(prometheus.errors())")
        struct Answer: Decodable {
            struct Data: Decodable {
                struct Result: Decodable { var metric: [String: String] }
                var result: [Result]
            }
            var status: String
            var data: Data?
            var error: String?
        }
        func query(_ text: String) throws -> Answer {
            let words = text.utf8.map { String(format: "%%%02X", $0) }.joined()
            let answer = try RawClient(host: "127.0.0.1", port: listening).request(
                "GET", "/api/v1/query?query=\(words)", body: [])
            return try JSONDecoder().decode(Answer.self, from: Foundation.Data(answer.body.bytes))
        }
        let isRead = await holds(within: 60) {
            let ready = try? query(
                "heartline_ready == 1 and on(instance) up{job=\"heartline\"} == 1")
            // Rates need two readings.
            let rate = try? query("rate(heartline_heartbeats_total{result=\"accepted\"}[1m])")
            return ready?.data?.result.count == 1 && rate?.data?.result.count == 1
        }
        #expect(isRead, "\(prometheus.errors())")
        struct Dashboard: Decodable {
            struct Panel: Decodable {
                struct Target: Decodable { var expr: String }
                var title: String
                var targets: [Target]
            }
            var panels: [Panel]
        }
        let board = try JSONDecoder().decode(
            Dashboard.self,
            from: Foundation.Data(try Self.file("deploy/grafana/heartline.json").utf8))
        var empty: [String] = []
        for panel in board.panels {
            for target in panel.targets {
                let answer = try query(target.expr.replacing("$instance", with: ".*"))
                #expect(
                    answer.status == "success",
                    "\(panel.title): \(target.expr): \(answer.error ?? "")")
                if answer.data?.result.isEmpty != false { empty.append(target.expr) }
            }
        }
        // Nobody asks other routes here, and nothing is spooled without Kafka.
        #expect(
            empty.allSatisfy { $0.contains("route!=") || $0.contains("heartline_spool_bytes") },
            "\(empty)")
        let firing = try query("ALERTS{alertstate=\"firing\"}")
        #expect(firing.data?.result.map { $0.metric["alertname"] ?? "" } == [])
        prometheus.send(SIGTERM)
        _ = await prometheus.waitForEnd()
        #expect(await heartline.stop() == 0)
    }

    @Test("it takes the operators' token, or one of its own that is good for nothing else")
    func tokens() async throws {
        let folder = try TemporaryFolder()
        let token = String(repeating: "m-", count: 20)
        let file = try folder.write(token + "\n", to: "metrics-token")
        try FileSystem.setMode(file, 0o600)
        let (certificate, key) = ("\(folder.path)/live.pem", "\(folder.path)/live.key")
        let openssl = try HeartlineProcess(
            [
                "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
                "-nodes", "-days", "2", "-subj", "/CN=live", "-keyout", key, "-out", certificate,
            ], executable: "/usr/bin/openssl")
        #expect(await openssl.waitForEnd() == 0)
        let heartline = try await RunningHeartline(
            in: folder,
            [
                "--metrics-token-file", file, "--tls-certificate", certificate, "--tls-key", key,
            ])
        #expect(try page(heartline, token: nil).status == 401)
        #expect(try page(heartline, token: token + "x").status == 401)
        #expect(try page(heartline, token: token).status == 200)
        let place = try #require(URL(string: heartline.places.admin))
        let client = try RawClient(
            host: try #require(place.host()), port: UInt16(try #require(place.port)))
        let header = ["Authorization: Bearer \(token)"]
        #expect(
            try client.request("GET", "/admin/v1/devices", body: [], headers: header).status == 401)
        #expect(try client.request("POST", "/metrics", body: [], headers: header).status == 405)
        let reading = MetricsReading(try page(heartline, token: token).text)
        let end = try #require(
            reading.sum("heartline_tls_certificate_expiry_timestamp_seconds"))
        let left = end - Double(SystemClock.wallMilliseconds()) / 1_000
        #expect(left > 86_400 && left <= 2 * 86_400)
        #expect(!(try page(heartline, token: token).text.contains(token)))
        #expect(await heartline.stop() == 0)
    }

    @Test("the roles ingest and process tell theirs as well")
    func roles() async throws {
        let installation = try await SplitInstallation(settings: "refresh: 0s")
        let token = String(repeating: "m-", count: 20)
        let file = try installation.folder.write(token, to: "metrics-token")
        try FileSystem.setMode(file, 0o600)
        let front = try await installation.startFrontEnd("a", ["--metrics-token-file", file])
        let workers = try await installation.startPipelines([
            "--admin", "127.0.0.1:0", "--metrics-token-file", file,
        ])
        var readings: [MetricsReading] = []
        for process in [front.process, workers] {
            let words = process.output().split(whereSeparator: \.isWhitespace)
            let admin = try #require(words.first { $0.hasSuffix("/readyz") }).dropLast(7)
            let place = try #require(URL(string: String(admin)))
            let client = try RawClient(
                host: try #require(place.host()), port: UInt16(try #require(place.port)))
            #expect(try client.request("GET", "/metrics", body: []).status == 401)
            let answer = try client.request(
                "GET", "/metrics", body: [], headers: ["Authorization: Bearer \(token)"])
            #expect(answer.status == 200)
            readings.append(MetricsReading(answer.text))
        }
        let (ingest, process) = (Set(readings[0].types.keys), Set(readings[1].types.keys))
        #expect(ingest.contains("heartline_heartbeats_total"))
        #expect(!process.contains("heartline_heartbeats_total"))
        #expect(process.contains("heartline_pipeline_lag_seconds"))
        #expect(!ingest.contains("heartline_pipeline_lag_seconds"))
        #expect(ingest.intersection(process).contains("heartline_ready"))
        _ = await front.stop()
        workers.send(SIGTERM)
        _ = await workers.waitForEnd()
    }

    @Test("promtool takes the rules, and each rule keeps still and speaks when it should")
    func rules() async throws {
        let folder = Self.folder.path(percentEncoded: false) + "/deploy/prometheus"
        _ = try await Self.promtool(["check", "rules", folder + "/heartline.rules.yml"])
        _ = try await Self.promtool(["test", "rules", folder + "/heartline.rules.test.yml"])
        _ = try await Self.promtool([
            "check", "config", "--syntax-only", folder + "/prometheus.example.yml",
        ])
        // No rule without a case.
        let rules = try Self.file("deploy/prometheus/heartline.rules.yml")
            .matches(of: /- alert: (\w+)/).map { String($0.output.1) }
        let cases = try Self.file("deploy/prometheus/heartline.rules.test.yml")
        #expect(rules.count >= 15)
        for rule in rules {
            #expect(cases.contains("alertname: \(rule), exp_alerts: []"), "\(rule) keeps still")
            #expect(cases.contains("alertname: \(rule)\n"), "\(rule) speaks")
        }
    }

    @Test("the dashboard is one that Grafana reads: panels with places, queries and a data source")
    func dashboard() throws {
        struct Dashboard: Decodable {
            struct Panel: Decodable {
                struct Target: Decodable { var expr: String }
                struct Place: Decodable {
                    var x: Int
                    var y: Int
                    var w: Int
                    var h: Int
                }
                var id: Int
                var title: String
                var gridPos: Place
                var targets: [Target]
            }
            var uid: String
            var panels: [Panel]
        }
        let text = try Self.file("deploy/grafana/heartline.json")
        let board = try JSONDecoder().decode(Dashboard.self, from: Data(text.utf8))
        #expect(board.uid == "heartline")
        #expect(Set(board.panels.map(\.id)).count == board.panels.count)
        var taken: Set<[Int]> = []
        for panel in board.panels {
            #expect(!panel.title.isEmpty && !panel.targets.isEmpty)
            #expect(panel.targets.allSatisfy { $0.expr.contains("$instance") }, "\(panel.title)")
            for x in panel.gridPos.x..<panel.gridPos.x + panel.gridPos.w {
                #expect(x < 24)
                for y in panel.gridPos.y..<panel.gridPos.y + panel.gridPos.h {
                    #expect(taken.insert([x, y]).inserted, "\(panel.title) lies on another")
                }
            }
        }
    }
}
