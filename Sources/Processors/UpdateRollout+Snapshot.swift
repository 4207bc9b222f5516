public import Bytes
internal import Schemas

extension UpdateRollout {
    /// Not of another processor, so that a pipeline which is given another one by mistake stops.
    private static let snapshotVersion: UInt32 = 0x5552_0001

    public func snapshot(into bytes: inout ByteBuffer) {
        bytes.appendLittleEndian(Self.snapshotVersion)
        bytes.appendLittleEndian(now)
        bytes.appendLittleEndian(repeats)
        bytes.appendLittleEndian(UInt32(origins.count))
        for origin in origins {
            bytes.appendLittleEndian(origin.boot)
            bytes.appendLittleEndian(origin.counter)
        }
        bytes.appendLittleEndian(UInt32(installations.count))
        for (id, installation) in installations.sorted(by: { $0.key < $1.key }) {
            bytes.append(state: id)
            bytes.append(state: installation.source)
            bytes.append(state: installation.channel)
            bytes.append(state: installation.current)
            bytes.append(state: installation.offered)
            bytes.append(installation.offerState?.rawValue ?? 0)
            bytes.append(state: installation.checkedAt)
            bytes.append(state: installation.installedAt)
            bytes.append(UInt8(installation.recent.count))
            for attempt in installation.recent { bytes.append(state: attempt) }
            bytes.append(state: installation.clonedAt)
        }
        bytes.appendLittleEndian(UInt32(attempts.count))
        for (id, attempt) in attempts.sorted(by: { $0.key < $1.key }) {
            bytes.append(state: id)
            bytes.append(state: attempt.installation)
            bytes.append(attempt.action == .install ? 1 : 0)
            bytes.append(state: attempt.source)
            bytes.append(state: attempt.from)
            bytes.append(state: attempt.to)
            bytes.append(attempt.state.rawValue)
            bytes.append(attempt.step?.rawValue ?? 0)
            bytes.append(state: attempt.stepSince)
            bytes.append(state: attempt.reason)
            bytes.append(attempt.isLate ? 1 : 0)
            bytes.appendLittleEndian(attempt.warnings)
            bytes.append(state: attempt.startedAt)
            bytes.append(state: attempt.heardAt)
            bytes.append(state: attempt.endedAt)
            bytes.append(state: attempt.disconnectedAt)
            for duration in attempt.durations { bytes.appendLittleEndian(duration) }
        }
    }

