import Bytes
import EventLog
import HTTP
import Ingest
import Postgres
import Schemas
import System
import TestSupport
import Testing

@Suite("Front-end: beacons in the log") struct BeaconTests {
    @Test("the first record of every partition is a beacon, the last a farewell")
    func firstAndLast() throws {
        let rig = try Rig()
        for device in rig.devices { #expect(try rig.beat(device).status == 200) }
        rig.frontEnd.stop()
        for partition in Int32(0)..<3 {
            let events = rig.log.heartbeatsEvents(partition)
            guard case .beacon(let first) = events.first, case .beacon(let last) = events.last
            else {
                Issue.record("partition \(partition) has no beacon at its ends")
                return
            }
            #expect(!first.isLeaving)
            #expect(!first.isLossy)
            #expect(first.frontEnd.description == "front-end-under-test")
            #expect(last.isLeaving)
            #expect(last.origin.boot == first.origin.boot)
            let beacons = rig.log.beacons(partition)
            #expect(beacons.filter(\.isLeaving).count == 1)
            for (a, b) in zip(beacons, beacons.dropFirst()) {
                #expect(a.monotonicMilliseconds <= b.monotonicMilliseconds)
            }
        }
    }

    @Test("a restart has another boot")
    func boots() throws {
        let one = try Rig()
        let two = try Rig(database: one.database, devices: 1)
        #expect(one.log.beacons(0)[0].origin.boot != two.log.beacons(0)[0].origin.boot)
    }

    @Test("beacons go on at their interval, and claim time that passed")
    func interval() throws {
        let rig = try Rig { $0.beaconMilliseconds = 50 }
        let start = SystemClock.monotonicMilliseconds()
        // A loop that gets no processor time claims nothing new, so it is not the count that tells.
        #expect(
            try eventually {
                let claims = rig.log.beacons(0).map(\.monotonicMilliseconds)
                return claims.count >= 6 && claims.last! > claims.first!
            })
        let claims = rig.log.beacons(0).map(\.monotonicMilliseconds)
        #expect(claims.last! <= SystemClock.monotonicMilliseconds())
        #expect(claims.first! <= start)
    }

    @Test("no beacon claims a time at which a heartbeat came that is not in the log before it")
    func claimsWait() throws {
        let rig = try Rig {
            $0.beaconMilliseconds = 20
            $0.databaseMilliseconds = 600_000
        }
        // The database keeps the heartbeat's device back.
        let other = try rig.database.connect()
        try other.run("BEGIN; LOCK TABLE heartline.devices IN ACCESS EXCLUSIVE MODE")
        let client = try rig.client()
        try client.sendRequest(
            "POST", "/api/v1/heartbeat", body: Rig.body(rig.devices[0]).utf8)
        #expect(try eventually { rig.frontEnd.counters.misses == 1 })
        let received = SystemClock.monotonicMilliseconds()
        let count = rig.log.beacons(0).count
        // Long enough for every loop to publish a few times.
        #expect(
            try eventually {
                rig.log.beacons(0).count >= count + 40
                    && SystemClock.monotonicMilliseconds() > received + 2_000
            })
        for beacon in rig.log.beacons(0) { #expect(beacon.monotonicMilliseconds < received) }
        // A beacon is stamped with the time that it claims, however old that is: the difference is
        // what heartbeats are placed by.
        let stamps = rig.log.records(of: .heartbeats, 0).map(\.timestamp.milliseconds)
        let differences = zip(stamps, rig.log.beacons(0)).map { $0 - $1.monotonicMilliseconds }
        let median = differences.suffix(20).sorted()[10]
        #expect(median - differences.min()! < 1_000, "\(differences)")
        try other.run("COMMIT")
        #expect(try client.response().status == 200)
        #expect(
            try eventually { rig.log.beacons(0).last!.monotonicMilliseconds > received })
        // In the order of the queue: first the heartbeat, then every beacon that claims its time.
        var isThere = false
        for event in rig.log.heartbeatsEvents() {
            switch event {
            case .heartbeat: isThere = true
            case .beacon(let beacon):
                if beacon.monotonicMilliseconds >= received { #expect(isThere) }
            case .lifecycle: break
            }
        }
        #expect(isThere)
    }

    @Test("a front-end that the log does not take a beacon of does not start")
    func noBeacon() throws {
        let log = FakeLog()
        log.setFull(true)
        var settings = FrontEndSettings(
            server: try ServerConfiguration(host: "127.0.0.1", port: 0), secretKey: testKey)
        settings.startMilliseconds = 100
        let frontEnd = try FrontEnd(log: log, databaseURL: "host=/nowhere", settings: settings)
        #expect(throws: FrontEndError.self) { try frontEnd.start() }
    }

    @Test("topics must exist")
    func noTopics() throws {
        #expect(throws: FrontEndError.self) {
            _ = try FrontEnd(
                log: FakeLog(hasTopics: false), databaseURL: "host=/nowhere",
                settings: FrontEndSettings(
                    server: try ServerConfiguration(host: "127.0.0.1", port: 0),
                    secretKey: testKey))
        }
    }
}
