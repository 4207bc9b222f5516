public import Bytes
internal import JSON

/// Where an event was made: the front-end's boot and its number there. A boot id is random and new
/// at every start of a front-end.
public struct EventOrigin: Hashable, Sendable {
    public var boot: UInt64
    public var counter: UInt64

    @inlinable public init(boot: UInt64, counter: UInt64) {
        self.boot = boot
        self.counter = counter
    }
}

/// What an agent says its status is (agent contract, "Heartbeat", `status`).
public enum AgentStatus: UInt8, Sendable, CaseIterable {
    case connected = 1, recovering, stopped
    /// A text that the contract does not name.
    case other

    public var name: StaticString {
        switch self {
        case .connected: "connected"
        case .recovering: "recovering"
        case .stopped: "stopped"
        case .other: "other"
        }
    }

    public init(_ text: Span<UInt8>) {
        self =
            if text.equals("connected") { .connected } else if text.equals("recovering") {
                .recovering
            } else if text.equals("stopped") { .stopped } else { .other }
    }
}

/// What was wrong with a heartbeat that was taken all the same.
public struct HeartbeatFlags: OptionSet, Hashable, Sendable {
    public var rawValue: UInt8

    public init(rawValue: UInt8) { self.rawValue = rawValue }

    public static let badStatus = HeartbeatFlags(rawValue: 1)
    public static let badState = HeartbeatFlags(rawValue: 2)
    public static let badTunnelUp = HeartbeatFlags(rawValue: 4)
    public static let badLastHandshake = HeartbeatFlags(rawValue: 8)
    /// A handshake more than 60 s in the future. Found by the processor, never sent.
    public static let clockSkew = HeartbeatFlags(rawValue: 16)

    static let names: [(HeartbeatFlags, StaticString)] = [
        (.badStatus, "bad-status"), (.badState, "bad-state"), (.badTunnelUp, "bad-tunnel-up"),
        (.badLastHandshake, "bad-last-handshake"), (.clockSkew, "clock-skew"),
    ]
}

extension ByteBuffer {
    /// Appends the flags as a JSON array of their names.
    public mutating func append(_ flags: HeartbeatFlags) {
        append(UInt8(ascii: "["))
        var isFirst = true
        for (flag, name) in HeartbeatFlags.names where flags.contains(flag) {
            append(isFirst ? "\"" : ",\"")
            append(name)
            append(UInt8(ascii: "\""))
            isFirst = false
        }
        append(UInt8(ascii: "]"))
    }
}

/// A device's report of itself.
public struct Heartbeat: Sendable, Equatable {
    public var device: DeviceID
    public var origin: EventOrigin
    public var status: AgentStatus?
    public var tunnelUp: Bool?
    /// As the device claims it; data, never a clock. The year 1970 and before: never.
    public var lastHandshake: EventTime?
    public var flags: HeartbeatFlags = []
    /// The configuration version that was answered; 0 if the front-end did not know one.
    public var configVersion: Int64 = 0
    /// The agent's free-form `state`.
    public var agentState = InlineText()

    public init(device: DeviceID, origin: EventOrigin) {
        self.device = device
        self.origin = origin
    }
}

/// A front-end's sign that the way from it to the log is open. Written to every partition.
public struct Beacon: Sendable, Equatable {
    /// The front-end's name: stable over its restarts.
    public var frontEnd: InlineText
    public var origin: EventOrigin
    /// The front-end's own monotonic clock, in milliseconds.
    public var monotonicMilliseconds: Int64
    /// Heartbeats were dropped since the last beacon.
    public var isLossy: Bool
    /// The last beacon of an orderly shutdown: nothing more comes of this boot.
    public var isLeaving: Bool
    /// The log had not answered for a while when it was written: it comes to the log in one burst
    /// with others, and its progress measures nobody else's silence.
    public var isBehind: Bool

    public init(
        frontEnd: InlineText, origin: EventOrigin, monotonicMilliseconds: Int64,
        isLossy: Bool = false, isLeaving: Bool = false, isBehind: Bool = false
    ) {
        self.frontEnd = frontEnd
        self.origin = origin
        self.monotonicMilliseconds = monotonicMilliseconds
        self.isLossy = isLossy
        self.isLeaving = isLeaving
        self.isBehind = isBehind
    }
}

/// What an operator or a provisioning did to a device.
public struct Lifecycle: Sendable, Equatable {
    public enum Kind: UInt8, Sendable, CaseIterable {
        case provisioned = 1, suspended, resumed, removed

        var text: StaticString {
            switch self {
            case .provisioned: "provisioned"
            case .suspended: "suspended"
            case .resumed: "resumed"
            case .removed: "removed"
            }
        }
    }

    public var device: DeviceID
    public var kind: Kind
    /// The registry's version of the device; an older one never undoes a newer one.
    public var version: Int64
    /// The device's own heartbeat interval, in milliseconds; `nil`: the fleet's.
    public var expectedIntervalMilliseconds: Int64?

