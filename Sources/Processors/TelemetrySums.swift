internal import Bytes
internal import Schemas

/// What was measured in a minute of receipt, of one device under one name. 80 bytes.
struct TelemetrySum: Sendable, Equatable {
    /// Whole minutes since 1970 of the receipt.
    var minute: Int64
    var series: UInt32
    /// The sum of another minute of the same series, plus one; 0: none.
    var next: UInt32 = 0
    var samples: Int64 = 0
    var late: Int64 = 0
    var sum = 0.0
    var min = 0.0
    var max = 0.0
    var last = 0.0
    /// When `last` was measured, by the device's clock, in milliseconds.
    var lastTime: Int64 = 0

    init(series: Int, minute: Int64) {
        self.series = UInt32(series)
        self.minute = minute
    }

    mutating func add(_ value: Double, at time: EventTime) {
        if samples == 0 {
            (min, max, last, lastTime) = (value, value, value, time.milliseconds)
        } else {
            if value < min { min = value }
            if value > max { max = value }
            if time.milliseconds >= lastTime { (last, lastTime) = (value, time.milliseconds) }
        }
        sum += value
        samples += 1
    }
}

/// The sums of minutes that are open, by device, name and minute.
///
/// A device, a name and a series (a device's name) are kept for as long as a sum of theirs is. What comes
/// out depends on the order of the calls alone, not on the numbers of slots, nor on hashes: these are
/// salted anew in every process, so that nobody can choose names that collide.
struct TelemetrySums: Sendable {
    /// What the names of a device beyond the limit are counted under.
    static let overflow: StaticString = "other"

    private struct Series: Sendable {
        var device: UInt32
        var name: UInt32
        var hash: UInt32
        var isOverflow: Bool
        /// The first of its sums, plus one; 0: none.
        var first: UInt32 = 0
    }

    private struct Device: Sendable {
        var id: DeviceID
        var hash: UInt32
        /// Series of it, that of `overflow` included.
        var series: UInt32 = 0
        /// Series of it but that of `overflow`.
        var names: UInt32 = 0
    }

    private struct Name: Sendable {
        var hash: UInt32
        var count: UInt32
        var uses: UInt32 = 0
    }

    /// An open minute with its sums in the order in which they were begun.
    private struct Minute: Sendable {
        var number: Int64
        var sums: ContiguousArray<UInt32> = []
    }

    private var sums = SlotPool<TelemetrySum>()
    private var series = SlotPool<Series>()
    private var devices = SlotPool<Device>()
    private var names = SlotPool<Name>()
    /// The texts of `names`, each at its slot's number times `textStride`.
    private var texts = ByteBuffer()
    private var seriesIndex = SlotIndex()
    private var deviceIndex = SlotIndex()
    private var nameIndex = SlotIndex()
    /// Oldest first.
    private var minutes: ContiguousArray<Minute> = []
    private let overflowName: ByteBuffer

    private static let textStride = TelemetryLimits.nameBytes

    init() {
        var name = ByteBuffer()
        name.append(Self.overflow)
        overflowName = name
    }

    /// Sums that are kept.
    var count: Int { sums.count }
    var deviceCount: Int { devices.count }
    var oldestMinute: Int64? { minutes.first?.number }

    subscript(sum: Int) -> TelemetrySum {
        get { sums[sum] }
        _modify { yield &sums[sum] }
    }

    // MARK: - Finding

    /// The sum of a device's name in a minute, made if it is not there yet.
    ///
    /// - Parameters:
    ///   - limit: names of a device that are kept apart.
    ///   - mayGrow: whether a sum may be made.
    /// - Returns: `nil` if it is not there and may not be made.
    mutating func find(
        _ id: DeviceID, _ name: Span<UInt8>, _ minute: Int64, limit: Int64, mayGrow: Bool
    ) -> Int? {
        let idHash = Self.hash(id)
        guard let device = findDevice(id, idHash) else {
            guard mayGrow else { return nil }
            let made = devices.insert(Device(id: id, hash: idHash))
            deviceIndex.insert(idHash, slot: made)
            return make(makeSeries(made, name, limit: limit), minute)
        }
        if let series = findSeries(device, name) {
            return find(series, minute) ?? (mayGrow ? make(series, minute) : nil)
        }
        if Int64(devices[device].names) >= limit {
            if let series = findSeries(device, overflowName.span) {
                return find(series, minute) ?? (mayGrow ? make(series, minute) : nil)
            }
        }
        return mayGrow ? make(makeSeries(device, name, limit: limit), minute) : nil
    }

    private func findDevice(_ id: DeviceID, _ hash: UInt32) -> Int? {
        deviceIndex.find(hash) { devices[$0].id == id }
    }

    private func findSeries(_ device: Int, _ name: Span<UInt8>) -> Int? {
        guard let name = findName(name, Self.hash(name)) else { return nil }
        let hash = Self.hash(device: device, name: name)
        return seriesIndex.find(hash) {
            series[$0].device == UInt32(device) && series[$0].name == UInt32(name)
        }
    }

