public import Bytes
internal import JSON

/// Bounds of what telemetry holds, in bytes.
public enum TelemetryLimits {
    /// A measurement's name; a longer one is refused.
    public static let nameBytes = 120
    /// A log line's level; a longer one is refused.
    public static let levelBytes = 16
    /// A log line's message; a longer one is cut.
    public static let messageBytes = 8 << 10
    /// A sample's attributes as JSON without blanks; longer ones are refused.
    public static let attributesBytes = 2 << 10
    /// A record takes no more items once it has so many bytes, or `recordItems`.
    public static let recordBytes = 32 << 10
    public static let recordItems = 512
}

/// A record of topic `telemetry`: what one device measured and wrote into its log, as much of it as
/// came in one request.
///
/// Texts stand one after another in one buffer, so that a record costs a few allocations, however
/// many items it has.
public struct TelemetryEvent: Sendable, Equatable {
    /// Where a text of the event stands; `text(_:)` lends it.
    public struct Text: Sendable, Equatable {
        fileprivate var start: Int32
        fileprivate var count: Int32
    }

    public struct Sample: Sendable, Equatable {
        /// As the device claims it; data, never a clock.
        public var time: EventTime
        /// Finite.
        public var value: Double
        /// 1 to `TelemetryLimits.nameBytes` bytes.
        public var name: Text
    }

    public struct LogLine: Sendable, Equatable {
        /// As the device claims it; data, never a clock.
        public var time: EventTime
        /// In lower case; 1 to `TelemetryLimits.levelBytes` bytes.
        public var level: Text
        /// Up to `InlineText.capacity` bytes; may be empty.
        public var tag: Text
        public var message: Text
    }

    public var device: DeviceID
    public var origin: EventOrigin
    public private(set) var samples: ContiguousArray<Sample> = []
    public private(set) var logLines: ContiguousArray<LogLine> = []
    private var texts = ByteBuffer()

    public init(device: DeviceID, origin: EventOrigin) {
        self.device = device
        self.origin = origin
    }

    @_lifetime(borrow self)
    public func text(_ text: Text) -> Span<UInt8> {
        let span = texts.span.extracting(Int(text.start)..<Int(text.start + text.count))
        return span
    }

    private mutating func keep(_ text: Span<UInt8>) -> Text {
        let start = Int32(texts.count)
        texts.append(text)
        return Text(start: start, count: Int32(text.count))
    }

    /// - Precondition: the value is finite.
    public mutating func addSample(_ name: Span<UInt8>, _ value: Double, at time: EventTime) {
        precondition(value.isFinite)
        samples.append(Sample(time: time, value: value, name: keep(name)))
    }

    public mutating func addLogLine(
        level: Span<UInt8>, tag: Span<UInt8>, _ message: Span<UInt8>, at time: EventTime
    ) {
        logLines.append(
            LogLine(time: time, level: keep(level), tag: keep(tag), message: keep(message)))
    }

    mutating func reserve(samples: Int, textBytes: Int) {
        self.samples.reserveCapacity(samples)
        texts.reserveCapacity(textBytes)
    }
}

// MARK: - Writing

/// Gathers the items of one device as JSON, as they are read, and makes the values of records of
/// topic `telemetry` out of them.
public struct TelemetryWriter: Sendable {
    private var samples = ByteBuffer()
    private var logLines = ByteBuffer()
    public private(set) var count = 0

    public init() {}

    public var isEmpty: Bool { count == 0 }
    /// Bytes of the items so far.
    public var sizeBytes: Int { samples.count + logLines.count }
    /// Whether the record is to be finished before another item is added.
    public var isFull: Bool {
        count >= TelemetryLimits.recordItems || sizeBytes >= TelemetryLimits.recordBytes
    }

    /// - Parameter attributes: an object as JSON; empty: none.
    /// - Precondition: the value is finite.
    public mutating func addSample(
        _ name: Span<UInt8>, _ value: Double, at time: EventTime, attributes: Span<UInt8>
    ) {
        samples.append(samples.isEmpty ? "{\"ts\":\"" : ",{\"ts\":\"")
        samples.append(time)
        samples.append("\",\"name\":")
        samples.append(jsonString: name)
        samples.append(",\"value\":")
        samples.append(jsonNumber: value)
        if attributes.count > 0 {
            samples.append(",\"attributes\":")
            samples.append(attributes)
        }
        samples.append(UInt8(ascii: "}"))
        count += 1
    }

    public mutating func addLogLine(
        level: Span<UInt8>, tag: Span<UInt8>, _ message: Span<UInt8>, at time: EventTime
    ) {
        logLines.append(logLines.isEmpty ? "{\"ts\":\"" : ",{\"ts\":\"")
        logLines.append(time)
        logLines.append("\",\"level\":")
        logLines.append(jsonString: level)
        logLines.append(",\"tag\":")
        logLines.append(jsonString: tag)
        logLines.append(",\"message\":")
        logLines.append(jsonString: message)
        logLines.append(UInt8(ascii: "}"))
        count += 1
    }

