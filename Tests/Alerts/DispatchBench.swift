import Alerts
import Schemas

/// An `AlertDispatch` with the tables that it lives on, as values: what a shell does without a database.
struct DispatchBench {
    struct Row {
        var kind: String
        var device: DeviceID?
        var isOpen = true
    }

    struct Decision: Equatable {
        var state: AlertDispatch.State
        var group: DeviceID?
        var seenAt: Int64
        var decidedAt: Int64
    }

    struct Silence {
        var kind: String?
        var device: DeviceID?
        var from: Int64
        var to: Int64
    }

    var dispatch: AlertDispatch
    var now: Int64 = 1_790_000_000_000
    var silences: [Silence] = []
    /// Devices that are registered and report, unless an offline alert of theirs is open.
    var fleet: Int64 = 100
    private(set) var alerts: [DeviceID: Row] = [:]
    private(set) var decisions: [DeviceID: Decision] = [:]
    /// `firing 3`, `resolved 3`, `firing mass-offline (21)`, in order.
    private(set) var messages: [String] = []
    private(set) var sent: [AlertRound.Message] = []
    private(set) var massCount = 0
    private var news: Set<DeviceID> = []
    private let settings: AlertDispatchSettings

    init(_ settings: AlertDispatchSettings = .init()) {
        self.settings = settings
        dispatch = AlertDispatch(settings: settings)
    }

    static func device(_ number: Int) -> DeviceID { DeviceID(high: 7, low: UInt64(number)) }
    /// Alert ids are not devices' ids.
    static func alert(_ number: Int) -> DeviceID { DeviceID(high: 9, low: UInt64(number)) }

    /// - Parameter number: names the alert; its device is `number` modulo 100,000.
    mutating func open(_ number: Int, kind: AlertKind = .offline) {
        let isDevice = [.offline, .stale, .down, .flapping].contains(kind)
        alerts[Self.alert(number)] = Row(
            kind: kind.rawValue, device: isDevice ? Self.device(number % 100_000) : nil)
        news.insert(Self.alert(number))
    }

    mutating func resolve(_ number: Int) {
        alerts[Self.alert(number)]?.isOpen = false
        news.insert(Self.alert(number))
    }

    mutating func silence(_ kind: AlertKind? = nil, device: Int? = nil, seconds: Int64) {
        silences.append(
            Silence(
                kind: kind?.rawValue, device: device.map(Self.device), from: now,
                to: now + seconds * 1_000))
    }

    mutating func unsilence() { silences = [] }

    /// A round each second.
    mutating func run(seconds: Int64) {
        for _ in 0..<seconds {
            now += 1_000
            round()
        }
    }

    mutating func round() {
        var active = AlertSilences()
        for silence in silences where silence.from <= now && now < silence.to {
            active.add(kind: silence.kind, device: silence.device)
        }
        var round = AlertRound()
        dispatch.take(takeNews(), silences: active, at: now, into: &round)
        let offline = alerts.values.count { $0.isOpen && $0.kind == "offline" }
        dispatch.decide(
            onlineDevices: dispatch.wantsDeviceCount ? fleet - Int64(offline) : nil,
            silences: active, at: now, into: &round)
        store(round)
    }

    private mutating func takeNews() -> [AlertDispatch.News] {
        defer { news = [] }
        return news.map { id in
            let row = alerts[id]
            return .init(
                id: id, kind: row?.kind ?? "", device: row?.device, isOpen: row?.isOpen == true)
        }
    }

    private mutating func store(_ round: AlertRound) {
        if let opened = round.opened {
            alerts[opened.id] = Row(kind: "mass-offline", device: nil)
            news.insert(opened.id)
            massCount += 1
        }
        if let resolved = round.resolved {
            alerts[resolved]?.isOpen = false
            news.insert(resolved)
        }
        for (id, change) in round.changes {
            var decision =
                decisions[id]
                ?? Decision(state: change.state, group: change.group, seenAt: now, decidedAt: now)
            decision.state = change.state
            if change.state != .ended { decision.group = change.group }
            decision.decidedAt = now
            decisions[id] = decision
        }
        for message in round.messages {
            let isMass = alerts[message.id]?.kind == "mass-offline"
            let count = round.opened.map { " (\($0.devices))" } ?? ""
            messages.append(
                "\(message.event) " + (isMass ? "mass-offline\(count)" : "\(message.id.low)"))
            sent.append(message)
        }
    }

    /// Another process takes over: it knows what is stored.
    mutating func restart() {
        var entries: [DeviceID: AlertDispatch.Entry] = [:]
        var mass: AlertDispatch.MassEvent?
        for (id, decision) in decisions where decision.state != .ended {
            guard let row = alerts[id] else { continue }
            entries[id] = .init(
                kind: row.kind, device: row.device, state: decision.state, group: decision.group,
                seenAt: decision.seenAt, decidedAt: decision.decidedAt)
            if row.kind == "mass-offline" {
                let members = decisions.values.filter { $0.group == id }
                mass = .init(
                    id: id, members: Int64(members.count),
                    ended: Int64(members.count { $0.state == .ended }))
            }
        }
        dispatch = AlertDispatch(
            restoring: entries, mass: mass, nextEpisode: Int64(massCount), settings: settings)
        // What was open or is over is looked at anew, as the tables say it.
        for (id, row) in alerts {
            let decision = decisions[id]
            if row.isOpen ? decision == nil : decision.map({ $0.state != .ended }) == true {
                news.insert(id)
            }
        }
    }

    func state(_ number: Int) -> AlertDispatch.State? { decisions[Self.alert(number)]?.state }
}
