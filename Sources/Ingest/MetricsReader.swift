internal import Bytes
internal import JSON
internal import Schemas

/// Reads the body of `POST /v1/metrics`: an `ExportMetricsServiceRequest` of OTLP/HTTP as JSON. One for
/// each thread.
///
/// Gauges and sums become a sample a data point, under the metric's name; histograms, exponential
/// histograms and summaries become `name.count`, `name.sum`, `name.min` and `name.max`, as far as they
/// have them. The device is the resource's attribute `device.id`, or `service.instance.id`.
/// - SeeAlso: OpenTelemetry Protocol 1.x, `opentelemetry/proto/metrics/v1/metrics.proto`; Protocol
///   Buffers' JSON mapping (64-bit numbers may be texts, so may `NaN` and `Infinity`).
struct MetricsReader: ~Copyable {
    private var parser: JSONParser

    private static let fields = JSONFields(["resourceMetrics"])

    init() { parser = JSONParser(Self.fields, maximumBytes: 1 << 20, maximumDepth: 64) }

    /// - Returns: why nothing of it can be read.
    mutating func read(
        _ body: Span<UInt8>, into request: inout TelemetryRequest, origin: () -> EventOrigin
    ) -> StaticString? {
        do throws(JSONError) {
            try parser.parse(body)
        } catch {
            return switch error {
            case .notAnObject: "not an object"
            case .duplicateKey: "repeated key"
            case .tooLarge: "too large"
            case .tooDeep: "nested too deeply"
            case .outOfMemory: "no memory"
            case .syntax: "invalid json"
            }
        }
        switch parser.kind(0) {
        case .absent, .null: return nil
        case .array: break
        default: return "resourceMetrics is not an array"
        }
        Self.walk(parser, &request, origin)
        return nil
    }

    private static func walk(
        _ parser: borrowing JSONParser, _ request: inout TelemetryRequest,
        _ origin: () -> EventOrigin
    ) {
        var points = Points()
        let root = parser.root
        guard let resources = root.member("resourceMetrics") else { return }
        resources.forEach { resource in
            points.device = device(resource)
            guard let scopes = resource.member("scopeMetrics") else { return }
            scopes.forEach { scope in
                guard let metrics = scope.member("metrics") else { return }
                metrics.forEach { metric in points.add(metric, to: &request, origin) }
            }
        }
    }

    private static func device(_ resource: JSONNode) -> DeviceID? {
        var device: DeviceID?
        var instance: DeviceID?
        guard let node = resource.member("resource"),
            let attributes = node.member("attributes")
        else { return nil }
        attributes.forEach { attribute in
            guard let keyNode = attribute.member("key"), let key = keyNode.bytes,
                let value = attribute.member("value"),
                let textNode = value.member("stringValue"), let text = textNode.bytes
            else { return }
            if key.equals("device.id") { device = DeviceID(parsing: text) }
            if key.equals("service.instance.id") { instance = DeviceID(parsing: text) }
        }
        return device ?? instance
    }

    /// Data points on their way to samples.
    private struct Points {
        var device: DeviceID?
        private var number = 0
        private var name = ByteBuffer()
        private var attributes = ByteBuffer()

        mutating func add(
            _ metric: JSONNode, to request: inout TelemetryRequest, _ origin: () -> EventOrigin
        ) {
            for kind in MetricKind.all {
                guard let body = metric.member(kind.member),
                    let points = body.member("dataPoints")
                else { continue }
                points.forEach { point in
                    number += 1
                    // "No recorded value": nothing was measured.
                    if let flags = point.member("flags"), (flags.integer ?? 0) & 1 != 0 { return }
                    if let reason = add(point, of: metric, kind, to: &request, origin) {
                        request.reject(number, reason)
                    }
                }
            }
        }

        private mutating func add(
            _ point: JSONNode, of metric: JSONNode, _ kind: MetricKind,
            to request: inout TelemetryRequest, _ origin: () -> EventOrigin
        ) -> StaticString? {
            guard let device else { return "the resource names no device (device.id)" }
            guard let nameNode = metric.member("name"), let text = nameNode.bytes, text.count > 0,
                text.count + kind.longestSuffix <= TelemetryLimits.nameBytes
            else { return "a name is not a text of 1 to 120 bytes" }
            for index in 0..<text.count where text[index] < 0x20 {
                return "a name holds a control character"
            }
            guard let time = Self.time(point) else {
                return "timeUnixNano is not a number of nanoseconds"
            }
            guard let group = request.group(of: device) else {
                return "more than 1000 devices in one request"
            }
            readAttributes(of: point)
            if kind.suffixes.isEmpty {
                guard let value = Self.value(point) else { return "a value is not a finite number" }
                request.addSample(
                    number, to: group, text, value, at: time, attributes: attributes.span)
            } else {
                // All or nothing: a data point is accepted or rejected as a whole.
                var values: [(StaticString, Double)] = []
                for (member, suffix) in kind.suffixes {
                    guard let node = point.member(member) else { continue }
                    guard let value = Self.number(node) else {
                        return "a value is not a finite number"
                    }
                    values.append((suffix, value))
                }
                if values.isEmpty { return "a data point without a count" }
                for (suffix, value) in values {
                    name.removeAll()
                    name.append(text)
                    name.append(suffix)
                    request.addSample(
                        number, to: group, name.span, value, at: time,
                        attributes: attributes.span)
                }
                request.countAsOne(values.count, in: group)
            }
            request.finishIfFull(group, origin)
            return nil
        }

