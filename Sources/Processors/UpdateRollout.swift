public import Schemas

/// What `UpdateRollout` is told.
public struct UpdateRolloutSettings: Hashable, Sendable {
    /// An attempt of which nothing was heard for so long is unconfirmed, in milliseconds. Default: 30 min;
    /// more than the longest silence of an installer's command.
    public var unconfirmedAfter: Int64 = 30 * 60_000

    public init() {}
}

/// Follows what apps and their installations say: where each app stands, what became of each attempt, and how
/// far each release has come.
///
/// An attempt that ends without saying how is unconfirmed, never a success; a later check that shows the
/// new release makes it one. Time is that of the records.
public struct UpdateRollout: Processor {
    public typealias Settings = UpdateRolloutSettings
    public typealias Event = UpdatesEvent
    public typealias Decoder = UpdatesDecoder

    public static var source: Topic { .updates }
    public static var outputTopics: [Topic] { [.deadLetters] }
    public static var tables: [TableSchema] { [.installations, .updateAttempts, .rollout] }

    enum OfferState: UInt8, Sendable, CaseIterable {
        case offered = 1, downloading, failed, unconfirmed

        var text: StaticString {
            switch self {
            case .offered: "offered"
            case .downloading: "downloading"
            case .failed: "failed"
            case .unconfirmed: "unconfirmed"
            }
        }
    }

    enum AttemptState: UInt8, Sendable, CaseIterable {
        case inProgress = 1, succeeded, failed, needsSelection, unconfirmed

        var text: StaticString {
            switch self {
            case .inProgress: "in-progress"
            case .succeeded: "succeeded"
            case .failed: "failed"
            case .needsSelection: "needs-selection"
            case .unconfirmed: "unconfirmed"
            }
        }
    }

    struct Installation: Sendable, Equatable {
        var source = ""
        var channel: String?
        var current: String?
        var offered: String?
        var offerState: OfferState?
        var checkedAt: EventTime?
        var installedAt: EventTime?
        /// The newest attempts to install, the last one last.
        var recent: [DeviceID] = []
        var clonedAt: EventTime?
    }

    struct Attempt: Sendable, Equatable {
        var installation: DeviceID
        var action: UpdatesEvent.Action
        var source: String
        var from: String?
        var to: String?
        var state = AttemptState.inProgress
        var step: UpdatesEvent.Step?
        var stepSince: EventTime
        var reason: String?
        var isLate = false
        var warnings: Int64 = 0
        var startedAt: EventTime
        var heardAt: EventTime
        var endedAt: EventTime?
        var disconnectedAt: EventTime?
        /// Milliseconds of each step, in the order of the steps; -1: there was none.
        var durations: [Int64] = [-1, -1, -1, -1]
    }

    struct Release: Hashable, Comparable, Sendable {
        var source: String
        var name: String

        static func < (a: Release, b: Release) -> Bool {
            a.source != b.source ? a.source < b.source : a.name < b.name
        }
    }

    struct Counts: Sendable, Equatable {
        var offered: Int64 = 0
        var downloading: Int64 = 0
        var installed: Int64 = 0
        var failed: Int64 = 0
        var unconfirmed: Int64 = 0

        mutating func add(_ change: Int64, to state: OfferState) {
            switch state {
            case .offered: offered += change
            case .downloading: downloading += change
            case .failed: failed += change
            case .unconfirmed: unconfirmed += change
            }
        }

        var isZero: Bool { self == Counts() }
    }

    let partition: Int32
    private var settings: UpdateRolloutSettings
    var installations: [DeviceID: Installation] = [:]
    /// Those in progress, and the newest few to install of each installation.
    var attempts: [DeviceID: Attempt] = [:]
    /// Attempts in progress; a few among many that have ended.
    var open: Set<DeviceID> = []
    var counts: [Release: Counts] = [:]
    /// The highest counter of each front-end's run, the newest run last: what comes again is a repeat.
    var origins: [(boot: UInt64, counter: UInt64)] = []
    /// The newest time of a record.
    var now: Int64 = .min
    /// No attempt in progress can be over before.
    private var nextDeadline: Int64 = .max
    /// Records that came before.
    public internal(set) var repeats: Int64 = 0

