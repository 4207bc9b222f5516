import Bytes
import EventLog
import Fleet
import Foundation
import Ingest
import Pipeline
import Postgres
import Schemas
import System

/// `heartline soak`: mixed traffic for a long time while workers are killed. `make soak` runs it.
enum Soak {
    static let command = Command(
        name: "soak", summary: "half an hour of mixed traffic while workers are killed",
        details: """
            Starts an installation of its own in a temporary folder: a PostgreSQL, a front-end, and two processes with
            the pipelines, of which one is killed every so often. First it finds how many heartbeats a second this machine
            can take from the load to committed rows, then a share of that goes on for --duration, with people who wave, meet and
            write, apps that are updated, telemetry, and changes of configurations. At the end it compares every table with a clean pass over the
            same log, counts that nothing that was answered 200 is missing, and looks whether memory stayed flat.
            Exit code 1 if something did not hold. The machine should be idle.
            """,
        options: [
            .duration("duration", 10_000...7 * 86_400_000, default: "30m", "of the traffic"),
            .duration("kill-every", 1_000...3_600_000, default: "30s", "between two kills"),
            .integer("devices", 20...1_000_000, default: 20_000, "that beat"),
            .integer("people", 12...100_000, default: 500, "who wave, meet and write"),
            .integer("apps", 1...10_000, default: 60, "that are updated, release after release"),
            .integer(
                "share", 1...100, default: 50, "percent of the capacity that the traffic takes"),
            .integer(
                "rate", 1...1_000_000,
                "heartbeats a second, instead of a share of the capacity"),
            .path("report", "FILE", "write the result there as a page"),
            .path("json", "FILE", "write the result there as JSON"),
        ]
    ) { arguments in
        Signals.hold()
        Log.configure(minimum: .error, format: .text)
        let started = MachineFacts.now()
        let machine = MachineFacts.read()
        let installation = try SoakInstallation()
        defer { installation.remove() }
        let run = try SoakRun(installation, arguments)
        guard try run.capacity(), try run.traffic() else {
            Terminal.write("stopped before its time: nothing was compared\n", to: .errors)
            return .failed
        }
        let report = try run.report(started: started, machine: machine)
        if let path = arguments.optionalText("report") {
            try FileSystem.write(report.markdown, to: path, mode: 0o644)
        }
        if let path = arguments.optionalText("json") {
            let encoder = JSONEncoder()
            encoder.outputFormatting = [.sortedKeys, .prettyPrinted, .withoutEscapingSlashes]
            let text = String(decoding: try encoder.encode(report), as: UTF8.self)
            try FileSystem.write(text + "\n", to: path, mode: 0o644)
        }
        for check in report.checks where !check.holds {
            Terminal.write(
                "does not hold: \(check.what): \(check.found) instead of \(check.expected)\n")
        }
        for one in report.memory where !one.isFlat {
            Terminal.write(
                "memory of the \(one.process) process grows: \(SoakReport.short(one.first_third_mib))"
                    + " MiB in the first third, \(SoakReport.short(one.last_third_mib)) in the last\n"
            )
        }
        Terminal.write(
            "\(report.kills.count) kills, \(report.heartbeats.accepted) heartbeats answered,"
                + " \(report.checks.count) checks: "
                + (report.passed ? "everything held\n" : "not everything held\n"))
        return report.passed ? .done : .failed
    }
}

/// One soak, from its capacity to its report.
private final class SoakRun {
    /// Of one memory reading, and of one reading of the lag.
    private static let lookMilliseconds: Int64 = 1_000
    private static let changeMilliseconds: Int64 = 500
    private static let drainMilliseconds: Int64 = 600_000
    /// Of `tunnel-health` with its defaults, and a second for clocks that are read one after the other.
    private static let refreshMilliseconds: Int64 = 121_000

    private let installation: SoakInstallation
    private let settings: SoakReport.Settings
    private let duration: Int64
    private let killEvery: Int64
    private let givenRate: Int?
    private let devices: [DeviceID]
    private let heartbeats: SoakHeartbeats
    private let people: SoakPeople
    private let source: SoakSource
    private let updates: SoakUpdates
    private let pause = Waker()

    private var measured = 0
    private var rate = 0
    private var kills: [SoakReport.Kill] = []
    private var worstLag: Int64 = 0
    private var changes = 0
    /// Of the front-end: when, and how much.
    private var frontEndMemory: [(at: Int64, bytes: Int)] = []
    /// Of each life of a worker: whose, when it ended, and the most that it had.
    private var lives: [(group: Int, at: Int64, bytes: Int)] = []
    /// The most so far in the lives that go on.
    private var peaks = SoakInstallation.groups.map { _ in 0 }

