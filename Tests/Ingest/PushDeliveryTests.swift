import Bytes
import Ingest
import Schemas
import Simulation
import TestSupport
import Testing

private let anna = AccountID(high: 0, low: 0xA)
private let bert = AccountID(high: 0, low: 0xB)

@Suite("Pushes: what is sent to which socket") struct PushDeliveryTests {
    private var table: PushTable
    private var frontEnd: PushFrontEnd

    init() {
        table = PushTable(PushLimits())
        frontEnd = PushFrontEnd(PushLimits())
    }

    @Test("a socket that opens gets what nobody has confirmed, and mutuals of the last day")
    mutating func missed() {
        table.insert(anna, age: 31 * PushTable.day)
        table.insert(anna, age: 29 * PushTable.day)
        table.confirm(table.insert(anna, age: 1_000))
        table.confirm(table.insert(anna, .mutual, age: 1_000))
        table.insert(anna, .mutual, age: 2 * PushTable.day)
        table.insert(bert)
        let socket = frontEnd.open(anna)
        frontEnd.settle(&table)
        #expect(frontEnd.received(socket) == ["2", "4"])
        // What was confirmed meanwhile is not sent again.
        let second = frontEnd.open(anna)
        frontEnd.settle(&table)
        #expect(frontEnd.received(second) == ["4"])
        #expect(frontEnd.received(socket) == ["2", "4"])
    }

