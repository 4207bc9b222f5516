internal import Bytes
internal import CSystem
internal import Glibc
internal import System
internal import TLS

/// One thread's share of a server: its listener, its connections, its handler.
///
/// Made and used on one thread; others reach it through its mailbox. One round is: socket events,
/// mailbox, streams to flush, the handler's `roundEnded`, timers.
@safe final class EventLoop {
    /// What epoll says besides connections' slots.
    enum Mark {
        static let listener = UInt64(UInt32.max)
        static let mailbox = UInt64(UInt32.max - 1)
    }

    static let readCapacity = 64 << 10
    static let roundCapacity = 128 << 10
    private static let eventCapacity = 512

    let mailbox: LoopMailbox
    let counters: ServerCounters
    /// Its own of `counters`.
    let routes: [RouteCounters]
    /// When the first request of this round was there, in monotonic nanoseconds; 0 before it.
    var roundStart: UInt64 = 0
    let limits: ServerLimits
    let tls: TLSContext?
    let handler: any RequestHandler
    private let index: Int
    private let name: String

    let poll: Int32
    var listener: Int32
    var isAcceptPaused = false
    /// Clients may wait in the listener's queue, besides those that came in this round.
    var isAcceptBehind = false
    private var pass = ReadingPass()

    /// Input of the connection being served; bodies are lent to handlers from here.
    let readBuffer: UnsafeMutableRawBufferPointer
    /// Answers of the connection being served, sent by one call at the end of its turn. Empty
    /// between turns.
    let roundBuffer: UnsafeMutableRawBufferPointer
    var roundCount = 0

    let headParser = HeadParser()
    var connections: [Connection?] = []
    var generations: [UInt32] = []
    var freeSlots: [UInt32] = []
    var wheel = TimerWheel()
    private var entries: [LoopMailbox.Entry] = []
    var dirty: [Connection] = []
    /// For WebSockets that begin to read a frame.
    var frameReaders: [FrameReader] = []

    /// Monotonic milliseconds, read once a round.
    var now: Int64
    private var nextTick: Int64
    private(set) var dateLine = ByteBuffer()
    private var dateSecond = 0
    /// How the last answer started, which most likely is how the next one does.
    let answerStart = AnswerStart()
    private var random: UInt64

    let tally = LoopTally()
    var hasHandled = false
    var isDraining = false
    private var drainDeadline: Int64 = 0
    private var isStopped = false
    /// Connections that a drain or a stop cut.
    private(set) var cut = 0

    /// Takes both descriptors over.
    init(
        index: Int, listener: Int32, poll: Int32, configuration: ServerConfiguration,
        mailbox: LoopMailbox,
        counters: ServerCounters, handler: any RequestHandler
    ) {
        self.index = index
        self.listener = listener
        self.mailbox = mailbox
        self.counters = counters
        routes = counters.loops[index].routes
        self.handler = handler
        limits = configuration.limits
        tls = configuration.tls
        name = configuration.name
        self.poll = poll
        unsafe readBuffer = .allocate(byteCount: Self.readCapacity, alignment: 64)
        unsafe roundBuffer = .allocate(byteCount: Self.roundCapacity, alignment: 64)
        now = SystemClock.monotonicMilliseconds()
        nextTick = now
        random = SystemClock.monotonicNanoseconds() | 1
        watch(listener, mark: Mark.listener)
        watch(mailbox.descriptor, mark: Mark.mailbox)
        updateDate()
    }

    deinit {
        close(poll)
        unsafe readBuffer.deallocate()
        unsafe roundBuffer.deallocate()
    }