    private func findName(_ name: Span<UInt8>, _ hash: UInt32) -> Int? {
        // A closure cannot capture a `Span`: candidates are compared behind the search, and a hash of
        // 32 bits has one as good as always.
        var skipped = 0
        while true {
            var left = skipped
            let found = nameIndex.find(hash) { _ in
                left -= 1
                return left < 0
            }
            guard let found else { return nil }
            if isName(found, name) { return found }
            skipped += 1
        }
    }

    private func isName(_ slot: Int, _ name: Span<UInt8>) -> Bool {
        guard Int(names[slot].count) == name.count else { return false }
        let start = slot * Self.textStride
        let span = texts.span
        for index in 0..<name.count where span[start + index] != name[index] { return false }
        return true
    }

    private func find(_ series: Int, _ minute: Int64) -> Int? {
        var next = self.series[series].first
        while next != 0 {
            let sum = Int(next) - 1
            if sums[sum].minute == minute { return sum }
            next = sums[sum].next
        }
        return nil
    }

    // MARK: - Making

    private mutating func makeSeries(_ device: Int, _ name: Span<UInt8>, limit: Int64) -> Int {
        let isTooMany = Int64(devices[device].names) >= limit
        let overflow = overflowName
        let name = isTooMany ? slot(ofName: overflow.span) : slot(ofName: name)
        let isOverflow = isName(name, overflow.span)
        let hash = Self.hash(device: device, name: name)
        let made = series.insert(
            Series(
                device: UInt32(device), name: UInt32(name), hash: hash, isOverflow: isOverflow))
        seriesIndex.insert(hash, slot: made)
        names[name].uses += 1
        devices[device].series += 1
        if !isOverflow { devices[device].names += 1 }
        return made
    }

    private mutating func slot(ofName name: Span<UInt8>) -> Int {
        let hash = Self.hash(name)
        if let known = findName(name, hash) { return known }
        let made = names.insert(Name(hash: hash, count: UInt32(name.count)))
        while texts.count < (made + 1) * Self.textStride { texts.append(0) }
        for index in 0..<name.count { texts[made * Self.textStride + index] = name[index] }
        nameIndex.insert(hash, slot: made)
        return made
    }

    private mutating func make(_ series: Int, _ minute: Int64) -> Int {
        var sum = TelemetrySum(series: series, minute: minute)
        sum.next = self.series[series].first
        let made = sums.insert(sum)
        self.series[series].first = UInt32(made + 1)
        let place = minutes.lastIndex { $0.number <= minute }
        if let place, minutes[place].number == minute {
            minutes[place].sums.append(UInt32(made))
        } else {
            minutes.insert(
                Minute(number: minute, sums: [UInt32(made)]), at: place.map { $0 + 1 } ?? 0)
        }
        return made
    }

    // MARK: - Closing

    /// Forgets the oldest minute; `body` is lent its sums in the order in which they were begun.
    mutating func closeOldest(_ body: (DeviceID, Span<UInt8>, TelemetrySum) -> Void) {
        guard !minutes.isEmpty else { return }
        let minute = minutes.removeFirst()
        for index in minute.sums {
            let sum = sums[Int(index)]
            let owner = series[Int(sum.series)]
            let start = Int(owner.name) * Self.textStride
            let count = Int(names[Int(owner.name)].count)
            body(
                devices[Int(owner.device)].id, texts.span.extracting(start..<(start + count)), sum)
            forget(Int(index))
        }
    }

    private mutating func forget(_ index: Int) {
        let owner = Int(sums[index].series)
        if series[owner].first == UInt32(index + 1) {
            series[owner].first = sums[index].next
        } else {
            var before = Int(series[owner].first) - 1
            while sums[before].next != UInt32(index + 1) { before = Int(sums[before].next) - 1 }
            sums[before].next = sums[index].next
        }
        sums.remove(index)
        if series[owner].first == 0 { forget(series: owner) }
    }

    private mutating func forget(series index: Int) {
        let gone = series[index]
        seriesIndex.remove(gone.hash, slot: index)
        series.remove(index)
        let (device, name) = (Int(gone.device), Int(gone.name))
        names[name].uses -= 1
        if names[name].uses == 0 {
            nameIndex.remove(names[name].hash, slot: name)
            names.remove(name)
        }
        devices[device].series -= 1
        if !gone.isOverflow { devices[device].names -= 1 }
        if devices[device].series == 0 {
            deviceIndex.remove(devices[device].hash, slot: device)
            devices.remove(device)
        }
    }

    // MARK: - Hashes

    private static func hash(_ id: DeviceID) -> UInt32 {
        var hasher = Hasher()
        hasher.combine(id.high)
        hasher.combine(id.low)
        return UInt32(truncatingIfNeeded: hasher.finalize())
    }

    private static func hash(_ name: Span<UInt8>) -> UInt32 {
        var hasher = Hasher()
        var index = 0
        while index + 8 <= name.count {
            hasher.combine(name.littleEndianWord(at: index))
            index += 8
        }
        var rest = UInt64(name.count)
        while index < name.count {
            rest = rest << 8 | UInt64(name[index])
            index += 1
        }
        hasher.combine(rest)
        return UInt32(truncatingIfNeeded: hasher.finalize())
    }