    public init(
        device: DeviceID, kind: Kind, version: Int64, expectedIntervalMilliseconds: Int64? = nil
    ) {
        self.device = device
        self.kind = kind
        self.version = version
        self.expectedIntervalMilliseconds = expectedIntervalMilliseconds
    }
}

/// A record of topic `heartbeats`.
public enum HeartbeatsEvent: Sendable, Equatable {
    case heartbeat(Heartbeat)
    case beacon(Beacon)
    case lifecycle(Lifecycle)
}

// MARK: - Writing

extension ByteBuffer {
    /// Appends the event as the value of a record of topic `heartbeats`.
    public mutating func append(_ heartbeat: Heartbeat) {
        append("{\"v\":1,\"type\":\"heartbeat\",\"id\":\"")
        append(heartbeat.origin)
        append("\",\"device_id\":\"")
        append(heartbeat.device)
        append(UInt8(ascii: "\""))
        if let status = heartbeat.status {
            append(",\"status\":\"")
            append(status.name)
            append(UInt8(ascii: "\""))
        }
        if let tunnelUp = heartbeat.tunnelUp {
            append(tunnelUp ? ",\"tunnel_up\":true" : ",\"tunnel_up\":false")
        }
        if let lastHandshake = heartbeat.lastHandshake {
            append(",\"last_handshake\":\"")
            append(lastHandshake)
            append(UInt8(ascii: "\""))
        }
        if !heartbeat.agentState.isEmpty {
            append(",\"state\":")
            append(jsonString: heartbeat.agentState.span)
        }
        if heartbeat.configVersion != 0 {
            append(",\"config_version\":")
            append(decimal: heartbeat.configVersion)
        }
        if !heartbeat.flags.isEmpty {
            append(",\"flags\":")
            append(heartbeat.flags)
        }
        append(UInt8(ascii: "}"))
    }

    /// Appends the event as the value of a record of topic `heartbeats`.
    public mutating func append(_ beacon: Beacon) {
        append("{\"v\":1,\"type\":\"beacon\",\"id\":\"")
        append(beacon.origin)
        append("\",\"front_end\":")
        append(jsonString: beacon.frontEnd.span)
        append(",\"monotonic_ms\":")
        append(decimal: beacon.monotonicMilliseconds)
        append(beacon.isLossy ? ",\"lossy\":true" : ",\"lossy\":false")
        if beacon.isLeaving { append(",\"leaving\":true") }
        if beacon.isBehind { append(",\"behind\":true") }
        append(UInt8(ascii: "}"))
    }

    /// Appends the event as the value of a record of topic `heartbeats`.
    public mutating func append(_ lifecycle: Lifecycle) {
        append("{\"v\":1,\"type\":\"")
        append(lifecycle.kind.text)
        append("\",\"device_id\":\"")
        append(lifecycle.device)
        append("\",\"version\":")
        append(decimal: lifecycle.version)
        if let interval = lifecycle.expectedIntervalMilliseconds {
            append(",\"expected_interval_ms\":")
            append(decimal: interval)
        }
        append(UInt8(ascii: "}"))
    }

    /// Appends the event as the value of a record of topic `heartbeats`.
    public mutating func append(_ event: HeartbeatsEvent) {
        switch event {
        case .heartbeat(let heartbeat): append(heartbeat)
        case .beacon(let beacon): append(beacon)
        case .lifecycle(let lifecycle): append(lifecycle)
        }
    }

    /// Appends an event id: the boot in 16 hexadecimal digits, a hyphen, the counter.
    public mutating func append(_ origin: EventOrigin) {
        append(hexadecimal: origin.boot, digits: 16)
        append(UInt8(ascii: "-"))
        append(decimal: origin.counter)
    }
}

extension EventOrigin {
    /// Reads what `append(_: EventOrigin)` wrote; `nil` for anything else.
    @inlinable public init?(parsing text: Span<UInt8>) {
        guard text.count >= 18, text.count <= 36, text[16] == 0x2D else { return nil }
        var boot: UInt64 = 0
        for index in 0..<16 {
            let byte = text[index]
            switch byte {
            case 0x30...0x39: boot = boot << 4 | UInt64(byte - 0x30)
            case 0x61...0x66: boot = boot << 4 | UInt64(byte - 0x57)
            default: return nil
            }
        }
        var counter: UInt64 = 0
        for index in 17..<text.count {
            let byte = text[index]
            guard byte >= 0x30, byte <= 0x39 else { return nil }
            counter = counter &* 10 &+ UInt64(byte - 0x30)
        }
        self.init(boot: boot, counter: counter)
    }
}

// MARK: - Reading

/// What a record turned out to be.
public enum Decoded<Event: Sendable>: Sendable {
    case event(Event)
    /// Valid, and nothing to us: a kind or a version of event that came after this code.
    case skipped
    /// To the dead letters, for this reason.
    case malformed(String)
}

/// Reads records of topic `heartbeats`. One for each thread.
public final class HeartbeatsDecoder {
    private let parser: JSONParser

