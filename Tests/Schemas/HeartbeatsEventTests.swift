import Bytes
import Schemas
import Testing

private func decode(_ text: String) -> Decoded<HeartbeatsEvent> {
    HeartbeatsDecoder().decode(ByteBuffer(text.utf8).span)
}

private func reason(_ decoded: Decoded<HeartbeatsEvent>) -> String? {
    if case .malformed(let reason) = decoded { reason } else { nil }
}

private let device = DeviceID("f47ac10b-58cc-4372-a567-0e02b2c3d479")!
private let origin = EventOrigin(boot: 0xAB, counter: 12)

@Suite("Records of topic heartbeats")
struct HeartbeatsEventTests {
    static let events: [HeartbeatsEvent] = {
        var full = Heartbeat(device: device, origin: origin)
        full.status = .recovering
        full.tunnelUp = false
        full.lastHandshake = EventTime(milliseconds: 1_782_464_400_123)
        full.flags = [.badStatus, .badLastHandshake]
        full.configVersion = 7
        full.agentState = InlineText("HEARTBEAT \"quoted\" \\ \u{1F680}\n")
        return [
            .heartbeat(Heartbeat(device: device, origin: origin)),
            .heartbeat(full),
            .beacon(
                Beacon(
                    frontEnd: InlineText("fe-1"), origin: origin, monotonicMilliseconds: 5_000,
                    isLossy: true)),
            .beacon(
                Beacon(
                    frontEnd: InlineText("fe-1"), origin: origin, monotonicMilliseconds: 5_000,
                    isLeaving: true, isBehind: true)),
            .lifecycle(
                Lifecycle(
                    device: device, kind: .provisioned, version: 3,
                    expectedIntervalMilliseconds: 1_800_000)),
            .lifecycle(Lifecycle(device: device, kind: .removed, version: 4)),
        ]
    }()

    @Test(arguments: events)
    func areReadAsTheyWereWritten(_ event: HeartbeatsEvent) {
        var bytes = ByteBuffer()
        bytes.append(event)
        guard case .event(let read) = HeartbeatsDecoder().decode(bytes.span) else {
            Issue.record("not an event: \(bytes.span.text)")
            return
        }
        #expect(read == event)
    }

    @Test func fieldsThatAreNotKnownAreSkipped() {
        let text = #"{"v":1,"type":"removed","device_id":"\#(device)","version":1,"new":[{"a":1}]}"#
        guard case .event = decode(text) else {
            Issue.record("refused")
            return
        }
    }

    @Test func kindsThatCameLaterAreSkipped() {
        guard case .skipped = decode(#"{"v":1,"type":"renamed"}"#) else {
            Issue.record("not skipped")
            return
        }
    }

    @Test(arguments: [
        ("", "not JSON"), ("{", "not JSON"), ("[]", "JSON that is not an object"),
        (#"{"v":1,"v":1}"#, "JSON with a repeated key"),
        (#"{"type":"heartbeat"}"#, "no version \"v\""),
        (#"{"v":2,"type":"heartbeat"}"#, "version \"v\" 2 is not known"),
        (#"{"v":1}"#, "no \"type\""),
        (#"{"v":1,"type":"heartbeat"}"#, "\"device_id\" is not a UUID"),
        (#"{"v":1,"type":"beacon"}"#, "\"id\" is not an event id"),
        ("{\"v\":1,\"type\":\"\u{0}\"}", "not JSON"),
    ])
    func whatCannotBeReadSaysWhy(_ text: String, _ expected: String) {
        #expect(reason(decode(text)) == expected)
    }

    @Test func randomBytesNeverCrashTheReader() {
        var state: UInt64 = 42
        func next() -> UInt64 {
            state = state &* 6_364_136_223_846_793_005 &+ 1_442_695_040_888_963_407
            return state >> 33
        }
        let decoder = HeartbeatsDecoder()
        var seed = ByteBuffer()
        for event in Self.events { seed.append(event) }
        for _ in 0..<20_000 {
            var bytes = ByteBuffer(seed.bytes.prefix(Int(next()) % seed.count))
            for _ in 0..<(next() % 4) where !bytes.isEmpty {
                bytes[Int(next()) % bytes.count] = UInt8(truncatingIfNeeded: next())
            }
            _ = decoder.decode(bytes.span)
        }
    }
}

@Suite("Text inside an event")
struct InlineTextTests {
    @Test func zeroBecomesTheReplacementCharacter() {
        #expect(InlineText("a\u{0}b").description == "a\u{FFFD}b")
    }

    @Test func aCharacterIsNeverCut() {
        for length in 110..<125 {
            let text = InlineText(String(repeating: "a", count: length) + "\u{1F680}")
            let description = text.description
            #expect(text.count <= 120)
            #expect(!description.contains("\u{FFFD}"))
        }
    }
}

@Suite("Rows")
struct RowBufferTests {
    @Test func areSortedByTheirFirstColumnAndKeepTheirOrigin() {
        var rows = RowBuffer(.alertsResolved)
        for (number, origin) in [(3, 30), (1, 10), (2, 20)] {
            rows.beginRow(origin: Int64(origin))
            rows.put(DeviceID(high: UInt64(number) << 56, low: 0))
            rows.put(EventTime(milliseconds: Int64(number)))
        }
        rows.sortByUUID()
        #expect(Array(rows.origins) == [10, 20, 30])
        #expect(rows.starts.map { rows.bytes[$0 + 6] } == [1, 2, 3])
    }
}

@Suite("Alert ids")
struct AlertIDTests {
    @Test func areTheSameForTheSameCauseAndDifferForAnother() {
        let entity = ByteBuffer(device.description.utf8)
        let first = AlertID.make(kind: .offline, entity: entity.span, episode: 1)
        #expect(first == AlertID.make(kind: .offline, entity: entity.span, episode: 1))
        #expect(first != AlertID.make(kind: .offline, entity: entity.span, episode: 2))
        #expect(first != AlertID.make(kind: .stale, entity: entity.span, episode: 1))
        let text = first.description
        #expect(text[text.index(text.startIndex, offsetBy: 14)] == "8", "UUID version 8")
        #expect("89ab".contains(text[text.index(text.startIndex, offsetBy: 19)]))
    }
}
