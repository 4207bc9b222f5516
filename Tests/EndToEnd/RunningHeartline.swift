import Foundation
import Postgres
import Schemas
import System
import TestSupport
import Testing

/// A `heartline up` of a test's own: on a folder of its own, on ports that the system chooses.
final class RunningHeartline: Sendable {
    /// What `run.json` says.
    struct Places: Decodable, Sendable {
        var listen: String
        var admin: String
        var database: String
        var pid: Int32
    }

    /// Generous: a private PostgreSQL is made on a machine that does other things too.
    static let startSeconds = 180.0

    /// Outlives the process, so that another can be started on it.
    let folder: TemporaryFolder
    let process: HeartlineProcess
    let places: Places

    var data: String { "\(folder.path)/data" }

    /// Starts it and waits until it is ready.
    /// - Parameter options: beside `--data` and the listeners.
    init(in folder: TemporaryFolder? = nil, _ options: [String] = []) async throws {
        let folder = try folder ?? TemporaryFolder()
        self.folder = folder
        let data = "\(folder.path)/data"
        let started = try HeartlineProcess(
            [
                "up", "--data", data, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0",
                "--pipelines", try Self.pipelines(in: folder),
            ] + options)
        process = started
        let pid = started.processID
        var found: Places?
        let isReady = await holds(within: Self.startSeconds) {
            if started.hasEnded { return true }
            found = Self.places(in: data)
            // One that was killed leaves its file behind until the next has taken the folder over.
            if found?.pid != pid { found = nil }
            return found != nil
        }
        guard isReady, let found else {
            throw StartFailure(description: started.errors())
        }
        places = found
    }

    struct StartFailure: Error, CustomStringConvertible {
        var description: String
    }

    static func places(in data: String) -> Places? {
        guard let file = FileManager.default.contents(atPath: "\(data)/run.json") else {
            return nil
        }
        return try? JSONDecoder().decode(Places.self, from: file)
    }

    /// Quick settings, so that a test of silence takes seconds. Written once a folder.
    static func pipelines(in folder: TemporaryFolder) throws -> String {
        let path = "\(folder.path)/pipelines"
        if !FileSystem.exists(path) {
            try FileSystem.makeDirectory(path, mode: 0o755)
            _ = try folder.write(pipeline(), to: "pipelines/health.yaml")
        }
        return path
    }

    static func pipeline(offlineAfter: String = "90s", more: String = "") -> String {
        """
        name: tunnel-health
        source: { topic: heartbeats }
        processor: { tunnel-health: { offline_after: \(offlineAfter), refresh: 0s\(more) } }
        sinks:
          - postgres: { tables: [device_status, device_state_history, fleet_minutes, alerts] }
          - topic: alerts

        """
    }

    /// Runs another command against this instance.
    func run(_ words: [String]) async throws -> Executable.Outcome {
        try await Executable.run(words + ["--data", data])
    }

    func addDevices(_ count: Int) async throws -> [DeviceID] {
        let outcome = try await run(["device", "add", "--count", "\(count)"])
        #expect(outcome.status == 0, "\(outcome.errors)")
        return outcome.output.split(separator: "\n").compactMap { DeviceID(String($0)) }
    }

    private func client(_ url: String) throws -> RawClient {
        let place = try #require(URL(string: url))
        return try RawClient(
            host: try #require(place.host()), port: UInt16(try #require(place.port)))
    }

    /// Sends one heartbeat.
    func heartbeat(_ device: DeviceID, tunnelUp: Bool = true) throws -> RawResponse {
        let time = EventTime(milliseconds: SystemClock.wallMilliseconds())
        let body = """
            {"device_id":"\(device)","status":"connected","tunnel_up":\(tunnelUp),"last_handshake":"\(time)"}
            """
        let client = try client(places.listen)
        return try client.request("POST", "/api/v1/heartbeat", body: body.utf8)
    }

    /// Sends one request to the public listener.
    func post(
        _ path: String, _ body: some Sequence<UInt8>, headers: [String] = []
    ) throws -> RawResponse {
        try client(places.listen).request("POST", path, body: body, headers: headers)
    }

    func ready() throws -> RawResponse {
        try client(places.admin).request("GET", "/readyz", body: [])
    }

    func connect() throws -> PostgresConnection { try PostgresConnection(places.database) }

    /// The device's row of `device_status`; `nil` if there is none.
    func state(of device: DeviceID) throws -> String? {
        let connection = try connect()
        defer { connection.close() }
        return try connection.execute(
            "SELECT state FROM heartline.device_status WHERE device_id = $1",
            PostgresValue.uuid(device.high, device.low)
        ).first?.text(0)
    }

    /// Waits for a device's state.
    func waitFor(_ state: String, of device: DeviceID) async throws -> Bool {
        try await holds(within: 120) { try self.state(of: device) == state }
    }

    /// Ends it in order.
    /// - Returns: its exit code.
    func stop() async -> Int32 {
        process.send(SIGTERM)
        return await process.waitForEnd()
    }

    /// Ends it as a crash would. Its PostgreSQL ends by itself, or is taken over by the next.
    func kill() async {
        process.send(SIGKILL)
        _ = await process.waitForEnd()
    }
}
