import Foundation
import Postgres
import Schemas
import Testing

/// What faults do to a running installation: real processes, real sockets, a real PostgreSQL.
///
/// One after the other: each of them wants the machine's attention.
@Suite("Faults", .serialized, .realTime) struct FaultTests {}

/// Processes that were started with something of `path`, besides our own.
func processes(on path: String) -> [String] {
    let names = (try? FileManager.default.contentsOfDirectory(atPath: "/proc")) ?? []
    return names.compactMap { name in
        guard let process = Int32(name), process != ProcessInfo.processInfo.processIdentifier,
            let line = FileManager.default.contents(atPath: "/proc/\(name)/cmdline")
        else { return nil }
        let words = String(decoding: line, as: UTF8.self)
        return words.contains(path) ? "\(process) \(words)" : nil
    }
}

/// Those of `devices` that were ever called offline though `load` never let them be silent for
/// `milliseconds`, which is to be a little less than the threshold.
func falselyOffline(
    _ connection: PostgresConnection, _ devices: [DeviceID], _ load: HeartbeatLoad,
    milliseconds: Int64 = 5_500
) throws -> [DeviceID] {
    let rows = try connection.execute(
        """
        SELECT DISTINCT device_id FROM heartline.device_state_history
         WHERE state = 'offline' AND device_id = ANY ($1)
        """, .uuidArray(devices.map { ($0.high, $0.low) }))
    let silent = load.silentDevices(milliseconds: milliseconds)
    return try rows.map {
        let id = try $0.uuid(0)
        return DeviceID(high: id.high, low: id.low)
    }.filter { !silent.contains($0) }
}
