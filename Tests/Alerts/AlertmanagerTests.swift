import Alerts
import Bytes
import Curl
import Foundation
import Postgres
import Schemas
import Synchronization
import System
import TestSupport
import Testing

/// Debian's own Alertmanager, on the loopback address, with a configuration and a storage of the test's.
@Suite(
    .enabled(
        if: FileSystem.isExecutable(Alertmanager.executable),
        "the package prometheus-alertmanager is not installed: scripts/bootstrap does it"))
struct AlertmanagerTests {
    private let tables: AlertTables

    init() throws { tables = try AlertTables() }

    private func receiver(_ url: String) -> AlertReceiverSettings {
        var manager = AlertmanagerSettings(url: url)
        manager.repeatInterval = 1_000
        manager.usesEnvironmentProxy = false
        manager.batch = 7
        manager.timeout = 60_000
        var settings = AlertReceiverSettings(name: "test", target: .alertmanager(manager))
        settings.retryInitial = 50
        settings.retryLimit = 500
        return settings
    }

    @Test func alertsFireAreRepeatedAreSilencedThereAndResolve() throws {
        let told = Mutex<[String]>([])
        let server = HTTPTestServer { request in
            told.withLock { $0.append(request.body.span.text) }
            return .status(200, "")
        }
        defer { server.stop() }
        let manager = try Alertmanager(webhook: server.url)
        defer { manager.stop() }
        let dispatcher = AlertDispatcher.quick(tables.database, [receiver(manager.url)])
        defer { dispatcher.stop() }
        dispatcher.start()
        try tables.open(1..<20, kind: .stale)
        try eventually("all alerts there") { try manager.alerts().count == 19 }
        let alert = try #require(
            try manager.alerts().first { $0.labels["device_id"]?.hasSuffix("01") == true })
        #expect(alert.labels["alertname"] == "stale")
        #expect(alert.labels["severity"] == "warning")
        #expect(alert.labels["entity"] == nil && alert.labels["alert_id"] == nil)
        let known = try AlertAdministration.alerts(
            tables.connection, device: AlertTables.device(1))
        #expect(alert.annotations["alert_id"] == "\(try #require(known.first).id)")
        #expect(alert.annotations["reason"] == "silent")
        // Each repeat moves its end on.
        let end = alert.endsAt
        try eventually("repeats") {
            try manager.alerts().count { $0.endsAt > end } == 19
        }
        eventually("what it sends to people") {
            told.withLock { $0.contains { $0.contains("\"status\":\"firing\"") } }
        }
        // Silenced there.
        try manager.silence(label: "device_id", value: "\(AlertTables.device(2))")
        try eventually("the silence") {
            try manager.alerts().contains {
                $0.labels["device_id"]?.hasSuffix("02") == true && $0.status.state == "suppressed"
            }
        }
        // Resolved alerts are not listed any more, and people are told.
        try tables.resolve(1..<20, kind: .stale)
        try eventually("no alert there") { try manager.alerts().isEmpty }
        eventually("the resolve") {
            told.withLock { $0.contains { $0.contains("\"status\":\"resolved\"") } }
        }
        try eventually("acknowledgements") {
            try tables.count("alert_deliveries WHERE delivered_at IS NULL") == 0
        }
        #expect(try tables.count("alert_deliveries WHERE attempts > 0") == 0)
    }

    @Test func oneThatForgotIsToldAgain_andOneThatWasAwayMissesNothing() throws {
        var manager = try Alertmanager()
        let port = manager.port
        let dispatcher = AlertDispatcher.quick(tables.database, [receiver(manager.url)])
        defer { dispatcher.stop() }
        dispatcher.start()
        try tables.open(1..<10, kind: .down)
        try eventually("alerts") { try manager.alerts().count == 9 }
        manager.stop()
        try tables.resolve(1..<5, kind: .down)
        try tables.open(20, kind: .stale)
        try eventually("failures") { try tables.count("alert_deliveries WHERE attempts > 0") > 0 }
        manager = try Alertmanager(port: port)
        defer { manager.stop() }
        try eventually("what fires now") {
            try manager.alerts().map { $0.labels["alertname"] ?? "" }.sorted()
                == ["down", "down", "down", "down", "down", "stale"]
        }
        try eventually("acknowledgements") {
            try tables.count("alert_deliveries WHERE delivered_at IS NULL") == 0
        }
    }
}

