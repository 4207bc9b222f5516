internal import Bytes
internal import Crypto
public import HTTP
public import Schemas
internal import Synchronization
internal import System

/// What the page needs beside its listener.
public struct PageSettings: Sendable, CustomStringConvertible {
    /// What becomes of somebody who shows a token.
    public enum Verdict: Sendable, Equatable {
        case letIn
        case refused
        /// The address has shown too many wrong ones; the seconds until it may try again.
        case tooMany(seconds: Int64)
    }

    /// As libpq takes it.
    public var databaseURL: String
    /// Under which login codes are signed, 32 bytes: the digest of the operators' token.
    public var key: [UInt8]
    /// Judges an `Authorization` header.
    public var judge: @Sendable (_ authorization: String?, ClientAddress) -> Verdict
    /// The offset that a partition's next record gets; `nil` where the log is not at hand.
    public var logEnd: (@Sendable (TopicPartition) -> Int64?)?
    /// Names by which the page may be reached, beside addresses and `localhost`.
    public var names: [String] = []
    /// Streams that may be open at once; one more is answered 503.
    public var streams = 32

    public init(
        databaseURL: String, key: [UInt8],
        judge: @escaping @Sendable (_ authorization: String?, ClientAddress) -> Verdict
    ) {
        self.databaseURL = databaseURL
        self.key = key
        self.judge = judge
    }

    public var description: String { "PageSettings(hidden)" }
}

/// Reads what the page shows and sends it to whoever looks, on a thread of its own: one loop of queries,
/// however many browsers there are, and, after its first minutes, none while nobody looks.
///
/// - Thread safety: every method may be called from any thread; `start` and `stop` once each.
public final class PageService: Sendable {
    /// What a request wants read.
    enum Wish: Sendable {
        case fleet
        case device(DeviceID)
        case devices(FleetState)
        case search(String)
    }

    /// What streams are about.
    enum Channel: Hashable, Sendable {
        case fleet
        case device(DeviceID)
    }

    private enum Job: Sendable {
        case answer(Wish, DeferredResponse)
        case watch(Channel, ResponseStream, Digest?)
    }

    private struct Watcher {
        var channel: Channel
        var stream: ResponseStream
        /// `nil`: let in by its token.
        var session: Digest?
        /// It has yet to be sent everything.
        var isNew = true
    }

    /// Requests that may wait; one more is answered 503.
    private static let capacity = 64
    private static let roundMilliseconds: Int64 = 1_000
    /// A stream that nothing is sent on would be closed by proxies in between.
    private static let silenceMilliseconds: Int64 = 15_000
    /// A client with more bytes waiting is left out until it has taken them.
    private static let waitingBytes = 256 << 10
    /// How long after the start, and how often, devices are counted though nobody looks.
    private static let youthMilliseconds: Int64 = 600_000
    private static let countMilliseconds: Int64 = 5_000
    /// Longest wait at the end for a query that runs.
    private static let stopMilliseconds: Int64 = 1_000

    let settings: PageSettings
    let sessions = PageSessions()
    /// Milliseconds since 1970.
    let startedAt = SystemClock.wallMilliseconds()
    private let jobs = Mutex<[Job]>([])
    private let openStreams = Atomic(0)
    private let rounds = Atomic(0)
    private let listeningPort = Atomic(0)
    private let waker = Waker()
    private let isStopping = Atomic(false)
    private let thread = Mutex<SystemThread?>(nil)
    private let hasEnded = Waker()

    public init(_ settings: PageSettings) { self.settings = settings }

    /// Names the cookie, since browsers do not tell the ports of one host apart.
    public func listens(on port: UInt16) { listeningPort.store(Int(port), ordering: .relaxed) }

    var cookieName: String { "heartline-\(listeningPort.load(ordering: .relaxed))" }

    /// Streams that are open now.
    public var streamCount: Int { openStreams.load(ordering: .relaxed) }

    /// Rounds of queries for streams, since the start.
    public var roundCount: Int { rounds.load(ordering: .relaxed) }

    public func start() {
        thread.withLock {
            $0 = SystemThread.start("page") {
                self.run()
                self.hasEnded.signal()
            }
        }
    }

    /// Ends all streams, so that the listener can drain, and the thread if what it does does not take long.
    public func stop() {
        isStopping.store(true, ordering: .releasing)
        waker.signal()
        guard let running = thread.withLock({ $0.take() }) else { return }
        if hasEnded.wait(milliseconds: Self.stopMilliseconds) {
            running.join()
        } else {
            running.detach()
        }
    }

    // MARK: - From the listener

    /// - Returns: whether there was room.
    func submit(_ wish: Wish, _ response: DeferredResponse) -> Bool {
        let hasRoom = jobs.withLock { jobs in
            guard jobs.count < Self.capacity else { return false }
            jobs.append(.answer(wish, response))
            return true
        }
        if hasRoom { waker.signal() }
        return hasRoom
    }

    /// Takes a place among the streams, which `watch` must follow.
    func reserveStream() -> Bool {
        if isStopping.load(ordering: .acquiring) { return false }
        if openStreams.add(1, ordering: .relaxed).newValue <= settings.streams { return true }
        openStreams.subtract(1, ordering: .relaxed)
        return false
    }

    func watch(_ channel: Channel, _ stream: ResponseStream, _ session: Digest?) {
        jobs.withLock { $0.append(.watch(channel, stream, session)) }
        waker.signal()
    }

    // MARK: - The loop

