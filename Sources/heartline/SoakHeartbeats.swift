import Bytes
import Curl
import Fleet
import Schemas
import Synchronization
import System

/// The fleet of a soak: heartbeats at a rate, on a thread of its own, and a book of what became of
/// them.
final class SoakHeartbeats: Sendable {
    struct Book: Sendable {
        var sent = 0
        var answers: [Int: Int] = [:]
        var unanswered = 0
        var latency = LatencyHistogram()
        /// How late heartbeats were sent, at most. Unit: nanoseconds.
        var behind: UInt64 = 0
        /// By device, those that were answered 200.
        var accepted: [Int64]
        /// By device, when the last of them was sent, in milliseconds since 1970; 0: never.
        var lastSent: [Int64]
    }

    private static let parallel = 96
    /// Devices of 20 that are silent for three minutes of ten.
    private static let silentShare = 1

    private let devices: [DeviceID]
    private let request: CurlRequest
    /// `nil`: as many as are answered; 0: none.
    private let wanted = Mutex<Int?>(0)
    private let acceptedCount = Atomic<Int>(0)
    private let thread = SoakThread<Book>("heartbeats")

    init(_ url: String, _ devices: [DeviceID]) throws {
        self.devices = devices
        request = try CurlRequest(
            .post, url + "/api/v1/heartbeat",
            headers: [("Content-Type", "application/json")],
            usesEnvironmentProxy: false)
    }

    func start() { thread.start { [self] in try run() } }

    /// - Parameter perSecond: `nil`: as many as are answered; 0: none.
    func send(perSecond: Int?) { wanted.withLock { $0 = perSecond } }

    /// Answered 200 so far.
    var accepted: Int { acceptedCount.load(ordering: .relaxed) }

    /// Waits for the last answers.
    func stop() throws -> Book { try thread.stop() }

    // MARK: - The thread

    private func run() throws -> Book {
        var transfers = try CurlTransfers(
            maximumTransfers: Self.parallel, maximumConnections: Self.parallel)
        var book = Book(
            accepted: devices.map { _ in 0 }, lastSent: devices.map { _ in 0 })
        var beats = devices.map { _ in 0 }
        var sentAt = devices.map { _ in Int64(0) }
        var body = ByteBuffer()
        var rate: Int? = 0
        var since = SystemClock.monotonicNanoseconds()
        let began = since
        var started = 0
        var next = 0
        while true {
            let isStopping = thread.isStopping
            if isStopping, transfers.running == 0 { return book }
            let order = wanted.withLock { $0 }
            let now = SystemClock.monotonicNanoseconds()
            if order != rate {
                rate = order
                (since, started) = (now, 0)
            }
            var due = isStopping ? 0 : Int.max
            if let rate, due > 0 {
                due = Int(Double(now - since) * Double(rate) / 1e9) - started
                if due > 1 {
                    book.behind = max(book.behind, UInt64(due - 1) * 1_000_000_000 / UInt64(rate))
                }
            }
            let wall = SystemClock.wallMilliseconds()
            let minute = Int((now - began) / 60_000_000_000)
            while due > 0, !transfers.isFull {
                let device = next
                next = (next + 1) % devices.count
                due -= 1
                started += 1
                if isSilent(device, minute: minute) { continue }
                body.removeAll()
                write(device, beat: beats[device], at: wall, into: &body)
                beats[device] += 1
                sentAt[device] = wall
                book.sent += 1
                try transfers.start(request, body: body.span, tag: UInt64(device))
            }
            var accepted = 0
            try transfers.poll(milliseconds: transfers.running > 0 ? 1 : 5) { completion, _ in
                guard completion.error == nil else {
                    book.unanswered += 1
                    return
                }
                book.answers[completion.status, default: 0] += 1
                book.latency.record(microseconds: completion.microseconds)
                guard completion.status == 200 else { return }
                let device = Int(completion.tag)
                book.accepted[device] += 1
                book.lastSent[device] = max(book.lastSent[device], sentAt[device])
                accepted += 1
            }
            acceptedCount.add(accepted, ordering: .relaxed)
        }
    }

    /// So that devices go offline and come back.
    private func isSilent(_ device: Int, minute: Int) -> Bool {
        device % 20 < Self.silentShare && (minute + device / 20) % 10 < 3
    }

    /// A third of the devices go through everything; the others have a hole now and then.
    private func write(
        _ device: Int, beat: Int, at time: Int64, into body: inout ByteBuffer
    ) {
        let phase = (beat + device * 7) % (device % 3 == 0 ? 40 : 400)
        let isStale = device % 10 == 1 && beat % 200 < 100
        AgentHeartbeat(
            status: phase == 12 ? .recovering : .connected, isTunnelUp: !(5..<9).contains(phase),
            lastHandshake: EventTime(milliseconds: isStale ? 1_700_000_000_000 : time)
        ).write(device: devices[device], into: &body)
    }
}
