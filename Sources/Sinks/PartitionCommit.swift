public import Bytes
public import Schemas

/// What one partition of a pipeline stores in one transaction: rows, events, a snapshot now and
/// then, and the offset up to which all of that follows from the log.
public struct PartitionCommit: Sendable {
    /// The epoch under which the partition was claimed.
    public var epoch: Int64 = 0
    /// The offset that must be stored now.
    public var expectedOffset: Int64 = 0
    /// The offset that is stored from here on; greater than `expectedOffset`, so that an offset read
    /// after a lost answer tells whether the commit was made. Equal to it where a snapshot is all that
    /// is stored.
    public var nextOffset: Int64 = 0
    /// One for each table of the processor, in the order in which they are written.
    public var rows: [RowBuffer]
    public var outbox = OutboxBuffer()
    /// The sequence that the partition's next event gets.
    public var outboxSequence: Int64 = 0
    /// The complete state as of `snapshotOffset`, sealed.
    public var snapshot: ByteBuffer?
    /// The first offset that a restart from the snapshot applies again: `nextOffset` or before it.
    public var snapshotOffset: Int64 = 0
    /// The latest receipt among the records that were applied since the partition was claimed.
    public var newest = EventTime(milliseconds: 0)
    /// Stored when settings take effect: their revision and the first offset judged by them.
    public var settings: (revision: String, offset: Int64)?

    public init(tables: [TableSchema]) { rows = tables.map(RowBuffer.init) }

    public var rowCount: Int { rows.reduce(0) { $0 + $1.count } }

    /// The part of the sequence space of `OutboxSource.rejectedRows` that belongs to this commit.
    ///
    /// Offsets before 2^43 and a million rows a commit fit; derived from the expected offset, so it
    /// grows from commit to commit, and a repetition numbers as the first try did.
    public var firstRejectedSequence: Int64 { expectedOffset << 20 }

    /// Forgets what was stored; the capacity for a calm hour stays.
    public mutating func clear() {
        for index in rows.indices { rows[index].removeAll() }
        outbox.removeAll()
        snapshot = nil
        settings = nil
    }
}
