import Bytes
import EventLog
import HTTP
import Ingest
import Postgres
import Schemas
import Synchronization
import System
import TestSupport
import Testing

@Suite("Front-end: heartbeats over HTTP") struct FrontEndTests {
    @Test("the agent contract holds, case by case")
    func contract() throws {
        let rig = try Rig()
        try rig.registry.suspend(rig.devices[1])
        let contract = HeartbeatContract(
            host: rig.frontEnd.boundAddress.host, port: rig.frontEnd.boundAddress.port,
            device: rig.devices[0].description, suspended: rig.devices[1].description)
        for example in contract.cases {
            let fault = try contract.check(example)
            #expect(fault == nil, "\(example)")
        }
        let fault = try contract.checkAnswer()
        #expect(fault == nil)
    }

    @Test("a body over 64 KiB is refused before it is parsed")
    func oversize() throws {
        let rig = try Rig()
        let padding = String(repeating: "x", count: 65 << 10)
        let answer = try rig.beat(rig.devices[0], ",\"state\":\"\(padding)\"")
        #expect(answer.status == 413)
        #expect(answer.headers["content-type"] == "application/json")
        #expect(try rig.beat(rig.devices[0]).status == 200)
    }

    @Test("under overload devices in memory are answered, and others are asked to come again")
    func overload() throws {
        let rig = try Rig { $0.overloadBytes = 100_000 }
        #expect(try rig.beat(rig.devices[0]).status == 200)
        // Bodies that do not end: bytes in flight.
        let slow = try (0..<3).map { _ in try rig.client() }
        for client in slow {
            try client.send(
                "POST /api/v1/heartbeat HTTP/1.1\r\nHost: x\r\nContent-Length: 60000\r\n\r\n".utf8)
            try client.send([UInt8](repeating: 0x20, count: 50_000))
        }
        var number: UInt64 = 0
        #expect(
            try eventually {
                number += 1
                return try rig.beat(DeviceID(high: 4 << 12, low: number)).status == 503
            })
        let cold = try rig.beat(rig.devices[1])
        #expect(cold.status == 503)
        #expect(cold.headers["retry-after"] != nil)
        #expect(try rig.beat(rig.devices[0]).status == 200)
        withExtendedLifetime(slow) {}
    }

    @Test("a heartbeat becomes one event with what it said, at its device's partition")
    func event() throws {
        let rig = try Rig()
        let before = SystemClock.wallMilliseconds()
        #expect(
            try rig.beat(
                rig.devices[0],
                """
                ,"status":"recovering","tunnel_up":false,"state":"a\\u0000b",\
                "last_handshake":"2026-06-26T09:00:00Z"
                """
            ).status == 200)
        #expect(try rig.beat(rig.devices[1], ",\"status\":7").status == 200)
        #expect(try eventually { rig.log.heartbeats.count == 2 })
        let heartbeat = rig.log.heartbeats[0]
        #expect(heartbeat.device == rig.devices[0])
        #expect(heartbeat.status == .recovering)
        #expect(heartbeat.tunnelUp == false)
        #expect(heartbeat.agentState.description == "a\u{FFFD}b")
        #expect(heartbeat.lastHandshake?.description == "2026-06-26T09:00:00.000Z")
        #expect(heartbeat.configVersion == 1)
        #expect(heartbeat.flags == [])
        #expect(rig.log.heartbeats[1].flags == .badStatus)
        let record = try #require(
            rig.log.records(of: .heartbeats).first {
                $0.value?.span.text.contains("heartbeat") == true
                    && $0.key.span.text == rig.devices[0].description
            })
        #expect(
            record.partition == Partitioner.partition(of: record.key.span, count: 3))
        #expect(record.timestamp.milliseconds >= before)
        #expect(record.timestamp.milliseconds <= SystemClock.wallMilliseconds())
        var origins = Set(rig.log.heartbeats.map(\.origin))
        for beacon in rig.log.beacons() { #expect(origins.insert(beacon.origin).inserted) }
        #expect(rig.frontEnd.counters.accepted == 2)
    }

    @Test("keys stand in the device's own answer and in nothing else")
    func secrets() throws {
        let rig = try Rig()
        let answer = try rig.beat(rig.devices[0]).text
        let keys = answer.split(separator: "\"").filter { $0.count == 64 }
        // private, preshared, the server's public key and the hash
        #expect(keys.count == 4)
        _ = try rig.beat(rig.devices[0])
        let secret = keys.prefix(2)
        #expect(try eventually { rig.log.heartbeats.count == 2 })
        for record in rig.log.records(of: .heartbeats) {
            let text = record.value!.span.text
            for key in secret { #expect(!text.contains(key)) }
        }
        for path in ["/readyz", "/healthz"] {
            let text = try rig.admin(path).text
            for key in secret { #expect(!text.contains(key)) }
        }
        let stored = try rig.database.connect().execute(
            "SELECT encode(value, 'escape') FROM heartline.outbox")
        for row in stored {
            let text = try row.text(0)
            for key in secret { #expect(!text.contains(key)) }
        }
        // Another device gets other keys.
        let other = try rig.beat(rig.devices[1]).text
        for key in secret { #expect(!other.contains(key)) }
    }

    @Test("suspension reaches the next heartbeat by the bell, and so does its end")
    func suspension() throws {
        let rig = try Rig()
        let device = rig.devices[0]
        #expect(try rig.beat(device).status == 200)
        let suspended = try rig.registry.suspend(device)
        #expect(suspended.version == 2)
        rig.log.ring(device, version: suspended.version, isSuspended: true)
        #expect(try eventually { try rig.beat(device).status == 403 })
        let resumed = try rig.registry.resume(device)
        rig.log.ring(device, version: resumed.version, isSuspended: false)
        #expect(try eventually { try rig.beat(device).status == 200 })
        // An old bell undoes nothing, and a new one reaches its own device only.
        #expect(try rig.beat(rig.devices[1]).status == 200)
        rig.log.ring(device, version: suspended.version, isSuspended: true)
        rig.log.ring(rig.devices[1], version: 9, isSuspended: true)
        #expect(try eventually { try rig.beat(rig.devices[1]).status == 403 })
        #expect(try rig.beat(device).status == 200)
        #expect(
            try eventually {
                rig.log.heartbeats.contains { $0.device == device && $0.configVersion == 3 }
            })
        // Heartbeats that were answered 403 are no events.
        #expect(
            rig.log.heartbeats.count(where: { $0.device == device && $0.configVersion == 2 }) == 0)
    }

    @Test("an id that is unknown is known as soon as the bell rings")
    func added() throws {
        let rig = try Rig()
        // The cache remembers that it is unknown before it exists.
        let stranger = DeviceID("00000000-0000-4000-8000-00000000abcd")!
        #expect(try rig.beat(stranger).text == "{\"error\":\"invalid device id\"}")
        try rig.database.connect().execute(
            "UPDATE heartline.devices SET device_id = $1 WHERE device_id = $2",
            .uuid(stranger.high, stranger.low), .uuid(rig.devices[2].high, rig.devices[2].low))
        rig.log.ring(stranger, version: 1, isSuspended: false)
        // Its secrets are sealed to another id: this is a failure of ours, not an unknown device.
        #expect(try eventually { try rig.beat(stranger).status == 500 })
        #expect(try rig.beat(stranger).text == "{\"error\":\"heartbeat failed\"}")
    }

    @Test("without PostgreSQL, devices in memory are answered and the others get 500")
    func databaseDown() throws {
        let server = try TestServer()
        let rig = try Rig(database: try server.makeDatabase())
        #expect(try rig.beat(rig.devices[0]).status == 200)
        #expect(try eventually { try rig.admin("/readyz").status == 200 })
        server.stop()
        #expect(try rig.beat(rig.devices[0]).status == 200)
        let cold = try rig.beat(rig.devices[1])
        #expect(cold.status == 500)
        #expect(cold.text == "{\"error\":\"heartbeat failed\"}")
        #expect(
            try eventually {
                let ready = try rig.admin("/readyz")
                return ready.status == 503 && ready.text.contains("\"part\":\"database\"")
            })
        #expect(try rig.admin("/healthz").status == 200)
        // What was refused is a loss that beacons declare.
        #expect(try eventually { rig.log.beacons().contains { $0.isLossy } })
        try server.start()
        #expect(try eventually { try rig.beat(rig.devices[1]).status == 200 })
        #expect(try eventually { try rig.admin("/readyz").status == 200 })
        #expect(try rig.beat(rig.devices[0]).status == 200)
    }

    @Test("a full queue sheds events, never answers, and the next beacon says so once")
    func shedding() throws {
        let rig = try Rig { $0.beaconMilliseconds = 50 }
        #expect(try rig.beat(rig.devices[0]).status == 200)
        #expect(try eventually { rig.log.heartbeats.count == 1 })
        rig.log.setFull(true)
        for _ in 0..<5 { #expect(try rig.beat(rig.devices[0]).status == 200) }
        // One that has to be read is answered as well.
        #expect(try rig.beat(rig.devices[1]).status == 200)
        #expect(try eventually { rig.frontEnd.counters.shed == 6 })
        rig.log.setFull(false)
        #expect(try eventually { rig.log.beacons(0).contains { $0.isLossy } })
        let count = rig.log.beacons(0).count
        #expect(try eventually { rig.log.beacons(0).count > count + 2 })
        #expect(rig.log.beacons(0).filter(\.isLossy).count == 1)
        #expect(rig.log.heartbeats.count == 1)
    }

    @Test("a delivery that fails after the answer is declared by a beacon")
    func failedDelivery() throws {
        let rig = try Rig { $0.beaconMilliseconds = 50 }
        rig.log.setReceipts(.held)
        #expect(try rig.beat(rig.devices[0]).status == 200)
        #expect(try eventually { rig.log.heartbeats.count == 1 })
        rig.log.release(isStored: false)
        rig.log.setReceipts(.stored)
        #expect(try eventually { rig.log.beacons(0).contains { $0.isLossy } })
        #expect(rig.frontEnd.counters.lost >= 1)
    }

    @Test("acked: the answer waits for the log, and a failure is a 503 that says when to return")
    func acked() throws {
        let rig = try Rig {
            $0.durability = .acked
            $0.beaconMilliseconds = 60_000
        }
        for _ in 0..<2 {  // the first is a miss, the second in memory
            rig.log.setReceipts(.held)
            let client = try rig.client()
            try client.sendRequest(
                "POST", "/api/v1/heartbeat", body: Rig.body(rig.devices[0]).utf8)
            #expect(try eventually { rig.log.heldCount == 1 })
            #expect(!client.hasAnswer(milliseconds: 50))
            rig.log.release(isStored: true)
            #expect(try client.response().status == 200)
        }
        let client = try rig.client()
        try client.sendRequest(
            "POST", "/api/v1/heartbeat", body: Rig.body(rig.devices[0]).utf8)
        #expect(try eventually { rig.log.heldCount == 1 })
        rig.log.release(isStored: false)
        let failed = try client.response()
        #expect(failed.status == 503)
        #expect((1...10).contains(Int(failed.headers["retry-after"] ?? "") ?? 0))
        rig.log.setFull(true)
        let full = try rig.beat(rig.devices[0])
        #expect(full.status == 503)
        #expect(full.headers["retry-after"] != nil)
        rig.log.setFull(false)
        rig.log.setReceipts(.stored)
        #expect(try rig.beat(rig.devices[0]).status == 200)
        #expect(rig.frontEnd.counters.accepted == 3)
        #expect(rig.frontEnd.counters.unavailable == 2)
    }

    @Test("readiness shows what other parts of the process wait for")
    func readiness() throws {
        let rig = try Rig()
        #expect(try eventually { try rig.admin("/readyz").status == 200 })
        rig.frontEnd.readiness.set("pipeline", "restoring \"state\"")
        let ready = try rig.admin("/readyz")
        #expect(ready.status == 503)
        #expect(
            ready.text.hasPrefix(
                "{\"ready\":false,\"reasons\":[{\"part\":\"pipeline\",\"reason\":\"restoring \\\"state\\\"\"}],"
            ), "\(ready.text)")
        #expect(
            ready.text.contains(
                "{\"part\":\"pipeline\",\"ok\":false,\"reason\":\"restoring \\\"state\\\"\"}"))
        #expect(
            ready.text.contains("{\"part\":\"device-configs\",\"ok\":true}"),
            "\(ready.text)")
        rig.frontEnd.readiness.set("pipeline", nil)
        let again = try rig.admin("/readyz").text
        #expect(again.hasPrefix("{\"ready\":true,\"reasons\":[],\"checks\":[{\"part\":"))
        #expect(again.hasSuffix("{\"part\":\"pipeline\",\"ok\":true}]}"), "\(again)")
        #expect(try rig.admin("/nothing").status == 404)
    }

    @Test("another secret key than the database's is told, and nothing is answered with it")
    func wrongKey() throws {
        let database = try TestDatabase.make()
        let registry = try Registry(database.connect(), secretKey: testKey)
        try registry.prepareNetwork()
        let device = try registry.addDevices(count: 1)[0]
        let settings = FrontEndSettings(
            server: try ServerConfiguration(host: "127.0.0.1", port: 0),
            secretKey: [UInt8](repeating: 1, count: 32))
        let frontEnd = try FrontEnd(log: FakeLog(), databaseURL: database.url, settings: settings)
        try frontEnd.start()
        defer { frontEnd.stop() }
        let response = try RawClient(
            host: frontEnd.boundAddress.host, port: frontEnd.boundAddress.port
        ).request("POST", "/api/v1/heartbeat", body: Rig.body(device).utf8)
        #expect(response.status == 500)
        #expect(
            try eventually {
                frontEnd.readiness.unready.contains {
                    $0.part == "database" && $0.reason.contains("HEARTLINE_SECRET_KEY")
                }
            })
    }

    @Test("many clients at once: each heartbeat is one event, and stopping loses none")
    func manyClients() throws {
        let rig = try Rig(devices: 50)
        let devices = rig.devices
        let address = rig.frontEnd.boundAddress
        let faults = Atomic(0)
        let threads = (0..<8).map { thread in
            SystemThread.start("client") {
                do {
                    let client = try RawClient(host: address.host, port: address.port)
                    for round in 0..<50 {
                        let device = devices[(thread * 7 + round) % devices.count]
                        let answer = try client.request(
                            "POST", "/api/v1/heartbeat", body: Rig.body(device).utf8)
                        if answer.status != 200 || !answer.text.contains(device.description) {
                            faults.add(1, ordering: .relaxed)
                        }
                    }
                } catch {
                    faults.add(1, ordering: .relaxed)
                }
            }
        }
        for thread in threads { thread.join() }
        #expect(faults.load(ordering: .relaxed) == 0)
        #expect(rig.frontEnd.stop())
        let heartbeats = rig.log.heartbeats
        #expect(heartbeats.count == 400)
        #expect(Set(heartbeats.map(\.origin)).count == 400)
        #expect(rig.frontEnd.counters.accepted == 400)
    }
}
