internal import Bytes
internal import KeyValue
internal import Schemas
internal import Synchronization
internal import System

/// The thread that hears the doorbell for all consumers of this process, and clears readers of
/// processes that died.
final class EmbeddedWatch: Sendable {
    private struct Listener {
        let number: UInt64
        let bell: Int
        let waker: Waker
    }

    private struct State {
        var listeners: [Listener] = []
        var nextNumber: UInt64 = 0
        var isStopping = false
    }

    private let state = Mutex(State())
    private let doorbell: Doorbell
    private let environments: [EmbeddedEnvironment]

    private let wakeMilliseconds: Int64

    init(
        _ doorbell: Doorbell, _ environments: [EmbeddedEnvironment], wakeMilliseconds: Int64
    ) {
        self.doorbell = doorbell
        self.wakeMilliseconds = wakeMilliseconds
        self.environments = environments
    }

    /// The same in every release: processes of two releases may share a log. Two topics with one
    /// bell only wake each other's consumers for nothing.
    static func bell(of topic: Topic) -> Int {
        Int(Partitioner.murmur2(ByteBuffer(topic.rawValue.utf8).span) % UInt32(Doorbell.bells))
    }

    func add(_ waker: Waker, for topic: Topic) -> UInt64 {
        state.withLock { state in
            state.nextNumber += 1
            state.listeners.append(
                Listener(number: state.nextNumber, bell: Self.bell(of: topic), waker: waker))
            return state.nextNumber
        }
    }

    func remove(_ number: UInt64) {
        state.withLock { $0.listeners.removeAll { $0.number == number } }
    }

    func stop() {
        state.withLock { $0.isStopping = true }
        doorbell.ring(0)
    }

    /// The thread's body.
    func run() {
        var seen = [UInt32](repeating: 0, count: Doorbell.bells)
        for bell in seen.indices { seen[bell] = doorbell.count(of: bell) }
        var nextClearing = SystemClock.monotonicMilliseconds() + 10_000
        var nextForAll = SystemClock.monotonicMilliseconds() + wakeMilliseconds
        while true {
            let total = doorbell.count
            let now = SystemClock.monotonicMilliseconds()
            let isForAll = now >= nextForAll
            if isForAll { nextForAll = now + wakeMilliseconds }
            var rung: UInt64 = 0
            for bell in seen.indices {
                let count = doorbell.count(of: bell)
                if count != seen[bell] { rung |= 1 << UInt64(bell) }
                seen[bell] = count
            }
            let isStopping = state.withLock { state in
                for listener in state.listeners
                where isForAll || rung & (1 << UInt64(listener.bell)) != 0 {
                    listener.waker.signal()
                }
                return state.isStopping
            }
            if isStopping { return }
            if now >= nextClearing {
                nextClearing = now + 10_000
                clearDeadReaders()
            }
            let pause = max(1, min(nextForAll, nextClearing) - now)
            doorbell.wait(while: total, milliseconds: pause)
        }
    }

    private func clearDeadReaders() {
        for environment in environments {
            do throws(KeyValueError) {
                let cleared = try environment.store.clearDeadReaders()
                if cleared > 0 {
                    Log.info("cleared readers of dead processes", ["count": "\(cleared)"])
                }
            } catch {
                Log.warning("clearing dead readers failed", ["error": "\(error)"])
            }
        }
    }
}