/// A running Alertmanager. It ends with the thread that started it at the latest.
final class Alertmanager {
    static let executable = "/usr/bin/prometheus-alertmanager"

    struct Alert: Decodable {
        struct Status: Decodable { var state: String }
        var labels: [String: String]
        var annotations: [String: String]
        var endsAt: String
        var status: Status
    }

    let port: UInt16
    private let folder: String
    private let process: ChildProcess
    private var isStopped = false

    var url: String { "http://127.0.0.1:\(port)" }

    init(port: UInt16? = nil, webhook: String? = nil) throws {
        self.port = port ?? HTTPTestServer.closedPort()
        folder = try FileSystem.makeTemporaryDirectory("/tmp/heartline-alertmanager-")
        var configuration = "route: {receiver: people, group_wait: 100ms, group_interval: 1s}\n"
        configuration += "receivers: [{name: people"
        if let webhook { configuration += ", webhook_configs: [{url: '\(webhook)'}]" }
        configuration += "}]\n"
        try FileSystem.write(configuration, to: "\(folder)/alertmanager.yml", mode: 0o600)
        var settings = ChildProcess.Settings(
            Self.executable,
            [
                "--config.file=\(folder)/alertmanager.yml", "--storage.path=\(folder)/data",
                "--web.listen-address=127.0.0.1:\(self.port)", "--cluster.listen-address=",
            ])
        settings.deathSignal = SIGKILL
        settings.output = try FileSystem.openForWriting("\(folder)/log", mode: 0o600)
        defer { FileSystem.close(settings.output) }
        process = try ChildProcess.start(settings)
        eventually("Alertmanager is ready") { (try? get("/-/ready")) != nil }
    }

    deinit { stop() }

    func stop() {
        if isStopped { return }
        isStopped = true
        ChildProcess.send(signal: SIGKILL, to: process.processID)
        _ = process.wait()
        FileSystem.removeTree(folder)
    }

    func alerts() throws -> [Alert] {
        try JSONDecoder().decode([Alert].self, from: Data(get("/api/v2/alerts")))
    }

    func silence(label: String, value: String) throws {
        let time = EventTime(milliseconds: SystemClock.wallMilliseconds())
        let body =
            #"{"matchers":[{"name":"\#(label)","value":"\#(value)","isRegex":false}],"startsAt":"\#(time)","#
            + #""endsAt":"\#(time + 3_600_000)","createdBy":"test","comment":"test"}"#
        _ = try ask(.post, "/api/v2/silences", body)
    }

    private func get(_ path: String) throws -> [UInt8] { try ask(.get, path, "") }

    struct Refused: Error {
        var status: Int
        var error: CurlError?
    }

    private func ask(_ method: CurlRequest.Method, _ path: String, _ body: String) throws -> [UInt8]
    {
        var transfers = try CurlTransfers(maximumTransfers: 1, maximumConnections: 1)
        let request = try CurlRequest(
            method, url + path, headers: [("Content-Type", "application/json")],
            usesEnvironmentProxy: false)
        let bytes = ByteBuffer(body.utf8)
        try transfers.start(request, body: bytes.span)
        var answer: Result<[UInt8], Refused>?
        while answer == nil {
            try transfers.poll(milliseconds: 1_000) { completion, bytes in
                answer =
                    completion.status == 200
                    ? .success(bytes.array)
                    : .failure(Refused(status: completion.status, error: completion.error))
            }
        }
        return try answer?.get() ?? []
    }
}
