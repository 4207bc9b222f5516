internal import Schemas

/// What `TunnelHealth` keeps of one device: 136 bytes, so a million devices fit a small machine.
///
/// Positions are watched time. Those in tenths of a second keep 13 years in 32 bits.
struct DeviceSlot: Sendable {
    struct Bits: OptionSet, Sendable, Equatable {
        var rawValue: UInt8
        static let suspended = Bits(rawValue: 1)
        static let saysStopped = Bits(rawValue: 2)
        static let saysRecovering = Bits(rawValue: 4)
        /// It was away: the next word on its tunnel counts at once.
        static let judgesAnew = Bits(rawValue: 8)
        static let flapping = Bits(rawValue: 16)
        /// It stands in the timer wheel.
        static let isTimed = Bits(rawValue: 32)
        static let removed = Bits(rawValue: 64)
        /// It stands in the list that is looked through at every beacon.
        static let isListed = Bits(rawValue: 128)
    }

    enum Tunnel: UInt8, Sendable { case unknown, up, down }

    var id: DeviceID
    /// Receipt time of the last heartbeat; 0: none yet.
    var lastSeen: Int64 = 0
    /// Place of the last record on the watched axis.
    var position: Int64 = 0
    /// The newest handshake it claimed; 0: never.
    var handshake: Int64 = 0
    /// When the state began, as people read it.
    var since: Int64 = 0
    /// The last six transitions, oldest first from `ringStart`, in tenths of a second.
    var ring = InlineArray<6, UInt32>(repeating: 0)
    /// When `handshake` last advanced, in tenths of a second plus one; 0: never.
    var advanced: UInt32 = 0
    /// When its tunnel came up, in tenths of a second.
    var upSince: UInt32 = 0
    var transitions: UInt32 = 0
    /// The registry's version.
    var version: UInt32 = 0
    /// Its own heartbeat interval in milliseconds; 0: the fleet's.
    var expectedInterval: UInt32 = 0
    /// `lastSeen` when the row was last marked to be written, in seconds.
    var storedSeen: UInt32 = 0
    /// Index plus one in the list of marked rows; 0: not marked.
    var mark: UInt32 = 0
    /// The next device in the same bucket of the timer wheel, plus one.
    var nextTimed: UInt32 = 0
    /// Alerts it had so far.
    var episodes: UInt32 = 0
    /// Episode of the open alert about its state; 0: none is open.
    var stateAlert: UInt32 = 0
    /// Episode of the open alert about its flapping; 0: none is open.
    var flappingAlert: UInt32 = 0
    /// The boot of the front-end that took its last heartbeat in, and its count there: the lower half
    /// of each.
    var boot: UInt32 = 0
    var counter: UInt32 = 0
    var state = DeviceState.unknown
    var reason = StateReason.provisioned
    /// What its tunnel was last judged to be, whatever stands above that.
    var judged = DeviceState.unknown
    var judgedReason = StateReason.provisioned
    var flags: HeartbeatFlags = []
    var status: UInt8 = 0
    var tunnel = Tunnel.unknown
    var bits: Bits = []
    var downCount: UInt8 = 0
    var goodCount: UInt8 = 0
    var ringCount: UInt8 = 0
    var ringStart: UInt8 = 0

    init(id: DeviceID) { self.id = id }

    /// How much later a heartbeat was counted than the last one, by the same front-end; `nil` if
    /// another took it in. Counts come round after four thousand million.
    func steps(to origin: EventOrigin) -> Int32? {
        guard UInt32(truncatingIfNeeded: origin.boot) == boot else { return nil }
        return Int32(bitPattern: UInt32(truncatingIfNeeded: origin.counter) &- counter)
    }

    mutating func note(_ origin: EventOrigin) {
        boot = UInt32(truncatingIfNeeded: origin.boot)
        counter = UInt32(truncatingIfNeeded: origin.counter)
    }

    /// The transition that was the `age`-th latest, 0 being the last; `nil` if it had fewer.
    func transition(age: Int) -> UInt32? {
        guard age < Int(ringCount) else { return nil }
        return ring[(Int(ringStart) + Int(ringCount) - 1 - age) % 6]
    }

    mutating func noteTransition(at position: UInt32) {
        if ringCount < 6 {
            ring[(Int(ringStart) + Int(ringCount)) % 6] = position
            ringCount += 1
        } else {
            ring[Int(ringStart)] = position
            ringStart = (ringStart + 1) % 6
        }
    }
}

extension DeviceSlot: DeviceKeyed {}

/// What a `DeviceTable` keeps of one device.
protocol DeviceKeyed: Sendable {
    var id: DeviceID { get }
    init(id: DeviceID)
}

