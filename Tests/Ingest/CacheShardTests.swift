import Bytes
import Ingest
import Schemas
import Testing

private let device = DeviceID(high: 1, low: 1)

private func id(_ number: Int) -> DeviceID { DeviceID(high: 7, low: UInt64(number)) }

private func answer(_ version: Int64, isSuspended: Bool = false, size: Int = 3) -> DeviceAnswer {
    DeviceAnswer(
        version: version, isSuspended: isSuspended,
        body: ByteBuffer([UInt8](repeating: UInt8(version), count: isSuspended ? 0 : size)))
}

private func limits(_ change: (inout CacheLimits) -> Void = { _ in }) -> CacheLimits {
    var limits = CacheLimits()
    change(&limits)
    return limits
}

/// The database, the bell, the reads under way and the cache: everything that can interleave.
private struct Model {
    enum Change: Sendable {
        case change, suspend, remove
        /// The front-end lost the bell for a while and takes it up again at its end.
        case loseBell
    }

    enum Read {
        case asked(UInt64)
        case captured(UInt64, DeviceAnswer?)
    }

    enum Bell {
        case changed(Int64, Bool), removed, lost
    }

    var changes: [Change]
    var row: DeviceAnswer?
    var version: Int64
    var bells: [Bell] = []
    var lastBell: Bell?
    var repeats = 1
    var failures = 1
    var heartbeats = 2
    var reads: [Read] = []
    var shard = CacheShard<Int>(limits: CacheLimits())
    /// The highest version rung: nothing older may be answered.
    var rung: Int64 = 0
    var isGone = false

    func check(_ outcome: CacheShard<Int>.Outcome) -> Bool {
        switch outcome {
        case .found(let answer): !isGone && answer.version >= rung
        case .unknown: rung == 0 || isGone || row == nil
        case .failed: true
        }
    }

    mutating func heartbeat() -> Bool {
        switch shard.lookUp(device, now: 0, waiter: { 0 }) {
        case .found(let answer): return check(.found(answer))
        case .unknown: return check(.unknown)
        case .waiting(let ticket):
            if let ticket { reads.append(.asked(ticket)) }
            return true
        case .full: return false
        }
    }

    mutating func ring(_ bell: Bell) {
        switch bell {
        case .changed(let version, let isSuspended):
            rung = max(rung, version)
            shard.changed(device, version: version, isSuspended: isSuspended)
        case .removed:
            isGone = true
            shard.removed(device)
        case .lost: shard.forgetAll()
        }
    }

    mutating func deliver(_ index: Int, _ ticket: UInt64, _ found: DeviceAnswer?) -> Bool {
        reads.remove(at: index)
        switch shard.loaded(device, ticket: ticket, found, now: 0) {
        case .again:
            reads.append(.asked(ticket))
            return true
        case .resolved(let outcome, let waiters): return check(outcome) && !waiters.isEmpty
        case .obsolete: return false
        }
    }

    /// Follows every order of what can happen next.
    static func explore(_ model: Model, _ counts: inout (paths: Int, faults: Int)) {
        var isEnd = true
        func follow(_ counts: inout (paths: Int, faults: Int), _ step: (inout Model) -> Bool) {
            isEnd = false
            var next = model
            if step(&next) { explore(next, &counts) } else { counts.faults += 1 }
        }
        if let change = model.changes.first {
            follow(&counts) { next in
                next.changes.removeFirst()
                next.version += 1
                switch change {
                case .change:
                    next.row = answer(next.version)
                    next.bells.append(.changed(next.version, false))
                case .suspend:
                    next.row = answer(next.version, isSuspended: true)
                    next.bells.append(.changed(next.version, true))
                case .remove:
                    next.row = nil
                    next.bells.append(.removed)
                case .loseBell: next.bells = [.lost]
                }
                return true
            }
        }
        if let bell = model.bells.first {
            follow(&counts) { next in
                next.bells.removeFirst()
                next.lastBell = bell
                next.ring(bell)
                return true
            }
        }
        if model.repeats > 0, let bell = model.lastBell {
            follow(&counts) { next in
                next.repeats -= 1
                next.ring(bell)
                return true
            }
        }
        if model.heartbeats > 0 {
            follow(&counts) { next in
                next.heartbeats -= 1
                return next.heartbeat()
            }
        }
        for (index, read) in model.reads.enumerated() {
            switch read {
            case .asked(let ticket):
                follow(&counts) { next in
                    next.reads[index] = .captured(ticket, next.row)
                    return true
                }
                if model.failures > 0 {
                    follow(&counts) { next in
                        next.failures -= 1
                        next.reads.remove(at: index)
                        guard case .resolved(.failed, _) = next.shard.failed(device, ticket: ticket)
                        else { return false }
                        return true
                    }
                }
            case .captured(let ticket, let found):
                follow(&counts) { $0.deliver(index, ticket, found) }
            }
        }
        if isEnd {
            counts.paths += 1
            if !endsRight(model) { counts.faults += 1 }
        }
    }

    /// At rest, the next heartbeat is answered with what the database holds.
    static func endsRight(_ model: Model) -> Bool {
        var model = model
        guard model.shard.pendingCount == 0 else { return false }
        switch model.shard.lookUp(device, now: 0, waiter: { 0 }) {
        case .found(let answer): return answer == model.row
        case .unknown: return model.row == nil
        case .waiting(let ticket): return ticket != nil
        case .full: return false
        }
    }
}

