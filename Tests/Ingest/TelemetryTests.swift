import Bytes
import EventLog
import Foundation
import HTTP
import Ingest
import Schemas
import System
import TestSupport
import Testing
import Zlib

@Suite("Telemetry over HTTP") struct TelemetryTests {
    /// What the answer says.
    struct Answer: Decodable, Equatable {
        struct Fault: Decodable, Equatable {
            var line: Int
            var error: String
        }
        var accepted: Int
        var rejected: Int
        var errors: [Fault]
        var error: String?
    }

    static let time = "2026-06-26T09:00:00Z"

    static func sample(
        _ device: DeviceID, _ name: String = "cpu", _ value: String = "0.5", more: String = ""
    ) -> String {
        "{\"device_id\":\"\(device)\",\"ts\":\"\(time)\",\"name\":\"\(name)\",\"value\":\(value)\(more)}"
    }

    static func line(_ device: DeviceID, _ message: String, level: String = "info") -> String {
        """
        {"device_id":"\(device)","ts":"\(time)","level":"\(level)","tag":"wg","message":"\(message)"}
        """
    }

    static func post(
        _ rig: Rig, _ body: some Sequence<UInt8>, headers: [String] = []
    ) throws -> RawResponse {
        try rig.client().request("POST", "/v1/telemetry", body: body, headers: headers)
    }

    static func post(_ rig: Rig, _ lines: [String]) throws -> RawResponse {
        try post(rig, lines.joined(separator: "\n").utf8)
    }

    static func answer(_ response: RawResponse) throws -> Answer {
        try JSONDecoder().decode(Answer.self, from: Data(response.text.utf8))
    }