    // Marks: what has changed since the last `drain`, with the offset that changed it last.
    private var changedInstallations: [DeviceID: Int64] = [:]
    private var changedAttempts: [DeviceID: Int64] = [:]
    /// Attempts that changed and are kept no more.
    private var leaving: [DeviceID: Attempt] = [:]
    private var changedReleases: [Release: Int64] = [:]

    /// Front-ends' runs that are remembered.
    private static let maximumOrigins = 64
    /// Attempts to install of one installation that a late word can still change.
    private static let maximumRecent = 4

    public init(partition: Int32, settings: UpdateRolloutSettings) {
        self.partition = partition
        self.settings = settings
    }

    public mutating func reconfigure(_ settings: UpdateRolloutSettings) {
        self.settings = settings
        findDeadline()
    }

    public var installationCount: Int { installations.count }
    public var attemptsInProgress: Int { open.count }

    // MARK: - Records

    public mutating func apply(
        _ event: UpdatesEvent, at place: RecordPlace, into effects: inout Effects
    ) {
        guard isNew(event.origin) else {
            repeats += 1
            return
        }
        now = max(now, place.timestamp.milliseconds)
        expire(place.offset)
        switch event.kind {
        case .clock: break
        case .cloned:
            change(event.installation, place.offset) {
                $0.source = event.source
                if $0.clonedAt == nil { $0.clonedAt = place.timestamp }
            }
        case .checked(let check): checked(check, event, at: place)
        case .attempt(let attempt): heard(attempt, event, at: place)
        }
        if effects.isDiscarding { forgetMarks() }
    }

    private mutating func isNew(_ origin: EventOrigin) -> Bool {
        if let index = origins.firstIndex(where: { $0.boot == origin.boot }) {
            guard origin.counter > origins[index].counter else { return false }
            origins[index].counter = origin.counter
            return true
        }
        if origins.count == Self.maximumOrigins { origins.removeFirst() }
        origins.append((origin.boot, origin.counter))
        return true
    }

    private mutating func checked(
        _ check: UpdatesEvent.Check, _ event: UpdatesEvent, at place: RecordPlace
    ) {
        if let attempt = check.confirmed { confirm(attempt, at: place) }
        change(event.installation, place.offset) {
            $0.source = event.source
            $0.channel = check.channel
            $0.checkedAt = place.timestamp
            if let current = check.current { $0.current = current }
            guard check.isAvailable, let latest = check.latest else {
                // It has what there is; what runs still speaks for itself.
                if $0.offerState != .downloading {
                    $0.offered = nil
                    $0.offerState = nil
                }
                return
            }
            if $0.offered != latest {
                $0.offered = latest
                $0.offerState = .offered
            }
        }
        // The app itself says that it has what an attempt was to bring.
        guard let last = installations[event.installation]?.recent.last,
            let attempt = attempts[last], attempt.state != .succeeded,
            attempt.state != .inProgress, let release = attempt.to, release == check.current
        else { return }
        confirm(last, at: place)
    }

    /// An attempt has succeeded, as was found out otherwise than by its own result.
    private mutating func confirm(_ id: DeviceID, at place: RecordPlace) {
        guard var attempt = attempts[id], attempt.action == .install,
            attempt.state != .succeeded
        else { return }
        end(&attempt, .succeeded, at: place.timestamp)
        attempt.isLate = true
        attempt.reason = nil
        keep(id, attempt, place.offset)
        succeeded(attempt, at: place)
    }