@Suite("Cache of answers: one shard") struct CacheShardTests {
    @Test(
        "in every order of reads, changes, bells and repeats nothing old is answered",
        arguments: [
            [.change, .change], [.suspend, .change], [.change, .suspend], [.remove],
            [.change, .remove], [.change, .loseBell, .change], [.loseBell],
        ] as [[Model.Change]], [true, false])
    fileprivate func interleavings(changes: [Model.Change], exists: Bool) {
        let model = Model(changes: changes, row: exists ? answer(1) : nil, version: exists ? 1 : 0)
        if !exists, changes.first == .remove { return }
        var counts = (paths: 0, faults: 0)
        Model.explore(model, &counts)
        #expect(counts.faults == 0)
        #expect(counts.paths > 10)
    }

    @Test("one read answers all that wait for a device")
    func coalescing() {
        var shard = CacheShard<Int>(limits: CacheLimits())
        guard case .waiting(let ticket?) = shard.lookUp(device, now: 0, waiter: { 1 }) else {
            Issue.record("no read asked for")
            return
        }
        for waiter in 2...5 {
            guard case .waiting(nil) = shard.lookUp(device, now: 0, waiter: { waiter }) else {
                Issue.record("a second read asked for")
                return
            }
        }
        guard
            case .resolved(.found(answer(1)), [1, 2, 3, 4, 5]) = shard.loaded(
                device, ticket: ticket, answer(1), now: 0)
        else {
            Issue.record("not all were answered")
            return
        }
        guard case .found(answer(1)) = shard.lookUp(device, now: 0, waiter: { 6 }) else {
            Issue.record("not kept")
            return
        }
    }

    @Test("a bell that rings twice, or late, empties nothing that is as new")
    func repeated() {
        var shard = CacheShard<Int>(limits: CacheLimits())
        guard case .waiting(let ticket?) = shard.lookUp(device, now: 0, waiter: { 1 }) else {
            Issue.record("no read asked for")
            return
        }
        _ = shard.loaded(device, ticket: ticket, answer(5), now: 0)
        func isKept() -> Bool {
            if case .found(answer(5)) = shard.lookUp(device, now: 1, waiter: { 1 }) { return true }
            return false
        }
        shard.changed(device, version: 5, isSuspended: false)
        #expect(isKept())
        shard.changed(device, version: 4, isSuspended: true)
        #expect(isKept())
        shard.changed(device, version: 6, isSuspended: false)
        #expect(!isKept())
    }

    @Test("a database that stays behind the bell ends in a failure, not in an old answer")
    func forever() {
        var shard = CacheShard<Int>(limits: CacheLimits())
        guard case .waiting(let ticket?) = shard.lookUp(device, now: 0, waiter: { 1 }) else {
            Issue.record("no read asked for")
            return
        }
        shard.changed(device, version: 9, isSuspended: false)
        var reads = 0
        while case .again = shard.loaded(device, ticket: ticket, answer(8), now: 0) { reads += 1 }
        #expect(reads < 10)
        #expect(shard.pendingCount == 0)
        #expect(shard.count == 0)
    }

    @Test("entries and bytes stay in bounds, and what is used stays longest")
    func eviction() {
        var shard = CacheShard<Int>(limits: limits { $0.entries = 100 })
        for number in 0..<1000 {
            guard case .waiting(let ticket?) = shard.lookUp(id(number), now: 0, waiter: { 0 })
            else {
                Issue.record("no read asked for")
                return
            }
            _ = shard.loaded(id(number), ticket: ticket, answer(1), now: 0)
            // The first stays in use.
            guard case .found = shard.lookUp(id(0), now: 0, waiter: { 0 }) else {
                Issue.record("the used entry was evicted at \(number)")
                return
            }
            #expect(shard.count <= 100)
        }
        #expect(shard.count == 100)

        var small = CacheShard<Int>(limits: limits { $0.bytes = 10_000 })
        for number in 0..<1000 {
            if case .waiting(let ticket?) = small.lookUp(id(number), now: 0, waiter: { 0 }) {
                _ = small.loaded(
                    id(number), ticket: ticket, answer(1, size: number % 500), now: 0)
            }
            #expect(small.sizeBytes <= 10_000)
        }
        #expect(small.count > 10)
        for number in 0..<1000 { small.removed(id(number)) }
        #expect(small.count == 0)
        #expect(small.sizeBytes == 0)
    }

    @Test("unknown ids are remembered in bounds, for a while, and until the bell")
    func unknowns() {
        var shard = CacheShard<Int>(
            limits: limits {
                $0.unknown = 10
                $0.unknownMilliseconds = 100
            })
        func miss(_ number: Int, now: Int64) {
            if case .waiting(let ticket?) = shard.lookUp(id(number), now: now, waiter: { 0 }) {
                _ = shard.loaded(id(number), ticket: ticket, nil, now: now)
            }
        }
        func isUnknown(_ number: Int, now: Int64) -> Bool {
            if case .unknown = shard.lookUp(id(number), now: now, waiter: { 0 }) { return true }
            return false
        }
        for number in 0..<1000 { miss(number, now: 0) }
        #expect(shard.unknownCount == 10)
        #expect(isUnknown(999, now: 99))
        shard.changed(id(999), version: 1, isSuspended: false)
        #expect(!isUnknown(999, now: 99))
        #expect(isUnknown(998, now: 99))
        #expect(!isUnknown(998, now: 100))
    }

    @Test("those who wait are bounded")
    func full() {
        var shard = CacheShard<Int>(
            limits: limits {
                $0.pending = 3
                $0.waiters = 5
            })
        func isFull(_ number: Int) -> Bool {
            if case .full = shard.lookUp(id(number), now: 0, waiter: { 0 }) { return true }
            return false
        }
        for number in 0..<3 { #expect(!isFull(number)) }
        #expect(isFull(3))
        #expect(!isFull(0))
        #expect(!isFull(0))
        #expect(isFull(0))
    }
}