    @Test("each live socket of an account gets a new push once, on every front-end")
    mutating func everySocket() {
        var other = PushFrontEnd(PushLimits())
        let sockets = (0..<3).map { _ in frontEnd.open(anna) }
        let far = other.open(anna)
        let stranger = frontEnd.open(bert)
        frontEnd.settle(&table)
        other.settle(&table)
        table.insert(anna, .mutual)
        frontEnd.delivery.rung(anna)
        frontEnd.settle(&table)
        // By now it is confirmed, and the other front-end has yet to ask.
        #expect(table.rows[0].deliveredAt != nil)
        other.delivery.rung(anna)
        other.settle(&table)
        for _ in 0..<3 {
            frontEnd.delivery.rung(anna)
            frontEnd.settle(&table)
            other.delivery.rung(anna)
            other.settle(&table)
        }
        for socket in sockets { #expect(frontEnd.received(socket) == ["1"]) }
        #expect(other.received(far) == ["1"])
        #expect(frontEnd.received(stranger) == [])
    }

    @Test("a push counts as delivered when a client has answered, and not before")
    mutating func confirmation() {
        let push = table.insert(anna)
        let socket = frontEnd.open(anna)
        frontEnd.settle(&table, confirms: false)
        frontEnd.tick(10_000)
        frontEnd.settle(&table, confirms: false)
        #expect(frontEnd.received(socket) == ["1"])
        #expect(table.row(push)?.deliveredAt == nil)
        // It goes without having answered; the next one gets it as well.
        frontEnd.close(socket)
        let next = frontEnd.open(anna)
        frontEnd.settle(&table)
        frontEnd.tick(100)
        frontEnd.settle(&table)
        #expect(frontEnd.received(next) == ["1"])
        #expect(table.row(push)?.deliveredAt != nil)
    }

    @Test("a cursor brings all that came after it, in the order of receipt")
    mutating func cursor() {
        let pushes = (0..<6).map { _ in table.insert(anna) }
        for push in pushes.prefix(4) { table.confirm(push) }
        let socket = frontEnd.open(anna, after: pushes[1])
        frontEnd.settle(&table)
        #expect(frontEnd.received(socket) == ["3", "4", "5", "6"])
        let last = frontEnd.open(anna, after: pushes[5])
        frontEnd.settle(&table)
        #expect(frontEnd.received(last) == [])
    }

    @Test("a cursor that is not known is answered with resync, then what was missed")
    mutating func resync() {
        table.confirm(table.insert(anna))
        let gone = table.insert(anna)
        table.remove(gone)
        table.insert(anna)
        let socket = frontEnd.open(anna, after: gone)
        frontEnd.settle(&table)
        #expect(frontEnd.received(socket) == ["{\"type\":\"resync\"}", "3"])
    }

    @Test("a doorbell that is lost delays a push until the next sweep")
    mutating func sweep() {
        let socket = frontEnd.open(anna)
        frontEnd.settle(&table)
        table.insert(anna)
        frontEnd.tick(1_000)
        frontEnd.settle(&table)
        #expect(frontEnd.received(socket) == [])
        for _ in 0..<9 { frontEnd.tick(1_000) }
        frontEnd.settle(&table)
        #expect(frontEnd.received(socket) == ["1"])
    }

    @Test("a round that is not answered is made again")
    mutating func failedRounds() {
        let push = table.insert(anna)
        let socket = frontEnd.open(anna)
        for _ in 0..<3 { #expect(frontEnd.round(&table, fails: true)) }
        while frontEnd.round(&table) {}
        #expect(frontEnd.received(socket) == ["1"])
        table.insert(anna)
        frontEnd.delivery.rung(anna)
        frontEnd.confirmAll()
        frontEnd.now += 100
        #expect(frontEnd.round(&table, fails: true))
        while frontEnd.round(&table) {}
        #expect(frontEnd.received(socket) == ["1", "2"])
        #expect(table.row(push)?.deliveredAt != nil)
    }

    @Test("the oldest of too many sockets of one account is closed")
    mutating func tooMany() {
        let sockets = (0..<9).map { _ in frontEnd.open(anna) }
        #expect(frontEnd.clients[sockets[0]]?.closed == .tooMany)
        table.insert(anna)
        frontEnd.settle(&table)
        #expect(frontEnd.received(sockets[0]) == [])
        for socket in sockets.dropFirst() {
            #expect(frontEnd.clients[socket]?.closed == nil)
            #expect(frontEnd.received(socket) == ["1"])
        }
    }

    @Test("who does not confirm is sent no more than the window, and closed; others get all")
    mutating func slow() {
        for _ in 0..<100 { table.insert(anna, bytes: 10_000) }
        let slow = frontEnd.open(anna)
        frontEnd.settle(&table, confirms: false)
        #expect(frontEnd.received(slow).count == 27)
        // Marks are set on the way, so that what is taken counts.
        #expect(frontEnd.clients[slow]!.marks.count == 4)
        let fast = frontEnd.open(anna)
        for _ in 0..<40 {
            frontEnd.settle(&table, confirms: false)
            frontEnd.confirm(fast)
            frontEnd.tick(1_000)
        }
        #expect(frontEnd.clients[slow]?.closed == .slow)
        #expect(frontEnd.clients[fast]?.closed == nil)
        #expect(frontEnd.received(fast) == (1...100).map { "\($0)" })
    }

    @Test("who takes its time but goes on is not closed")
    mutating func progress() {
        for _ in 0..<100 { table.insert(anna, bytes: 10_000) }
        let socket = frontEnd.open(anna)
        for _ in 0..<40 {
            frontEnd.settle(&table, confirms: false)
            frontEnd.tick(25_000)
            frontEnd.confirm(socket)
        }
        #expect(frontEnd.clients[socket]?.closed == nil)
        #expect(frontEnd.received(socket) == (1...100).map { "\($0)" })
    }

    @Test("many live pushes come whole and once, however few a question brings")
    mutating func windows() {
        let socket = frontEnd.open(anna)
        frontEnd.settle(&table)
        for _ in 0..<1_000 { table.insert(anna) }
        frontEnd.delivery.rung(anna)
        frontEnd.settle(&table)
        #expect(frontEnd.received(socket) == (1...1_000).map { "\($0)" })
    }

    @Test("what another front-end has delivered in thousands comes whole")
    mutating func deliveredElsewhere() {
        let socket = frontEnd.open(anna)
        frontEnd.settle(&table)
        for _ in 0..<3_000 { table.confirm(table.insert(anna)) }
        frontEnd.delivery.rung(anna)
        frontEnd.settle(&table)
        #expect(Set(frontEnd.received(socket)).count == 3_000)
    }

    @Test("bodies that a round has no room for come with the next")
    mutating func roundBytes() {
        var limits = PushLimits()
        limits.roundBytes = 25
        table = PushTable(limits)
        frontEnd = PushFrontEnd(limits)
        let live = frontEnd.open(bert)
        frontEnd.settle(&table)
        for _ in 0..<5 {
            table.insert(anna)
            table.insert(bert)
        }
        let socket = frontEnd.open(anna)
        frontEnd.delivery.rung(bert)
        frontEnd.settle(&table)
        #expect(frontEnd.received(socket) == ["1", "3", "5", "7", "9"])
        #expect(frontEnd.received(live) == ["2", "4", "6", "8", "10"])
    }

    /// Front-ends, clients that come and go, answer late or never, doorbells that get lost and rounds that
    /// fail: whoever stayed open got each push exactly once, and nobody's push stays unconfirmed.
    @Test("nothing is lost, whatever happens", arguments: 0..<UInt64(60))
    func storms(seed: UInt64) {
        var random = SplitMix64(seed: seed)
        var limits = PushLimits()
        limits.openRows = 4
        limits.pageRows = 3
        limits.deliveredRows = 8
        limits.confirmations = 3
        limits.windowBytes = 50
        limits.markBytes = 20
        limits.roundBytes = 60
        limits.roundAccounts = 2
        limits.roundPages = 2
        limits.accountSockets = 100
        var table = PushTable(limits)
        var frontEnds = (0..<3).map { _ in PushFrontEnd(limits) }
        let accounts = (1...4).map { AccountID(high: 0, low: $0) }
        func pick(_ count: Int) -> Int { Int.random(in: 0..<count, using: &random) }
        // Which pushes came while the socket was open, and what it had missed was asked for.
        var due: [Int: [SocketID: [String]]] = [:]
        for _ in 0..<400 {
            let place = pick(3)
            switch pick(12) {
            case 0...2:
                let account = accounts[pick(4)]
                let push = table.insert(
                    account, pick(2) == 0 ? .mutual : .message, bytes: 5 + pick(20))
                for index in 0..<3 {
                    for (socket, client) in frontEnds[index].clients
                    where client.account == account && client.isStarted {
                        due[index, default: [:]][socket, default: []].append("\(push.low)")
                    }
                    if pick(3) > 0 { frontEnds[index].delivery.rung(account) }
                }
            case 3: frontEnds[place].open(accounts[pick(4)])
            case 4:
                let sockets = frontEnds[place].clients.keys.sorted { $0.number < $1.number }
                if !sockets.isEmpty, pick(3) == 0 {
                    let socket = sockets[pick(sockets.count)]
                    frontEnds[place].close(socket)
                    due[place]?[socket] = nil
                }
            case 5...6: frontEnds[place].round(&table, fails: true)
            case 7...8: frontEnds[place].confirmAll()
            case 9: frontEnds[place].tick(Int64(pick(3_000)))
            default: frontEnds[place].round(&table)
            }
        }
        for _ in 0..<3 {
            for index in 0..<3 {
                for _ in 0..<12 {
                    frontEnds[index].tick(1_000)
                    frontEnds[index].settle(&table)
                }
            }
        }
        for (index, sockets) in due {
            for (socket, pushes) in sockets {
                let received = frontEnds[index].received(socket)
                #expect(
                    Set(pushes).isSubset(of: received),
                    "seed \(seed): \(socket) of \(index) misses \(Set(pushes).subtracting(received))"
                )
                #expect(
                    Set(received).count == received.count,
                    "seed \(seed): \(socket) of \(index) got something twice: \(received)")
            }
        }
        let open = Set(frontEnds.flatMap { $0.clients.values.map(\.account) })
        for row in table.rows where open.contains(row.account) {
            #expect(row.deliveredAt != nil, "seed \(seed): \(row.id) is not confirmed")
        }
    }
}