    /// Serves until stopped or drained.
    func run() {
        mailbox.adopt()
        wheel.start(at: now)
        wheel.checkEvery(milliseconds: limits.shortestMilliseconds / 4)
        handler.attached(
            to: LoopContext(index: index, mailbox: mailbox, counters: counters))
        var events = unsafe [epoll_event](repeating: epoll_event(), count: Self.eventCapacity)
        while !isStopped {
            if pass.isOver { pass = ReadingPass(start: Self.coarseMilliseconds()) }
            let timeout = mailbox.hasEntries ? 0 : Int32(clamping: max(0, nextTick - now))
            let count = unsafe epoll_wait(poll, &events, Int32(Self.eventCapacity), timeout)
            now = Self.coarseMilliseconds()
            roundStart = 0
            for index in 0..<Int(max(0, count)) {
                let event = unsafe events[index]
                handle(unsafe event.data.u64, unsafe event.events)
            }
            if mailbox.hasEntries { takeMail() }
            flushDirty()
            if hasHandled {
                hasHandled = false
                handler.roundEnded()
            }
            if now >= nextTick { tick() }
            // Interrupted, as it is after a stop of the whole process, it has looked at nothing.
            if count >= 0, !isAcceptBehind, !isAcceptPaused {
                pass.roundEnded(descriptors: tally.open + 2, capacity: Self.eventCapacity)
                if pass.isOver { handler.caughtUp(to: pass.start) }
            }
            tally.publish(to: counters.loops[index])
            if isDraining, tally.open == 0 || now >= drainDeadline { break }
        }
        end()
    }

    private func handle(_ mark: UInt64, _ events: UInt32) {
        switch mark {
        case Mark.listener: acceptSome()
        case Mark.mailbox: mailbox.takeSignal()
        default:
            guard
                let connection = connection(
                    slot: UInt32(truncatingIfNeeded: mark),
                    generation: UInt32(truncatingIfNeeded: mark >> 32))
            else { return }
            serve(connection, events)
        }
    }

    func connection(slot: UInt32, generation: UInt32) -> Connection? {
        let index = Int(slot)
        guard index < connections.count, generations[index] == generation else { return nil }
        return connections[index]
    }

    /// The connection that still awaits the answer to this very request.
    private func connection(for request: RequestID) -> Connection? {
        guard
            let connection = connection(slot: request.slot, generation: request.generation),
            connection.serial == request.serial
        else { return nil }
        return connection
    }

    // MARK: Mail

    private func takeMail() {
        mailbox.take(into: &entries)
        for entry in entries {
            switch entry {
            case .work(let work): work()
            case .answer(let request, let answer):
                guard let connection = connection(for: request), connection.state == .waiting
                else { continue }
                connection.state = .answering
                unsafe answer.body.withUnsafeBytes {
                    unsafe respond(
                        connection, answer.status, answer.contentType, answer.headers, $0)
                }
                settle(connection)
            case .streamBegun(let request, let answer):
                guard let connection = connection(for: request), connection.isAwaited else {
                    continue
                }
                continueAsStream(connection, answer)
                settle(connection)
            case .chunk(let request, let bytes):
                guard let connection = connection(for: request) else { continue }
                append(bytes, to: connection)
            case .message(let request, let kind, let bytes):
                guard let connection = connection(for: request) else { continue }
                connection.webSocket?.send(kind, bytes)
            case .mark(let request, let number):
                guard let connection = connection(for: request) else { continue }
                connection.webSocket?.mark(number)
            case .socketOpened(let request, let opening):
                guard let connection = connection(for: request) else { continue }
                openWebSocket(connection, opening)
            case .socketClosed(let request, let code, let reason):
                guard let connection = connection(for: request) else { continue }
                connection.webSocket?.close(code, reason)
            case .finished(let request):
                guard let connection = connection(for: request) else { continue }
                finishStream(connection)
            case .abandoned(let request):
                guard let connection = connection(for: request) else { continue }
                abandonStream(connection)
            case .readyWanted(let request):
                guard let connection = connection(for: request) else { continue }
                markDirty(connection)
            case .drain: beginDrain()
            case .stop: isStopped = true
            }
        }
        entries.removeAll(keepingCapacity: true)
    }

    func markDirty(_ connection: Connection) {
        guard !connection.isDirty else { return }
        connection.isDirty = true
        dirty.append(connection)
    }

    private func flushDirty() {
        // `settle` may run handlers and callbacks, which may add to the list.
        while let connection = dirty.popLast() {
            connection.isDirty = false
            if connection.state != .closed { settle(connection) }
        }
    }