        /// The attributes with a text, number or truth as JSON; of one key the first. Empty if there are
        /// none, or they are too long.
        private mutating func readAttributes(of point: JSONNode) {
            attributes.removeAll()
            guard let list = point.member("attributes") else { return }
            var keys: [[UInt8]] = []
            list.forEach { attribute in
                guard let keyNode = attribute.member("key"), let key = keyNode.bytes,
                    let value = attribute.member("value"), keys.count < 64
                else { return }
                let copy = key.array
                if keys.contains(copy) { return }
                let mark = attributes.count
                attributes.append(attributes.isEmpty ? "{" : ",")
                attributes.append(jsonString: key)
                attributes.append(UInt8(ascii: ":"))
                if append(value) {
                    keys.append(copy)
                } else {
                    attributes.truncate(to: mark)
                }
            }
            if attributes.isEmpty { return }
            attributes.append(UInt8(ascii: "}"))
            if attributes.count > TelemetryLimits.attributesBytes { attributes.removeAll() }
        }

        private mutating func append(_ value: JSONNode) -> Bool {
            if let node = value.member("stringValue"), let text = node.bytes {
                attributes.append(jsonString: text)
            } else if let node = value.member("boolValue"), let truth = node.bool {
                attributes.append(truth ? "true" : "false")
            } else if let node = value.member("intValue"), let number = MetricsReader.whole(node) {
                attributes.append(decimal: number)
            } else if let node = value.member("doubleValue"), let number = node.number,
                number.isFinite
            {
                attributes.append(jsonNumber: number)
            } else {
                return false
            }
            return true
        }

        private static func time(_ point: JSONNode) -> EventTime? {
            guard let node = point.member("timeUnixNano"), let time = MetricsReader.whole(node),
                time >= 0
            else { return nil }
            return EventTime(milliseconds: time / 1_000_000)
        }

        private static func value(_ point: JSONNode) -> Double? {
            if let node = point.member("asDouble") { return number(node) }
            if let node = point.member("asInt") { return number(node) }
            return nil
        }

        /// A finite number, or the text of a whole one.
        private static func number(_ node: JSONNode) -> Double? {
            if let number = node.number { return number.isFinite ? number : nil }
            return MetricsReader.whole(node).map(Double.init)
        }
    }

    /// A whole number, also as a text in decimal.
    private static func whole(_ node: JSONNode) -> Int64? {
        if let number = node.integer { return number }
        guard let text = node.bytes, text.count > 0, text.count <= 20 else { return nil }
        let isNegative = text[0] == 0x2D
        var value: Int64 = 0
        for index in (isNegative ? 1 : 0)..<text.count {
            guard text[index] >= 0x30, text[index] <= 0x39 else { return nil }
            let (product, isOver) = value.multipliedReportingOverflow(by: 10)
            let (sum, isPast) = product.addingReportingOverflow(Int64(text[index] - 0x30))
            if isOver || isPast { return nil }
            value = sum
        }
        return isNegative ? (text.count > 1 ? -value : nil) : value
    }

    private struct MetricKind {
        var member: StaticString
        /// Members of a data point, and what of each is put behind the metric's name; empty: the value.
        var suffixes: [(member: StaticString, suffix: StaticString)]
        var longestSuffix: Int { suffixes.isEmpty ? 0 : 6 }

        private static let statistics: [(member: StaticString, suffix: StaticString)] = [
            ("count", ".count"), ("sum", ".sum"), ("min", ".min"), ("max", ".max"),
        ]
        static let all = [
            MetricKind(member: "gauge", suffixes: []), MetricKind(member: "sum", suffixes: []),
            MetricKind(member: "histogram", suffixes: statistics),
            MetricKind(member: "exponentialHistogram", suffixes: statistics),
            MetricKind(member: "summary", suffixes: statistics),
        ]
    }
}