    private mutating func heard(
        _ said: UpdatesEvent.Attempt, _ event: UpdatesEvent, at place: RecordPlace
    ) {
        let known = attempts[said.id]
        if known == nil, said.action == .install { meet(said.id, event, at: place) }
        var attempt =
            known
            ?? Attempt(
                installation: event.installation, action: said.action, source: event.source,
                from: installations[event.installation]?.current, stepSince: place.timestamp,
                startedAt: place.timestamp, heardAt: place.timestamp)
        // What succeeded has; an error behind it is of the way back.
        guard attempt.state != .succeeded else { return }
        attempt.heardAt = max(attempt.heardAt, place.timestamp)
        if let release = said.release { attempt.to = release }
        switch said.stage {
        case .step(let step):
            // After an end only a result changes anything.
            guard attempt.state == .inProgress else { return }
            begin(&attempt, step, at: place.timestamp)
            follow(attempt, said.id, .downloading, at: place)
        case .selection(let key):
            guard attempt.state == .inProgress || attempt.state == .unconfirmed else { return }
            attempt.reason = key
            end(&attempt, .needsSelection, at: place.timestamp)
            follow(attempt, said.id, .failed, at: place)
        case .error(let message):
            guard attempt.state == .inProgress || attempt.state == .unconfirmed else { return }
            attempt.reason = message
            end(&attempt, .failed, at: place.timestamp)
            follow(attempt, said.id, .failed, at: place)
        case .lost(let message):
            guard attempt.state == .inProgress else { return }
            attempt.reason = message
            end(&attempt, .unconfirmed, at: place.timestamp)
            follow(attempt, said.id, .unconfirmed, at: place)
        case .disconnected:
            if attempt.disconnectedAt == nil { attempt.disconnectedAt = place.timestamp }
            follow(attempt, said.id, nil, at: place)
        case .result(let warnings):
            attempt.isLate = attempt.state != .inProgress
            attempt.reason = nil
            attempt.warnings = warnings
            end(&attempt, .succeeded, at: place.timestamp)
            follow(attempt, said.id, nil, at: place)
            if attempt.action == .install { succeeded(attempt, at: place) }
        }
        keep(said.id, attempt, place.offset)
    }

    /// Notes an attempt to install that is new, and lets go of the oldest.
    private mutating func meet(
        _ id: DeviceID, _ event: UpdatesEvent, at place: RecordPlace
    ) {
        var oldest: DeviceID?
        change(event.installation, place.offset) {
            $0.source = event.source
            $0.recent.append(id)
            if $0.recent.count > Self.maximumRecent { oldest = $0.recent.removeFirst() }
        }
        guard let oldest, !open.contains(oldest), let attempt = attempts.removeValue(forKey: oldest)
        else { return }
        if changedAttempts[oldest] != nil { leaving[oldest] = attempt }
    }

    private func begin(_ attempt: inout Attempt, _ step: UpdatesEvent.Step, at time: EventTime) {
        guard attempt.step != step else { return }
        closeStep(&attempt, at: time)
        attempt.step = step
        attempt.stepSince = time
    }

    private func closeStep(_ attempt: inout Attempt, at time: EventTime) {
        guard let step = attempt.step else { return }
        let index = Int(step.rawValue) - 1
        attempt.durations[index] =
            max(0, attempt.durations[index]) + max(0, time - attempt.stepSince)
        attempt.stepSince = time
    }

    private func end(_ attempt: inout Attempt, _ state: AttemptState, at time: EventTime) {
        if attempt.state == .inProgress { closeStep(&attempt, at: time) }
        attempt.state = state
        attempt.endedAt = time
    }

    /// What an attempt means for its installation.
    private mutating func follow(
        _ attempt: Attempt, _ id: DeviceID, _ state: OfferState?, at place: RecordPlace
    ) {
        change(attempt.installation, place.offset) {
            $0.source = attempt.source
            guard let release = attempt.to else { return }
            switch (attempt.action, state) {
            case (.install, let state?):
                // An older attempt does not speak for the newest; and to sign again what is
                // installed is no step towards another release.
                guard $0.recent.last == id, release != $0.current || release == $0.offered
                else { return }
                $0.offered = release
                $0.offerState = state
            case (.prefetch, .downloading?):
                // What became of an attempt to install says more than that it is fetched again.
                guard $0.offered != release || $0.offerState == .offered else { return }
                $0.offered = release
                $0.offerState = .downloading
            case (.prefetch, _):
                // Downloaded or not, it is as far as before: offered.
                if $0.offered == release, $0.offerState == .downloading {
                    $0.offerState = .offered
                }
            case (.install, nil): break
            }
        }
    }

