import EventLog
import Foundation
import Postgres
import Schemas
import System
import TestSupport
import Testing

/// Some of several processes are away for longer than every threshold. They wait more than they
/// work, so they may run side by side.
@Suite("Stopped parts", .realTime) struct StoppedPartTests {
    /// Beacons come every 5 s, so thresholds of less are of no use.
    private static let quick =
        "offline_after: 6s, jitter: 500ms, refresh: 0s, beacons: { silence: 6s, expulsion: 6s }"

    private static let offline =
        "SELECT count(*) FROM heartline.device_status WHERE state = 'offline' AND device_id = ANY ($1)"
    private static let healthy =
        "SELECT count(*) FROM heartline.device_status WHERE state = 'healthy' AND device_id = ANY ($1)"

    @Test(
        "The pipeline stopped and started again: who reported meanwhile is not offline",
        .timeLimit(.minutes(10)))
    func pipelineStopped() async throws {
        let installation = try await SplitInstallation(settings: Self.quick)
        let devices = try await installation.addDevices(40)
        let (lively, silent) = (Array(devices.prefix(30)), Array(devices.suffix(10)))
        let frontEnd = try await installation.startFrontEnd("a")
        var pipelines = try await installation.startPipelines()
        let load = HeartbeatLoad(.init(devices, connections: 8, perSecond: 80))
        load.send(to: frontEnd.url)
        let connection = try installation.connect()
        defer { connection.close() }
        try #require(
            try await holds(within: 120) {
                try connection.number(Self.healthy, devices) == 40
            })
        let log = try EmbeddedLog(of: installation.data)
        defer { log.close() }