/// Devices by id: open addressing over slots that move only when one is removed, so until then a
/// slot's number is its name.
///
/// Slots live in chunks: growing copies the index alone (4 bytes a device), never the slots.
struct DeviceTable<Slot: DeviceKeyed>: Sendable {
    private static var chunkBits: Int { 10 }
    private static var chunkSize: Int { 1 << chunkBits }

    private var chunks: ContiguousArray<ContiguousArray<Slot>> = []
    /// Slot number plus one; 0: free. A power of two, at most two thirds full.
    private var index = ContiguousArray<UInt32>(repeating: 0, count: 64)
    private(set) var count = 0

    subscript(slot: Int) -> Slot {
        get { chunks[slot >> Self.chunkBits][slot & (Self.chunkSize - 1)] }
        _modify { yield &chunks[slot >> Self.chunkBits][slot & (Self.chunkSize - 1)] }
    }

    func find(_ id: DeviceID) -> Int? {
        let mask = index.count - 1
        var place = Self.hash(id) & mask
        while true {
            let entry = index[place]
            if entry == 0 { return nil }
            if self[Int(entry) - 1].id == id { return Int(entry) - 1 }
            place = (place + 1) & mask
        }
    }

    /// The slot of `id`, made if it is not there yet.
    mutating func slot(of id: DeviceID) -> (slot: Int, isNew: Bool) {
        let mask = index.count - 1
        var place = Self.hash(id) & mask
        while true {
            let entry = index[place]
            if entry == 0 { break }
            if self[Int(entry) - 1].id == id { return (Int(entry) - 1, false) }
            place = (place + 1) & mask
        }
        if count & (Self.chunkSize - 1) == 0 {
            var chunk = ContiguousArray<Slot>()
            chunk.reserveCapacity(Self.chunkSize)
            chunks.append(chunk)
        }
        chunks[chunks.count - 1].append(Slot(id: id))
        count += 1
        index[place] = UInt32(count)
        if count * 3 > index.count * 2 { grow() }
        return (count - 1, true)
    }

    /// Forgets a device. The last slot takes the number of its.
    mutating func remove(_ id: DeviceID) {
        guard let slot = find(id) else { return }
        emptyIndex(at: place(of: slot))
        let last = count - 1
        if slot != last {
            index[place(of: last)] = UInt32(slot + 1)
            self[slot] = self[last]
        }
        chunks[chunks.count - 1].removeLast()
        if chunks[chunks.count - 1].isEmpty { chunks.removeLast() }
        count -= 1
    }

    /// Where a slot stands in the index.
    private func place(of slot: Int) -> Int {
        let mask = index.count - 1
        var place = Self.hash(self[slot].id) & mask
        while index[place] != UInt32(slot + 1) { place = (place + 1) & mask }
        return place
    }

    /// Frees a place; entries behind it that only stand there because it was taken move up.
    private mutating func emptyIndex(at place: Int) {
        let mask = index.count - 1
        var hole = place
        var next = (hole + 1) & mask
        while index[next] != 0 {
            let home = Self.hash(self[Int(index[next]) - 1].id) & mask
            if (next - home) & mask >= (next - hole) & mask {
                index[hole] = index[next]
                hole = next
            }
            next = (next + 1) & mask
        }
        index[hole] = 0
    }

    private mutating func grow() {
        let mask = index.count * 2 - 1
        index = ContiguousArray(repeating: 0, count: mask + 1)
        for slot in 0..<count {
            var place = Self.hash(self[slot].id) & mask
            while index[place] != 0 { place = (place + 1) & mask }
            index[place] = UInt32(slot + 1)
        }
    }

    // Ids are random UUIDs of our own making, so a fixed mix is enough; it also keeps the order of
    // everything the same in every process.
    private static func hash(_ id: DeviceID) -> Int {
        let product = (id.high ^ 0x9E37_79B9_7F4A_7C15).multipliedFullWidth(
            by: id.low ^ 0xD6E8_FEB8_6659_FD93)
        return Int(truncatingIfNeeded: product.high ^ product.low)
    }
}

/// Why a device's state holds.
public enum StateReason: UInt8, CaseIterable, Sendable {
    case provisioned = 0, tunnelNotSaid, awaitingHandshake, handshakeFresh, handshakeOld
    case neverHandshaken, tunnelDown, silent, saidStopped, saidRecovering, suspendedByOperator
    case removedByOperator

    public var name: StaticString {
        switch self {
        case .provisioned: "provisioned"
        case .tunnelNotSaid: "tunnel-not-said"
        case .awaitingHandshake: "awaiting-handshake"
        case .handshakeFresh: "handshake-fresh"
        case .handshakeOld: "handshake-old"
        case .neverHandshaken: "never-handshaken"
        case .tunnelDown: "tunnel-down"
        case .silent: "silent"
        case .saidStopped: "said-stopped"
        case .saidRecovering: "said-recovering"
        case .suspendedByOperator: "suspended-by-operator"
        case .removedByOperator: "removed-by-operator"
        }
    }
}
