public import Schemas

/// What table `alerts` holds of a pipeline, for a state that was built anew and goes on from there: an alert's
/// id follows from its number, and a number that was used once is never another alert's.
public struct KnownAlerts: Sendable {
    public struct Entity: Sendable {
        /// The highest number of any of its alerts.
        public var episodes: UInt32 = 0
        /// The numbers of those that are open.
        public var open: [AlertKind: UInt32] = [:]
        /// By how much `episodes` is above the numbers of every partition's state.
        public var ahead: UInt32 = 0
    }

    public private(set) var devices: [DeviceID: Entity] = [:]
    /// Front-ends, by name.
    public private(set) var others: [String: Entity] = [:]

    public init() {}

    /// Takes in the alerts of one kind of one entity.
    /// - Parameter open: the number of the one that is open; `nil`: none is.
    public mutating func add(
        _ kind: AlertKind, entity: String, device: DeviceID?, episodes: Int64, open: Int64?
    ) {
        func note(_ known: inout Entity) {
            known.episodes = max(known.episodes, UInt32(clamping: episodes))
            if let open { known.open[kind] = UInt32(clamping: open) }
        }
        if let device {
            note(&devices[device, default: Entity()])
        } else {
            note(&others[entity, default: Entity()])
        }
    }

    /// Looks at the states of all partitions before any of them adopts.
    public mutating func compare(_ states: [[String: SharedAlert]]) {
        for (name, entity) in others {
            let known = states.compactMap { $0[name] }
            let most = known.map(\.episode).max() ?? 0
            var ahead = entity.episodes - min(most, entity.episodes)
            // Open for everybody, and over in the table: it is another one.
            let isOpen = known.allSatisfy { $0.episode < most || $0.isOpen } && most > 0
            if isOpen, entity.open[.frontEndLost] == nil, most <= entity.episodes { ahead += 1 }
            others[name]?.ahead = ahead
        }
    }
}

/// An alert that all partitions raise alike.
public struct SharedAlert: Sendable {
    public var episode: UInt32
    public var isOpen: Bool
}

extension TunnelHealth {
    public var sharedAlerts: [String: SharedAlert] {
        Dictionary(
            frontEndAlerts.map {
                ("\($0.name)", SharedAlert(episode: $0.episode, isOpen: $0.isOpen))
            }
        ) { first, _ in first }
    }

    public mutating func adopt(_ known: KnownAlerts) {
        /// An open alert goes on as the one that is open in the table, or as one that is in no table: never
        /// as one that was over.
        func adopt(
            _ number: inout UInt32, _ kind: AlertKind, _ entity: KnownAlerts.Entity,
            _ episodes: inout UInt32
        ) {
            if let open = entity.open[kind] {
                number = open
            } else {
                episodes += 1
                number = episodes
            }
        }
        for index in 0..<devices.count {
            guard let entity = known.devices[devices[index].id] else { continue }
            var slot = devices[index]
            slot.episodes = max(slot.episodes, entity.episodes)
            if slot.stateAlert != 0, let kind = Self.alertKind(slot.state) {
                adopt(&slot.stateAlert, kind, entity, &slot.episodes)
            }
            if slot.flappingAlert != 0 {
                adopt(&slot.flappingAlert, .flapping, entity, &slot.episodes)
            }
            devices[index] = slot
        }
        for index in frontEndAlerts.indices {
            guard let entity = known.others["\(frontEndAlerts[index].name)"] else { continue }
            // Every partition numbers them alike, and one may be behind another.
            frontEndAlerts[index].episode += entity.ahead
        }
    }
}
