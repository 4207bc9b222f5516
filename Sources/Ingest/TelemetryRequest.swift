internal import Bytes
internal import EventLog
internal import Schemas

/// What one request brought: the good items by device, and what was refused.
struct TelemetryRequest {
    /// An item that was refused: its line (or its number among the data points), and why.
    struct Fault {
        var line: Int
        var reason: StaticString
    }

    /// The good items of one device, as values of records of topic `telemetry`.
    struct Group {
        var device: DeviceID
        var writer = TelemetryWriter()
        /// Finished values, one behind the other, and where each ends.
        var values = ByteBuffer()
        var ends: [Int] = []
        var items = 0
        /// The first lines, in case that the device is nobody's.
        var firstLines: [Int] = []
        /// Why the items are refused; `nil`: they are taken, or it is not known yet.
        var refusal: Refusal?
    }

    enum Refusal: Sendable {
        case unknown, suspended, foreign

        var reason: StaticString {
            switch self {
            case .unknown: "unknown device"
            case .suspended: "device is suspended"
            case .foreign: "certificate does not match device"
            }
        }

        /// What a heartbeat of the device would be answered 403 for.
        var isForbidden: Bool { self != .unknown }
    }

    /// Faults that an answer lists.
    static let listedFaults = 10
    /// Devices of one request.
    static let maximumDevices = 1_000

    private(set) var groups: ContiguousArray<Group> = []
    private var places: [DeviceID: Int] = [:]
    private var last = 0
    private(set) var faults: [Fault] = []
    private(set) var rejected = 0
    private(set) var forbidden = 0
    /// Bytes of the items.
    private(set) var sizeBytes = 0

    var accepted: Int { groups.reduce(0) { $0 + ($1.refusal == nil ? $1.items : 0) } }

    mutating func reject(_ line: Int, _ reason: StaticString) {
        rejected += 1
        if faults.count < Self.listedFaults { faults.append(Fault(line: line, reason: reason)) }
    }

    /// The group of a device; `nil` if there are too many.
    mutating func group(of device: DeviceID) -> Int? {
        // A request is of one device as a rule.
        if last < groups.count, groups[last].device == device { return last }
        if let place = places[device] {
            last = place
            return place
        }
        guard groups.count < Self.maximumDevices else { return nil }
        last = groups.count
        groups.append(Group(device: device))
        places[device] = last
        return last
    }

    /// - Parameter attributes: as JSON; empty: none.
    mutating func addSample(
        _ line: Int, to group: Int, _ name: Span<UInt8>, _ value: Double, at time: EventTime,
        attributes: Span<UInt8>
    ) {
        let before = groups[group].writer.sizeBytes
        groups[group].writer.addSample(name, value, at: time, attributes: attributes)
        note(line, group, before)
    }

    mutating func addLogLine(
        _ line: Int, to group: Int, level: Span<UInt8>, tag: Span<UInt8>, _ message: Span<UInt8>,
        at time: EventTime
    ) {
        let before = groups[group].writer.sizeBytes
        groups[group].writer.addLogLine(level: level, tag: tag, message, at: time)
        note(line, group, before)
    }

    private mutating func note(_ line: Int, _ group: Int, _ before: Int) {
        sizeBytes += groups[group].writer.sizeBytes - before
        groups[group].items += 1
        if groups[group].firstLines.count < Self.listedFaults {
            groups[group].firstLines.append(line)
        }
    }

    /// The last `samples` samples of a group are of one data point, and count as one item.
    mutating func countAsOne(_ samples: Int, in group: Int) {
        groups[group].items -= samples - 1
        while groups[group].firstLines.count > 1,
            groups[group].firstLines.last == groups[group].firstLines.dropLast().last
        {
            groups[group].firstLines.removeLast()
        }
    }

    /// Closes the record of a group that is full.
    /// - Parameter origin: called if there is one.
    @inline(__always)
    mutating func finishIfFull(_ group: Int, _ origin: () -> EventOrigin) {
        if groups[group].writer.isFull { finish(group, origin()) }
    }

    private mutating func finish(_ group: Int, _ origin: EventOrigin) {
        // Taken out of the group while its writer, which is in it too, writes to them.
        var values = ByteBuffer()
        swap(&values, &groups[group].values)
        let device = groups[group].device
        groups[group].writer.finish(device, origin, into: &values)
        groups[group].ends.append(values.count)
        swap(&values, &groups[group].values)
    }

    /// Closes the records that are open.
    mutating func finishAll(_ origin: () -> EventOrigin) {
        for group in groups.indices where !groups[group].writer.isEmpty { finish(group, origin()) }
    }

    /// All items of a group are refused.
    mutating func refuse(_ group: Int, _ refusal: Refusal) {
        guard groups[group].refusal == nil else { return }
        groups[group].refusal = refusal
        rejected += groups[group].items
        if refusal.isForbidden { forbidden += groups[group].items }
        for line in groups[group].firstLines {
            faults.append(Fault(line: line, reason: refusal.reason))
        }
    }

    /// Appends the records of devices that are known.
    func append(to batch: inout RecordBatch, at time: EventTime, partitions: Int32) {
        var key = ByteBuffer()
        for group in groups where group.refusal == nil {
            key.removeAll()
            key.append(group.device)
            let partition = Partitioner.partition(of: key.span, count: partitions)
            var start = 0
            for end in group.ends {
                batch.append(
                    partition: partition, timestamp: time, key: key.span,
                    value: group.values.span.extracting(start..<end))
                start = end
            }
        }
    }

    /// The first faults, in the order of their lines.
    var listed: [Fault] {
        Array(faults.sorted { $0.line < $1.line }.prefix(Self.listedFaults))
    }
}
