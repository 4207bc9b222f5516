package import Bytes
package import Schemas

/// A socket of a front-end. No two of one front-end's life are the same.
package struct SocketID: Hashable, Sendable {
    package var number: UInt64

    package init(_ number: UInt64) { self.number = number }
}

/// A push as table `pushes` has it. Times are PostgreSQL's: microseconds since 2000.
package struct StoredPush: Sendable, Equatable {
    package var id: PushID
    package var createdAt: Int64
    /// `nil`: nobody has confirmed it.
    package var deliveredAt: Int64?
    /// `nil` if the round had no room for it any more.
    package var body: ByteBuffer?

    package init(id: PushID, createdAt: Int64, deliveredAt: Int64?, body: ByteBuffer?) {
        self.id = id
        self.createdAt = createdAt
        self.deliveredAt = deliveredAt
        self.body = body
    }
}

/// A place in an order of an account's pushes: a time (of receipt, in which missed ones are sent, or of
/// confirmation), then the id.
package struct PushPosition: Hashable, Comparable, Sendable {
    package var time: Int64
    package var id: PushID

    package init(_ time: Int64, _ id: PushID) {
        self.time = time
        self.id = id
    }

    /// Behind all of a time.
    package init(endOf time: Int64) { self.init(time, PushID(high: .max, low: .max)) }

    /// Before all.
    package static let start = PushPosition(.min, PushID(high: 0, low: 0))

    package static func < (a: Self, b: Self) -> Bool {
        a.time != b.time ? a.time < b.time : a.id < b.id
    }
}

/// What the database is told and asked in one round trip, in this order.
package struct PushRound: Sendable, Equatable {
    package struct Confirmation: Hashable, Sendable {
        package var account: AccountID
        package var push: PushID
    }

    /// Where does the push stand that a client had last?
    package struct Cursor: Sendable, Equatable {
        package var socket: SocketID
        package var account: AccountID
        package var push: PushID
    }

    /// What has a client missed that has just connected?
    package struct Page: Sendable, Equatable {
        package var socket: SocketID
        package var account: AccountID
        /// Only what stands behind it.
        package var position: PushPosition
        /// Whether the client has named what it had last. If so, it gets all that came after it, else
        /// mutuals of the last day and the messages that nobody has confirmed.
        package var hasCursor: Bool
    }

    /// What is new for an account with open sockets?
    package struct News: Sendable, Equatable {
        package var account: AccountID
        /// What was confirmed later than this is new as well, besides all that nobody has confirmed.
        package var since: PushPosition
        /// Sockets that have had all pages and take part from this answer on.
        package var joining: [SocketID]
    }

    package var confirmations: [Confirmation] = []
    package var cursors: [Cursor] = []
    package var pages: [Page] = []
    package var news: [News] = []

    package var isEmpty: Bool {
        confirmations.isEmpty && cursors.isEmpty && pages.isEmpty && news.isEmpty
    }
}

/// What the database answered to a round; each list in the order of the round's.
package struct PushAnswer: Sendable {
    /// When the round began, by the database's clock.
    package var time: Int64
    /// `nil`: there is no such push any more.
    package var cursors: [Int64?]
    /// In the order of receipt.
    package var pages: [[StoredPush]]
    /// First those that were confirmed, in the order of that; then the others in the order of receipt.
    package var news: [[StoredPush]]

    package init(time: Int64, cursors: [Int64?], pages: [[StoredPush]], news: [[StoredPush]]) {
        self.time = time
        self.cursors = cursors
        self.pages = pages
        self.news = news
    }
}

/// What is to be done with a socket.
package enum PushEffect: Sendable, Equatable {
    case send(SocketID, ByteBuffer)
    /// Ask it to confirm what it was sent.
    case mark(SocketID, UInt64)
    case close(SocketID, Reason)

    package enum Reason: Sendable, Equatable {
        /// The account has opened too many others since.
        case tooMany
        /// It takes what it is sent too slowly.
        case slow
    }
}
