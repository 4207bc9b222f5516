internal import Alerts
internal import Bytes
internal import EventLog
internal import Pipeline
internal import Processors
internal import Schemas
internal import System

/// Devices, front-ends, log, workers and database on one simulated clock, with all that goes wrong
/// among them chosen by a seed, before the eyes of an oracle that knows the truth.
///
/// The workers, the processor, the ledgers of the beacons and the event encoders are production's;
/// sockets, network, log, database and clocks are modelled. Nothing depends on anything but the
/// options: the same seed does the same, to the byte.
/// - Thread safety: belongs to one thread.
public final class World {
    /// The wall clock at the world's beginning, in milliseconds since 1970.
    static let epoch: Int64 = 1_790_000_000_000
    static let beaconInterval: Int64 = 5_000

    typealias WorldWorker = Worker<
        SimulatedConsumer, SimulatedProducer, SimulatedSession, TunnelHealth
    >

    /// A worker's process.
    final class Member {
        let number: Int
        var worker: WorldWorker
        let consumer: SimulatedConsumer
        let session: SimulatedSession
        var wake: Int64
        /// Stopped, as by SIGSTOP, until then.
        var pausedUntil: Int64 = 0

        init(
            _ number: Int, _ worker: consuming WorldWorker, _ consumer: SimulatedConsumer,
            _ session: SimulatedSession, wake: Int64
        ) {
            self.number = number
            self.worker = worker
            self.consumer = consumer
            self.session = session
            self.wake = wake
        }
    }

    enum Happening {
        case beat(device: Int, turn: Int)
        case attempt(device: Int, turn: Int, number: Int, frontEnd: Int)
        case life(device: Int)
        case beacon(frontEnd: Int, boot: UInt64)
        case pump(frontEnd: Int, boot: UInt64)
        case fault
        case dispatch
        case act(WorldScript.Step)
        /// The end of something that was begun before.
        case startFrontEnd(Int)
        case joinLog(frontEnd: Int)
        case wakeFrontEnd(Int, boot: UInt64)
        case logUp
        case databaseUp
        case partitionUp(Int)
        case startWorker
        case receiverUp(Int)
        case rebalance
        case resume(member: Int)
        case returnAll([Int])
        case lifecycle(device: Int)
        case check
    }

    let options: WorldOptions
    let duration: Int64
    /// The mean time between two faults; `nil`: none.
    let faultInterval: Int64?
    let partitionCount: Int
    let variants: [ProcessorSettings<TunnelHealthSettings>]
    var variant = 0
    let workerSettings: WorkerSettings
    let log: SimulatedLog
    let store: SimulatedStore
    let oracle: Oracle
    var dispatch: SimulatedDispatch
    var random: SplitMix64
    var now: Int64 = 0
    var queue = EventQueue<Happening>()
    var devices: [SimulatedDevice] = []
    var frontEnds: [SimulatedFrontEnd] = []
    var members: [Member] = []
    var memberCount = 0
    var isCalm = false
    var isLogDown = false
    var isDatabaseDown = false
    var lagging: Set<Int> = []
    /// Devices whose tunnel comes and goes all the time.
    var flappers: Set<Int> = []
    /// Faults that hold now.
    var disturbances = 0
    var lastDisturbance: Int64 = 0
    var report: WorldReport
    private let isTracing: Bool
    /// A device whose every heartbeat is told.
    private let focus: Int?