    private func run() {
        var reader = FleetReader(databaseURL: settings.databaseURL, logEnd: settings.logEnd)
        var watchers: [Watcher] = []
        var sent: [Channel: [PagePart]] = [:]
        var nextRound: Int64 = 0
        var lastWord = SystemClock.monotonicMilliseconds()
        var isYoung = true
        let end = lastWord + Self.youthMilliseconds
        while !isStopping.load(ordering: .acquiring) {
            let taken = jobs.withLock { jobs in
                defer { jobs.removeAll() }
                return jobs
            }
            for job in taken {
                switch job {
                case .answer(let wish, let response): answer(wish, response, &reader)
                case .watch(let channel, let stream, let session):
                    watchers.append(
                        Watcher(channel: channel, stream: stream, session: session))
                    nextRound = 0
                }
            }
            var now = SystemClock.monotonicMilliseconds()
            leave(&watchers, now: now)
            if !watchers.isEmpty, now >= nextRound {
                round(&watchers, &sent, &reader)
                now = SystemClock.monotonicMilliseconds()
                nextRound = now + Self.roundMilliseconds
            }
            if now - lastWord >= Self.silenceMilliseconds {
                lastWord = now
                for watcher in watchers { watcher.stream.write(ByteBuffer(": \n\n".utf8)) }
            }
            sent = sent.filter { entry in watchers.contains { $0.channel == entry.key } }
            if watchers.isEmpty, isYoung {
                // Before the tables have minutes to draw, the first who looks finds some.
                isYoung = now < end && reader.countForHistory()
            }
            waker.wait(
                milliseconds: watchers.isEmpty
                    ? (isYoung ? Self.countMilliseconds : 60_000) : max(0, nextRound - now))
        }
        for watcher in watchers { watcher.stream.finish() }
        openStreams.subtract(watchers.count, ordering: .relaxed)
        for case .watch(_, let stream, _) in jobs.withLock({ $0 }) { stream.finish() }
        reader.close()
    }

    /// Lets go of who has gone or is not signed in any more.
    private func leave(_ watchers: inout [Watcher], now: Int64) {
        let before = watchers.count
        watchers.removeAll { watcher in
            if !watcher.stream.isOpen { return true }
            guard let session = watcher.session, !sessions.holds(session, now: now) else {
                return false
            }
            watcher.stream.write(ByteBuffer("event: over\ndata: {}\n\n".utf8))
            watcher.stream.finish()
            return true
        }
        openStreams.subtract(before - watchers.count, ordering: .relaxed)
    }

    /// Reads once for each channel, and sends each of its streams the parts that changed.
    private func round(
        _ watchers: inout [Watcher], _ sent: inout [Channel: [PagePart]],
        _ reader: inout FleetReader
    ) {
        rounds.add(1, ordering: .relaxed)
        for channel in Set(watchers.map(\.channel)) {
            guard let parts = parts(of: channel, &reader) else { continue }
            let before = sent[channel] ?? []
            var changes = ByteBuffer()
            var whole = ByteBuffer()
            for part in parts {
                let event = part.event
                whole.append(event)
                if !before.contains(part) { changes.append(event) }
            }
            sent[channel] = parts
            for index in watchers.indices where watchers[index].channel == channel {
                // What it has not taken would only grow old; it gets all when it has caught up.
                if watchers[index].stream.waitingBytes > Self.waitingBytes {
                    watchers[index].isNew = true
                } else if watchers[index].isNew {
                    watchers[index].stream.write(whole)
                    watchers[index].isNew = false
                } else {
                    watchers[index].stream.write(changes)
                }
            }
        }
    }

    private func parts(of channel: Channel, _ reader: inout FleetReader) -> [PagePart]? {
        switch channel {
        case .fleet: return reader.fleet().map { FleetView.parts($0) }
        case .device(let device):
            return (try? reader.device(device)).map { DeviceView.parts($0) }
        }
    }

    // MARK: - Answers

    private func answer(
        _ wish: Wish, _ response: DeferredResponse, _ reader: inout FleetReader
    ) {
        let answer: PageAnswer
        do throws(PageFault) {
            answer = try document(wish, &reader)
        } catch {
            answer = PageAnswer(
                .serviceUnavailable, PageDocument.notice("Not now", error.reason),
                headers: [Header("Retry-After", "5")])
        }
        answer.respond(response)
    }

    private func document(_ wish: Wish, _ reader: inout FleetReader) throws(PageFault) -> PageAnswer
    {
        switch wish {
        case .fleet:
            guard let reading = reader.fleet() else {
                throw PageFault(reason: reader.fault ?? "The database does not answer.")
            }
            return PageAnswer(.ok, FleetView.document(FleetView.parts(reading)))
        case .device(let device):
            let reading = try reader.device(device)
            guard reading.isKnown else {
                return PageAnswer(
                    .notFound,
                    PageDocument.notice("No such device", "No device has the id \(device)."))
            }
            return PageAnswer(.ok, DeviceView.document(device, DeviceView.parts(reading)))
        case .devices(let state):
            let devices = try reader.devices(in: state)
            return PageAnswer(.ok, ListView.inState(state, devices, now: wallTime))
        case .search(let text):
            guard let term = SearchTerm(text) else {
                return PageAnswer(
                    .ok,
                    PageDocument.notice(
                        "Search",
                        text.utf8.count > SearchTerm.maximumBytes
                            ? "That is too long to be looked for."
                            : "Write the beginning of a device’s id, address or hardware id."))
            }
            let found = try reader.devices(matching: term)
            if found.count == 1 { return PageAnswer(goingTo: .device(found[0].device)) }
            return PageAnswer(.ok, ListView.found(term.text, found, now: wallTime))
        }
    }

    private var wallTime: EventTime { EventTime(milliseconds: SystemClock.wallMilliseconds()) }
}
