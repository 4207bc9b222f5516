internal import Bytes
public import Schemas

/// Decides which alerts are told to people, when, and as how many: a value, without I/O or clock.
///
/// The shell tells it in rounds which alerts were opened and resolved, and stores what it decides with
/// the messages that follow, as one transaction. What it knows can be restored from what was stored
/// (`init(restoring:…)`), so a restart or another holder of the lease goes on exactly here.
///
/// A round is `take`, then `decide` with the same time.
public struct AlertDispatch: Sendable, Equatable {
    /// What was decided of an alert last; the text is what `alert_dispatch` stores.
    public enum State: String, Sendable, CaseIterable {
        /// Waits whether others of its kind follow.
        case held
        /// Not told while a silence holds.
        case silenced
        /// Told of by a `mass-offline` alert.
        case grouped
        case sent
        /// Resolved; nothing follows any more.
        case ended
    }

    /// An alert that was opened or resolved since the last round; one that was told of already does
    /// nothing.
    public struct News: Sendable, Hashable {
        public var id: DeviceID
        /// As `heartline.alerts` has it; kinds of other versions are passed on like any other.
        public var kind: String
        /// `nil` for what is about a front-end or the fleet.
        public var device: DeviceID?
        public var isOpen: Bool

        public init(id: DeviceID, kind: String, device: DeviceID?, isOpen: Bool) {
            self.id = id
            self.kind = kind
            self.device = device
            self.isOpen = isOpen
        }
    }

    /// What is known of an alert that has not ended. Times are the database's, in milliseconds.
    public struct Entry: Sendable, Hashable {
        public var kind: String
        public var device: DeviceID?
        public var state: State
        public var group: DeviceID?
        public var seenAt: Int64
        /// Since when the state holds.
        public var decidedAt: Int64

        public init(
            kind: String, device: DeviceID?, state: State, group: DeviceID? = nil, seenAt: Int64,
            decidedAt: Int64
        ) {
            self.kind = kind
            self.device = device
            self.state = state
            self.group = group
            self.seenAt = seenAt
            self.decidedAt = decidedAt
        }
    }

    /// A `mass-offline` alert that is open.
    public struct MassEvent: Sendable, Hashable {
        public var id: DeviceID
        /// Alerts that it tells of, those that have ended included.
        public var members: Int64
        /// Members that have ended.
        public var ended: Int64

        public init(id: DeviceID, members: Int64, ended: Int64) {
            self.id = id
            self.members = members
            self.ended = ended
        }
    }

    public private(set) var settings: AlertDispatchSettings
    public private(set) var entries: [DeviceID: Entry] = [:]
    public private(set) var mass: MassEvent?
    /// What the next `mass-offline` alert is numbered.
    public private(set) var nextEpisode: Int64

    // Alerts by what has to be looked at in each round; `entries` alone says what holds.
    private var held: Set<DeviceID> = []
    private var silenced: Set<DeviceID> = []
    /// Offline alerts that were sent, and when they were seen: they count for a mass event.
    private var sentLately: [DeviceID: Int64] = [:]

    static let offline = AlertKind.offline.rawValue
    static let massOffline = AlertKind.massOffline.rawValue

    /// - Parameters:
    ///   - entries: every alert whose stored state is not `ended`.
    ///   - mass: the open `mass-offline` alert, if there is one; it is among `entries` too.
    ///   - nextEpisode: one more than the last `mass-offline` alert's; 0 if there was none.
    public init(
        restoring entries: [DeviceID: Entry] = [:], mass: MassEvent? = nil, nextEpisode: Int64 = 0,
        settings: AlertDispatchSettings = .init()
    ) {
        self.settings = settings
        self.entries = entries
        self.mass = mass
        self.nextEpisode = nextEpisode
        for (id, entry) in entries { index(id, entry) }
    }

    /// The next round goes by these settings; what was decided stays.
    public mutating func reconfigure(_ settings: AlertDispatchSettings) {
        self.settings = settings
    }

    // MARK: - A round, first half: what is new

    /// Takes what was opened and resolved, and the silences that hold now.
    ///
    /// - Parameters:
    ///   - now: milliseconds by the database's clock.
    ///   - news: in any order. An alert that was resolved before it was seen is never told of.
    public mutating func take(
        _ news: [News], silences: AlertSilences, at now: Int64, into round: inout AlertRound
    ) {
        for alert in news {
            if !alert.isOpen {
                if let mass, mass.id == alert.id {
                    // Somebody resolved it by hand.
                    close(mass, silences, at: now, into: &round)
                } else {
                    end(alert.id, at: now, into: &round)
                }
            } else if entries[alert.id] == nil {
                let entry = Entry(
                    kind: alert.kind, device: alert.device, state: .held, seenAt: now,
                    decidedAt: now)
                if silences.match(kind: alert.kind, device: alert.device) {
                    set(alert.id, entry, .silenced, at: now, into: &round)
                } else if alert.kind != Self.offline {
                    send(alert.id, entry, at: now, into: &round)
                } else if mass != nil {
                    join(alert.id, entry, at: now, into: &round)
                } else {
                    set(alert.id, entry, .held, at: now, into: &round)
                }
            }
        }
        for id in held {
            guard let entry = entries[id], silences.match(kind: entry.kind, device: entry.device)
            else { continue }
            set(id, entry, .silenced, at: now, into: &round)
        }
        round.released = []
        for id in silenced {
            guard let entry = entries[id], !silences.match(kind: entry.kind, device: entry.device)
            else { continue }
            if entry.kind != Self.offline {
                send(id, entry, at: now, into: &round)
            } else if mass != nil {
                join(id, entry, at: now, into: &round)
            } else {
                set(id, entry, .held, at: now, into: &round)
                if now - entry.seenAt >= settings.groupWait { round.released.insert(id) }
            }
        }
        sentLately = sentLately.filter { now - $0.value < settings.massWithin }
    }

