internal import Bytes
internal import EventLog
internal import Schemas

/// A device of the world: what it truly is, and so what it says. Times are the world's.
struct SimulatedDevice {
    enum Life: String, CaseIterable {
        /// Speaks, its tunnel is up and handshakes.
        case well
        /// Says nothing: without power, or cut off.
        case silent
        case tunnelDown = "tunnel-down"
        /// Its tunnel is said to be up, and its handshake grows old.
        case stuck = "handshake-stuck"
        case recovering
        /// The agent said that it stops, and is silent.
        case stopped
    }

    /// That a heartbeat of it reached a front-end: accepted, shed, or waiting in its socket.
    struct Saying {
        var time: Int64
        var frontEnd: Int
        var saysStopped: Bool
        /// The front-end's wall clock had been set since its last beacon: where the heartbeat stands
        /// on the watched axis cannot be known.
        var isUnplaced: Bool
    }

    let id: DeviceID
    let key: ByteBuffer
    let partition: Int
    /// Of its own, or the fleet's.
    let interval: Int64
    let hasOwnInterval: Bool
    /// Its clock minus the truth.
    let clockOffset: Int64
    var life = Life.well
    var lifeSince: Int64 = 0
    var isSuspended = false
    var version: Int64 = 1
    var tunnelSince: Int64 = 0
    /// The tunnel's last handshake, where it does not go on.
    var frozenHandshake: Int64?
    var sayings: [Saying] = []
    var frontEnd: Int
    /// Beats of an earlier turn are void.
    var turn = 0
    /// When an operator resumed it last: silence before that was expected.
    var resumedAt: Int64 = 0

    var speaks: Bool { life != .silent && life != .stopped }

    init(
        id: DeviceID, partitions: Int, interval: Int64, hasOwnInterval: Bool, clockOffset: Int64,
        frontEnd: Int
    ) {
        self.id = id
        var key = ByteBuffer()
        key.append(id)
        self.key = key
        partition = Int(Partitioner.partition(of: key.span, count: Int32(partitions)))
        self.interval = interval
        self.hasOwnInterval = hasOwnInterval
        self.clockOffset = clockOffset
        self.frontEnd = frontEnd
    }

    /// WireGuard handshakes every two minutes while the tunnel carries anything.
    func handshake(at now: Int64) -> Int64 {
        frozenHandshake ?? tunnelSince + (now - tunnelSince) / 120_000 * 120_000
    }

    mutating func change(to next: Life, at now: Int64) {
        let hadTunnel = life == .well || life == .recovering
        let hasTunnel = next == .well || next == .recovering
        if hadTunnel, !hasTunnel {
            frozenHandshake = handshake(at: now)
        } else if hasTunnel, !hadTunnel {
            frozenHandshake = nil
            tunnelSince = now
        }
        life = next
        lifeSince = now
        turn += 1
    }

    /// What it says now; the origin is the front-end's to fill in.
    func heartbeat(at now: Int64) -> Heartbeat {
        var heartbeat = Heartbeat(device: id, origin: EventOrigin(boot: 0, counter: 0))
        heartbeat.status =
            switch life {
            case .recovering: .recovering
            case .stopped: .stopped
            default: .connected
            }
        heartbeat.tunnelUp = life != .tunnelDown && life != .stopped
        heartbeat.lastHandshake = EventTime(
            milliseconds: World.epoch + handshake(at: now) + clockOffset)
        return heartbeat
    }
}
