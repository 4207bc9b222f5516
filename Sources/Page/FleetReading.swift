public import Schemas

/// What is known of the fleet at one moment: numbers, and a few of the newest examples. Its size does not
/// grow with the fleet.
public struct FleetReading: Hashable, Sendable {
    /// How many devices were in which state at some time.
    public struct Sample: Hashable, Sendable {
        public var at: EventTime
        public var counts: StateCounts

        public init(at: EventTime, counts: StateCounts) {
            self.at = at
            self.counts = counts
        }
    }

    /// A device that somebody should look at.
    public struct Trouble: Hashable, Sendable {
        public var device: DeviceID
        public var state: String
        public var reason: String
        public var since: EventTime
        public var lastSeen: EventTime?

        public init(
            device: DeviceID, state: String, reason: String, since: EventTime, lastSeen: EventTime?
        ) {
            self.device = device
            self.state = state
            self.reason = reason
            self.since = since
            self.lastSeen = lastSeen
        }
    }

    public struct AlertCount: Hashable, Sendable {
        public var kind: String
        public var open: Int64
        public var oldest: EventTime

        public init(kind: String, open: Int64, oldest: EventTime) {
            self.kind = kind
            self.open = open
            self.oldest = oldest
        }
    }

    /// A pipeline in one partition of its source.
    public struct Partition: Hashable, Sendable {
        public var pipeline: String
        public var topic: String
        public var partition: Int32
        /// The first offset that is not in the tables yet.
        public var committed: Int64
        public var committedAt: EventTime
        public var owner: String
        /// The offset that the next record gets; `nil` where the log does not tell.
        public var end: Int64?

        public init(
            pipeline: String, topic: String, partition: Int32, committed: Int64,
            committedAt: EventTime, owner: String, end: Int64?
        ) {
            self.pipeline = pipeline
            self.topic = topic
            self.partition = partition
            self.committed = committed
            self.committedAt = committedAt
            self.owner = owner
            self.end = end
        }

        /// Records that wait; `nil` where the log does not tell.
        public var lag: Int64? { end.map { max(0, $0 - committed) } }
    }

    /// Records a second, over the last seconds.
    public struct Rates: Hashable, Sendable {
        /// That came into the log; `nil` where the log does not tell.
        public var taken: Double?
        /// Whose effects are in the tables, once for each pipeline that reads them.
        public var stored: Double?

        public init(taken: Double? = nil, stored: Double? = nil) {
            self.taken = taken
            self.stored = stored
        }
    }

    /// The newest changes of configurations, and how far they have come.
    public struct Configurations: Hashable, Sendable {
        public struct Minute: Hashable, Sendable {
            public var minute: EventTime
            public var changed: Int64
            public var delivered: Int64

            public init(minute: EventTime, changed: Int64, delivered: Int64) {
                self.minute = minute
                self.changed = changed
                self.delivered = delivered
            }
        }

        /// Devices whose newest version is among them.
        public var changed: Int64 = 0
        public var delivered: Int64 = 0
        public var suspended: Int64 = 0
        /// From the change to the heartbeat that was answered with it; `nil` without any.
        public var medianMilliseconds: Int64?
        public var longestMilliseconds: Int64?
        public var lastChange: EventTime?
        /// No more are looked at.
        public var isCut = false
        /// In order.
        public var minutes: [Minute] = []

        public var waiting: Int64 { max(0, changed - delivered - suspended) }

        public init() {}
    }

    public struct Release: Hashable, Sendable {
        public var source: String
        public var release: String
        public var offered: Int64
        public var downloading: Int64
        public var installed: Int64
        public var failed: Int64
        public var unconfirmed: Int64

        public init(
            source: String, release: String, offered: Int64, downloading: Int64, installed: Int64,
            failed: Int64, unconfirmed: Int64
        ) {
            self.source = source
            self.release = release
            self.offered = offered
            self.downloading = downloading
            self.installed = installed
            self.failed = failed
            self.unconfirmed = unconfirmed
        }

        var total: Int64 { offered + downloading + installed + failed + unconfirmed }
    }

    /// People who waved at each other, by minute.
    public struct Matches: Hashable, Sendable {
        public struct Minute: Hashable, Sendable {
            public var minute: EventTime
            public var count: Int64

            public init(minute: EventTime, count: Int64) {
                self.minute = minute
                self.count = count
            }
        }

        /// Minutes of the last hour that had any, in order.
        public var minutes: [Minute] = []

        public init() {}
    }

    /// When it was read, by this machine's clock.
    public var now: EventTime
    /// When the devices were counted last: of a large fleet that is done less often.
    public var countedAt: EventTime
    public var counts = StateCounts()
    /// In order of time; the last is no later than `countedAt`.
    public var history: [Sample] = []
    public var troubles: [Trouble] = []
    public var alerts: [AlertCount] = []
    public var newestAlerts: [AlertReading] = []
    public var partitions: [Partition] = []
    public var rates = Rates()
    public var outbox: Int64 = 0
    public var configurations = Configurations()
    public var releases: [Release] = []
    public var matches = Matches()
    /// Why this is older than it should be, for people; `nil`: it is not.
    public var fault: String?