    /// - Parameters:
    ///   - isTracing: whether the report tells everything that happened, step by step.
    ///   - violation: one of the same options, to be told more of.
    public init(
        _ options: WorldOptions, isTracing: Bool = false, focusing violation: WorldViolation? = nil
    ) {
        self.options = options
        self.isTracing = isTracing
        focus = violation?.device
        var random = SplitMix64(seed: options.seed ^ 0x5EED_0F_A3E7)
        let isShort = options.duration == nil
        duration = options.duration ?? Int64(180 + random.below(360)) * 1_000
        // Some worlds are calm, so that lateness has no excuse.
        let pace = [nil, 6, 12, 25, 25, 60][random.below(6)].map { Int64($0) * 1_000 }
        faultInterval = options.script != nil ? nil : isShort ? pace : 90_000
        let chosen = 1 + random.below(3)
        partitionCount = options.partitions ?? chosen
        variants = Self.variants
        let deviceCount = options.devices ?? 2 + random.below(11)
        // A worker keeps up with its fleet, however little it takes at once.
        log = .live(
            partitions: partitionCount, seed: random.next(), pollRecords: max(40, deviceCount / 10))
        store = SimulatedStore(seed: random.next())
        workerSettings = Self.workerSettings(&random, devices: deviceCount)
        let frontEndCount = options.frontEnds ?? 1 + random.below(3)
        oracle = Oracle(
            devices: deviceCount, frontEnds: frontEndCount, partitions: partitionCount)
        // In some worlds a few devices make a mass event.
        dispatch = SimulatedDispatch(
            massMinimum: options.script != nil ? 20 : [3, 20][random.below(2)])
        report = WorldReport(seed: options.seed)
        report.devices = deviceCount
        report.partitions = partitionCount
        self.random = random
        makeFrontEnds(frontEndCount, isShort: isShort)
        makeDevices(deviceCount, isShort: isShort)
        let workers = 1 + self.random.below(3)
        for _ in 0..<(options.workers ?? workers) { startWorker() }
        for member in members { member.wake = 0 }
        store.observer = { [unowned self] in oracle.committed($0, $1, in: self) }
        if let faultInterval { queue.add(.fault, at: 20_000 + between(0, faultInterval)) }
        queue.add(.check, at: Self.beaconInterval)
        queue.add(.dispatch, at: 500)
        for act in options.script?.acts ?? [] { queue.add(.act(act.step), at: act.time) }
    }

    /// Settings that take turns at reloads; the first is in force at the start.
    private static var variants: [ProcessorSettings<TunnelHealthSettings>] {
        let texts = ["180 90", "180 60", "240 150", "300 120"]
        return texts.map { text in
            ProcessorSettings(read(text) ?? TunnelHealthSettings(), text: text, read: { read($0) })
        }
    }

    /// Times in seconds: stale after, offline after.
    private static func read(_ text: String) -> TunnelHealthSettings? {
        let numbers = text.split(separator: " ").compactMap { Int64($0) }
        guard numbers.count == 2 else { return nil }
        var settings = TunnelHealthSettings()
        settings.staleAfter = numbers[0] * 1_000
        settings.offlineAfter = numbers[1] * 1_000
        return settings
    }

    private static func workerSettings(
        _ random: inout SplitMix64, devices: Int
    ) -> WorkerSettings {
        var settings = WorkerSettings(
            pipeline: "simulated",
            outputPartitions: Dictionary(
                uniqueKeysWithValues: TunnelHealth.outputTopics.map { ($0, 2) }))
        settings.snapshotInterval = [0, 5_000, 30_000, 30_000][random.below(4)]
        settings.commitInterval = [0, 200, 1_000, 1_000][random.below(4)]
        settings.commitRows = [5, 20_000][random.below(2)]
        settings.bufferedRows = [50, 200_000][random.below(2)]
        settings.outboxEntries = [10, 50_000][random.below(2)]
        settings.ingestSilentAfter = 30_000
        // Small ones are for trying their limits, not for large fleets.
        settings.commitRows = max(settings.commitRows, devices / 10)
        settings.bufferedRows = max(settings.bufferedRows, devices)
        settings.outboxEntries = max(settings.outboxEntries, devices / 10)
        return settings
    }

    // MARK: - Running

    /// Lives through the storm and the calm after it.
    public func run() -> WorldReport {
        while now < duration, oracle.violation == nil { step() }
        if oracle.violation == nil { becomeCalm() }
        let calmSince = now
        var nextLook = calmSince + 110_000
        // Long enough for every threshold; a flapping device takes ten minutes to be believed.
        while oracle.violation == nil,
            now < calmSince + 340_000
                || oracle.isAnyoneFlapping && now < calmSince + 1_500_000
        {
            step()
            // Most worlds end as soon as all is as it must be; a quarter is watched for longer.
            if !options.seed.isMultiple(of: 4), now >= nextLook {
                nextLook = now + 20_000
                if oracle.isSatisfied(with: self) { break }
            }
        }
        // What follows from the last commits is published.
        let rest = now + 15_000
        while oracle.violation == nil, now < rest { step() }
        if oracle.violation == nil { oracle.judgeTheEnd(of: self) }
        reportTellings()
        report.milliseconds = now
        report.commits = store.commits
        report.violation = oracle.violation
        return report
    }

    private func step() {
        var next = queue.nextTime ?? now
        for member in members { next = min(next, max(member.wake, member.pausedUntil)) }
        now = max(now, next)
        log.advance(to: now)
        store.advance(to: now)
        while oracle.violation == nil, let happening = queue.take(until: now) { handle(happening) }
        for member in members where member.wake <= now && member.pausedUntil <= now {
            step(member)
        }
        members.removeAll { member in
            guard member.worker.isStopped else { return false }
            note { "worker \(member.number) has stopped" }
            member.session.abandon()
            log.leave(member.consumer.member)
            queue.add(.rebalance, at: now + between(0, 3_000))
            return true
        }
        if members.isEmpty, isCalm { startWorker() }
    }

