import Bytes
import Curl
import Fleet
import Foundation
import HTTP
import Ingest
import Pipeline
import Postgres
import Schemas
import System

extension Bench {
    /// From the end of `forward add` to the new hash in the device's next answer, while a fleet beats.
    static func rollout(_ agents: Int) throws {
        say("Rollout of a forward: \(agents) devices that beat every 30 s")
        let rollout = try BenchRollout(agents: agents)
        defer { rollout.remove() }
        try rollout.untilAllAreHeard()
        let changes = min(200, agents / 2)
        let result = try rollout.change(changes)
        say(
            "  from forward add to the new hash in an answer, \(changes) changes:"
                + " \(summary(result.latency)); yardstick: a heartbeat's round trip beside it"
                + " \(summary(result.roundTrip))")
        func p99(_ histogram: LatencyHistogram) -> Double {
            Double(histogram.percentileMicroseconds(0.99)) / 1_000
        }
        note(
            "from forward add to the new hash in an answer, p99, \(agents) devices",
            p99(result.latency), "ms",
            beside: ("a heartbeat's round trip", p99(result.roundTrip)))
        let fleet = try rollout.fleetsView()
        say(
            "  in the fleet's own next heartbeats, 30 s apart: \(summary(fleet.latency));"
                + " \(fleet.latency.count) of \(changes) devices rebuilt their tunnels; heartbeats"
                + " answered: \(fleet.report.heartbeats.answers)")
    }

    private static func summary(_ histogram: LatencyHistogram) -> String {
        "p50 \(milliseconds(histogram.percentileMicroseconds(0.5))) ms, p99"
            + " \(milliseconds(histogram.percentileMicroseconds(0.99))) ms, at most"
            + " \(milliseconds(histogram.maximumMicroseconds)) ms"
    }
}

/// Everything that `heartline up` runs, with a fleet in a process of its own.
private final class BenchRollout {
    private static let intervalMilliseconds: Int64 = 30_000
    private static let patienceMilliseconds: Int64 = 300_000
    private static let addition = 10_000

    private let directory: String
    private let instance: Instance
    private let registry: Registry
    private let devices: [DeviceID]
    private let fleet: BenchFleet
    private let probe: HeartbeatProbe
    private let pause = Waker()
    /// When a device's change was made, in milliseconds since 1970.
    private var changes: [DeviceID: Int64] = [:]

    init(agents: Int) throws {
        directory = try FileSystem.makeTemporaryDirectory("/tmp/heartline-bench-")
        // PostgreSQL's user must get through.
        try FileSystem.setMode(directory, 0o711)
        let loops = min(8, ProcessInfo.processInfo.activeProcessorCount)
        var settings = Instance.Settings(
            roles: [.ingest, .process], data: try FileSystem.realPath(directory), database: nil,
            pipelines: PipelineFile.builtIn, partitions: nil, retentionBytes: 8 << 30,
            frontEnd: { secrets in
                var settings = FrontEndSettings(
                    server: try ServerConfiguration(host: "127.0.0.1", port: 0, loops: loops),
                    secretKey: secrets.secretKey)
                settings.salt = secrets.salt
                return settings
            })
        settings.network = "10.0.0.0/8"
        instance = Instance(settings)
        try instance.start { _ in }
        try instance.waitUntilReady(seconds: 120) {}
        guard let secrets = instance.secrets else {
            throw Failure("measuring a rollout: the instance has no secrets")
        }
        registry = try Registry(
            try PostgresConnection(instance.databaseURL), secretKey: secrets.secretKey)
        var made: [DeviceID] = []
        while made.count < agents {
            made += try registry.addDevices(count: min(Self.addition, agents - made.count))
        }
        devices = made
        fleet = try BenchFleet([
            "--agents", "\(agents)", "--url", instance.url, "--database", instance.databaseURL,
            "--connections", "128", "--observations", "\(directory)/observations",
        ])
        probe = try HeartbeatProbe(instance.url)
    }

    func remove() {
        instance.stop()
        FileSystem.removeTree(directory)
    }

