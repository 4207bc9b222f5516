public import Bytes
public import Schemas

/// What one round decided: to be stored as one transaction.
public struct AlertRound: Sendable, Equatable {
    public enum Event: String, Sendable, CaseIterable { case firing, resolved }

    public struct Change: Sendable, Hashable {
        public var state: AlertDispatch.State
        /// The `mass-offline` alert that tells of it.
        public var group: DeviceID?
    }

    /// Goes to every receiver that takes alerts of this kind; `resolved`, to every one that was sent
    /// `firing`.
    public struct Message: Sendable, Hashable {
        public var id: DeviceID
        public var event: Event

        public init(id: DeviceID, event: Event) {
            self.id = id
            self.event = event
        }
    }

    /// A `mass-offline` alert that is to be opened.
    public struct OpenedMass: Sendable, Hashable {
        public var id: DeviceID
        public var episode: Int64
        /// Devices that went offline when it began.
        public var devices: Int64
    }

    /// The newest decision of each alert; its time is the round's.
    public internal(set) var changes: [DeviceID: Change] = [:]
    /// What ended comes before what began, so that it does for each device as well.
    public internal(set) var messages: [Message] = []
    public internal(set) var opened: OpenedMass?
    /// The `mass-offline` alert that is to be resolved.
    public internal(set) var resolved: DeviceID?
    /// Offline alerts whose silence has just ended: they have waited already.
    var released: Set<DeviceID> = []

    /// What alerts about all devices are about.
    public static let fleet = ByteBuffer("fleet".utf8)

    public init() {}

    public var isEmpty: Bool { changes.isEmpty }

    /// The alerts that came into `state`, in the order of their ids.
    public func ids(_ state: AlertDispatch.State) -> [DeviceID] {
        changes.filter { $0.value.state == state }.keys.sorted()
    }

    public func ids(_ event: Event) -> [DeviceID] {
        messages.filter { $0.event == event }.map(\.id)
    }

    /// A dictionary's order differs in every process; the order of messages must not.
    mutating func sort() {
        messages.sort { a, b in
            a.event != b.event ? a.event == .resolved : a.id < b.id
        }
    }
}

/// How alerts are grouped. Times in milliseconds.
public struct AlertDispatchSettings: Sendable, Hashable {
    /// How long an offline alert waits whether others follow. Range: 0 to 10 min. Default: 10 s.
    public var groupWait: Int64 = 10_000
    /// More than this share of the active devices, in percent, makes a mass event. Default: 20.
    public var massShare: Int64 = 20
    /// Fewer devices than this never do. Default: 20.
    public var massMinimum: Int64 = 20
    /// Within this time. Range: 1 s to 1 h. Default: 1 min.
    public var massWithin: Int64 = 60_000
    /// The event ends when this share of its alerts, in percent, is resolved. Default: 90.
    public var massResolvedShare: Int64 = 90

    public init() {}
}

/// The silences that hold at one time, for quick answers.
public struct AlertSilences: Sendable, Equatable {
    private var everything = false
    private var kinds: Set<String> = []
    private var devices: Set<DeviceID> = []
    private var kindsOfDevices: [DeviceID: Set<String>] = [:]

    public init() {}

    /// - Parameters:
    ///   - kind: of this kind only; `nil`: of any.
    ///   - device: of this device only; `nil`: of any, and what is about no device.
    public mutating func add(kind: String?, device: DeviceID?) {
        switch (kind, device) {
        case (nil, nil): everything = true
        case (let kind?, nil): kinds.insert(kind)
        case (nil, let device?): devices.insert(device)
        case (let kind?, let device?): kindsOfDevices[device, default: []].insert(kind)
        }
    }

    public func match(kind: String, device: DeviceID?) -> Bool {
        if everything || kinds.contains(kind) { return true }
        guard let device else { return false }
        return devices.contains(device) || kindsOfDevices[device]?.contains(kind) == true
    }
}
