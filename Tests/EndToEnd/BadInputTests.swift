import Bytes
import EventLog
import Foundation
import Postgres
import Schemas
import System
import Simulation
import TestSupport
import Testing

extension FaultTests {
    /// What must not harm anybody: bodies that are no heartbeats, and records that are no events.
    @Suite struct BadInputTests {
        struct BadBody: Sendable, CustomTestStringConvertible {
            var testDescription: String
            var body: [UInt8]
            var status = 400
        }

        /// Bodies made around a good one.
        static func bodies(_ device: DeviceID) -> [BadBody] {
            let good = "{\"device_id\":\"\(device)\",\"tunnel_up\":true}"
            let start = good.dropLast()
            func with(_ bytes: [UInt8]) -> [UInt8] {
                Array("\(start),\"state\":\"".utf8) + bytes + Array("\"}".utf8)
            }
            func text(_ description: String, _ body: String) -> BadBody {
                BadBody(testDescription: description, body: Array(body.utf8))
            }
            func repeated(_ text: String, _ count: Int) -> String {
                String(repeating: text, count: count)
            }
            return good.utf8.indices.map { end in
                text("cut short before byte \(end)", String(good[..<end]))
            } + [
                text("arrays in arrays", repeated("[", 60_000)),
                text(
                    "arrays in arrays, closed",
                    "\(start),\"x\":\(repeated("[", 20_000))\(repeated("]", 20_000))}"),
                text(
                    "objects in objects",
                    "\(start),\"x\":\(repeated("{\"a\":", 5_000))1\(repeated("}", 5_000))}"),
                text("a key twice", "\(start),\"tunnel_up\":false}"),
                text("the id twice", "\(start),\"device_id\":\"\(device)\"}"),
                text("a key twice, once escaped", "\(start),\"tunnel\\u005fup\":false}"),
                text("more behind the object", "\(good){}"),
                text("a comma at the end", "\(start),}"),
                text("single quotes", good.replacingOccurrences(of: "\"", with: "'")),
                text("not a number", "\(start),\"x\":NaN}"),
                text("half of a surrogate pair", "\(start),\"state\":\"\\ud800\"}"),
                text("a form", "device_id=\(device)"),
                BadBody(testDescription: "a lone byte 255", body: with([0xFF])),
                BadBody(testDescription: "an overlong slash", body: with([0xC0, 0xAF])),
                BadBody(testDescription: "an encoded surrogate", body: with([0xED, 0xA0, 0x80])),
                BadBody(testDescription: "a character cut short", body: with([0xE2, 0x82])),
                BadBody(testDescription: "a raw line feed in a string", body: with([0x0A])),
                BadBody(testDescription: "a raw zero in a string", body: with([0])),
                BadBody(testDescription: "zeros", body: [UInt8](repeating: 0, count: 1_000)),
                BadBody(
                    testDescription: "a byte more than the limit",
                    body: Array(good.utf8)
                        + [UInt8](repeating: 0x20, count: 65_537 - good.utf8.count),
                    status: 413),
                BadBody(
                    testDescription: "a megabyte", body: [UInt8](repeating: 0x20, count: 1 << 20),
                    status: 413),
            ]
        }

