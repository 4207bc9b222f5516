import Bytes
import Fleet
import JSON
import Schemas
import Testing

@Suite struct AgentHeartbeatTests {
    static let device = DeviceID("0f8fad5b-d9cb-469f-a165-70867728950e")!

    static func body(_ heartbeat: AgentHeartbeat) -> ByteBuffer {
        var body = ByteBuffer()
        heartbeat.write(device: device, into: &body)
        return body
    }

    @Test func theBodyIsTheContracts() {
        let heartbeat = AgentHeartbeat(
            status: .connected, isTunnelUp: true,
            lastHandshake: EventTime(milliseconds: 1_782_464_400_789))
        #expect(
            Self.body(heartbeat).span.text
                == #"{"device_id":"0f8fad5b-d9cb-469f-a165-70867728950e","status":"connected","#
                + #""tunnel_up":true,"last_handshake":"2026-06-26T09:00:00Z"}"#)
    }

    @Test func aHandshakeThatNeverWasIs1970() {
        let heartbeat = AgentHeartbeat(status: .recovering, isTunnelUp: false, lastHandshake: nil)
        #expect(
            Self.body(heartbeat).span.text
                == #"{"device_id":"0f8fad5b-d9cb-469f-a165-70867728950e","status":"recovering","#
                + #""tunnel_up":false,"last_handshake":"1970-01-01T00:00:00Z"}"#)
    }

    @Test func aBodyIsAppendedAfterWhatIsThere() {
        var body = ByteBuffer("before".utf8)
        AgentHeartbeat(
            status: .connected, isTunnelUp: true, lastHandshake: nil, malformation: .truncated
        ).write(device: Self.device, into: &body)
        #expect(body.span.text.hasPrefix(#"before{"device_id""#))
    }

    /// What a strict reader says of each.
    static let expectations: [(AgentHeartbeat.Malformation, JSONError?)] = [
        (.none, nil), (.truncated, .syntax), (.notJSON, .syntax), (.empty, .syntax),
        (.noDeviceID, nil), (.deviceIDNotAUUID, nil), (.deviceIDNotAString, nil),
        (.invalidUTF8, .syntax), (.repeatedKey, .duplicateKey), (.deeplyNested, .tooDeep),
        (.fieldsOfWrongType, nil), (.handshakeNotATime, nil),
    ]

    @Test(arguments: expectations)
    func eachMalformationIsWhatItsNameSays(_ way: AgentHeartbeat.Malformation, _ error: JSONError?)
    {
        let parser = JSONParser(JSONFields(["device_id", "last_handshake", "tunnel_up"]))
        let body = Self.body(
            AgentHeartbeat(
                status: .connected, isTunnelUp: true, lastHandshake: nil, malformation: way))
        do throws(JSONError) {
            try parser.parse(body.span)
            #expect(error == nil)
        } catch let found {
            #expect(found == error)
            return
        }
        let device = parser.withString(0) { DeviceID(parsing: $0) } ?? nil
        let isRefused: Set<AgentHeartbeat.Malformation> = [
            .noDeviceID, .deviceIDNotAUUID, .deviceIDNotAString,
        ]
        #expect((device == Self.device) == !isRefused.contains(way))
        if way == .fieldsOfWrongType {
            #expect(parser.kind(1) == .array)
            #expect(parser.bool(2) == nil)
        }
        if way == .handshakeNotATime {
            #expect((parser.withString(1) { EventTime(parsing: $0) } ?? nil) == nil)
        }
    }

    @Test func everyMalformationHasAnExpectation() {
        #expect(Set(Self.expectations.map(\.0)) == Set(AgentHeartbeat.Malformation.allCases))
    }
}