    private static let fields = JSONFields([
        "v", "type", "id", "device_id", "status", "tunnel_up", "last_handshake", "state",
        "config_version", "flags", "front_end", "monotonic_ms", "lossy", "leaving", "version",
        "expected_interval_ms", "behind",
    ])

    private enum Field {
        static let v = 0, type = 1, id = 2, deviceID = 3, status = 4, tunnelUp = 5
        static let lastHandshake = 6, state = 7, configVersion = 8, flags = 9, frontEnd = 10
        static let monotonic = 11, lossy = 12, leaving = 13, version = 14, expectedInterval = 15
        static let behind = 16
    }

    public init() { parser = JSONParser(Self.fields, maximumBytes: 1 << 20) }

    public func decode(_ value: Span<UInt8>) -> Decoded<HeartbeatsEvent> {
        do throws(JSONError) { try parser.parse(value) } catch { return .malformed("\(error)") }
        return Self.read(parser)
    }

    // Static over a borrowed parser: the compiler then sees how long what it lends lives.
    private static func read(_ parser: borrowing JSONParser) -> Decoded<HeartbeatsEvent> {
        guard let version = parser.integer(Field.v) else { return .malformed("no version \"v\"") }
        guard version == 1 else { return .malformed("version \"v\" \(version) is not known") }
        guard let type = parser.bytes(Field.type) else { return .malformed("no \"type\"") }
        if type.equals("heartbeat") { return heartbeat(parser) }
        if type.equals("beacon") { return beacon(parser) }
        for kind in Lifecycle.Kind.allCases where type.equals(kind.text) {
            return lifecycle(kind, parser)
        }
        return .skipped
    }

    private static func device(_ parser: borrowing JSONParser) -> DeviceID? {
        guard let text = parser.bytes(Field.deviceID) else { return nil }
        return DeviceID(parsing: text)
    }

    private static func origin(_ parser: borrowing JSONParser) -> EventOrigin? {
        guard let text = parser.bytes(Field.id) else { return nil }
        return EventOrigin(parsing: text)
    }

    private static func heartbeat(_ parser: borrowing JSONParser) -> Decoded<HeartbeatsEvent> {
        guard let device = device(parser) else { return .malformed("\"device_id\" is not a UUID") }
        guard let origin = origin(parser) else { return .malformed("\"id\" is not an event id") }
        var heartbeat = Heartbeat(device: device, origin: origin)
        if let status = parser.bytes(Field.status) { heartbeat.status = AgentStatus(status) }
        heartbeat.tunnelUp = parser.bool(Field.tunnelUp)
        if parser.kind(Field.lastHandshake) != .absent {
            guard let text = parser.bytes(Field.lastHandshake), let time = EventTime(parsing: text)
            else { return .malformed("\"last_handshake\" is not a time") }
            heartbeat.lastHandshake = time
        }
        if let state = parser.bytes(Field.state) { heartbeat.agentState = InlineText(state) }
        heartbeat.configVersion = parser.integer(Field.configVersion) ?? 0
        for index in 0..<parser.count(Field.flags) {
            let flag = parser.withString(Field.flags, element: index) { text in
                HeartbeatFlags.names.first { text.equals($0.1) }?.0
            }
            if let flag = flag ?? nil { heartbeat.flags.insert(flag) }
        }
        return .event(.heartbeat(heartbeat))
    }

    private static func beacon(_ parser: borrowing JSONParser) -> Decoded<HeartbeatsEvent> {
        guard let origin = origin(parser) else { return .malformed("\"id\" is not an event id") }
        guard let frontEnd = parser.withString(Field.frontEnd, { InlineText($0) }) else {
            return .malformed("no \"front_end\"")
        }
        guard let monotonic = parser.integer(Field.monotonic), monotonic >= 0,
            monotonic < 1 << 53
        else { return .malformed("\"monotonic_ms\" is not a number of milliseconds") }
        return .event(
            .beacon(
                Beacon(
                    frontEnd: frontEnd, origin: origin, monotonicMilliseconds: monotonic,
                    isLossy: parser.bool(Field.lossy) ?? false,
                    isLeaving: parser.bool(Field.leaving) ?? false,
                    isBehind: parser.bool(Field.behind) ?? false)))
    }

    private static func lifecycle(
        _ kind: Lifecycle.Kind, _ parser: borrowing JSONParser
    ) -> Decoded<HeartbeatsEvent> {
        guard let device = device(parser) else { return .malformed("\"device_id\" is not a UUID") }
        guard let version = parser.integer(Field.version), version > 0 else {
            return .malformed("\"version\" is not a positive number")
        }
        var interval: Int64?
        switch parser.kind(Field.expectedInterval) {
        case .absent, .null: interval = nil
        default:
            guard let value = parser.integer(Field.expectedInterval), value >= 1_000,
                value <= 7 * 86_400_000
            else { return .malformed("\"expected_interval_ms\" is not 1 s to 7 d") }
            interval = value
        }
        return .event(
            .lifecycle(
                Lifecycle(
                    device: device, kind: kind, version: version,
                    expectedIntervalMilliseconds: interval)))
    }
}
