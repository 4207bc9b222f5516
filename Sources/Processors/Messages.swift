public import Bytes
public import Schemas

/// `Messages` has nothing to set.
public struct MessagesSettings: Hashable, Sendable {
    public init() {}
}

/// Stores messages between connected people, and pushes each to its recipient: ciphertext, unchanged.
///
/// It remembers nothing. A message that is sent again has the same ids, and the old rows stay; its
/// recipient's doorbell rings once more, which tells nobody anything new.
public struct Messages: Processor {
    public typealias Settings = MessagesSettings
    public typealias Event = MessageEvent
    public typealias Decoder = MessagesDecoder

    public static var source: Topic { .messages }
    public static var outputTopics: [Topic] { [.pushes, .deadLetters] }
    public static var tables: [TableSchema] { [.messages, .pushes] }

    private enum Table {
        static let messages = 0, pushes = 1
    }

    private var text = ByteBuffer()

    public init(partition: Int32, settings: MessagesSettings) {}

    public mutating func reconfigure(_ settings: MessagesSettings) {}

    // MARK: - Records

    public mutating func apply(
        _ message: MessageEvent, at place: RecordPlace, into effects: inout Effects
    ) {
        if !effects.isDiscarding { write(message, at: place, into: &effects) }
        text.removeAll()
        text.append(message.recipient)
        effects.emit(to: .pushes, key: text.span, at: place.timestamp, origin: place.offset) {
            $0.append(PushesEvent(account: message.recipient))
        }
    }

    private mutating func write(
        _ message: MessageEvent, at place: RecordPlace, into effects: inout Effects
    ) {
        let connection = message.connection
        let recipient = message.recipient
        effects.rows[Table.messages].beginRow(origin: place.offset)
        effects.rows[Table.messages].put(message.id)
        effects.rows[Table.messages].put(connection)
        effects.rows[Table.messages].put(message.sender)
        effects.rows[Table.messages].put(message.body.span)
        effects.rows[Table.messages].put(place.timestamp)
        effects.rows[Table.messages].put(recipient)

        let id = PushID(messageTo: recipient, of: connection, message: message.id)
        text.removeAll()
        text.append(message: id, body: message.body.span)
        effects.rows[Table.pushes].beginRow(origin: place.offset)
        effects.rows[Table.pushes].put(recipient)
        effects.rows[Table.pushes].put(id)
        effects.rows[Table.pushes].put(message.sender)
        effects.rows[Table.pushes].put(PushKind.message.name)
        effects.rows[Table.pushes].put(text.span)
        effects.rows[Table.pushes].put(place.timestamp)
    }

    // MARK: - Rows

    /// Every message is rows of its own.
    public var pendingRows: Int { 0 }

    public mutating func drain(into effects: inout Effects) {
        for table in effects.rows.indices { effects.rows[table].sortByKey() }
    }

    // MARK: - Snapshots

    private static let snapshotVersion: UInt32 = 0x4D53_0001

    public func snapshot(into bytes: inout ByteBuffer) {
        bytes.appendLittleEndian(Self.snapshotVersion)
    }

    public init(
        restoring snapshot: Span<UInt8>, partition: Int32, settings: MessagesSettings
    ) throws(SnapshotError) {
        self.init(partition: partition, settings: settings)
        var reader = ByteReader(snapshot)
        guard let version = reader.littleEndian(UInt32.self) else { throw .damaged }
        guard version == Self.snapshotVersion else { throw .unknownVersion(version) }
        guard reader.remaining == 0 else { throw .damaged }
    }
}