    /// Whether `decide` must know how many devices report now.
    public var wantsDeviceCount: Bool {
        mass == nil && !held.isEmpty && lately >= settings.massMinimum
    }

    /// Devices that went offline within the time that makes a mass event, as far as their alerts are
    /// open and no silence holds for them.
    private var lately: Int64 { Int64(held.count + sentLately.count) }

    // MARK: - Second half: what follows

    /// - Parameter onlineDevices: devices that report now; `nil` where it was not asked for.
    public mutating func decide(
        onlineDevices: Int64?, silences: AlertSilences, at now: Int64, into round: inout AlertRound
    ) {
        if let mass {
            if mass.ended * 100 >= mass.members * settings.massResolvedShare {
                close(mass, silences, at: now, into: &round)
            }
        } else if isMass(onlineDevices, share: settings.massShare) {
            open(silences, at: now, into: &round)
        }
        sendDue(onlineDevices, at: now, into: &round)
        round.sort()
    }

    private func isMass(_ onlineDevices: Int64?, share: Int64, divisor: Int64 = 1) -> Bool {
        guard let onlineDevices, wantsDeviceCount else { return false }
        return lately * 100 * divisor > share * (onlineDevices + lately)
    }

    private mutating func open(
        _ silences: AlertSilences, at now: Int64, into round: inout AlertRound
    ) {
        let entity = AlertRound.fleet
        let id = AlertID.make(kind: .massOffline, entity: entity.span, episode: nextEpisode)
        round.opened = AlertRound.OpenedMass(id: id, episode: nextEpisode, devices: lately)
        nextEpisode += 1
        mass = MassEvent(id: id, members: 0, ended: 0)
        for member in held {
            guard let entry = entries[member] else { continue }
            join(member, entry, at: now, into: &round)
        }
        let entry = Entry(
            kind: Self.massOffline, device: nil, state: .sent, seenAt: now, decidedAt: now)
        if silences.match(kind: entry.kind, device: nil) {
            set(id, entry, .silenced, at: now, into: &round)
        } else {
            send(id, entry, at: now, into: &round)
        }
    }

    /// Ends the event; who is still offline waits once more, because others may be on their way back.
    private mutating func close(
        _ event: MassEvent, _ silences: AlertSilences, at now: Int64, into round: inout AlertRound
    ) {
        mass = nil
        round.resolved = event.id
        end(event.id, at: now, into: &round)
        for (id, entry) in entries where entry.group == event.id {
            let isSilenced = silences.match(kind: entry.kind, device: entry.device)
            set(id, entry, isSilenced ? .silenced : .held, at: now, into: &round)
        }
    }

    private mutating func sendDue(
        _ onlineDevices: Int64?, at now: Int64, into round: inout AlertRound
    ) {
        // On the way to a mass event, one by one would be many: they wait for the whole time in which
        // it can become one.
        let isNearMass = isMass(onlineDevices, share: settings.massShare, divisor: 4)
        let wait =
            isNearMass ? max(settings.groupWait, settings.massWithin) : settings.groupWait
        for id in held {
            guard let entry = entries[id] else { continue }
            let waited = now - entry.decidedAt
            // A clock that was set back must not make anybody wait for hours.
            if waited >= wait || waited < 0 || round.released.contains(id) {
                send(id, entry, at: now, into: &round)
            }
        }
    }

    // MARK: - Parts

    private mutating func send(
        _ id: DeviceID, _ entry: Entry, at now: Int64, into round: inout AlertRound
    ) {
        set(id, entry, .sent, at: now, into: &round)
        round.messages.append(AlertRound.Message(id: id, event: .firing))
    }

    private mutating func join(
        _ id: DeviceID, _ entry: Entry, at now: Int64, into round: inout AlertRound
    ) {
        mass?.members += 1
        set(id, entry, .grouped, group: mass?.id, at: now, into: &round)
    }

    private mutating func set(
        _ id: DeviceID, _ old: Entry, _ state: State, group: DeviceID? = nil, at now: Int64,
        into round: inout AlertRound
    ) {
        forget(id)
        var entry = old
        entry.state = state
        entry.group = group
        entry.decidedAt = now
        entries[id] = entry
        index(id, entry)
        round.changes[id] = AlertRound.Change(state: state, group: group)
    }

    private mutating func end(_ id: DeviceID, at now: Int64, into round: inout AlertRound) {
        guard let entry = entries.removeValue(forKey: id) else { return }
        forget(id)
        round.changes[id] = AlertRound.Change(state: .ended, group: entry.group)
        switch entry.state {
        case .sent: round.messages.append(AlertRound.Message(id: id, event: .resolved))
        case .grouped: mass?.ended += 1
        case .held, .silenced, .ended: break
        }
    }

    private mutating func index(_ id: DeviceID, _ entry: Entry) {
        switch entry.state {
        case .held: held.insert(id)
        case .silenced: silenced.insert(id)
        case .sent: if entry.kind == Self.offline { sentLately[id] = entry.seenAt }
        case .grouped, .ended: break
        }
    }

    private mutating func forget(_ id: DeviceID) {
        held.remove(id)
        silenced.remove(id)
        sentLately[id] = nil
    }
}
