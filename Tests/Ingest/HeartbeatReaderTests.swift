import Bytes
import Ingest
import Schemas
import Testing

@Suite("Heartbeat: reading a request") struct HeartbeatReaderTests {
    static let deviceText = "3f2504e0-4f89-11d3-9a0c-0305e82c3301"
    static let device = DeviceID(deviceText)!

    static func read(_ body: some Sequence<UInt8>) -> HeartbeatReader.Reading {
        var reader = HeartbeatReader()
        return reader.read(ByteBuffer(body).span)
    }

    static func heartbeat(_ fields: String) -> Heartbeat? {
        let body = "{\"device_id\":\"\(deviceText)\"\(fields.isEmpty ? "" : ",")\(fields)}"
        guard case .heartbeat(let heartbeat) = read(body.utf8) else { return nil }
        return heartbeat
    }

    @Test(
        "what is not JSON is invalid JSON",
        arguments: [
            "", " ", "{", "{\"device_id\":\"\(deviceText)\"", "{\"device_id\":\"\(deviceText)\"}x",
            "{\"device_id\":\"\(deviceText)\",\"device_id\":\"\(deviceText)\"}",
            "{\"device_id\":\"\(deviceText)\",\"x\":{\"a\":1,\"a\":2}}",
            "{'device_id':1}", "{\"a\":01}", "{\"a\":\"\\ud800\"}", "nope", "\u{FEFF}x",
            "{\"device_id\":\"\(deviceText)\",}", "{\"a\":NaN}",
            String(repeating: "[", count: 100_000), "{\"a\":" + String(repeating: "[", count: 900),
        ])
    func invalidJSON(body: String) {
        guard case .invalidJSON = Self.read(body.utf8) else {
            Issue.record("\(body.prefix(80)) was read")
            return
        }
    }

    @Test("invalid UTF-8 is invalid JSON, wherever it stands")
    func invalidUTF8() {
        for bytes in [[0xFF], [0xC0, 0x80], [0xED, 0xA0, 0x80], [0xF4, 0x90, 0x80, 0x80]]
            as [[UInt8]]
        {
            let body =
                Array("{\"device_id\":\"\(Self.deviceText)\",\"x\":\"".utf8) + bytes
                + Array("\"}".utf8)
            guard case .invalidJSON = Self.read(body) else {
                Issue.record("\(bytes) was read")
                return
            }
        }
    }

    @Test(
        "JSON without a device's UUID is an invalid device id",
        arguments: [
            "{}", "[]", "1", "null", "\"\(deviceText)\"", "{\"device_id\":null}",
            "{\"device_id\":17}", "{\"device_id\":[\"\(deviceText)\"]}", "{\"device_id\":\"\"}",
            "{\"device_id\":\"3f2504e04f8911d39a0c0305e82c3301\"}",
            "{\"device_id\":\"3f2504e0-4f89-11d3-9a0c-0305e82c330g\"}",
            "{\"device_id\":\" \(deviceText)\"}", "{\"device_id\":\"\(deviceText)\\u0000\"}",
            "{\"Device_ID\":\"\(deviceText)\"}",
        ])
    func invalidDevice(body: String) {
        guard case .invalidDeviceID = Self.read(body.utf8) else {
            Issue.record("\(body) was read")
            return
        }
    }

    @Test("ids are the same in any case")
    func idCase() {
        let body = "{\"device_id\":\"\(Self.deviceText.uppercased())\"}"
        guard case .heartbeat(let heartbeat) = Self.read(body.utf8) else {
            Issue.record("not read")
            return
        }
        #expect(heartbeat.device == Self.device)
    }

    @Test("all fields are read")
    func allFields() throws {
        let heartbeat = try #require(
            Self.heartbeat(
                """
                "status":"connected","state":"fine","tunnel_up":true,\
                "last_handshake":"2026-06-26T11:00:00+02:00","future":{"x":[1,2]}
                """))
        #expect(heartbeat.status == .connected)
        #expect(heartbeat.agentState == InlineText("fine"))
        #expect(heartbeat.tunnelUp == true)
        #expect(heartbeat.lastHandshake?.description == "2026-06-26T09:00:00.000Z")
        #expect(heartbeat.flags == [])
    }

    static let flagged: [(String, HeartbeatFlags)] = [
        ("\"status\":1", .badStatus), ("\"status\":null", []), ("\"status\":\"asleep\"", []),
        ("\"state\":{}", .badState), ("\"state\":null", []),
        ("\"tunnel_up\":\"true\"", .badTunnelUp), ("\"tunnel_up\":1", .badTunnelUp),
        ("\"tunnel_up\":null", []), ("\"last_handshake\":0", .badLastHandshake),
        ("\"last_handshake\":\"yesterday\"", .badLastHandshake),
        ("\"last_handshake\":\"2026-02-30T00:00:00Z\"", .badLastHandshake),
        ("\"last_handshake\":\"\"", .badLastHandshake), ("\"last_handshake\":null", []),
        ("\"last_handshake\":\"1970-01-01T00:00:00Z\"", []),
        (
            "\"status\":[],\"state\":[],\"tunnel_up\":[],\"last_handshake\":[]",
            [.badStatus, .badState, .badTunnelUp, .badLastHandshake]
        ),
    ]

    @Test(
        "an optional field of a wrong type is flagged and absent; null is absent",
        arguments: flagged)
    func flags(fields: String, flags: HeartbeatFlags) throws {
        let heartbeat = try #require(Self.heartbeat(fields))
        #expect(heartbeat.flags == flags)
        if !flags.isEmpty {
            #expect(heartbeat.status == nil)
            #expect(heartbeat.tunnelUp == nil)
            #expect(heartbeat.lastHandshake == nil)
            #expect(heartbeat.agentState.isEmpty)
        }
    }

    @Test("U+0000 in a state becomes U+FFFD, and a long state is cut between characters")
    func stateText() throws {
        let heartbeat = try #require(Self.heartbeat("\"state\":\"a\\u0000b\""))
        #expect(heartbeat.agentState.description == "a\u{FFFD}b")
        var event = ByteBuffer()
        event.append(heartbeat)
        #expect(event.span.text.contains("\"state\":\"a\u{FFFD}b\""))
        let long = try #require(
            Self.heartbeat("\"state\":\"" + String(repeating: "ä", count: 500) + "\""))
        #expect(long.agentState.description == String(repeating: "ä", count: 60))
    }

    @Test("a reader reads on after a fault")
    func reuse() {
        var reader = HeartbeatReader()
        for _ in 0..<3 {
            guard case .invalidJSON = reader.read(ByteBuffer("{".utf8).span),
                case .heartbeat = reader.read(
                    ByteBuffer("{\"device_id\":\"\(Self.deviceText)\"}".utf8).span)
            else {
                Issue.record("not read")
                return
            }
        }
    }
}
