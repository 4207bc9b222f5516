import Curl
import Fleet
import Foundation
import Schemas
import Synchronization
import System

/// What `heartline simulate --json` prints.
struct FleetReportDocument: Encodable {
    struct Latency: Encodable {
        var count: UInt64
        var p50_microseconds: UInt64
        var p90_microseconds: UInt64
        var p99_microseconds: UInt64
        var max_microseconds: UInt64

        init(_ histogram: LatencyHistogram) {
            count = histogram.count
            p50_microseconds = histogram.percentileMicroseconds(0.5)
            p90_microseconds = histogram.percentileMicroseconds(0.9)
            p99_microseconds = histogram.percentileMicroseconds(0.99)
            max_microseconds = histogram.maximumMicroseconds
        }
    }

    /// One kind of request.
    struct Traffic: Encodable {
        /// Answers by status.
        var answers: [String: Int]
        var latency: Latency

        init(_ statuses: [Int: Int], _ histogram: LatencyHistogram) {
            answers = Dictionary(uniqueKeysWithValues: statuses.map { ("\($0.key)", $0.value) })
            latency = Latency(histogram)
        }
    }

    var agents: Int
    var elapsed_ms: Int64
    var conditions: [String: Int]
    var requests: Int
    var in_flight: Int
    /// Requests that wait for a place among those in flight.
    var waiting: Int
    var connections_opened: Int
    var unanswered: [String: Int]
    var unreadable_answers: Int
    var faulty_answers: Int
    var provisioned: Int
    var provisionings_failed: Int
    var configuration_changes: Int
    var tunnel_rebuilds: Int
    var heartbeats_given_up: Int
    var malformed_on_purpose: Int
    var agents_that_gave_up: Int
    var provisioning: Traffic
    var heartbeats: Traffic
    /// What the simulator itself was behind.
    var delay: Latency

    init(_ report: FleetReport) {
        agents = report.agents
        let (seconds, attoseconds) = report.elapsed.components
        elapsed_ms = seconds * 1_000 + attoseconds / 1_000_000_000_000_000
        conditions = [:]
        for (condition, count) in report.conditions where count > 0 {
            conditions[condition.name.replacing(" ", with: "_")] = count
        }
        requests = report.requests
        in_flight = report.inFlight
        waiting = report.waiting
        connections_opened = report.connectionsOpened
        unanswered = Dictionary(
            uniqueKeysWithValues: report.errors.map { ($0.key.rawValue, $0.value) })
        unreadable_answers = report.unreadableAnswers
        faulty_answers = report.faultyAnswers
        provisioned = report.counts.provisioned
        provisionings_failed = report.counts.provisioningsFailed
        configuration_changes = report.counts.configurationChanges
        tunnel_rebuilds = report.counts.tunnelRebuilds
        heartbeats_given_up = report.counts.heartbeatsFailed
        malformed_on_purpose = report.counts.malformedRequests
        agents_that_gave_up = report.counts.userNotices
        provisioning = Traffic(report.provisioningStatuses, report.provisioningLatency)
        heartbeats = Traffic(report.statuses, report.latency)
        delay = Latency(report.delay)
    }
}

/// Where agents' observations go, a JSON object a line:
/// `{"at":"2026-…Z","device_id":"…","event":"configuration","forwards_hash":"…"}`.
final class ObservationFile: Sendable {
    private struct State {
        var handle: FileHandle
        var buffer = Data()
        var failure: (any Error)?
    }

    private static let flushBytes = 64 << 10
    private let path: String
    private let state: Mutex<State>

    /// An existing file is emptied.
    init(_ path: String) throws {
        self.path = path
        try FileSystem.write("", to: path, mode: 0o644)
        guard let handle = FileHandle(forWritingAtPath: path) else {
            throw Failure("opening \(path) for observations: it cannot be written")
        }
        state = Mutex(State(handle: handle))
    }

    /// Any thread may write; a disk that is full is told by `close`.
    func write(_ observation: FleetObservation) {
        var line = "{\"at\":\"\(observation.time)\",\"device_id\":\"\(observation.device)\""
        switch observation.kind {
        case .provisioned: line += ",\"event\":\"provisioned\"}\n"
        case .configuration(let hash):
            line += ",\"event\":\"configuration\",\"forwards_hash\":\(Self.quoted(hash))}\n"
        }
        state.withLock { state in
            state.buffer.append(contentsOf: line.utf8)
            if state.buffer.count >= Self.flushBytes { Self.flush(&state) }
        }
    }

    /// What a server answers may be anything.
    private static func quoted(_ text: String) -> String {
        let isPlain = text.utf8.allSatisfy { $0 >= 0x20 && $0 < 0x7F && $0 != 0x22 && $0 != 0x5C }
        if isPlain { return "\"\(text)\"" }
        let data = try? JSONEncoder().encode(text)
        return data.map { String(decoding: $0, as: UTF8.self) } ?? "\"\""
    }

    private static func flush(_ state: inout State) {
        do {
            try state.handle.write(contentsOf: state.buffer)
        } catch { state.failure = state.failure ?? error }
        state.buffer.removeAll(keepingCapacity: true)
    }

    /// Writes what is still in memory.
    func flush() { state.withLock { Self.flush(&$0) } }

    /// - Throws: if something could not be written.
    func close() throws {
        let failure = state.withLock { state in
            Self.flush(&state)
            try? state.handle.close()
            return state.failure
        }
        if let failure { throw Failure("writing observations to \(path): \(failure)") }
    }
}