    init(_ installation: SoakInstallation, _ arguments: Arguments) throws {
        self.installation = installation
        duration = arguments.duration("duration")
        killEvery = arguments.duration("kill-every")
        givenRate = arguments.optionalInteger("rate")
        settings = SoakReport.Settings(
            seconds: Int(duration / 1_000), kill_every_seconds: Int(killEvery / 1_000),
            devices: arguments.integer("devices"), people: arguments.integer("people"),
            apps: arguments.integer("apps"), share_percent: arguments.integer("share"))
        Self.tell(
            "preparing \(settings.devices) devices, \(settings.people) people and \(settings.apps) apps"
        )
        let folks = try installation.addPeople(settings.people)
        devices = try installation.addDevices(settings.devices)
        source = try SoakSource()
        let apps = try installation.addApps(settings.apps, from: source)
        let url = try installation.startFrontEnd()
        try installation.startWorkers()
        heartbeats = try SoakHeartbeats(url, devices)
        people = SoakPeople(url, folks, devices)
        updates = SoakUpdates(url, source, apps: apps, directory: installation.directory)
        heartbeats.start()
        people.start()
        updates.start()
    }

    deinit { source.stop() }

    private static func tell(_ text: String) { Terminal.write("\(text) ...\n", to: .errors) }

    /// Waits; `false` if a signal came.
    private func wait(milliseconds: Int64) -> Bool {
        guard let signal = Signals.wait(milliseconds: milliseconds) else { return true }
        return signal == .hangup
    }

    // MARK: - Capacity

    /// How many heartbeats a second go from the load to committed rows.
    func capacity() throws -> Bool {
        // The registry's own events are no part of it, and every answer is in memory.
        try installation.waitUntilCommitted(milliseconds: Self.drainMilliseconds)
        let length = max(3_000, min(30_000, duration / 20))
        Self.tell("measuring the capacity for \(length / 1_000) s")
        let start = SystemClock.monotonicMilliseconds()
        heartbeats.send(perSecond: nil)
        guard wait(milliseconds: length) else { return false }
        heartbeats.send(perSecond: 0)
        try installation.waitUntilCommitted(milliseconds: Self.drainMilliseconds)
        let spent = max(1, SystemClock.monotonicMilliseconds() - start)
        // With the time in which the pipelines read what they were behind.
        measured = Int(Int64(heartbeats.accepted) * 1_000 / spent)
        rate = max(1, givenRate ?? measured * settings.share_percent / 100)
        return true
    }

    // MARK: - Traffic

    func traffic() throws -> Bool {
        Self.tell(
            "\(rate) heartbeats a second for \(duration / 1_000) s, of \(measured) that are possible;"
                + " a kill every \(killEvery / 1_000) s")
        heartbeats.send(perSecond: rate)
        let start = SystemClock.monotonicMilliseconds()
        var (nextLook, nextChange, nextKill) = (start, start, start + killEvery)
        var nextWord = start + 60_000
        while true {
            guard wait(milliseconds: 20) else { return false }
            let now = SystemClock.monotonicMilliseconds()
            if now - start >= duration { break }
            if now >= nextChange {
                nextChange += Self.changeMilliseconds
                try change()
            }
            if kills.last?.recovered_ms == nil { try noteRecovery(now) }
            if now >= nextLook {
                nextLook = now + Self.lookMilliseconds
                try look(now - start)
            }
            if now >= nextKill {
                nextKill += killEvery
                try kill(kills.count % SoakInstallation.groups.count, now - start)
            }
            if now >= nextWord {
                nextWord += 60_000
                Self.tell(
                    "\((now - start) / 60_000) min: \(heartbeats.accepted) heartbeats, \(kills.count) kills"
                )
            }
        }
        for group in peaks.indices { lives.append((group, duration, peaks[group])) }
        return true
    }

    /// Another forward of a device: a version of its configuration.
    private func change() throws {
        let (round, device) = changes.quotientAndRemainder(dividingBy: devices.count)
        let port = UInt16(1_024 + round % 60_000)
        _ = try installation.registry.addForward(
            to: devices[device],
            PortForward(
                transport: "tcp", listenPort: port, targetHost: "10.0.0.5", targetPort: 80))
        changes += 1
    }