        // Once as a crash, once in order.
        for signal in [SIGKILL, SIGTERM] {
            pipelines.send(signal)
            #expect(await pipelines.waitForEnd() == (signal == SIGTERM ? 0 : -1))
            // These have really gone, the second time around.
            if signal == SIGTERM {
                #expect(try falselyOffline(connection, devices, load).isEmpty)
                load.silence(silent)
            }
            try await Self.passBeacons(3, log)
            pipelines = try await installation.startPipelines()
            #expect(try await CleanPass.waitForTables(log, connection))
        }
        #expect(
            try await holds(within: 60) {
                try connection.number(Self.offline, silent) == 10
            })
        #expect(try falselyOffline(connection, lively, load).isEmpty)
        let book = load.stop()
        #expect(Array(book.statuses.keys) == [200], "\(book.refusal ?? "")")
        let (_, difference) = try CleanPass.check(
            log, connection, pipelines: installation.pipelines)
        #expect(difference.isEmpty, "\(difference)")
        #expect(try log.count(of: .deadLetters) == 0)
        pipelines.send(SIGTERM)
        #expect(await pipelines.waitForEnd() == 0)
        #expect(await frontEnd.stop() == 0)
    }

    @Test(
        "All front-ends stopped: one ingest-silent and no offline; afterwards the full threshold",
        .timeLimit(.minutes(10)))
    func frontEndsStopped() async throws {
        let installation = try await SplitInstallation(settings: Self.quick)
        let devices = try await installation.addDevices(30)
        let (lively, silent) = (Array(devices.prefix(20)), Array(devices.suffix(10)))
        let pipelines = try await installation.startPipelines()
        let a = try await installation.startFrontEnd("a")
        let b = try await installation.startFrontEnd("b")
        let load = HeartbeatLoad(.init(devices, connections: 8, perSecond: 60))
        load.send(to: a.url)
        let connection = try installation.connect()
        defer { connection.close() }
        try #require(
            try await holds(within: 120) {
                try connection.number(Self.healthy, devices) == 30
            })
        let log = try EmbeddedLog(of: installation.data)
        defer { log.close() }
        try await Self.passBeacons(2, log)

        load.silence(silent)
        #expect(await a.stop() == 0)
        load.send(to: nil)
        await b.kill()
        let open =
            "SELECT count(*) FROM heartline.alerts WHERE kind = 'ingest-silent' AND resolved_at IS NULL"
        #expect(try await holds(within: 120) { try connection.number(open) == 1 })
        #expect(try falselyOffline(connection, devices, load).isEmpty)

        let restart = SystemClock.wallMilliseconds()
        let a2 = try await installation.startFrontEnd("a")
        let b2 = try await installation.startFrontEnd("b")
        load.send(to: b2.url)
        #expect(try await holds(within: 60) { try connection.number(open) == 0 })
        // Who went with the front-ends is missed in the end, but not before everyone had the
        // whole threshold again.
        #expect(
            try await holds(within: 120) {
                try connection.number(Self.offline, silent) == 10
            })
        let first = try connection.execute(
            "SELECT min(since) FROM heartline.device_status WHERE state = 'offline'"
        ).only().timestamptz(0)
        let since = first / 1_000 + 946_684_800_000 - restart
        #expect(since >= 6_000, "\(since) ms")
        #expect(try falselyOffline(connection, lively, load).isEmpty)
        let all = try connection.execute(
            "SELECT count(*), count(resolved_at) FROM heartline.alerts WHERE kind = 'ingest-silent'"
        ).only()
        #expect(try all.int8(0) == 1)
        #expect(try all.int8(1) == 1)
        let told = try log.records(of: .alerts).filter {
            $0.value.contains("\"kind\":\"ingest-silent\"")
        }
        #expect(told.count == 2, "\(told.map(\.value))")
        _ = load.stop()
        let (_, difference) = try CleanPass.check(
            log, connection, pipelines: installation.pipelines)
        #expect(difference.isEmpty, "\(difference)")
        #expect(await a2.stop() == 0)
        #expect(await b2.stop() == 0)
        pipelines.send(SIGTERM)
        #expect(await pipelines.waitForEnd() == 0)
    }

    @Test(
        "One of two front-ends hangs: nobody is called offline, and all is well when it goes on",
        .timeLimit(.minutes(10)))
    func frontEndHangs() async throws {
        let installation = try await SplitInstallation(settings: Self.quick)
        let devices = try await installation.addDevices(40)
        let (first, second) = (Array(devices.prefix(20)), Array(devices.suffix(20)))
        let pipelines = try await installation.startPipelines()
        let a = try await installation.startFrontEnd("a")
        let b = try await installation.startFrontEnd("b")
        let steady = HeartbeatLoad(.init(first, connections: 8, perSecond: 40))
        steady.send(to: a.url)
        // Their requests hang with it; after a while they try elsewhere, as agents do.
        let moving = HeartbeatLoad(
            .init(second, connections: 8, perSecond: 40, patienceMilliseconds: 1_000))
        moving.send(to: b.url)
        let connection = try installation.connect()
        defer { connection.close() }
        try #require(
            try await holds(within: 120) {
                try connection.number(Self.healthy, devices) == 40
            })
        let log = try EmbeddedLog(of: installation.data)
        defer { log.close() }
        try await Self.passBeacons(2, log)

        b.process.send(SIGSTOP)
        try await Task.sleep(for: .seconds(2))
        moving.send(to: a.url)
        // Longer than silence, expulsion and the threshold together.
        try await Task.sleep(for: .seconds(22))
        b.process.send(SIGCONT)
        moving.send(to: b.url)
        let (oldSteady, oldMoving) = (steady.accepted, moving.accepted)
        #expect(
            await holds(within: 60) {
                steady.accepted > oldSteady + 80 && moving.accepted > oldMoving + 80
            })
        try await Self.passBeacons(4, log)
        #expect(try await CleanPass.waitForTables(log, connection))
        #expect(try falselyOffline(connection, first, steady).isEmpty)
        #expect(try falselyOffline(connection, second, moving).isEmpty)
        #expect(
            try await holds(within: 60) {
                try connection.number(Self.healthy, devices) == 40
            })
        #expect(
            try await holds(within: 60) {
                try connection.number(
                    "SELECT count(*) FROM heartline.alerts WHERE resolved_at IS NULL") == 0
            })
        #expect(Array(steady.stop().statuses.keys) == [200])
        #expect(Array(moving.stop().statuses.keys) == [200])
        let (_, difference) = try CleanPass.check(
            log, connection, pipelines: installation.pipelines)
        #expect(difference.isEmpty, "\(difference)")
        #expect(try log.count(of: .deadLetters) == 0)
        #expect(await b.stop() == 0)
        #expect(await a.stop() == 0)
        pipelines.send(SIGTERM)
        #expect(await pipelines.waitForEnd() == 0)
    }

    /// For less and for more than the 10 s after which beacons count as interrupted.
    @Test(
        "Everything hangs for longer than the threshold: nobody is called offline",
        .timeLimit(.minutes(10)), arguments: [8, 13])
    func everythingHangs(_ seconds: Int) async throws {
        let folder = try TemporaryFolder()
        try FileSystem.makeDirectory("\(folder.path)/pipelines", mode: 0o755)
        _ = try folder.write(
            RunningHeartline.pipeline(offlineAfter: "6s"), to: "pipelines/health.yaml")
        let heartline = try await RunningHeartline(in: folder)
        let devices = try await heartline.addDevices(30)
        // As many connections as devices: the heartbeat of each is on its way when all hangs.
        let load = HeartbeatLoad(.init(devices, connections: 30, perSecond: 60))
        load.send(to: heartline.places.listen)
        let connection = try heartline.connect()
        defer { connection.close() }
        try #require(
            try await holds(within: 120) { try connection.number(Self.healthy, devices) == 30 })
        let log = try EmbeddedLog(of: heartline.data)
        defer { log.close() }
        try await Self.passBeacons(2, log)
        // What the test itself was late with, before and after the silence that it makes.
        var late = load.silentDevices(milliseconds: 5_500)
        heartline.process.send(SIGSTOP)
        try await Task.sleep(for: .seconds(seconds))
        let resumed = load.accepted
        heartline.process.send(SIGCONT)
        #expect(await holds(within: 60) { load.accepted >= resumed + 60 })
        load.forgetSilences()
        try await Self.passBeacons(4, log)
        late.formUnion(load.silentDevices(milliseconds: 5_500))
        #expect(try await CleanPass.waitForTables(log, connection))
        let ever = try connection.number(
            """
            SELECT count(DISTINCT device_id) FROM heartline.device_state_history
             WHERE state = 'offline' AND device_id = ANY ($1)
            """, devices.filter { !late.contains($0) })
        #expect(ever == 0)
        #expect(
            try await holds(within: 60) { try connection.number(Self.healthy, devices) == 30 })
        #expect(Array(load.stop().statuses.keys) == [200])
        let (_, difference) = try CleanPass.check(
            log, connection, pipelines: "\(folder.path)/pipelines")
        #expect(difference.isEmpty, "\(difference)")
        #expect(await heartline.stop() == 0)
    }

    /// Waits until so many more beacons are in each partition.
    private static func passBeacons(_ count: Int, _ log: EmbeddedLog) async throws {
        func beacons() throws -> Int {
            try log.records(of: .heartbeats).count {
                $0.place.partition == 0 && $0.value.contains("\"type\":\"beacon\"")
            }
        }
        let before = try beacons()
        try #require(
            try await holds(within: 120) { try beacons() >= before + count })
    }
}