        @Test(
            "Bodies that are no heartbeats get 400 or 413 with a JSON error, and harm nobody",
            .timeLimit(.minutes(10)))
        func bodies() async throws {
            let heartline = try await RunningHeartline()
            let device = try #require(try await heartline.addDevices(1).first)
            let url = try #require(URL(string: heartline.places.listen))
            let (host, port) = (
                try #require(url.host()), UInt16(try #require(url.port))
            )
            let path = "/api/v1/heartbeat"
            let good = Array("{\"device_id\":\"\(device)\",\"tunnel_up\":true}".utf8)
            var client = try RawClient(host: host, port: port)
            for bad in Self.bodies(device) {
                let answer = try client.request("POST", path, body: bad.body)
                #expect(answer.status == bad.status, "\(bad.testDescription): \(answer.text)")
                let error = try JSONDecoder().decode(
                    [String: String].self, from: Data(answer.body.bytes))
                #expect(error["error"]?.isEmpty == false, "\(bad.testDescription)")
                if bad.status == 400 {
                    #expect(
                        ["invalid json", "invalid device id"].contains(error["error"]),
                        "\(bad.testDescription): \(error)")
                }
                // Good for the next request, or said to be over.
                if answer.headers["connection"] == "close" {
                    client = try RawClient(host: host, port: port)
                }
                #expect(
                    try client.request("POST", path, body: good).status == 200,
                    "after \(bad.testDescription)")
            }
            let full = good + [UInt8](repeating: 0x20, count: 65_536 - good.count)
            #expect(try client.request("POST", path, body: full).status == 200)

            // Announced, and never sent.
            for head in ["Content-Length: 99999999999999", "Content-Length: 65537"] {
                let other = try RawClient(host: host, port: port)
                try other.send(Array("POST \(path) HTTP/1.1\r\nHost: x\r\n\(head)\r\n\r\n".utf8))
                #expect(try other.response().status == 413, "\(head)")
            }
            // Broken off in the middle of a head, and of a body.
            for part in [
                "POST \(path) HT", "POST \(path) HTTP/1.1\r\nContent-Length: 50\r\n\r\n{\"de",
            ] {
                for _ in 0..<50 { try RawClient(host: host, port: port).send(Array(part.utf8)) }
            }
            try fuzz(client, good)
            #expect(try client.request("POST", path, body: good).status == 200)
            #expect(!heartline.process.hasEnded)
            #expect(try heartline.ready().status == 200)
            let log = try EmbeddedLog(of: heartline.data)
            #expect(try log.count(of: .deadLetters) == 0, "what is taken in can be processed")
            log.close()
            #expect(heartline.process.errors().contains("warning") == false)
            #expect(await heartline.stop() == 0)
        }

        /// Good bodies with some bytes changed, missing or too many.
        private func fuzz(_ client: RawClient, _ good: [UInt8]) throws {
            let seed = UInt64.random(in: 0...999_999)
            var random = SplitMix64(seed: seed)
            for turn in 0..<2_000 {
                var body = good
                for _ in 0...random.below(3) where !body.isEmpty {
                    let place = random.below(body.count)
                    switch random.below(3) {
                    case 0: body[place] = UInt8(random.below(256))
                    case 1: body.remove(at: place)
                    default: body.insert(UInt8(random.below(256)), at: place)
                    }
                }
                let answer = try client.request("POST", "/api/v1/heartbeat", body: body)
                #expect(
                    answer.status == 200 || answer.status == 400,
                    "seed \(seed), turn \(turn): \(answer.status) \(answer.text)")
            }
        }

        @Test(
            "A record that cannot be decoded is a dead letter, and the next one is processed",
            .timeLimit(.minutes(10)))
        func undecodable() async throws {
            let heartline = try await RunningHeartline()
            let device = try #require(try await heartline.addDevices(1).first)
            #expect(try heartline.heartbeat(device).status == 200)
            try #require(try await heartline.waitFor("healthy", of: device))
            let log = try EmbeddedLog(of: heartline.data)
            defer { log.close() }
            let producer = try log.makeProducer(ProducerSettings())
            let connection = try heartline.connect()
            defer { connection.close() }

            let faulty: [[UInt8]?] = [
                Array("not JSON".utf8), [], nil, Array("{\"v\":1,\"type\":\"heartbeat\"".utf8),
                [0xFF, 0xFE, 0x00], Array("[]".utf8),
                Array("{\"v\":2,\"type\":\"heartbeat\"}".utf8),
                Array("{\"v\":1,\"type\":\"heartbeat\",\"device_id\":\"me\"}".utf8),
                Array("{\"v\":1,\"type\":\"beacon\",\"monotonic_ms\":-1}".utf8),
                [UInt8](repeating: 0x5B, count: 100_000), [UInt8](repeating: 0, count: 1 << 20),
            ]
            for (index, value) in faulty.enumerated() {
                let key = Array("\(device)".utf8)
                var batch = RecordBatch(.heartbeats)
                let partition = Partitioner.partition(
                    of: key.span, count: try #require(try log.partitionCount(of: .heartbeats)))
                let now = EventTime(milliseconds: SystemClock.wallMilliseconds())
                if let value {
                    batch.append(
                        partition: partition, timestamp: now, key: key.span, value: value.span)
                } else {
                    batch.append(tombstone: key.span, partition: partition, timestamp: now)
                }
                #expect(producer.send(batch, receipt: nil) == .accepted)
                #expect(producer.flush(milliseconds: 30_000))
                let answer = try heartline.heartbeat(device, state: "after \(index)")
                #expect(answer.status == 200)
                #expect(
                    try await holds(within: 60) {
                        try connection.execute(
                            "SELECT agent_state FROM heartline.device_status WHERE device_id = $1",
                            .uuid(device.high, device.low)
                        ).only().optionalText(0) == "after \(index)"
                    })
            }

            struct Letter: Decodable {
                var topic: String
                var partition: Int32
                var offset: Int64
                var reason: String
                var key: String
                var value_base64: Data?
            }
            #expect(
                try await holds(within: 60) {
                    try log.count(of: .deadLetters) == Int64(faulty.count)
                })
            let letters = try log.records(of: .deadLetters).map {
                try JSONDecoder().decode(Letter.self, from: Data($0.value.utf8))
            }.sorted { $0.offset < $1.offset }
            #expect(letters.map { $0.value_base64.map { [UInt8]($0) } } == faulty)
            let places = Set(
                try log.records(of: .heartbeats).map { "\($0.place.partition)/\($0.place.offset)" })
            for letter in letters {
                #expect(letter.topic == "heartbeats")
                #expect(letter.key == "\(device)")
                #expect(letter.reason.hasPrefix("decoding the record: "))
                #expect(places.contains("\(letter.partition)/\(letter.offset)"))
            }
            #expect(try await CleanPass.waitForTables(log, connection))
            let (pass, difference) = try CleanPass.check(
                log, connection, pipelines: "\(heartline.folder.path)/pipelines")
            #expect(difference.isEmpty, "\(difference)")
            #expect(pass.malformed == faulty.count)
            producer.close()
            #expect(try heartline.ready().status == 200)
            #expect(await heartline.stop() == 0)
        }

        @Test(
            "U+0000 in a text is stored as U+FFFD, and a device's clock moves nobody else's state",
            .timeLimit(.minutes(10)))
        func textsAndClocks() async throws {
            let heartline = try await RunningHeartline()
            let devices = try await heartline.addDevices(4)
            let day: Int64 = 86_400_000
            #expect(try heartline.heartbeat(devices[0], state: "a\\u0000b").status == 200)
            #expect(try heartline.heartbeat(devices[1], clock: day).status == 200)
            #expect(try heartline.heartbeat(devices[2], clock: -day).status == 200)
            #expect(try heartline.heartbeat(devices[3]).status == 200)
            let connection = try heartline.connect()
            defer { connection.close() }
            func rows() throws -> [DeviceID: (
                state: String, text: String?, flags: String, lag: Int64
            )] {
                var found: [DeviceID: (state: String, text: String?, flags: String, lag: Int64)] =
                    [:]
                for row in try connection.execute(
                    """
                    SELECT device_id, state, agent_state, flags::text,
                           (abs(extract(epoch FROM now() - since)))::int8
                      FROM heartline.device_status WHERE last_seen IS NOT NULL
                    """)
                {
                    let id = try row.uuid(0)
                    found[DeviceID(high: id.high, low: id.low)] = (
                        try row.text(1), try row.optionalText(2), try row.text(3), try row.int8(4)
                    )
                }
                return found
            }
            try #require(try await holds(within: 60) { try rows().count == 4 })
            let found = try rows()
            #expect(found[devices[0]]?.text == "a\u{FFFD}b")
            #expect(found[devices[0]]?.state == "healthy")
            #expect(found[devices[1]]?.flags == "[\"clock-skew\"]")
            #expect(found[devices[2]]?.state == "stale")
            #expect(found[devices[3]]?.state == "healthy")
            // Whatever the devices' clocks say, nothing began but now.
            #expect(found.values.allSatisfy { $0.lag < 600 })
            #expect(await heartline.stop() == 0)
        }
    }
}

extension RunningHeartline {
    /// Sends one heartbeat with a state of its own.
    /// - Parameters:
    ///   - state: as JSON writes it between quotes.
    ///   - clock: milliseconds by which the device's clock is ahead.
    func heartbeat(
        _ device: DeviceID, state: String = "", status: String = "connected", clock: Int64 = 0
    ) throws -> RawResponse {
        let url = try #require(URL(string: places.listen))
        let client = try RawClient(
            host: try #require(url.host()), port: UInt16(try #require(url.port)))
        let handshake = EventTime(milliseconds: SystemClock.wallMilliseconds() + clock)
        return try client.request(
            "POST", "/api/v1/heartbeat",
            body: """
                {"device_id":"\(device)","status":"\(status)","state":"\(state)","tunnel_up":true,\
                "last_handshake":"\(handshake)"}
                """.utf8)
    }
}