    /// Appends the record's value to `value` and begins the next.
    public mutating func finish(
        _ device: DeviceID, _ origin: EventOrigin, into value: inout ByteBuffer
    ) {
        value.append("{\"v\":1,\"type\":\"telemetry\",\"id\":\"")
        value.append(origin)
        value.append("\",\"device_id\":\"")
        value.append(device)
        value.append(UInt8(ascii: "\""))
        if !samples.isEmpty {
            value.append(",\"samples\":[")
            value.append(samples)
            value.append(UInt8(ascii: "]"))
        }
        if !logLines.isEmpty {
            value.append(",\"logs\":[")
            value.append(logLines)
            value.append(UInt8(ascii: "]"))
        }
        value.append(UInt8(ascii: "}"))
        removeAll()
    }

    public mutating func removeAll() {
        samples.removeAll()
        logLines.removeAll()
        count = 0
    }
}

extension ByteBuffer {
    /// Appends the event as the value of a record of topic `telemetry`.
    public mutating func append(_ event: TelemetryEvent) {
        var writer = TelemetryWriter()
        let none = ByteBuffer()
        for sample in event.samples {
            writer.addSample(
                event.text(sample.name), sample.value, at: sample.time, attributes: none.span)
        }
        for line in event.logLines {
            writer.addLogLine(
                level: event.text(line.level), tag: event.text(line.tag), event.text(line.message),
                at: line.time)
        }
        writer.finish(event.device, event.origin, into: &self)
    }
}

// MARK: - Reading

/// Reads records of topic `telemetry`. One for each thread.
public final class TelemetryDecoder {
    private let parser: JSONParser

    private static let fields = JSONFields(["v", "type", "id", "device_id"])

    private enum Field {
        static let v = 0, type = 1, id = 2, deviceID = 3
    }

    public init() { parser = JSONParser(Self.fields, maximumBytes: 1 << 20) }

    /// Attributes are skipped: they are for others that read the topic.
    public func decode(_ value: Span<UInt8>) -> Decoded<TelemetryEvent> {
        do throws(JSONError) { try parser.parse(value) } catch { return .malformed("\(error)") }
        return Self.read(parser, sizeBytes: value.count)
    }

    private static func read(
        _ parser: borrowing JSONParser, sizeBytes: Int
    ) -> Decoded<TelemetryEvent> {
        guard let version = parser.integer(Field.v) else { return .malformed("no version \"v\"") }
        guard version == 1 else { return .malformed("version \"v\" \(version) is not known") }
        guard let type = parser.bytes(Field.type) else { return .malformed("no \"type\"") }
        guard type.equals("telemetry") else { return .skipped }
        guard let device = parser.withString(Field.deviceID, { DeviceID(parsing: $0) }) ?? nil
        else { return .malformed("\"device_id\" is not a UUID") }
        guard let origin = parser.withString(Field.id, { EventOrigin(parsing: $0) }) ?? nil
        else { return .malformed("\"id\" is not an event id") }
        var event = TelemetryEvent(device: device, origin: origin)
        // A sample takes 60 bytes and more, most of which are not its name.
        event.reserve(samples: sizeBytes / 80, textBytes: sizeBytes / 2)
        var fault: String?
        let root = parser.root
        if let samples = root.member("samples") {
            samples.forEach { sample in
                if fault == nil { fault = read(sample: sample, into: &event) }
            }
        }
        if let lines = root.member("logs") {
            lines.forEach { line in if fault == nil { fault = read(line: line, into: &event) } }
        }
        if let fault { return .malformed(fault) }
        return .event(event)
    }

    private static func time(_ item: JSONNode) -> EventTime? {
        guard let node = item.member("ts"), let text = node.bytes else { return nil }
        return EventTime(parsing: text)
    }

    /// - Returns: what is wrong with it.
    private static func read(
        sample: JSONNode, into event: inout TelemetryEvent
    ) -> String? {
        guard let time = time(sample) else { return "\"ts\" of a sample is not a time" }
        guard let nameNode = sample.member("name"), let name = nameNode.bytes, name.count > 0,
            name.count <= TelemetryLimits.nameBytes
        else { return "\"name\" of a sample has not 1 to \(TelemetryLimits.nameBytes) bytes" }
        guard let valueNode = sample.member("value"), let value = valueNode.number,
            value.isFinite
        else { return "\"value\" of a sample is not a number" }
        event.addSample(name, value, at: time)
        return nil
    }

    private static func read(line: JSONNode, into event: inout TelemetryEvent) -> String? {
        guard let time = time(line) else { return "\"ts\" of a log line is not a time" }
        guard let levelNode = line.member("level"), let level = levelNode.bytes,
            let tagNode = line.member("tag"), let tag = tagNode.bytes,
            let messageNode = line.member("message"), let message = messageNode.bytes
        else { return "\"level\", \"tag\" or \"message\" of a log line is not a text" }
        event.addLogLine(level: level, tag: tag, message, at: time)
        return nil
    }
}
