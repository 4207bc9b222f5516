public import Bytes
internal import Crypto
internal import JSON

/// What could not be processed, with where it came from and why: the value of a record of topic
/// `dead-letters`.
public struct DeadLetter: Sendable {
    public var topic: Topic
    public var partition: Int32
    public var offset: Int64
    /// What was wrong; no secrets.
    public var reason: String

    public init(topic: Topic, partition: Int32, offset: Int64, reason: String) {
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.reason = reason
    }

    /// Appends the dead letter of a record that could not be decoded. `value` is `nil` for a
    /// tombstone.
    public func append(to json: inout ByteBuffer, key: Span<UInt8>, value: Span<UInt8>?) {
        appendHead(to: &json)
        // A key is text that people read; one that is not is kept byte by byte.
        if String(validating: key.array, as: UTF8.self) != nil {
            json.append(",\"key\":")
            json.append(jsonString: key)
        }
        json.append(",\"key_base64\":\"")
        json.append(base64Of: key)
        json.append("\"")
        if let value {
            json.append(",\"value_base64\":\"")
            json.append(base64Of: value)
            json.append("\"")
        }
        json.append("}")
    }

    /// Appends the dead letter of a row that the database rejected: the row as a `COPY … BINARY`
    /// tuple of `table`.
    public func append(to json: inout ByteBuffer, table: String, row: Span<UInt8>) {
        appendHead(to: &json)
        json.append(",\"table\":")
        json.append(jsonString: table)
        json.append(",\"row_base64\":\"")
        json.append(base64Of: row)
        json.append("\"}")
    }

    private func appendHead(to json: inout ByteBuffer) {
        json.append("{\"v\":1,\"topic\":")
        json.append(jsonString: topic.rawValue)
        json.append(",\"partition\":")
        json.append(decimal: Int64(partition))
        json.append(",\"offset\":")
        json.append(decimal: offset)
        json.append(",\"reason\":")
        json.append(jsonString: reason)
    }
}
