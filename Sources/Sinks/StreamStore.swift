public import Bytes
public import Schemas

/// The database as a worker sees it: requests go in, replies come out, nothing blocks.
///
/// `PostgresSink` answers from threads of its own; the simulation answers from memory. Requests of
/// one partition are carried out in the order in which they were submitted, those of several in any. Every
/// request gets one reply, with its ticket. What to do about a reply is the worker's decision alone.
public protocol StreamStore: AnyObject {
    /// Hands a request over; `false` if too many wait already and nothing was taken.
    func submit(_ request: StoreRequest) -> Bool

    /// The oldest reply that was not taken yet.
    func nextReply() -> StoreReply?
}

public struct StoreRequest: Sendable {
    public enum Action: Sendable {
        /// Takes the partition over (a higher epoch) and reads all that is needed to go on. A
        /// partition that nobody had before begins at `start`.
        case claim(start: Int64)
        case commit(PartitionCommit)
        /// Reads epoch and offset again, after an answer was lost.
        case verify
        /// Events up to `through` of `source` were acknowledged by the log.
        case deleteOutbox(OutboxSource, through: Int64)
        /// Opens the alert `ingest-silent`, unless it is open or a beacon after `since` resolved it.
        case openIngestSilent(since: EventTime?)
        /// Resolves `ingest-silent` if it is open and the beacon at `beacon` came after its cause.
        case resolveIngestSilent(beacon: EventTime)
    }

    /// The worker's number of the request.
    public var ticket: UInt64
    public var partition: Int32
    public var action: Action

    public init(ticket: UInt64, partition: Int32, action: Action) {
        self.ticket = ticket
        self.partition = partition
        self.action = action
    }
}

/// Who numbers the events of an outbox. Each has a sequence of its own in every partition.
public enum OutboxSource: Sendable, Hashable, CaseIterable {
    /// The pipeline's processor and the dead letters of records.
    case pipeline
    /// Dead letters of rows that the database rejected.
    case rejectedRows
    /// The alert `ingest-silent`; always partition 0.
    case ingestSilent

    /// The name in column `source` of table `outbox`.
    public func name(pipeline: String) -> String {
        switch self {
        case .pipeline: pipeline
        case .rejectedRows: "\(pipeline)/rejected"
        case .ingestSilent: "\(pipeline)/ingest-silent"
        }
    }
}

public struct StoreReply: Sendable {
    public enum Outcome: Sendable {
        case claimed(PartitionClaim)
        /// Rows, events, snapshot and offset are stored; `rejected` has the dead letters of rows
        /// that were refused, which are stored too.
        case committed(rejected: OutboxBuffer)
        /// Another worker owns the partition, or the offset is not the expected one.
        case fenced
        /// `rejected`: dead letters of rejected rows that wait in the outbox.
        case verified(epoch: Int64, nextOffset: Int64, rejected: OutboxBuffer)
        case outboxDeleted
        /// Whether `ingest-silent` is open now, and what its change is to be published as.
        case ingestSilent(isOpen: Bool, event: OutboxBuffer)
        case failed(StoreFailure)
    }

    public var ticket: UInt64
    public var partition: Int32
    public var outcome: Outcome

    public init(ticket: UInt64, partition: Int32, outcome: Outcome) {
        self.ticket = ticket
        self.partition = partition
        self.outcome = outcome
    }
}

/// What the database knows of a partition that was just claimed.
public struct PartitionClaim: Sendable {
    public var epoch: Int64
    public var nextOffset: Int64
    /// Where the pipeline began, or was told to go on after a gap.
    public var startOffset: Int64
    public var outboxSequence: Int64
    /// The settings that were in force at the last commit.
    public var settingsRevision: String
    /// The newest snapshot, sealed; `nil` if there is none.
    public var snapshot: ByteBuffer?
    /// Events that were not acknowledged yet, by source; those of `ingestSilent` only with
    /// partition 0.
    public var leftovers: [OutboxSource: OutboxBuffer]

    public init(
        epoch: Int64, nextOffset: Int64, startOffset: Int64, outboxSequence: Int64,
        settingsRevision: String = "", snapshot: ByteBuffer? = nil,
        leftovers: [OutboxSource: OutboxBuffer] = [:]
    ) {
        self.epoch = epoch
        self.nextOffset = nextOffset
        self.startOffset = startOffset
        self.outboxSequence = outboxSequence
        self.settingsRevision = settingsRevision
        self.snapshot = snapshot
        self.leftovers = leftovers
    }
}

/// A request that the database did not carry out.
public struct StoreFailure: Error, Hashable, Sendable, CustomStringConvertible {
    public enum Kind: Sendable, Hashable {
        /// Nothing was changed; the same request may succeed later.
        case unavailable
        /// The answer was lost: the change was made, or not, or is about to be.
        case outcomeUnknown
        /// The database is out of disk or memory. Nothing was changed.
        case outOfResources
        /// The database refuses what we ask: a missing table, a missing right. Nothing was changed.
        case refused
    }

    public var kind: Kind
    /// What was being done and what was wrong; no secrets, no payloads.
    public var reason: String

    public init(_ kind: Kind, _ reason: String) {
        self.kind = kind
        self.reason = reason
    }

    public var description: String { reason }
}
