internal import Bytes
internal import JSON
internal import Schemas

/// Reads the body of `POST /v1/telemetry`: NDJSON, a sample or a line of the agent's log on each line.
/// One for each thread.
struct TelemetryReader: ~Copyable {
    /// Longer lines are refused.
    static let lineBytes = 64 << 10

    private static let fields = JSONFields([
        "device_id", "ts", "name", "value", "attributes", "level", "tag", "message",
    ])

    private enum Field {
        static let deviceID = 0, ts = 1, name = 2, value = 3, attributes = 4, level = 5, tag = 6
        static let message = 7
    }

    private var parser: JSONParser
    private var level = ByteBuffer()

    init() { parser = JSONParser(Self.fields, maximumBytes: Self.lineBytes) }

    /// Reads all lines. A bad one is refused under its number, counted from 1; blank ones are none.
    mutating func read(
        _ body: Span<UInt8>, into request: inout TelemetryRequest, origin: () -> EventOrigin
    ) {
        var start = 0
        var number = 0
        while start < body.count {
            number += 1
            let end = body.firstIndex(of: 0x0A, from: start) ?? body.count
            var last = end
            if last > start, body[last - 1] == 0x0D { last -= 1 }
            let line = body.extracting(start..<last)
            start = end + 1
            if Self.isBlank(line) { continue }
            if let reason = read(line, number, into: &request, origin) {
                request.reject(number, reason)
            }
        }
    }

    private static func isBlank(_ line: Span<UInt8>) -> Bool {
        for index in 0..<line.count where line[index] != 0x20 && line[index] != 0x09 {
            return false
        }
        return true
    }

    /// - Returns: why the line is refused.
    private mutating func read(
        _ line: Span<UInt8>, _ number: Int, into request: inout TelemetryRequest,
        _ origin: () -> EventOrigin
    ) -> StaticString? {
        do throws(JSONError) {
            try parser.parse(line)
        } catch {
            return switch error {
            case .notAnObject: "not an object"
            case .duplicateKey: "repeated key"
            case .tooLarge: "longer than 65536 bytes"
            case .tooDeep: "nested too deeply"
            case .outOfMemory: "no memory"
            case .syntax: "invalid json"
            }
        }
        guard let device = parser.withString(Field.deviceID, { DeviceID(parsing: $0) }) ?? nil
        else { return "invalid device id" }
        guard let time = parser.withString(Field.ts, { EventTime(parsing: $0) }) ?? nil else {
            return "ts is not an RFC 3339 time"
        }
        let isLogLine = isGiven(Field.message) || isGiven(Field.level)
        let isSample = isGiven(Field.name) || isGiven(Field.value)
        guard isLogLine != isSample else {
            return isSample
                ? "both a sample and a log line"
                : "neither a sample (name, value) nor a log line (level, message)"
        }
        if isLogLine {
            if let reason = Self.level(parser, into: &level) { return reason }
            return Self.logLine(parser, level, device, time, number, &request, origin)
        }
        return Self.sample(parser, device, time, number, &request, origin)
    }

    private func isGiven(_ field: Int) -> Bool {
        switch parser.kind(field) {
        case .absent, .null: false
        default: true
        }
    }

    // Static over a borrowed parser: the compiler then sees how long what it lends lives.

    private static func sample(
        _ parser: borrowing JSONParser, _ device: DeviceID, _ time: EventTime, _ number: Int,
        _ request: inout TelemetryRequest, _ origin: () -> EventOrigin
    ) -> StaticString? {
        guard let name = parser.bytes(Field.name), name.count > 0,
            name.count <= TelemetryLimits.nameBytes
        else { return "name is not a text of 1 to 120 bytes" }
        guard isPlain(name) else { return "name holds a control character" }
        guard let value = parser.number(Field.value), value.isFinite else {
            return "value is not a finite number"
        }
        switch parser.kind(Field.attributes) {
        case .absent, .null:
            guard let group = request.group(of: device) else { return tooMany }
            let none = ByteBuffer()
            request.addSample(number, to: group, name, value, at: time, attributes: none.span)
            request.finishIfFull(group, origin)
            return nil
        case .object:
            let reason: StaticString?? = parser.withObject(Field.attributes) { attributes in
                if attributes.count > TelemetryLimits.attributesBytes {
                    return "attributes are longer than 2048 bytes"
                }
                guard let group = request.group(of: device) else { return tooMany }
                guard let name = parser.bytes(Field.name) else { return nil }
                request.addSample(
                    number, to: group, name, value, at: time, attributes: attributes)
                request.finishIfFull(group, origin)
                return nil
            }
            return reason ?? nil
        default: return "attributes are not an object"
        }
    }

    private static let tooMany: StaticString = "more than 1000 devices in one request"

    private static func logLine(
        _ parser: borrowing JSONParser, _ level: ByteBuffer, _ device: DeviceID,
        _ time: EventTime, _ number: Int, _ request: inout TelemetryRequest,
        _ origin: () -> EventOrigin
    ) -> StaticString? {
        guard let message = parser.bytes(Field.message) else { return "message is not a text" }
        let cut = message.extracting(message.utf8Prefix(TelemetryLimits.messageBytes))
        var tag = InlineText()
        switch parser.kind(Field.tag) {
        case .absent, .null: break
        case .string:
            if let text = parser.bytes(Field.tag) { tag = InlineText(text) }
        default: return "tag is not a text"
        }
        guard let group = request.group(of: device) else { return tooMany }
        request.addLogLine(
            number, to: group, level: level.span, tag: tag.span, cut, at: time)
        request.finishIfFull(group, origin)
        return nil
    }

    /// In lower case (ASCII).
    /// - Returns: why there is none.
    private static func level(
        _ parser: borrowing JSONParser, into level: inout ByteBuffer
    ) -> StaticString? {
        guard let text = parser.bytes(Field.level), text.count > 0,
            text.count <= TelemetryLimits.levelBytes, isPlain(text)
        else { return "level is not a text of 1 to 16 bytes" }
        level.removeAll()
        for index in 0..<text.count {
            let byte = text[index]
            level.append(byte >= 0x41 && byte <= 0x5A ? byte | 0x20 : byte)
        }
        return nil
    }

    private static func isPlain(_ text: Span<UInt8>) -> Bool {
        for index in 0..<text.count where text[index] < 0x20 { return false }
        return true
    }
}
