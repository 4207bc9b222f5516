public import Bytes
public import Schemas

/// What one heartbeat says; the body of `POST /api/v1/heartbeat`.
public struct AgentHeartbeat: Hashable, Sendable {
    /// The contract's words for `status`.
    public enum Status: UInt8, Sendable {
        case connected, recovering, stopped

        var text: StaticString {
            switch self {
            case .connected: "connected"
            case .recovering: "recovering"
            case .stopped: "stopped"
            }
        }
    }

    /// Ways to break a request that a server must survive.
    public enum Malformation: UInt8, Sendable, CaseIterable {
        case none
        case truncated, notJSON, empty, noDeviceID, deviceIDNotAUUID, deviceIDNotAString
        case invalidUTF8, repeatedKey, deeplyNested
        /// Not refused: a known device is alive, whatever its optional fields hold.
        case fieldsOfWrongType, handshakeNotATime
    }

    public var status: Status
    public var isTunnelUp: Bool
    /// By the device's own clock; `nil` if there never was a handshake.
    public var lastHandshake: EventTime?
    public var malformation: Malformation

    public init(
        status: Status, isTunnelUp: Bool, lastHandshake: EventTime?,
        malformation: Malformation = .none
    ) {
        self.status = status
        self.isTunnelUp = isTunnelUp
        self.lastHandshake = lastHandshake
        self.malformation = malformation
    }

    /// Appends the request's body. The time has whole seconds, as the contract's example shows; a
    /// handshake that never was is 1970, as in the contract's sample code.
    public func write(device: DeviceID, into body: inout ByteBuffer) {
        let start = body.count
        switch malformation {
        case .none: writeFields(device, into: &body)
        case .truncated:
            writeFields(device, into: &body)
            body.truncate(to: start + (body.count - start) / 2)
        case .notJSON: body.append("device_id=\(device)&tunnel_up=true".utf8.map { $0 })
        case .empty: break
        case .noDeviceID:
            body.append("{\"status\":\"connected\",\"tunnel_up\":true}")
        case .deviceIDNotAUUID:
            body.append("{\"device_id\":\"device-1\",\"tunnel_up\":true}")
        case .deviceIDNotAString:
            body.append("{\"device_id\":17,\"tunnel_up\":true}")
        case .invalidUTF8:
            writeFields(device, into: &body, state: [0x22, 0xC3, 0x28, 0xFF, 0x22])
        case .repeatedKey:
            writeFields(device, into: &body)
            body.truncate(to: body.count - 1)
            body.append(",\"tunnel_up\":false}")
        case .deeplyNested:
            writeFields(
                device, into: &body,
                state: [UInt8](repeating: UInt8(ascii: "["), count: 2_000)
                    + [UInt8](repeating: UInt8(ascii: "]"), count: 2_000))
        case .fieldsOfWrongType:
            body.append("{\"device_id\":\"")
            body.append(device)
            body.append("\",\"status\":7,\"tunnel_up\":\"yes\",\"last_handshake\":[]}")
        case .handshakeNotATime:
            body.append("{\"device_id\":\"")
            body.append(device)
            body.append("\",\"status\":\"connected\",\"tunnel_up\":true")
            body.append(",\"last_handshake\":\"two minutes ago\"}")
        }
    }

    private func writeFields(
        _ device: DeviceID, into body: inout ByteBuffer, state: [UInt8]? = nil
    ) {
        body.append("{\"device_id\":\"")
        body.append(device)
        body.append("\",\"status\":\"")
        body.append(status.text)
        if let state {
            body.append("\",\"state\":")
            body.append(state)
            body.append(",\"tunnel_up\":")
        } else {
            body.append("\",\"tunnel_up\":")
        }
        body.append(isTunnelUp ? "true" : "false")
        body.append(",\"last_handshake\":\"")
        body.append(lastHandshake ?? EventTime(milliseconds: 0))
        body.truncate(to: body.count - ".000Z".utf8.count)
        body.append("Z\"}")
    }
}