    private func look(_ at: Int64) throws {
        try installation.checkProcesses()
        if let frontEnd = installation.frontEnd {
            frontEndMemory.append((at, frontEnd.anonymousBytes))
        }
        for (group, worker) in installation.workers.enumerated() {
            peaks[group] = max(peaks[group], worker.anonymousBytes)
        }
        let committed = try installation.committed(installation.connection)
        let end = try installation.end(of: .heartbeats)
        worstLag = max(worstLag, end - committed["tunnel-health", default: 0])
    }

    /// Where the pipelines of the worker that was killed last stood then.
    private var atKill: (time: Int64, committed: [String: Int64]) = (0, [:])

    private func kill(_ group: Int, _ at: Int64) throws {
        let worker = installation.workers[group]
        peaks[group] = max(peaks[group], worker.anonymousBytes)
        lives.append((group, at, peaks[group]))
        kills.append(
            SoakReport.Kill(
                at_second: Int(at / 1_000), process: worker.name, recovered_ms: nil,
                memory_mib: Double(peaks[group]) / 1_048_576))
        peaks[group] = 0
        let time = SystemClock.monotonicMilliseconds()
        try installation.replaceWorker(group)
        atKill = (time, try installation.committed(installation.connection))
    }

    private func noteRecovery(_ now: Int64) throws {
        guard let last = kills.indices.last,
            let group = SoakInstallation.groups.first(where: { $0.name == kills[last].process })
        else { return }
        let committed = try installation.committed(installation.connection)
        // The busiest one, which gets something all the time.
        let busiest =
            group.pipelines.contains("tunnel-health") ? "tunnel-health" : "telemetry-rollup"
        if committed[busiest, default: 0] > atKill.committed[busiest, default: 0] {
            kills[last].recovered_ms = Int(now - atKill.time)
        }
    }

    // MARK: - The end

    func report(started: String, machine: MachineFacts) throws -> SoakReport {
        Self.tell("waiting for the last answers and commits")
        let book = try heartbeats.stop()
        let social = try people.stop()
        let rollout = try updates.stop()
        // With what it says last of all.
        try installation.stopFrontEnd()
        try installation.waitUntilCommitted(milliseconds: Self.drainMilliseconds)
        try installation.stopWorkers()
        let counts = try SoakCounts(installation.log, devices)
        installation.connection.close()
        let oracle = try SoakOracle(installation)
        defer { oracle.close() }
        try oracle.run { Self.tell($0) }
        let live = try PostgresConnection(installation.database.url)
        defer { live.close() }
        var checks = try oracle.checks(live)
        checks += try self.checks(book, social, rollout, counts, live)
        let memory = self.memory()
        return SoakReport(
            version: Version.current, started: started, machine: machine, settings: settings,
            heartbeats: SoakReport.Heartbeats(
                capacity: measured, wanted_per_second: rate, sent: book.sent,
                accepted: book.answers[200] ?? 0,
                answers: Dictionary(
                    uniqueKeysWithValues: book.answers.map { ("\($0.key)", $0.value) }),
                unanswered: book.unanswered,
                p50_ms: Double(book.latency.percentileMicroseconds(0.5)) / 1_000,
                p99_ms: Double(book.latency.percentileMicroseconds(0.99)) / 1_000,
                worst_ms: Double(book.latency.maximumMicroseconds) / 1_000,
                behind_ms: Double(book.behind) / 1e6),
            kills: kills, worst_lag: Int(worstLag), log_records: Int(oracle.records),
            memory: memory, checks: checks,
            passed: checks.allSatisfy(\.holds) && memory.allSatisfy(\.isFlat))
    }

