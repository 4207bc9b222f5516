/// Slots of a pool by the hash of their key: open addressing, 8 bytes a place.
///
/// The hash stands in the index itself, so that nothing else is read to move an entry.
struct SlotIndex: Sendable {
    /// Hash in the upper half, slot plus one in the lower; 0: free. A power of two, at most two thirds
    /// full.
    private var places = ContiguousArray<UInt64>(repeating: 0, count: 64)
    private(set) var count = 0

    /// - Parameter isMatch: whether a slot with the same hash is the one.
    @inline(__always) func find(_ hash: UInt32, _ isMatch: (Int) -> Bool) -> Int? {
        let mask = places.count - 1
        var place = Int(hash) & mask
        while places[place] != 0 {
            if UInt32(places[place] >> 32) == hash {
                let slot = Int(places[place] & 0xFFFF_FFFF) - 1
                if isMatch(slot) { return slot }
            }
            place = (place + 1) & mask
        }
        return nil
    }

    mutating func insert(_ hash: UInt32, slot: Int) {
        if (count + 1) * 3 > places.count * 2 { grow() }
        put(UInt64(hash) << 32 | UInt64(slot + 1))
        count += 1
    }

    private mutating func put(_ entry: UInt64) {
        let mask = places.count - 1
        var place = Int(entry >> 32) & mask
        while places[place] != 0 { place = (place + 1) & mask }
        places[place] = entry
    }

    private mutating func grow() {
        let old = places
        places = ContiguousArray(repeating: 0, count: old.count * 2)
        for entry in old where entry != 0 { put(entry) }
    }

    /// - Precondition: the slot stands in the index under this hash.
    mutating func remove(_ hash: UInt32, slot: Int) {
        let mask = places.count - 1
        let entry = UInt64(hash) << 32 | UInt64(slot + 1)
        var hole = Int(hash) & mask
        while places[hole] != entry { hole = (hole + 1) & mask }
        // Entries behind it that only stand there because it was taken move up.
        var next = (hole + 1) & mask
        while places[next] != 0 {
            let home = Int(places[next] >> 32) & mask
            if (next - home) & mask >= (next - hole) & mask {
                places[hole] = places[next]
                hole = next
            }
            next = (next + 1) & mask
        }
        places[hole] = 0
        count -= 1
    }
}

/// Values that keep their numbers; numbers that became free are given again.
struct SlotPool<Slot: Sendable>: Sendable {
    private var slots: ContiguousArray<Slot> = []
    private var free: ContiguousArray<UInt32> = []

    var count: Int { slots.count - free.count }
    /// One more than the largest number that was ever given.
    var capacity: Int { slots.count }

    subscript(index: Int) -> Slot {
        @inline(__always) get { slots[index] }
        @inline(__always) _modify { yield &slots[index] }
    }

    mutating func insert(_ slot: Slot) -> Int {
        if let index = free.popLast() {
            slots[Int(index)] = slot
            return Int(index)
        }
        slots.append(slot)
        return slots.count - 1
    }

    /// What stands there may be read until the number is given again.
    mutating func remove(_ index: Int) { free.append(UInt32(index)) }
}
