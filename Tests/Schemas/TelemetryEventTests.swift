import Bytes
import JSON
import Schemas
import Testing

@Suite("Records of topic telemetry") struct TelemetryEventTests {
    static let device = DeviceID("0f8fad5b-d9cb-469f-a165-70867728950e")!
    static let origin = EventOrigin(boot: 0xAB, counter: 7)

    static func bytes(_ text: String) -> ByteBuffer { ByteBuffer(text.utf8) }

    static func decode(_ text: String) -> Decoded<TelemetryEvent> {
        TelemetryDecoder().decode(bytes(text).span)
    }

    static func malformed(_ text: String) -> String? {
        if case .malformed(let reason) = decode(text) { reason } else { nil }
    }

    @Test("What is written reads as the same")
    func roundTrip() throws {
        var event = TelemetryEvent(device: Self.device, origin: Self.origin)
        let values = [0, -1, 0.1, 1e300, -2.5e-300, 9_007_199_254_740_994, 1e15, 123_456_789.25]
        for (index, value) in values.enumerated() {
            event.addSample(
                Self.bytes("näme \"\(index)\"").span, value,
                at: EventTime(milliseconds: 1_790_000_000_000 + Int64(index)))
        }
        event.addLogLine(
            level: Self.bytes("warn").span, tag: Self.bytes("").span,
            Self.bytes("a\nb\t\"c\" \u{1F600}").span, at: EventTime(milliseconds: -1))
        var value = ByteBuffer()
        value.append(event)
        guard case .event(let read) = TelemetryDecoder().decode(value.span) else {
            Issue.record("\(value.span.text)")
            return
        }
        #expect(read == event)
        #expect(read.samples.map(\.value) == values)
        #expect(read.text(read.samples[3].name).text == "näme \"3\"")
        #expect(read.text(read.logLines[0].message).text == "a\nb\t\"c\" \u{1F600}")
    }

    @Test("A record reads as documented")
    func format() {
        var writer = TelemetryWriter()
        let time = EventTime(milliseconds: 1_790_000_000_123)
        writer.addSample(
            Self.bytes("cpu").span, 0.5, at: time,
            attributes: Self.bytes("{\"core\":1}").span)
        writer.addLogLine(
            level: Self.bytes("info").span, tag: Self.bytes("wg").span,
            Self.bytes("up\u{0}").span, at: time)
        var value = ByteBuffer()
        writer.finish(Self.device, Self.origin, into: &value)
        #expect(
            value.span.text == """
                {"v":1,"type":"telemetry","id":"00000000000000ab-7",\
                "device_id":"0f8fad5b-d9cb-469f-a165-70867728950e",\
                "samples":[{"ts":"\(time)","name":"cpu","value":0.5,"attributes":{"core":1}}],\
                "logs":[{"ts":"\(time)","level":"info","tag":"wg","message":"up\u{FFFD}"}]}
                """)
        #expect(writer.isEmpty && writer.sizeBytes == 0)
    }

    @Test("Later kinds are skipped, faults are told")
    func faults() {
        let head = """
            "v":1,"type":"telemetry","id":"00000000000000ab-7","device_id":"\(Self.device)"
            """
        if case .skipped = Self.decode("{\"v\":1,\"type\":\"trace\"}") {
        } else {
            Issue.record("not skipped")
        }
        #expect(Self.malformed("{\(head)}") == nil)
        let time = "\"ts\":\"2026-06-26T09:00:00Z\""
        #expect(
            Self.malformed("{\(head),\"samples\":[{\(time),\"name\":\"a\",\"value\":1}]}") == nil)
        for (text, reason) in [
            ("{", "not JSON"),
            ("{\"v\":2}", "version \"v\" 2 is not known"),
            ("{\"v\":1,\"type\":\"telemetry\"}", "\"device_id\" is not a UUID"),
            ("{\(head),\"samples\":[1]}", "\"ts\" of a sample is not a time"),
            (
                "{\(head),\"samples\":[{\(time),\"name\":\"\",\"value\":1}]}",
                "\"name\" of a sample has not 1 to 120 bytes"
            ),
            (
                "{\(head),\"samples\":[{\(time),\"name\":\"a\",\"value\":\"1\"}]}",
                "\"value\" of a sample is not a number"
            ),
            (
                "{\(head),\"logs\":[{\(time),\"level\":\"info\",\"tag\":\"\"}]}",
                "\"level\", \"tag\" or \"message\" of a log line is not a text"
            ),
        ] { #expect(Self.malformed(text) == reason, "\(text)") }
    }

    @Test("A prefix of text ends between characters")
    func prefix() {
        let text = Self.bytes("aä€😀")
        let ends = (0...10).map { text.span.utf8Prefix($0).upperBound }
        #expect(ends == [0, 1, 1, 3, 3, 3, 6, 6, 6, 6, 10])
    }
}
