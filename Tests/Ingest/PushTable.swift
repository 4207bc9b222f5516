import Bytes
import Ingest
import Schemas

/// Table `pushes` in memory, with a clock of its own: answers rounds as the database does.
struct PushTable {
    struct Row {
        var account: AccountID
        var id: PushID
        var kind: PushKind
        var createdAt: Int64
        var deliveredAt: Int64?
        var body: ByteBuffer
    }

    private(set) var rows: [Row] = []
    /// Microseconds.
    var now: Int64 = 1_000_000_000_000
    let limits: PushLimits
    private var last: UInt64 = 0

    static let day: Int64 = 86_400_000_000

    init(_ limits: PushLimits) { self.limits = limits }

    /// - Parameter age: of what caused it, in microseconds.
    @discardableResult
    mutating func insert(
        _ account: AccountID, _ kind: PushKind = .message, age: Int64 = 0, bytes: Int = 10
    ) -> PushID {
        last += 1
        now += 1
        let id = PushID(high: 0, low: last)
        var body = ByteBuffer("\(last)".utf8)
        while body.count < bytes { body.append(UInt8(ascii: " ")) }
        rows.append(
            Row(
                account: account, id: id, kind: kind, createdAt: now - age, deliveredAt: nil,
                body: body))
        return id
    }

    func row(_ id: PushID) -> Row? { rows.first { $0.id == id } }

    mutating func remove(_ id: PushID) { rows.removeAll { $0.id == id } }

    mutating func confirm(_ id: PushID) {
        now += 1
        for index in rows.indices where rows[index].id == id && rows[index].deliveredAt == nil {
            rows[index].deliveredAt = now
        }
    }

    mutating func answer(_ round: PushRound) -> PushAnswer {
        now += 1
        let time = now
        for confirmation in round.confirmations {
            for index in rows.indices
            where rows[index].account == confirmation.account
                && rows[index].id == confirmation.push && rows[index].deliveredAt == nil
            {
                rows[index].deliveredAt = time
            }
        }
        let cursors = round.cursors.map { cursor in
            rows.first { $0.account == cursor.account && $0.id == cursor.push }?.createdAt
        }
        var bytes = 0
        let pages = round.pages.map { page in
            stored(
                rows.filter { row in
                    row.account == page.account
                        && page.position < PushPosition(row.createdAt, row.id)
                        && (isOpen(row)
                            || row.deliveredAt != nil
                                && (page.hasCursor
                                    || row.kind == .mutual && time - row.createdAt < Self.day))
                }.sorted(by: Self.order).prefix(limits.pageRows), &bytes)
        }
        bytes = 0
        let news = round.news.map { news in
            let mine = rows.filter { $0.account == news.account }
            let open = mine.filter(isOpen).sorted(by: Self.order).prefix(limits.openRows)
            let delivered = mine.filter { row in
                row.deliveredAt.map { PushPosition($0, row.id) > news.since } ?? false
            }.sorted { ($0.deliveredAt!, $0.id) < ($1.deliveredAt!, $1.id) }
                .prefix(limits.deliveredRows)
            return stored(delivered + open, &bytes)
        }
        return PushAnswer(time: time, cursors: cursors, pages: pages, news: news)
    }

    private func isOpen(_ row: Row) -> Bool {
        row.deliveredAt == nil
            && now - row.createdAt < (row.kind == .mutual ? 1 : 30) * Self.day
    }

    private static func order(_ a: Row, _ b: Row) -> Bool {
        (a.createdAt, a.id) < (b.createdAt, b.id)
    }

    private func stored(_ rows: ArraySlice<Row>, _ bytes: inout Int) -> [StoredPush] {
        rows.map { row in
            bytes += row.body.count
            return StoredPush(
                id: row.id, createdAt: row.createdAt, deliveredAt: row.deliveredAt,
                body: bytes <= limits.roundBytes ? row.body : nil)
        }
    }
}

/// A front-end's `PushDelivery` with the sockets of clients that note what they get.
struct PushFrontEnd {
    struct Client {
        var account: AccountID
        var received: [String] = []
        /// Marks that it has not answered.
        var marks: [UInt64] = []
        var closed: PushEffect.Reason?
        /// Whether the database was asked what it has missed.
        var isStarted = false
    }

    var delivery: PushDelivery
    var clients: [SocketID: Client] = [:]
    var now: Int64 = 0
    private var effects: [PushEffect] = []
    private var last: UInt64 = 0

    init(_ limits: PushLimits) { delivery = PushDelivery(limits) }

    @discardableResult
    mutating func open(_ account: AccountID, after cursor: PushID? = nil) -> SocketID {
        last += 1
        let socket = SocketID(last)
        clients[socket] = Client(account: account)
        delivery.opened(socket, of: account, after: cursor, now: now, into: &effects)
        carryOut()
        return socket
    }

    mutating func close(_ socket: SocketID) {
        delivery.closed(socket)
        clients[socket] = nil
    }

    /// The client answers the last mark that it has.
    mutating func confirm(_ socket: SocketID) {
        guard let mark = clients[socket]?.marks.last else { return }
        clients[socket]!.marks = []
        delivery.confirmed(socket, mark: mark, now: now)
    }

    mutating func confirmAll() {
        for socket in clients.keys.sorted(by: { $0.number < $1.number }) { confirm(socket) }
    }

    mutating func tick(_ milliseconds: Int64) {
        now += milliseconds
        delivery.tick(now: now, into: &effects)
        carryOut()
    }

    /// One round, if there is one to be made.
    /// - Returns: whether there was.
    @discardableResult
    mutating func round(_ table: inout PushTable, fails: Bool = false) -> Bool {
        guard let round = delivery.nextRound(now: now) else { return false }
        if fails {
            delivery.failed(now: now)
        } else {
            for page in round.pages { clients[page.socket]?.isStarted = true }
            delivery.answered(table.answer(round), now: now, into: &effects)
            carryOut()
        }
        return true
    }

    /// Rounds until there is nothing more to ask; clients confirm in between, if they do.
    mutating func settle(_ table: inout PushTable, confirms: Bool = true) {
        while true {
            while round(&table) {}
            guard confirms, clients.values.contains(where: { !$0.marks.isEmpty }) else { return }
            confirmAll()
            now += 100
        }
    }

    private mutating func carryOut() {
        for effect in effects {
            switch effect {
            case .send(let socket, let body):
                let text = body.span.text
                clients[socket]?.received.append(String(text.prefix { $0 != " " }))
            case .mark(let socket, let number): clients[socket]?.marks.append(number)
            case .close(let socket, let reason): clients[socket]?.closed = reason
            }
        }
        effects.removeAll()
    }

    func received(_ socket: SocketID) -> [String] { clients[socket]?.received ?? [] }
}