    private func step(_ member: Member) {
        var wake = member.worker.step(now: now)
        // A second is what it asks for when there is nothing to do. Below five it takes for a pause.
        if wake == now + 1_000 { wake = now + 4_000 }
        if let due = member.session.nextDue { wake = min(wake, due) }
        if let due = log.nextDue(member.consumer.member) { wake = min(wake, due) }
        if member.consumer.hasUnread { wake = min(wake, now + 20) }
        member.wake = max(wake, now + (isCalm ? 5 : 1))
    }

    /// Whoever can read something is rung.
    func ring() {
        for member in members where member.consumer.hasUnread {
            member.wake = min(member.wake, now + between(1, 100))
        }
    }

    /// The group has changed.
    func ringAll() {
        for member in members {
            member.wake = min(member.wake, now + between(1, 100))
        }
    }

    func handle(_ happening: Happening) {
        switch happening {
        case .beat(let device, let turn): beat(device, turn)
        case .attempt(let device, let turn, let number, let frontEnd):
            attempt(device, turn, number, frontEnd)
        case .life(let device): changeLife(of: device)
        case .beacon(let index, let boot): beacon(index, boot)
        case .pump(let index, let boot): pump(index, boot)
        case .fault: injectFault()
        case .dispatch: dispatchAlerts()
        case .act(let step): perform(step)
        case .receiverUp(let index): dispatch.receivers[index].isDown = false
        case .startFrontEnd(let index):
            if !frontEnds[index].isUp {
                startFrontEnd(index)
                endDisturbance()
            }
        case .joinLog(let index):
            if frontEnds[index].isCut {
                frontEnds[index].isCut = false
                note { "\(frontEnds[index].name) reaches the log again" }
                endDisturbance()
                queue.add(.pump(frontEnd: index, boot: frontEnds[index].boot), at: now + 10)
            }
        case .wakeFrontEnd(let index, let boot): wakeFrontEnd(index, boot)
        case .logUp:
            if isLogDown {
                isLogDown = false
                log.setDown(false)
                note { "the log is back" }
                endDisturbance()
                ring()
            }
        case .databaseUp:
            if isDatabaseDown {
                isDatabaseDown = false
                store.setDown(false)
                note { "the database is back" }
                endDisturbance()
            }
        case .partitionUp(let partition):
            if lagging.remove(partition) != nil {
                log.setStalled(partition, false)
                note { "partition \(partition) no longer lags" }
                endDisturbance()
                ring()
            }
        case .startWorker: if members.count < 3 { startWorker() }
        case .rebalance:
            log.rebalance()
            ringAll()
        case .resume(let number):
            guard let member = members.first(where: { $0.number == number }),
                member.pausedUntil > 0
            else { break }
            member.pausedUntil = 0
            member.wake = now
            note { "worker \(number) goes on" }
            endDisturbance()
        case .returnAll(let indices): returnAll(indices)
        case .lifecycle(let device): tellLifecycle(of: device)
        case .check:
            oracle.look(at: self)
            queue.add(.check, at: now + Self.beaconInterval)
        }
    }

    // MARK: - Parts

    func between(_ low: Int64, _ high: Int64) -> Int64 {
        low + Int64(random.below(Int(max(1, high - low + 1))))
    }

    func count(_ fault: WorldFault) { report.faults[fault, default: 0] += 1 }

    func note(_ text: () -> String) {
        if isTracing { report.trace.append("\(Self.text(now)) \(text())") }
    }

    /// Told only of the device that is looked at.
    func note(device: Int, _ text: () -> String) {
        if device == focus { note(text) }
    }

    func beginDisturbance() {
        disturbances += 1
        lastDisturbance = now
    }

    func endDisturbance() {
        disturbances -= 1
        lastDisturbance = now
    }

    func touchDisturbance() { lastDisturbance = max(lastDisturbance, now) }

    /// Simulated time as `1:02:03.004`.
    static func text(_ milliseconds: Int64) -> String {
        func padded(_ number: Int64, _ width: Int) -> String {
            let digits = String(number)
            return String(repeating: "0", count: max(0, width - digits.count)) + digits
        }
        let seconds = milliseconds / 1_000
        return "\(seconds / 3_600):\(padded(seconds / 60 % 60, 2)):\(padded(seconds % 60, 2))"
            + ".\(padded(milliseconds % 1_000, 3))"
    }
}