    /// The events in the log, in the order of the queue.
    static func events(_ rig: Rig) -> [TelemetryEvent] {
        let decoder = TelemetryDecoder()
        return rig.log.records(of: .telemetry).compactMap { record in
            guard case .event(let event) = decoder.decode(record.value!.span) else {
                Issue.record("not an event: \(record.value!.span.text)")
                return nil
            }
            #expect(record.key.span.text == "\(event.device)")
            #expect(
                record.partition == Partitioner.partition(of: record.key.span, count: 3))
            return event
        }
    }

    static func items(_ rig: Rig) -> Int {
        events(rig).reduce(0) { $0 + $1.samples.count + $1.logLines.count }
    }

    @Test("Samples and log lines of several devices become one record a device")
    func taken() throws {
        let rig = try Rig()
        let before = SystemClock.wallMilliseconds()
        let response = try Self.post(
            rig,
            [
                Self.sample(rig.devices[0]), Self.sample(rig.devices[1], "memory", "-2e3"),
                Self.line(rig.devices[0], "up", level: "INFO"),
                Self.sample(rig.devices[0], "disk", "7", more: ",\"attributes\":{\"mount\":\"/\"}"),
            ])
        #expect(response.status == 200)
        #expect(response.headers["content-type"] == "application/json")
        #expect(response.text == "{\"accepted\":4,\"rejected\":0,\"errors\":[]}")
        #expect(try eventually { Self.events(rig).count == 2 })
        let first = try #require(Self.events(rig).first { $0.device == rig.devices[0] })
        #expect(first.samples.map { first.text($0.name).text } == ["cpu", "disk"])
        #expect(first.samples.map(\.value) == [0.5, 7])
        #expect(first.samples[0].time.description == "2026-06-26T09:00:00.000Z")
        let line = try #require(first.logLines.first)
        #expect(first.text(line.level).text == "info")
        #expect(first.text(line.tag).text == "wg")
        #expect(first.text(line.message).text == "up")
        let records = rig.log.records(of: .telemetry)
        for record in records {
            #expect(record.timestamp.milliseconds >= before)
            #expect(record.timestamp.milliseconds <= SystemClock.wallMilliseconds())
        }
        #expect(
            records.contains { $0.value!.span.text.contains("\"attributes\":{\"mount\":\"/\"}") })
        let counters = try #require(rig.frontEnd.telemetry)
        #expect(counters.accepted == 4 && counters.rejected == 0)
    }

    @Test("A bad line is told by its number, and the others are taken")
    func badLines() throws {
        let rig = try Rig()
        let d = rig.devices[0]
        let bad: [(String, String)] = [
            ("nonsense", "invalid json"),
            ("[1]", "not an object"),
            ("{\"device_id\":\"\(d)\",\"device_id\":\"\(d)\"}", "repeated key"),
            ("{\"device_id\":\"d1\"}", "invalid device id"),
            (Self.sample(d, "cpu", "NaN"), "invalid json"),
            (Self.sample(d, "cpu", "Infinity"), "invalid json"),
            (Self.sample(d, "cpu", "-Infinity"), "invalid json"),
            (Self.sample(d, "cpu", "1e999"), "invalid json"),
            (Self.sample(d, "cpu", "\"NaN\""), "value is not a finite number"),
            (Self.sample(d, "cpu", "\"1\""), "value is not a finite number"),
            (Self.sample(d, "cpu", "null"), "value is not a finite number"),
            (Self.sample(d, "cpu", "true"), "value is not a finite number"),
            (Self.sample(d, ""), "name is not a text of 1 to 120 bytes"),
            (
                Self.sample(d, String(repeating: "ä", count: 61)),
                "name is not a text of 1 to 120 bytes"
            ),
            (Self.sample(d, "a\\u0000"), "name holds a control character"),
            (Self.sample(d, more: ",\"attributes\":[]"), "attributes are not an object"),
            (
                Self.sample(
                    d, more: ",\"attributes\":{\"a\":\"\(String(repeating: "x", count: 2_100))\"}"),
                "attributes are longer than 2048 bytes"
            ),
            (
                Self.sample(d).replacing(Self.time, with: "yesterday"),
                "ts is not an RFC 3339 time"
            ),
            (
                "{\"device_id\":\"\(d)\",\"ts\":\"\(Self.time)\"}",
                "neither a sample (name, value) nor a log line (level, message)"
            ),
            (
                Self.sample(d, more: ",\"message\":\"m\""), "both a sample and a log line"
            ),
            (Self.line(d, "m", level: ""), "level is not a text of 1 to 16 bytes"),
            (
                Self.line(d, "m").replacing("\"wg\"", with: "7"), "tag is not a text"
            ),
            (
                Self.line(d, "m").replacing("\"m\"", with: "{}"), "message is not a text"
            ),
            (
                Self.line(d, String(repeating: "x", count: 66_000)), "longer than 65536 bytes"
            ),
            (Self.sample(DeviceID(high: 4 << 12, low: 1)), "unknown device"),
        ]
        for (text, reason) in bad {
            let response = try Self.post(rig, [Self.sample(d), text, "", Self.sample(d)])
            let answer = try Self.answer(response)
            #expect(response.status == 200, "\(text.prefix(200))")
            #expect(
                answer
                    == Answer(accepted: 2, rejected: 1, errors: [.init(line: 2, error: reason)]),
                "\(text.prefix(200)): \(response.text)")
        }
        #expect(try eventually { Self.items(rig) == bad.count * 2 })
    }

    @Test("Where every line is bad the answer is 400 and lists the first ten")
    func allBad() throws {
        let rig = try Rig()
        let response = try Self.post(rig, (0..<30).map { "bad \($0)" })
        #expect(response.status == 400)
        let answer = try Self.answer(response)
        #expect(answer.error == "no line was accepted")
        #expect(answer.accepted == 0 && answer.rejected == 30)
        #expect(answer.errors.map(\.line) == Array(1...10))
        for body in ["", "\n\n", "  \r\n\t\n"] {
            let empty = try Self.post(rig, body.utf8)
            #expect(empty.status == 400)
            #expect(empty.text == "{\"error\":\"empty body\"}")
        }
        #expect(Self.events(rig).isEmpty)
    }

    @Test("Faults are listed in the order of their lines, whatever found them")
    func order() throws {
        let rig = try Rig()
        let stranger = DeviceID(high: 4 << 12, low: 2)
        let answer = try Self.answer(
            Self.post(
                rig,
                [
                    Self.sample(stranger), "bad", Self.sample(stranger),
                    Self.sample(rig.devices[0]),
                ]))
        #expect(answer.errors.map(\.line) == [1, 2, 3])
        #expect(answer.errors.map(\.error) == ["unknown device", "invalid json", "unknown device"])
    }

    @Test("Lines may end in CR LF, the last may end in nothing, and blank ones count as none")
    func lineEnds() throws {
        let rig = try Rig()
        let d = rig.devices[0]
        let body =
            "\(Self.sample(d))\r\n\r\n \t\n\(Self.sample(d))\n{\r\n\(Self.sample(d))"
        let answer = try Self.answer(Self.post(rig, body.utf8))
        #expect(answer.accepted == 3)
        #expect(answer.errors == [.init(line: 5, error: "invalid json")])
    }

    @Test("Invalid UTF-8 spoils its own line")
    func invalidUTF8() throws {
        let rig = try Rig()
        let d = rig.devices[0]
        var body = Array(
            "\(Self.line(d, "good"))\n\(Self.line(d, "b?d"))\n\(Self.line(d, "fine"))".utf8)
        body[try #require(body.firstIndex(of: UInt8(ascii: "?")))] = 0xFF
        let answer = try Self.answer(Self.post(rig, body))
        #expect(answer.accepted == 2)
        #expect(answer.errors == [.init(line: 2, error: "invalid json")])
    }

    @Test("A message is cut at 8 KiB between characters, and U+0000 is replaced")
    func messages() throws {
        let rig = try Rig()
        let long = String(repeating: "€", count: 3_000)
        let response = try Self.post(
            rig, [Self.line(rig.devices[0], long), Self.line(rig.devices[0], "a\\u0000b")])
        #expect(response.status == 200)
        #expect(try eventually { Self.items(rig) == 2 })
        let event = try #require(Self.events(rig).first)
        #expect(event.text(event.logLines[0].message).text == String(repeating: "€", count: 2_730))
        #expect(event.text(event.logLines[1].message).text == "a\u{FFFD}b")
    }

    /// Lines of just so many bytes.
    private static func body(_ device: DeviceID, bytes: Int) -> (body: [UInt8], lines: Int) {
        var body: [UInt8] = []
        var lines = 0
        while body.count + 200 < bytes {
            body += Array((sample(device, "metric-\(lines)", "\(lines)") + "\n").utf8)
            lines += 1
        }
        body += [UInt8](repeating: 0x20, count: bytes - body.count)
        return (body, lines)
    }

    @Test("1 MiB is taken, one byte more is 413; packed it is what comes out that counts")
    func limit() throws {
        let rig = try Rig()
        let (body, lines) = Self.body(rig.devices[0], bytes: 1 << 20)
        let response = try Self.post(rig, body)
        #expect(response.status == 200)
        #expect(try Self.answer(response).accepted == lines)
        #expect(try eventually { Self.items(rig) == lines })
        // One record does not grow without bounds, and a name a line is in every one of them.
        for record in rig.log.records(of: .telemetry) {
            #expect(record.value!.count < 64 << 10)
        }
        let over = try Self.post(rig, body + [0x0A])
        #expect(over.status == 413)
        let gzip = ["Content-Encoding: gzip"]
        let packed = try Deflate.pack(body.span)
        #expect(packed.count < body.count / 4)
        let unpacked = try Self.post(rig, packed.bytes, headers: gzip)
        #expect(unpacked.status == 200)
        #expect(try Self.answer(unpacked).accepted == lines)
        let longer = body + [0x0A]
        let packedOver = try Deflate.pack(longer.span)
        let refused = try Self.post(rig, packedOver.bytes, headers: gzip)
        #expect(refused.status == 413)
        #expect(refused.headers["content-type"] == "application/json")
    }

    @Test("A gzip bomb is refused; what is no gzip is 400, an unknown encoding 415")
    func encodings() throws {
        let rig = try Rig()
        let zeros = [UInt8](repeating: 0, count: 64 << 20)
        let bomb = try Deflate.pack(zeros.span)
        #expect(bomb.count < 100_000)
        let gzip = ["Content-Encoding: gzip"]
        #expect(try Self.post(rig, bomb.bytes, headers: gzip).status == 413)
        let text = Array(Self.sample(rig.devices[0]).utf8)
        let damaged = try Self.post(rig, text, headers: gzip)
        #expect(damaged.status == 400)
        #expect(damaged.text == "{\"error\":\"invalid gzip\"}")
        let packed = try Deflate.pack(text.span)
        let cut = try Self.post(rig, packed.bytes.dropLast(3), headers: gzip)
        #expect(cut.status == 400)
        for name in ["gzip", "GZIP", "x-gzip"] {
            let response = try Self.post(
                rig, packed.bytes, headers: ["Content-Encoding: \(name)"])
            #expect(response.status == 200, "\(name)")
        }
        #expect(try Self.post(rig, text, headers: ["Content-Encoding: identity"]).status == 200)
        for name in ["br", "deflate", "gzip, gzip"] {
            let response = try Self.post(rig, text, headers: ["Content-Encoding: \(name)"])
            #expect(response.status == 415, "\(name)")
            #expect(response.headers["accept-encoding"] == "gzip")
        }
    }

    @Test("Devices that are not in memory are read; of a suspended one nothing is taken")
    func devices() throws {
        let rig = try Rig()
        try rig.registry.suspend(rig.devices[1])
        let stranger = DeviceID(high: 4 << 12, low: 9)
        let lines = [
            Self.sample(rig.devices[0]), Self.sample(rig.devices[1]), Self.sample(stranger),
            Self.line(rig.devices[2], "x"),
        ]
        // Read from the database first, then from memory.
        for _ in 0..<2 {
            let response = try Self.post(rig, lines)
            #expect(response.status == 200)
            let answer = try Self.answer(response)
            #expect(answer.accepted == 2)
            #expect(
                answer.errors == [
                    .init(line: 2, error: "device is suspended"),
                    .init(line: 3, error: "unknown device"),
                ])
        }
        #expect(try Self.post(rig, [Self.sample(rig.devices[1])]).status == 403)
        #expect(try Self.post(rig, [Self.sample(stranger)]).status == 400)
        #expect(try eventually { Self.events(rig).count == 4 })
        #expect(Set(Self.events(rig).map(\.device)) == [rig.devices[0], rig.devices[2]])
    }

    @Test("A request of more than a thousand devices is taken for the first thousand")
    func manyDevices() throws {
        let rig = try Rig()
        let strangers = (0..<1_000).map { DeviceID(high: 4 << 12, low: UInt64($0)) }
        let answer = try Self.answer(
            Self.post(rig, (strangers + [rig.devices[0]]).map { Self.sample($0) }))
        #expect(answer.rejected == 1_001)
        #expect(answer.errors.count == 10)
    }

    @Test("Without PostgreSQL, devices in memory are served and the others asked to come again")
    func databaseDown() throws {
        let server = try TestServer()
        let rig = try Rig(database: try server.makeDatabase())
        #expect(try Self.post(rig, [Self.sample(rig.devices[0])]).status == 200)
        server.stop()
        #expect(try Self.post(rig, [Self.sample(rig.devices[0])]).status == 200)
        let both = try Self.post(
            rig, [Self.sample(rig.devices[0]), Self.sample(rig.devices[1])])
        #expect(both.status == 503)
        #expect((1...10).contains(Int(both.headers["retry-after"] ?? "") ?? 0))
        // A 503 took nothing.
        #expect(try eventually { Self.items(rig) == 2 })
        try server.start()
        #expect(
            try eventually { try Self.post(rig, [Self.sample(rig.devices[1])]).status == 200 })
    }

    @Test("A queue that is half full turns telemetry away, and heartbeats find room")
    func backpressure() throws {
        let rig = try Rig { $0.queueBytes = 100_000 }
        #expect(try Self.post(rig, [Self.sample(rig.devices[0])]).status == 200)
        rig.log.setQueued(49_000)
        let turned = try Self.post(
            rig, [Self.line(rig.devices[0], String(repeating: "x", count: 2_000))])
        #expect(turned.status == 503)
        #expect(turned.headers["retry-after"] != nil)
        #expect(try rig.beat(rig.devices[0]).status == 200)
        rig.log.setQueued(0)
        #expect(try Self.post(rig, [Self.sample(rig.devices[0])]).status == 200)
        #expect(rig.frontEnd.telemetry?.unavailable == 1)
    }

    @Test("What the log refuses after the answer is counted, and no heartbeat is called lost")
    func lost() throws {
        let rig = try Rig()
        #expect(try Self.post(rig, [Self.sample(rig.devices[0])]).status == 200)
        rig.log.setFull(true)
        #expect(try Self.post(rig, [Self.sample(rig.devices[0])]).status == 200)
        #expect(try eventually { rig.frontEnd.telemetry?.lost == 1 })
        rig.log.setFull(false)
        rig.log.setReceipts(.failed)
        #expect(try Self.post(rig, [Self.sample(rig.devices[0])]).status == 200)
        #expect(try eventually { rig.frontEnd.telemetry?.lost == 2 })
        rig.log.setReceipts(.stored)
        #expect(rig.frontEnd.counters.lost == 0)
    }

    @Test("Other methods are 405, other paths 404")
    func methods() throws {
        let rig = try Rig()
        for path in ["/v1/telemetry", "/v1/metrics"] {
            let response = try rig.client().request("GET", path, body: [])
            #expect(response.status == 405)
            #expect(response.headers["allow"] == "POST")
        }
        #expect(try rig.client().request("POST", "/v1/logs", body: "{}".utf8).status == 404)
    }
}
