/// What goes wrong in a world, or is done to it.
public enum WorldFault: String, CaseIterable, Sendable {
    case frontEndCrash = "front-end crashed"
    case frontEndLeaves = "front-end stopped in order"
    case frontEndCut = "front-end cut from the log"
    case loopHangs = "front-end's loop hung"
    case processHangs = "front-end's process stopped"
    case clockSet = "front-end's clock set"
    case batchesFail = "batches failed"
    case acknowledgementLost = "batches sent twice"
    case heartbeatShed = "heartbeats shed"
    case logOutage = "log down"
    case partitionLags = "partition lagged"
    case databaseOutage = "database down"
    case workerCrash = "worker crashed"
    case workerStarts = "worker started"
    case workerStops = "worker stopped in order"
    case workerPauses = "worker paused"
    case rebalance = "partitions given anew"
    case reload = "settings changed"
    case deviceFails = "device changed"
    case massOutage = "devices vanished together"
    case dispatcherCrash = "dispatcher crashed"
    case receiverDown = "receiver down"
    case silence = "alerts silenced"
    case suspension = "device suspended or resumed"
}

/// What a world is made of.
public struct WorldOptions: Sendable, Hashable {
    public var seed: UInt64
    /// Length of the storm in simulated milliseconds; a calm of 6 to 25 minutes follows it.
    /// `nil`: 3 to 9 minutes, by the seed, with faults in quick succession.
    public var duration: Int64?
    /// 1 to 100,000; `nil`: 2 to 12, by the seed.
    public var devices: Int?
    /// Whether the settings are changed in the storm.
    public var reloads = true
    /// 1 to 3, by the seed, where it is `nil`.
    public var frontEnds: Int?
    public var partitions: Int?
    public var workers: Int?
    /// What is done instead of what the seed would choose; devices are well unless it says otherwise.
    public var script: WorldScript?

    public init(seed: UInt64, duration: Int64? = nil, devices: Int? = nil) {
        self.seed = seed
        self.duration = duration
        self.devices = devices
    }
}

/// A promise that was broken.
public struct WorldViolation: Error, Sendable, Hashable, CustomStringConvertible {
    /// Simulated milliseconds.
    public var time: Int64
    public var text: String
    /// The device that it is about.
    var device: Int?

    public var description: String { "\(World.text(time)) \(text)" }
}

/// What happened in a world, to be told in a few lines. The same seed gives the same report.
public struct WorldReport: Sendable, Equatable {
    public internal(set) var seed: UInt64
    public internal(set) var milliseconds: Int64 = 0
    public internal(set) var devices = 0
    public internal(set) var frontEnds = 0
    public internal(set) var partitions = 0
    public internal(set) var heartbeats = 0
    public internal(set) var beacons = 0
    public internal(set) var commits = 0
    public internal(set) var faults: [WorldFault: Int] = [:]
    /// By kind, in the order of the kinds' names.
    public internal(set) var alertsOpened: [String: Int] = [:]
    public internal(set) var alertsResolved: [String: Int] = [:]
    /// Messages that were acknowledged, by receiver, kind and event (`offline firing`).
    public internal(set) var told: [String: [String: Int]] = [:]
    public internal(set) var massEvents = 0
    public internal(set) var violation: WorldViolation?
    /// What was done to whom and when, and what was decided; empty unless it was asked for.
    public internal(set) var trace: [String] = []

    public mutating func add(_ other: WorldReport) {
        milliseconds += other.milliseconds
        devices += other.devices
        frontEnds += other.frontEnds
        partitions += other.partitions
        heartbeats += other.heartbeats
        beacons += other.beacons
        commits += other.commits
        faults.merge(other.faults) { $0 + $1 }
        alertsOpened.merge(other.alertsOpened) { $0 + $1 }
        alertsResolved.merge(other.alertsResolved) { $0 + $1 }
        told.merge(other.told) { $0.merging($1) { $0 + $1 } }
        massEvents += other.massEvents
    }

    public var summary: String {
        var text = """
            \(World.text(milliseconds)) simulated: \(devices) devices, \(frontEnds) front-ends, \
            \(partitions) partitions, \(heartbeats) heartbeats, \(beacons) beacons, \(commits) commits

            """
        for fault in WorldFault.allCases {
            if let count = faults[fault] { text += "  \(fault.rawValue): \(count)\n" }
        }
        let kinds = alertsOpened.keys.sorted().map {
            "\($0) \(alertsOpened[$0] ?? 0)/\(alertsResolved[$0] ?? 0)"
        }
        text +=
            "alerts opened/resolved: \(kinds.isEmpty ? "none" : kinds.joined(separator: ", "))\n"
        for receiver in told.keys.sorted() {
            let counts = (told[receiver] ?? [:]).sorted { $0.key < $1.key }
                .map { "\($0.key) \($0.value)" }
            text += "told \(receiver): "
            text += "\(counts.isEmpty ? "nothing" : counts.joined(separator: ", "))\n"
        }
        return text
    }
}