    /// What was answered 200, in the log and in the tables.
    private func checks(
        _ book: SoakHeartbeats.Book, _ social: SoakPeople.Book, _ rollout: SoakUpdates.Book,
        _ counts: SoakCounts, _ live: PostgresConnection
    ) throws -> [SoakReport.Check] {
        func number(_ sql: String) throws -> Int64 { try live.execute(sql).only().int8(0) }
        func check(_ what: String, _ expected: Int, _ found: Int64) -> SoakReport.Check {
            SoakReport.Check(
                what: what, expected: "\(expected)", found: "\(found)",
                holds: Int64(expected) == found)
        }
        let accepted = book.answers[200] ?? 0
        let wrong = devices.indices.count { book.accepted[$0] != counts.heartbeats[$0] }
        var checks = [
            check(
                "heartbeats answered otherwise than 200, or not at all", 0,
                Int64(book.sent - accepted)),
            check(
                "other requests refused or not answered", 0,
                Int64(social.refused + social.unanswered)),
            check(
                "heartbeats answered 200 are in the log", accepted,
                counts.heartbeats.reduce(0, +)),
            check("devices of which the log has another number of heartbeats", 0, Int64(wrong)),
            check(
                "devices whose last_seen is older than refresh allows, or newer than the truth", 0,
                try unseen(book, live)),
            check("waves answered 200 are in the log", social.waves, counts.waves),
            check(
                "those who waved at each other are connected, once", social.matches,
                try number("SELECT count(*) FROM heartline.connections")),
            check(
                "both of them are told, once", 2 * social.matches,
                try number("SELECT count(*) FROM heartline.pushes WHERE kind = 'mutual'")),
            check(
                "encounters answered 200 are rows", social.encounters,
                try number("SELECT count(*) FROM heartline.encounter_reports")),
            check(
                "messages answered 200 are rows", social.messages,
                try number("SELECT count(*) FROM heartline.messages")),
            check(
                "and pushes", social.messages,
                try number("SELECT count(*) FROM heartline.pushes WHERE kind = 'message'")),
            check("samples answered 200 are in the log", social.samples, counts.samples),
            check(
                "log lines answered 200 are rows", social.logLines,
                try number("SELECT count(*) FROM heartline.agent_logs")),
            check("updates of apps that did not end with a result", 0, Int64(rollout.failed)),
            check(
                "checks for updates answered 200 are in the log",
                rollout.checks + rollout.installed, counts.checks),
            check(
                "apps that were installed are said to have succeeded", rollout.installed,
                try number(
                    "SELECT count(*) FROM heartline.update_attempts WHERE state = 'succeeded'")),
            check(
                "and no other attempt is there", 0,
                try number(
                    "SELECT count(*) FROM heartline.update_attempts WHERE state <> 'succeeded'")),
            check(
                "versions of configurations", devices.count + changes,
                try number("SELECT count(*) FROM heartline.config_versions")),
            check("dead letters", 0, counts.deadLetters),
            check("kills", Int((duration - 1) / killEvery), Int64(kills.count)),
        ]
        func explain(_ what: String, _ why: String?) {
            guard let why, let place = checks.firstIndex(where: { $0.what == what }) else { return }
            checks[place].found += " (\(why))"
        }
        explain("other requests refused or not answered", social.firstRefusal)
        explain("updates of apps that did not end with a result", rollout.firstFailure)
        return checks
    }

    private func unseen(_ book: SoakHeartbeats.Book, _ live: PostgresConnection) throws -> Int64 {
        var seen: [DeviceID: Int64] = [:]
        for row in try live.execute(
            """
            SELECT device_id, (extract(epoch FROM last_seen) * 1000)::int8 FROM heartline.device_status
             WHERE last_seen IS NOT NULL
            """)
        {
            let (high, low) = try row.uuid(0)
            seen[DeviceID(high: high, low: low)] = try row.int8(1)
        }
        return Int64(
            devices.indices.count { index in
                let truth = book.lastSent[index]
                guard truth > 0 else { return false }
                // Receipt is a moment after sending.
                guard let stored = seen[devices[index]] else { return true }
                return stored < truth - Self.refreshMilliseconds || stored > truth + 60_000
            })
    }

    private func memory() -> [SoakReport.Memory] {
        let begin = duration / 10
        func one(_ name: String, _ readings: [(at: Int64, bytes: Int)]) -> SoakReport.Memory {
            func mean(_ part: [(at: Int64, bytes: Int)]) -> Double {
                part.isEmpty
                    ? 0
                    : part.reduce(0) { $0 + Double($1.bytes) } / Double(part.count) / 1_048_576
            }
            let first = mean(readings.filter { $0.at >= begin && $0.at < duration / 3 })
            let last = mean(readings.filter { $0.at >= duration - duration / 3 })
            let most = Double(readings.map(\.bytes).max() ?? 0) / 1_048_576
            // Without a reading in one of the two thirds nothing is known.
            let isKnown = first > 0 && last > 0
            return SoakReport.Memory(
                process: name, first_third_mib: first, last_third_mib: last, most_mib: most,
                isFlat: isKnown && last <= first * 1.1 + 8)
        }
        return [one("front-end", frontEndMemory)]
            + SoakInstallation.groups.indices.map { group in
                one(
                    SoakInstallation.groups[group].name,
                    lives.filter { $0.group == group }.map { ($0.at, $0.bytes) })
            }
    }
}
