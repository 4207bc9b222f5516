package import Bytes
package import Schemas

/// Decides what is sent to which socket, and what counts as delivered: a value without sockets, database
/// or clock.
///
/// Every account has its pushes in the database. A socket that opens is first sent, page by page, what
/// its account has missed; then it joins the account's live sockets, which are sent what is new whenever
/// the account's doorbell rings. A push counts as delivered when a socket that was sent it has answered
/// the mark behind it. News are what nobody has confirmed, and what was confirmed (on another front-end)
/// since the last question, so that each live socket gets each push, whoever confirms it first.
///
/// The caller lends the list of effects. `now` is a clock's that does not go back, in milliseconds.
package struct PushDelivery: Sendable {
    /// How far a socket is.
    private enum Phase: Sendable, Equatable {
        /// The place of its cursor is to be looked up.
        case lookingUp(PushID)
        /// Its next page is to be read, when it has confirmed the last.
        case paging
        /// It has had all pages.
        case joining
        case live
    }

    private struct Socket: Sendable {
        var account: AccountID
        var phase: Phase
    }

    /// What is known of a socket that is not live yet.
    private struct Start: Sendable {
        var position = PushPosition.start
        var hasCursor = false
        /// Before the first page was read, by the database's clock.
        var since: PushPosition?
        /// What it was sent.
        var sent: Set<PushID> = []
        /// In the queue, or in the round that is under way.
        var isQueued = true
    }

    private struct Account: Sendable {
        /// In the order in which they opened.
        var sockets: [SocketID] = []
        /// What was confirmed up to here the live sockets have: the last question for news, by the
        /// database's clock, unless the answer was too much for once.
        var since = PushPosition.start
        /// What the live sockets were sent and the next question may bring again.
        var sent: Set<PushID> = []
        var isDue = false
        /// There is more than the sockets may have unconfirmed: to be asked for at a confirmation.
        var isHeldBack = false
        /// The last question, by `now`.
        var askedAt: Int64
        /// Tells its place in `sweepQueue` from one of an earlier time.
        var number: UInt64
    }

    private struct Sweep: Sendable {
        var account: AccountID
        var number: UInt64
        var at: Int64
    }

    /// Pushes behind one another that a socket confirms together.
    private struct Mark: Sendable {
        var number: UInt64
        var bytes: Int
        /// Those that nobody had confirmed when they were sent.
        var open: [PushID]
    }

    /// What a socket was sent and has not confirmed.
    private struct Flight: Sendable {
        var marks: [Mark] = []
        var bytes = 0
        /// When it last confirmed something, or first had something to confirm.
        var since: Int64
    }

    private let limits: PushLimits
    private var sockets: [SocketID: Socket] = [:]
    private var starts: [SocketID: Start] = [:]
    private var accounts: [AccountID: Account] = [:]
    private var flights: [SocketID: Flight] = [:]
    private var startQueue: [SocketID] = []
    private var dueQueue: [AccountID] = []
    /// Accounts in the order in which they will be asked for without a doorbell.
    private var sweepQueue: [Sweep] = []
    private var lastAccount: UInt64 = 0
    private var confirmations: [PushRound.Confirmation] = []
    private var confirmationsSince: Int64 = 0
    private var lastMark: UInt64 = 0
    private var round: PushRound?
    private var nextSlowCheck: Int64 = .min
    /// Pushes sent and pushes that a socket has confirmed.
    package private(set) var sentCount: UInt64 = 0
    package private(set) var confirmedCount: UInt64 = 0

    package init(_ limits: PushLimits = PushLimits()) { self.limits = limits }

    package var socketCount: Int { sockets.count }
    package var accountCount: Int { accounts.count }

    // MARK: - What happens

    /// - Parameter cursor: the push that the client had last, if it says so.
    package mutating func opened(
        _ socket: SocketID, of account: AccountID, after cursor: PushID?, now: Int64,
        into effects: inout [PushEffect]
    ) {
        if accounts[account] == nil {
            lastAccount += 1
            accounts[account] = Account(askedAt: now, number: lastAccount)
            sweepQueue.append(
                Sweep(account: account, number: lastAccount, at: now + limits.sweepMilliseconds))
        }
        accounts[account]!.sockets.append(socket)
        sockets[socket] = Socket(account: account, phase: cursor.map { .lookingUp($0) } ?? .paging)
        starts[socket] = Start()
        startQueue.append(socket)
        if accounts[account]!.sockets.count > limits.accountSockets {
            let oldest = accounts[account]!.sockets[0]
            effects.append(.close(oldest, .tooMany))
            closed(oldest)
        }
    }

    package mutating func closed(_ socket: SocketID) {
        guard let account = sockets.removeValue(forKey: socket)?.account else { return }
        starts[socket] = nil
        flights[socket] = nil
        accounts[account]?.sockets.removeAll { $0 == socket }
        if accounts[account]?.sockets.isEmpty == true { accounts[account] = nil }
    }

    /// The socket has answered a mark, and with it those before.
    package mutating func confirmed(_ socket: SocketID, mark: UInt64, now: Int64) {
        guard let account = sockets[socket]?.account, flights[socket] != nil else { return }
        let count = flights[socket]!.marks.prefix { $0.number <= mark }.count
        guard count > 0 else { return }
        if confirmations.isEmpty { confirmationsSince = now }
        for mark in flights[socket]!.marks.prefix(count) {
            flights[socket]!.bytes -= mark.bytes
            confirmedCount += UInt64(mark.open.count)
            for push in mark.open {
                confirmations.append(PushRound.Confirmation(account: account, push: push))
            }
        }
        flights[socket]!.marks.removeFirst(count)
        flights[socket]!.since = now
        if flights[socket]!.marks.isEmpty {
            flights[socket] = nil
            queue(start: socket)
        }
        if accounts[account]!.isHeldBack { setDue(account) }
    }

    /// There is something for the account.
    package mutating func rung(_ account: AccountID) { setDue(account) }

    /// Doorbells may have been missed.
    package mutating func missedBells() {
        for account in accounts.keys { setDue(account) }
    }

    /// Looks after what time brings; to be called a few times a second.
    package mutating func tick(now: Int64, into effects: inout [PushEffect]) {
        var taken = 0
        var later: [Sweep] = []
        for var entry in sweepQueue {
            guard entry.at <= now else { break }
            taken += 1
            guard let account = accounts[entry.account], account.number == entry.number else {
                continue
            }
            entry.at = account.askedAt + limits.sweepMilliseconds
            if entry.at <= now {
                setDue(entry.account)
                entry.at = now + limits.sweepMilliseconds
            }
            later.append(entry)
        }
        sweepQueue.removeFirst(taken)
        sweepQueue += later
        guard now >= nextSlowCheck else { return }
        nextSlowCheck = now + min(1_000, max(1, limits.slowMilliseconds / 4))
        let slow = flights.filter { now - $0.value.since >= limits.slowMilliseconds }.keys
        for socket in slow.sorted(by: { $0.number < $1.number }) {
            effects.append(.close(socket, .slow))
            closed(socket)
        }
    }

    // MARK: - What the database is asked

    /// What the database is to be asked now; `nil` if nothing, or while a round is under way.
    package mutating func nextRound(now: Int64) -> PushRound? {
        guard round == nil else { return nil }
        var next = PushRound()
        var kept: [SocketID] = []
        var taken = 0
        for socket in startQueue {
            guard next.pages.count + next.cursors.count < limits.roundPages else { break }
            taken += 1
            guard let known = sockets[socket], let start = starts[socket] else { continue }
            switch known.phase {
            case .lookingUp(let push):
                next.cursors.append(
                    PushRound.Cursor(socket: socket, account: known.account, push: push))
            case .paging:
                next.pages.append(
                    PushRound.Page(
                        socket: socket, account: known.account, position: start.position,
                        hasCursor: start.hasCursor))
            case .joining, .live: continue
            }
            kept.append(socket)
        }
        startQueue.removeFirst(taken)
        taken = 0
        for account in dueQueue {
            guard next.news.count < limits.roundAccounts else { break }
            taken += 1
            guard accounts[account]?.isDue == true else { continue }
            accounts[account]!.isDue = false
            if let news = news(of: account) {
                accounts[account]!.askedAt = now
                accounts[account]!.isHeldBack = false
                next.news.append(news)
            }
        }
        dueQueue.removeFirst(taken)
        let isLate =
            !confirmations.isEmpty && now - confirmationsSince >= limits.confirmMilliseconds
        guard !next.isEmpty || isLate || confirmations.count >= limits.confirmations else {
            return nil
        }
        next.confirmations = Array(confirmations.prefix(limits.confirmations))
        confirmations.removeFirst(next.confirmations.count)
        round = next
        return next
    }

    /// How long nothing is to be asked unless something happens, in milliseconds.
    package func pause(now: Int64) -> Int64 {
        guard round == nil, !confirmations.isEmpty else { return .max }
        return max(0, confirmationsSince + limits.confirmMilliseconds - now)
    }

    private func news(of account: AccountID) -> PushRound.News? {
        var since: PushPosition?
        var joining: [SocketID] = []
        for socket in accounts[account]!.sockets {
            switch sockets[socket]!.phase {
            case .live: since = min(since ?? Self.never, accounts[account]!.since)
            case .joining:
                since = min(since ?? Self.never, starts[socket]!.since!)
                joining.append(socket)
            case .lookingUp, .paging: break
            }
        }
        return since.map { PushRound.News(account: account, since: $0, joining: joining) }
    }

    /// The round was not answered: the same is to be asked again.
    package mutating func failed(now: Int64) {
        guard let failed = round else { return }
        round = nil
        if confirmations.isEmpty { confirmationsSince = now }
        confirmations = failed.confirmations + confirmations
        startQueue += failed.cursors.map(\.socket) + failed.pages.map(\.socket)
        for news in failed.news { setDue(news.account) }
    }

    // MARK: - What it answers

    /// Takes the answer to the round that is under way.
    package mutating func answered(
        _ answer: PushAnswer, now: Int64, into effects: inout [PushEffect]
    ) {
        guard let asked = round else { preconditionFailure("an answer to nothing") }
        round = nil
        var batches: [SocketID: Mark] = [:]
        for (cursor, createdAt) in zip(asked.cursors, answer.cursors) {
            guard sockets[cursor.socket] != nil else { continue }
            sockets[cursor.socket]!.phase = .paging
            if let createdAt {
                starts[cursor.socket]!.position = PushPosition(createdAt, cursor.push)
                starts[cursor.socket]!.hasCursor = true
            } else {
                effects.append(.send(cursor.socket, Self.resync))
            }
            startQueue.append(cursor.socket)
        }
        for (page, pushes) in zip(asked.pages, answer.pages) {
            take(page, pushes, answer.time, &batches, now, &effects)
        }
        for (news, pushes) in zip(asked.news, answer.news) {
            take(news, pushes, answer.time, &batches, now, &effects)
        }
        for socket in batches.keys.sorted(by: { $0.number < $1.number }) {
            mark(socket, &batches, now, &effects)
        }
    }

    private mutating func take(
        _ page: PushRound.Page, _ pushes: [StoredPush], _ time: Int64,
        _ batches: inout [SocketID: Mark], _ now: Int64, _ effects: inout [PushEffect]
    ) {
        guard let known = sockets[page.socket], known.phase == .paging else { return }
        starts[page.socket]!.isQueued = false
        if starts[page.socket]!.since == nil {
            starts[page.socket]!.since = PushPosition(endOf: time)
        }
        var isWhole = pushes.count < limits.pageRows
        for push in pushes {
            guard push.body != nil, hasRoom(page.socket, batches) else {
                isWhole = false
                break
            }
            send(push, to: page.socket, &batches, now, &effects)
            starts[page.socket]!.sent.insert(push.id)
            starts[page.socket]!.position = PushPosition(push.createdAt, push.id)
        }
        if isWhole {
            sockets[page.socket]!.phase = .joining
            setDue(known.account)
        } else if flights[page.socket] == nil, batches[page.socket] == nil {
            queue(start: page.socket)
        }
    }

    private mutating func take(
        _ news: PushRound.News, _ pushes: [StoredPush], _ time: Int64,
        _ batches: inout [SocketID: Mark], _ now: Int64, _ effects: inout [PushEffect]
    ) {
        guard var account = accounts[news.account] else { return }
        let live = account.sockets.filter { sockets[$0]!.phase == .live }
        let joining = news.joining.filter { sockets[$0]?.phase == .joining }
        guard !live.isEmpty || !joining.isEmpty else { return }
        /// Up to where what was confirmed has been looked at.
        var reached = news.since
        var isCut = false
        var hasAllConfirmed = true
        var seen: [PushID] = []
        for (place, push) in pushes.enumerated() {
            let position = push.deliveredAt.map { PushPosition($0, push.id) }
            let isForLive =
                !live.isEmpty && !account.sent.contains(push.id)
                && position ?? Self.never > account.since
            let joiners = joining.filter {
                !starts[$0]!.sent.contains(push.id) && position ?? Self.never > starts[$0]!.since!
            }
            if isForLive || !joiners.isEmpty {
                let receivers = (isForLive ? live : []) + joiners
                let isTaken = receivers.contains { hasRoom($0, batches) }
                guard push.body != nil, isTaken else {
                    isCut = true
                    hasAllConfirmed =
                        position == nil && place < limits.deliveredRows
                    // The next round has room for its body, unless what has yet to be confirmed fills it.
                    if owesConfirmation(account, batches) {
                        account.isHeldBack = true
                    } else {
                        account.isDue = true
                    }
                    break
                }
                for receiver in receivers { send(push, to: receiver, &batches, now, &effects) }
                for joiner in joiners { starts[joiner]!.sent.insert(push.id) }
            }
            seen.append(push.id)
            if let position { reached = position }
        }
        let open = pushes.filter { $0.deliveredAt == nil }
        if !isCut, pushes.count - open.count >= limits.deliveredRows {
            hasAllConfirmed = false
            account.isDue = true
        }
        let hasAllOpen = open.count < limits.openRows
        if !hasAllOpen { account.isHeldBack = true }
        // What was not confirmed when the answer was made will be later than that.
        if hasAllConfirmed { reached = PushPosition(endOf: time) }
        account.sent.formUnion(seen)
        if hasAllConfirmed, hasAllOpen { account.sent.formIntersection(open.map(\.id)) }
        account.since = max(account.since, reached)
        for joiner in joining {
            if isCut || !hasAllConfirmed || !hasAllOpen {
                starts[joiner]!.since = max(starts[joiner]!.since!, reached)
            } else {
                starts[joiner] = nil
                sockets[joiner]!.phase = .live
            }
        }
        // All that was to be confirmed may have been while the round was under way.
        if account.isHeldBack, !confirmations.isEmpty, !owesConfirmation(account, batches) {
            account.isDue = true
        }
        let isDue = account.isDue
        // The queue has it only if it was due before.
        account.isDue = accounts[news.account]!.isDue
        accounts[news.account] = account
        if isDue { setDue(news.account) }
    }

    // MARK: - Parts

    /// Behind all times.
    private static let never = PushPosition(endOf: .max)

    private func owesConfirmation(_ account: Account, _ batches: [SocketID: Mark]) -> Bool {
        account.sockets.contains { flights[$0] != nil || batches[$0] != nil }
    }

    private func hasRoom(_ socket: SocketID, _ batches: [SocketID: Mark]) -> Bool {
        (flights[socket]?.bytes ?? 0) + (batches[socket]?.bytes ?? 0) < limits.windowBytes
    }

    private mutating func send(
        _ push: StoredPush, to socket: SocketID, _ batches: inout [SocketID: Mark], _ now: Int64,
        _ effects: inout [PushEffect]
    ) {
        guard let body = push.body else { return }
        effects.append(.send(socket, body))
        sentCount += 1
        batches[socket, default: Mark(number: 0, bytes: 0, open: [])].bytes += body.count
        if push.deliveredAt == nil { batches[socket]!.open.append(push.id) }
        if batches[socket]!.bytes >= limits.markBytes { mark(socket, &batches, now, &effects) }
    }

    private mutating func mark(
        _ socket: SocketID, _ batches: inout [SocketID: Mark], _ now: Int64,
        _ effects: inout [PushEffect]
    ) {
        guard var batch = batches.removeValue(forKey: socket) else { return }
        lastMark += 1
        batch.number = lastMark
        effects.append(.mark(socket, lastMark))
        flights[socket, default: Flight(since: now)].bytes += batch.bytes
        flights[socket]!.marks.append(batch)
    }

    private mutating func queue(start socket: SocketID) {
        guard starts[socket]?.isQueued == false, sockets[socket]?.phase == .paging else { return }
        starts[socket]!.isQueued = true
        startQueue.append(socket)
    }

    private mutating func setDue(_ account: AccountID) {
        guard accounts[account]?.isDue == false else { return }
        accounts[account]!.isDue = true
        dueQueue.append(account)
    }

    /// What a client is told whose cursor is not known any more.
    package static let resync = ByteBuffer("{\"type\":\"resync\"}".utf8)
}