    /// What the fleet has written; nothing before its first agent saw something.
    private func observations() throws -> [Substring] {
        let path = "\(directory)/observations"
        guard FileSystem.exists(path) else { return [] }
        let bytes = try FileSystem.bytes(of: path, limit: 1 << 32)
        return String(decoding: bytes, as: UTF8.self).split(separator: "\n")
    }

    /// Every device is in memory, and has the hash that it will compare with.
    func untilAllAreHeard() throws {
        let deadline = SystemClock.monotonicMilliseconds() + Self.patienceMilliseconds
        while try observations().count < devices.count {
            guard fleet.isRunning, SystemClock.monotonicMilliseconds() < deadline else {
                throw Failure("measuring a rollout: not all devices were heard")
            }
            pause.wait(milliseconds: 1_000)
        }
        pause.wait(milliseconds: Self.intervalMilliseconds / 10)
    }

    func change(_ count: Int) throws -> (latency: LatencyHistogram, roundTrip: LatencyHistogram) {
        var latency = LatencyHistogram()
        var roundTrip = LatencyHistogram()
        for number in 0..<count {
            let device = devices[number * (devices.count / count)]
            let before = try probe.beat(device)
            roundTrip.record(microseconds: before.microseconds)
            try registry.addForward(
                to: device,
                PortForward(
                    transport: "tcp", listenPort: 8_080, targetHost: "10.0.0.5", targetPort: 80))
            let start = SystemClock.monotonicNanoseconds()
            changes[device] = SystemClock.wallMilliseconds()
            while try probe.beat(device).hash == before.hash {
                guard SystemClock.monotonicNanoseconds() - start < 60_000_000_000 else {
                    throw Failure("measuring a rollout: a change was not answered for a minute")
                }
            }
            latency.record(
                microseconds: UInt64(SystemClock.monotonicNanoseconds() - start) / 1_000)
            pause.wait(milliseconds: 20)
        }
        return (latency, roundTrip)
    }

    /// Ends the fleet once all must have seen their changes.
    func fleetsView() throws -> (latency: LatencyHistogram, report: BenchFleet.Report) {
        struct Observation: Decodable {
            var at: String
            var device_id: String
        }
        pause.wait(milliseconds: Self.intervalMilliseconds * 11 / 10)
        let report = try fleet.stop()
        var latency = LatencyHistogram()
        var rest = changes
        for line in try observations() {
            guard
                let seen = try? JSONDecoder().decode(Observation.self, from: Data(line.utf8)),
                let device = DeviceID(seen.device_id), let changed = rest[device]
            else { continue }
            let text = ByteBuffer(seen.at.utf8)
            guard let at = EventTime(parsing: text.span), at.milliseconds >= changed else {
                continue
            }
            rest[device] = nil
            latency.record(microseconds: UInt64(at.milliseconds - changed) * 1_000)
        }
        return (latency, report)
    }
}

/// Sends heartbeats one after the other, over one connection.
private final class HeartbeatProbe {
    private var transfers: CurlTransfers
    private let request: CurlRequest
    private var reader = AgentAnswerReader()

    init(_ url: String) throws {
        transfers = try CurlTransfers(maximumTransfers: 1, maximumConnections: 1)
        request = try CurlRequest(
            .post, url + "/api/v1/heartbeat", headers: [("Content-Type", "application/json")],
            usesEnvironmentProxy: false)
    }

    func beat(_ device: DeviceID) throws -> (hash: ForwardsHash?, microseconds: UInt64) {
        var body = ByteBuffer()
        AgentHeartbeat(status: .connected, isTunnelUp: true, lastHandshake: nil)
            .write(device: device, into: &body)
        try transfers.start(request, body: body.span)
        var result: (hash: ForwardsHash?, microseconds: UInt64)?
        while transfers.running > 0 {
            try transfers.poll(milliseconds: 1_000) { completion, answer in
                guard completion.status == 200,
                    let read = reader.heartbeat(answer, of: device)
                else { return }
                result = (read.hash, completion.microseconds)
            }
        }
        guard let result else {
            throw Failure("measuring a rollout: a heartbeat was not answered 200")
        }
        return result
    }
}