    private static func hash(device: Int, name: Int) -> UInt32 {
        let product = (UInt64(device) << 32 | UInt64(name)) &* 0x9E37_79B9_7F4A_7C15
        return UInt32(truncatingIfNeeded: product >> 32 ^ product >> 7)
    }

    // MARK: - Snapshots

    /// Minutes oldest first, sums in their order: what `init` makes of it behaves alike. A device and
    /// a name stand where they come first; later ones give their number.
    func append(to bytes: inout ByteBuffer) {
        var devicePlaces = ContiguousArray<UInt32>(repeating: 0, count: devices.capacity)
        var namePlaces = ContiguousArray<UInt32>(repeating: 0, count: names.capacity)
        var deviceCount: UInt32 = 0
        var nameCount: UInt32 = 0
        bytes.reserveCapacity(bytes.count + sums.count * 68)
        bytes.appendLittleEndian(UInt32(minutes.count))
        for minute in minutes {
            bytes.appendLittleEndian(minute.number)
            bytes.appendLittleEndian(UInt32(minute.sums.count))
            for index in minute.sums {
                let sum = sums[Int(index)]
                let owner = series[Int(sum.series)]
                let (device, name) = (Int(owner.device), Int(owner.name))
                bytes.appendLittleEndian(devicePlaces[device])
                if devicePlaces[device] == 0 {
                    deviceCount += 1
                    devicePlaces[device] = deviceCount
                    bytes.appendLittleEndian(devices[device].id.high)
                    bytes.appendLittleEndian(devices[device].id.low)
                }
                bytes.appendLittleEndian(namePlaces[name])
                if namePlaces[name] == 0 {
                    nameCount += 1
                    namePlaces[name] = nameCount
                    let (start, count) = (name * Self.textStride, Int(names[name].count))
                    bytes.append(UInt8(count))
                    bytes.append(texts.span.extracting(start..<(start + count)))
                }
                bytes.appendLittleEndian(sum.samples)
                bytes.appendLittleEndian(sum.late)
                for value in [sum.sum, sum.min, sum.max, sum.last] {
                    bytes.appendLittleEndian(value.bitPattern)
                }
                bytes.appendLittleEndian(sum.lastTime)
            }
        }
    }

    /// `nil` if the bytes are not what `append(to:)` wrote.
    /// - Parameter bytes: all of what `reader` reads.
    init?(_ reader: inout ByteReader, of bytes: Span<UInt8>) {
        self.init()
        var ids: ContiguousArray<DeviceID> = []
        var texts: ContiguousArray<Range<Int>> = []
        guard let minuteCount = reader.littleEndian(UInt32.self) else { return nil }
        var previous = Int64.min
        for _ in 0..<minuteCount {
            guard let minute = reader.littleEndian(Int64.self), minute > previous,
                let count = reader.littleEndian(UInt32.self)
            else { return nil }
            previous = minute
            for _ in 0..<count {
                guard let device = Self.device(&reader, &ids),
                    let name = Self.name(&reader, &texts)
                else { return nil }
                let known = self.count
                guard
                    let index = find(
                        device, bytes.extracting(name), minute, limit: .max, mayGrow: true),
                    self.count == known + 1,
                    let samples = reader.littleEndian(Int64.self),
                    let late = reader.littleEndian(Int64.self),
                    let sum = reader.littleEndian(UInt64.self),
                    let min = reader.littleEndian(UInt64.self),
                    let max = reader.littleEndian(UInt64.self),
                    let last = reader.littleEndian(UInt64.self),
                    let lastTime = reader.littleEndian(Int64.self)
                else { return nil }
                sums[index].samples = samples
                sums[index].late = late
                sums[index].sum = Double(bitPattern: sum)
                sums[index].min = Double(bitPattern: min)
                sums[index].max = Double(bitPattern: max)
                sums[index].last = Double(bitPattern: last)
                sums[index].lastTime = lastTime
            }
        }
    }

    private static func device(
        _ reader: inout ByteReader, _ known: inout ContiguousArray<DeviceID>
    ) -> DeviceID? {
        guard let place = reader.littleEndian(UInt32.self), place <= known.count else {
            return nil
        }
        if place > 0 { return known[Int(place) - 1] }
        guard let high = reader.littleEndian(UInt64.self),
            let low = reader.littleEndian(UInt64.self)
        else { return nil }
        known.append(DeviceID(high: high, low: low))
        return known.last
    }

    private static func name(
        _ reader: inout ByteReader, _ known: inout ContiguousArray<Range<Int>>
    ) -> Range<Int>? {
        guard let place = reader.littleEndian(UInt32.self), place <= known.count else {
            return nil
        }
        if place > 0 { return known[Int(place) - 1] }
        guard let count = reader.littleEndian(UInt8.self), count > 0,
            Int(count) <= TelemetryLimits.nameBytes, let range = reader.take(Int(count))
        else { return nil }
        known.append(range)
        return range
    }
}