    private mutating func succeeded(_ attempt: Attempt, at place: RecordPlace) {
        change(attempt.installation, place.offset) {
            if let release = attempt.to { $0.current = release }
            $0.offered = nil
            $0.offerState = nil
            $0.installedAt = place.timestamp
        }
    }

    // MARK: - Time

    /// Attempts of which nothing was heard for too long.
    private mutating func expire(_ offset: Int64) {
        guard now >= nextDeadline else { return }
        // In the order of the ids, so that a replay does the same.
        for id in open.sorted() {
            guard var attempt = attempts[id] else { continue }
            let deadline = attempt.heardAt + settings.unconfirmedAfter
            guard deadline.milliseconds <= now else { continue }
            attempt.reason = "nothing was heard of it any more"
            end(&attempt, .unconfirmed, at: deadline)
            follow(
                attempt, id, .unconfirmed,
                at: RecordPlace(partition: partition, offset: offset, timestamp: deadline))
            keep(id, attempt, offset)
        }
        findDeadline()
    }

    mutating func findDeadline() {
        nextDeadline = .max
        for id in open {
            guard let attempt = attempts[id] else { continue }
            nextDeadline = min(
                nextDeadline, (attempt.heardAt + settings.unconfirmedAfter).milliseconds)
        }
    }

    // MARK: - State

    /// Changes an installation, and the counts of the releases that it stands with.
    private mutating func change(
        _ id: DeviceID, _ offset: Int64, _ body: (inout Installation) -> Void
    ) {
        let before = installations[id]
        var after = before ?? Installation()
        body(&after)
        if let before { count(before, -1, offset) }
        count(after, 1, offset)
        installations[id] = after
        changedInstallations[id] = offset
    }

    /// - Parameter offset: `nil` where nothing changes, as after a restart.
    mutating func count(_ installation: Installation, _ change: Int64, _ offset: Int64?) {
        if let current = installation.current {
            let release = Release(source: installation.source, name: current)
            counts[release, default: Counts()].installed += change
            if let offset { changedReleases[release] = offset }
        }
        if let offered = installation.offered, let state = installation.offerState {
            let release = Release(source: installation.source, name: offered)
            counts[release, default: Counts()].add(change, to: state)
            if let offset { changedReleases[release] = offset }
        }
    }

    private mutating func keep(_ id: DeviceID, _ attempt: Attempt, _ offset: Int64) {
        changedAttempts[id] = offset
        let isOpen = attempt.state == .inProgress
        if isOpen {
            open.insert(id)
            nextDeadline = min(
                nextDeadline, (attempt.heardAt + settings.unconfirmedAfter).milliseconds)
        } else {
            open.remove(id)
        }
        // Of what ended only the newest few to install can change any more.
        if isOpen || installations[attempt.installation]?.recent.contains(id) == true {
            attempts[id] = attempt
        } else {
            attempts[id] = nil
            leaving[id] = attempt
        }
    }

    // MARK: - Rows

    public var pendingRows: Int {
        changedInstallations.count + changedAttempts.count + changedReleases.count
    }

    private mutating func forgetMarks() {
        changedInstallations.removeAll(keepingCapacity: true)
        changedAttempts.removeAll(keepingCapacity: true)
        leaving.removeAll(keepingCapacity: true)
        for release in changedReleases.keys where counts[release]?.isZero == true {
            counts[release] = nil
        }
        changedReleases.removeAll(keepingCapacity: true)
    }

    public mutating func drain(into effects: inout Effects) {
        if !effects.isDiscarding {
            for (id, offset) in changedInstallations.sorted(by: { $0.key < $1.key }) {
                guard let installation = installations[id] else { continue }
                append(id, installation, offset, to: &effects.rows[0])
            }
            for (id, offset) in changedAttempts.sorted(by: { $0.key < $1.key }) {
                guard let attempt = attempts[id] ?? leaving[id] else { continue }
                append(id, attempt, offset, to: &effects.rows[1])
            }
            for (release, offset) in changedReleases.sorted(by: { $0.key < $1.key }) {
                append(release, counts[release] ?? Counts(), offset, to: &effects.rows[2])
            }
        }
        forgetMarks()
    }
}

extension UpdatesDecoder: EventDecoder {}