    public init(now: EventTime) {
        self.now = now
        countedAt = now
    }
}

public struct AlertReading: Hashable, Sendable {
    public var id: DeviceID
    public var kind: String
    /// The device's id, a front-end's name, or fleet.
    public var entity: String
    public var device: DeviceID?
    public var reason: String
    public var openedAt: EventTime
    public var resolvedAt: EventTime?
    public var acknowledgedBy: String?
    public var devices: Int64?

    public init(
        id: DeviceID, kind: String, entity: String, device: DeviceID?, reason: String,
        openedAt: EventTime, resolvedAt: EventTime? = nil, acknowledgedBy: String? = nil,
        devices: Int64? = nil
    ) {
        self.id = id
        self.kind = kind
        self.entity = entity
        self.device = device
        self.reason = reason
        self.openedAt = openedAt
        self.resolvedAt = resolvedAt
        self.acknowledgedBy = acknowledgedBy
        self.devices = devices
    }
}

/// What is known of one device.
public struct DeviceReading: Hashable, Sendable {
    public struct Registration: Hashable, Sendable {
        public var internalAddress: String
        /// What its agent calls its hardware, if it was provisioned.
        public var hardwareID: String?
        public var version: Int64
        public var isSuspended: Bool
        public var expectedIntervalMilliseconds: Int64?
        public var createdAt: EventTime

        public init(
            internalAddress: String, hardwareID: String?, version: Int64, isSuspended: Bool,
            expectedIntervalMilliseconds: Int64?, createdAt: EventTime
        ) {
            self.internalAddress = internalAddress
            self.hardwareID = hardwareID
            self.version = version
            self.isSuspended = isSuspended
            self.expectedIntervalMilliseconds = expectedIntervalMilliseconds
            self.createdAt = createdAt
        }
    }

    public struct Status: Hashable, Sendable {
        public var lastSeen: EventTime?
        public var lastHandshake: EventTime?
        public var tunnelUp: Bool?
        public var agentStatus: String?
        public var agentState: String?
        /// As JSON.
        public var flags: String
        public var isFlapping: Bool

        public init(
            lastSeen: EventTime? = nil, lastHandshake: EventTime? = nil, tunnelUp: Bool? = nil,
            agentStatus: String? = nil, agentState: String? = nil, flags: String = "[]",
            isFlapping: Bool = false
        ) {
            self.lastSeen = lastSeen
            self.lastHandshake = lastHandshake
            self.tunnelUp = tunnelUp
            self.agentStatus = agentStatus
            self.agentState = agentState
            self.flags = flags
            self.isFlapping = isFlapping
        }
    }

    public struct Interval: Hashable, Sendable {
        public var state: String
        public var reason: String
        public var start: EventTime
        /// `nil`: it holds.
        public var end: EventTime?

        public init(state: String, reason: String, start: EventTime, end: EventTime?) {
            self.state = state
            self.reason = reason
            self.start = start
            self.end = end
        }
    }

    public struct Version: Hashable, Sendable {
        public var version: Int64
        public var kind: String
        public var changedAt: EventTime
        public var changedBy: String
        public var deliveredAt: EventTime?

        public init(
            version: Int64, kind: String, changedAt: EventTime, changedBy: String,
            deliveredAt: EventTime?
        ) {
            self.version = version
            self.kind = kind
            self.changedAt = changedAt
            self.changedBy = changedBy
            self.deliveredAt = deliveredAt
        }
    }

    public var now: EventTime
    public var device: DeviceID
    /// `nil`: it is not in the registry any more.
    public var registration: Registration?
    public var status: Status?
    /// The newest first; the first one holds if the device was ever judged.
    public var intervals: [Interval] = []
    /// The newest first.
    public var versions: [Version] = []
    public var alerts: [AlertReading] = []
    public var forwards: [String] = []

    public init(now: EventTime, device: DeviceID) {
        self.now = now
        self.device = device
    }

    /// Whether there is, or was, such a device.
    public var isKnown: Bool {
        registration != nil || status != nil || !versions.isEmpty || !alerts.isEmpty
    }
}

/// A device in a list.
public struct FoundDevice: Hashable, Sendable {
    public var device: DeviceID
    public var address: String
    public var hardwareID: String?
    public var state: String?
    public var since: EventTime?

    public init(
        device: DeviceID, address: String, hardwareID: String?, state: String?, since: EventTime?
    ) {
        self.device = device
        self.address = address
        self.hardwareID = hardwareID
        self.state = state
        self.since = since
    }
}
