internal import Bytes
internal import JSON
package import Schemas

/// Reads the body of `POST /api/v1/heartbeat` (agent contract, "Heartbeat"). One for each thread.
package struct HeartbeatReader: ~Copyable {
    package enum Reading {
        /// Without an origin: the event gets one when it is written.
        case heartbeat(Heartbeat)
        case invalidJSON
        case invalidDeviceID
        case outOfMemory
    }

    private static let fields = JSONFields([
        "device_id", "status", "state", "tunnel_up", "last_handshake",
    ])

    private enum Field {
        static let deviceID = 0, status = 1, state = 2, tunnelUp = 3, lastHandshake = 4
    }

    private var parser: JSONParser

    package init() { parser = JSONParser(Self.fields) }

    /// Only `device_id` can make a heartbeat invalid: an optional field of a wrong type is flagged
    /// and taken as absent, because that the device lives counts for more. `null` is absence.
    package mutating func read(_ body: Span<UInt8>) -> Reading {
        do throws(JSONError) {
            try parser.parse(body)
        } catch {
            switch error {
            // JSON it is, but nothing that could have a device id.
            case .notAnObject: return .invalidDeviceID
            case .outOfMemory: return .outOfMemory
            default: return .invalidJSON
            }
        }
        guard let device = parser.withString(Field.deviceID, { DeviceID(parsing: $0) }) ?? nil
        else { return .invalidDeviceID }
        var heartbeat = Heartbeat(device: device, origin: EventOrigin(boot: 0, counter: 0))
        if isGiven(Field.status) {
            heartbeat.status = parser.withString(Field.status) { AgentStatus($0) }
            if heartbeat.status == nil { heartbeat.flags.insert(.badStatus) }
        }
        if isGiven(Field.state) {
            if let state = parser.withString(Field.state, { InlineText($0) }) {
                heartbeat.agentState = state
            } else {
                heartbeat.flags.insert(.badState)
            }
        }
        if isGiven(Field.tunnelUp) {
            heartbeat.tunnelUp = parser.bool(Field.tunnelUp)
            if heartbeat.tunnelUp == nil { heartbeat.flags.insert(.badTunnelUp) }
        }
        if isGiven(Field.lastHandshake) {
            let time = parser.withString(Field.lastHandshake) { EventTime(parsing: $0) } ?? nil
            heartbeat.lastHandshake = time
            if time == nil { heartbeat.flags.insert(.badLastHandshake) }
        }
        return .heartbeat(heartbeat)
    }

    private func isGiven(_ field: Int) -> Bool {
        switch parser.kind(field) {
        case .absent, .null: false
        default: true
        }
    }
}