    // MARK: Time

    private static func coarseMilliseconds() -> Int64 {
        var time = timespec()
        unsafe clock_gettime(CLOCK_MONOTONIC_COARSE, &time)
        return Int64(time.tv_sec) * 1000 + Int64(time.tv_nsec) / 1_000_000
    }

    private func tick() {
        nextTick = now + TimerWheel.tickMilliseconds
        updateDate()
        resumeAccepting()
        wheel.advance(to: now) { entry in
            guard let connection = connection(slot: entry.slot, generation: entry.generation)
            else { return nil }
            if connection.deadline <= now { expire(connection) }
            return connection.state == .closed ? nil : connection.deadline
        }
        handler.tick()
    }

    /// `Date: …` with its line end; formatted once a second.
    private func updateDate() {
        var second = time(nil)
        guard second != dateSecond else { return }
        dateSecond = second
        var parts = unsafe tm()
        unsafe gmtime_r(&second, &parts)
        var text = [CChar](repeating: 0, count: 48)
        // Names of days and months are English in the C locale, in which this process stays.
        let count = unsafe strftime(
            &text, text.count, "Date: %a, %d %b %Y %H:%M:%S GMT\r\n", &parts)
        dateLine = ByteBuffer(text[..<count].map { UInt8(bitPattern: $0) })
        answerStart.forget()
    }

    /// 1 to 5 seconds, different from client to client.
    func retrySeconds() -> Int { 1 + Int(random(below: 5)) }

    /// From 0 on; `limit` must be above it.
    func random(below limit: Int64) -> Int64 {
        random ^= random << 13
        random ^= random >> 7
        random ^= random << 17
        return Int64(random % UInt64(limit))
    }

    // MARK: Drain and end

    private func beginDrain() {
        guard !isDraining else { return }
        isDraining = true
        drainDeadline = now + limits.drainMilliseconds
        // Who waits in the listener's queue would otherwise be reset.
        var before = -1
        while before != tally.accepted {
            before = tally.accepted
            acceptSome()
        }
        closeListener()
        for case let connection? in connections {
            if connection.state == .upgraded {
                connection.upgraded?.draining()
            } else if connection.isIdle {
                // A request may have come already; it is answered with `Connection: close`.
                serve(connection, EPOLLIN.rawValue)
                if connection.isIdle { destroy(connection) }
            }
        }
    }

    private func end() {
        closeListener()
        for case let connection? in connections {
            if connection.state != .lingering { cut += 1 }
            destroy(connection)
        }
        mailbox.close()
        tally.publish(to: counters.loops[index])
    }

    private func closeListener() {
        guard listener >= 0 else { return }
        close(listener)
        listener = -1
    }

    private func watch(_ descriptor: Int32, mark: UInt64) {
        var event = unsafe epoll_event()
        unsafe event.events = EPOLLIN.rawValue
        unsafe event.data.u64 = mark
        let result = unsafe epoll_ctl(poll, EPOLL_CTL_ADD, descriptor, &event)
        precondition(result == 0, "watching a descriptor: the system has no memory left")
    }

    func logOnce(_ message: StaticString, _ data: [String: String]) {
        Log.warning(message, data.merging(["http.listener": name]) { a, _ in a })
    }
}

/// How an event loop knows up to when it has read all that its clients had sent.
///
/// What can be read when a pass starts is handed out by epoll in turn, one share a round; a connection
/// that is accepted on the way is read in the round after that. So all of it has been read when as
/// many rounds are over as the descriptors take, and one more.
struct ReadingPass {
    /// When the first round of the pass began to wait.
    private(set) var start: Int64 = 0
    private(set) var isOver = true
    private var rounds = 0

    init() {}

    init(start: Int64) {
        self.start = start
        isOver = false
    }

    /// - Parameters:
    ///   - descriptors: that epoll watches.
    ///   - capacity: of one round.
    mutating func roundEnded(descriptors: Int, capacity: Int) {
        rounds += 1
        isOver = rounds >= 2 + descriptors / capacity
    }
}