    public init(
        restoring snapshot: Span<UInt8>, partition: Int32, settings: UpdateRolloutSettings
    ) throws(SnapshotError) {
        self.init(partition: partition, settings: settings)
        var reader = SnapshotReader(snapshot)
        let version = try reader.number(UInt32.self)
        guard version == Self.snapshotVersion else { throw .unknownVersion(version) }
        now = try reader.number(Int64.self)
        repeats = try reader.number(Int64.self)
        for _ in 0..<(try reader.number(UInt32.self)) {
            origins.append((try reader.number(UInt64.self), try reader.number(UInt64.self)))
        }
        for _ in 0..<(try reader.number(UInt32.self)) {
            let id = try reader.id()
            var installation = Installation()
            installation.source = try reader.text()
            installation.channel = try reader.optionalText()
            installation.current = try reader.optionalText()
            installation.offered = try reader.optionalText()
            let state = try reader.number(UInt8.self)
            installation.offerState = OfferState(rawValue: state)
            if state != 0, installation.offerState == nil { throw .damaged }
            installation.checkedAt = try reader.optionalTime()
            installation.installedAt = try reader.optionalTime()
            for _ in 0..<(try reader.number(UInt8.self)) {
                installation.recent.append(try reader.id())
            }
            installation.clonedAt = try reader.optionalTime()
            guard installations.updateValue(installation, forKey: id) == nil else {
                throw .damaged
            }
        }
        for _ in 0..<(try reader.number(UInt32.self)) {
            let id = try reader.id()
            let installation = try reader.id()
            let isInstall = try reader.number(UInt8.self) == 1
            let source = try reader.text()
            let from = try reader.optionalText()
            let to = try reader.optionalText()
            guard let state = AttemptState(rawValue: try reader.number(UInt8.self)) else {
                throw .damaged
            }
            let step = try reader.number(UInt8.self)
            let stepSince = try reader.time()
            let reason = try reader.optionalText()
            let isLate = try reader.number(UInt8.self) == 1
            let warnings = try reader.number(Int64.self)
            let (startedAt, heardAt) = (try reader.time(), try reader.time())
            let (endedAt, gone) = (try reader.optionalTime(), try reader.optionalTime())
            var durations: [Int64] = []
            for _ in 0..<4 { durations.append(try reader.number(Int64.self)) }
            let attempt = Attempt(
                installation: installation, action: isInstall ? .install : .prefetch,
                source: source, from: from, to: to, state: state,
                step: UpdatesEvent.Step(rawValue: step), stepSince: stepSince, reason: reason,
                isLate: isLate, warnings: warnings, startedAt: startedAt, heardAt: heardAt,
                endedAt: endedAt, disconnectedAt: gone, durations: durations)
            guard attempts.updateValue(attempt, forKey: id) == nil else { throw .damaged }
            if state == .inProgress { open.insert(id) }
        }
        // The counts follow from the installations.
        for installation in installations.values { count(installation, 1, nil) }
        guard reader.isAtEnd else { throw .damaged }
        findDeadline()
    }
}

/// Reads what `append(state:)` wrote.
private struct SnapshotReader: ~Escapable {
    private let bytes: Span<UInt8>
    private var reader: ByteReader

    @_lifetime(copy bytes)
    init(_ bytes: Span<UInt8>) {
        self.bytes = bytes
        reader = ByteReader(bytes)
    }

    var isAtEnd: Bool { reader.remaining == 0 }

    @_lifetime(self: copy self)
    mutating func number<Value: FixedWidthInteger & BitwiseCopyable>(
        _ type: Value.Type
    ) throws(SnapshotError) -> Value {
        guard let value = reader.littleEndian(type) else { throw .damaged }
        return value
    }

    @_lifetime(self: copy self)
    mutating func id() throws(SnapshotError) -> DeviceID {
        DeviceID(high: try number(UInt64.self), low: try number(UInt64.self))
    }

    @_lifetime(self: copy self)
    mutating func time() throws(SnapshotError) -> EventTime {
        EventTime(milliseconds: try number(Int64.self))
    }

    @_lifetime(self: copy self)
    mutating func optionalTime() throws(SnapshotError) -> EventTime? {
        try number(UInt8.self) == 0 ? nil : try time()
    }

    @_lifetime(self: copy self)
    mutating func text() throws(SnapshotError) -> String {
        let count = try number(UInt32.self)
        guard let range = reader.take(Int(count)) else { throw .damaged }
        return bytes.extracting(range).text
    }

    @_lifetime(self: copy self)
    mutating func optionalText() throws(SnapshotError) -> String? {
        try number(UInt8.self) == 0 ? nil : try text()
    }
}

extension ByteBuffer {
    fileprivate mutating func append(state id: DeviceID) {
        appendLittleEndian(id.high)
        appendLittleEndian(id.low)
    }

    fileprivate mutating func append(state time: EventTime) {
        appendLittleEndian(time.milliseconds)
    }

    fileprivate mutating func append(state time: EventTime?) {
        append(time == nil ? 0 : 1)
        if let time { append(state: time) }
    }

    fileprivate mutating func append(state text: String) {
        let bytes = ByteBuffer(text.utf8)
        appendLittleEndian(UInt32(bytes.count))
        append(bytes)
    }

    fileprivate mutating func append(state text: String?) {
        append(text == nil ? 0 : 1)
        if let text { append(state: text) }
    }
}
