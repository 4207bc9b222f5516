internal import Bytes
internal import Crypto
internal import Foundation
internal import Postgres
public import Schemas

/// Something that an operator did. No secrets.
public struct AuditEntry: Sendable, Equatable {
    /// In the order of what was done.
    public var number: Int64
    public var time: EventTime
    public var actor: String
    /// For example `device.suspend`.
    public var action: String
    /// The id of what it was done to; empty where it was done to many.
    public var entity: String
    public var requestID: String?
    /// A JSON object: what was asked for.
    public var details: String
    /// A JSON object: what it was answered.
    public var answer: String
}

extension Registry {
    /// The lock that every change holds, with what it read.
    typealias LockedNetwork = (pool: AddressPool, network: NetworkConfiguration)

    /// Makes a change as one transaction with its row in `audit_log`.
    ///
    /// A request id that is known already changes nothing: it gets the answer that it got.
    /// - Parameters:
    ///   - entity: the id of what is changed; empty for many.
    ///   - details: what is asked for, an object without secrets.
    ///   - body: makes the change, under the registry's lock; its answer is an object without secrets.
    /// - Throws: `.requestConflict` if the id was used for something else.
    func audited<Details: Encodable, Answer: Codable>(
        _ action: String, of entity: String, _ details: Details, by request: OperatorRequest,
        _ body: (LockedNetwork) throws -> Answer
    ) throws -> Answer {
        let asked = try AuditJSON.text(details)
        let digest = Self.digest(action, entity, asked)
        return try connection.transaction {
            let locked = try lockNetwork()
            // Under the lock, so that the same request on two connections is done once.
            if let known: Answer = try earlierAnswer(to: request, digest) { return known }
            let answer = try body(locked)
            try connection.execute(
                """
                INSERT INTO heartline.audit_log (actor, action, entity, request_id, \
                request_digest, details, answer) VALUES ($1, $2, $3, $4, $5, $6, $7)
                """,
                .text(request.actor), .text(action), .text(entity),
                request.id.map { .text($0) } ?? .null,
                request.id == nil ? .null : .bytea(ByteBuffer(digest.bytes)), .jsonb(asked),
                .jsonb(try AuditJSON.text(answer)))
            return answer
        }
    }

    /// What the request was answered when it came before; `nil` if it did not, or has no id.
    func earlierAnswer<Details: Encodable, Answer: Codable>(
        _ action: String, of entity: String, _ details: Details, by request: OperatorRequest
    ) throws -> Answer? {
        let asked = try AuditJSON.text(details)
        return try earlierAnswer(to: request, Self.digest(action, entity, asked))
    }

    private func earlierAnswer<Answer: Codable>(
        to request: OperatorRequest, _ digest: Digest
    ) throws -> Answer? {
        guard let id = request.id else { return nil }
        let rows = try connection.execute(
            "SELECT request_digest, answer FROM heartline.audit_log WHERE request_id = $1",
            .text(id))
        guard let row = rows.first else { return nil }
        let known = try row.bytea(0)
        guard known == ByteBuffer(digest.bytes) else {
            throw RegistryError(
                "repeating a request", .requestConflict,
                "the request id \(id) was used for another request; take a new id")
        }
        return try AuditJSON.value(Answer.self, try row.jsonb(1))
    }

    /// Digest of a request: netstrings, so that no two requests share their bytes.
    private static func digest(_ action: String, _ entity: String, _ details: String) -> Digest {
        var bytes = ByteBuffer()
        for field in [action, entity, details] {
            bytes.append(decimal: Int64(field.utf8.count))
            bytes.append(":")
            bytes.append(ByteBuffer(field.utf8))
            bytes.append("\n")
        }
        return SHA256.hash(bytes.span)
    }

    /// What operators did, the newest first.
    /// - Parameters:
    ///   - before: continues behind the last number of the page before.
    ///   - entity: only what was done to this one.
    public func auditLog(
        limit: Int, before: Int64? = nil, entity: String? = nil
    ) throws -> [AuditEntry] {
        let rows = try connection.execute(
            """
            SELECT audit_id, at, actor, action, entity, request_id, details, answer \
            FROM heartline.audit_log \
            WHERE audit_id < $1 AND ($2::text IS NULL OR entity = $2) ORDER BY audit_id DESC LIMIT $3
            """,
            .int8(before ?? .max), entity.map { .text($0) } ?? .null, .int8(Int64(limit)))
        return try rows.map { row in
            AuditEntry(
                number: try row.int8(0),
                time: EventTime(postgresMicroseconds: try row.timestamptz(1)),
                actor: try row.text(2), action: try row.text(3), entity: try row.text(4),
                requestID: try row.optionalText(5), details: try row.jsonb(6),
                answer: try row.jsonb(7))
        }
    }
}

/// JSON with the keys in order, so that the same value has the same text.
enum AuditJSON {
    static func text(_ value: some Encodable) throws -> String {
        let encoder = JSONEncoder()
        encoder.outputFormatting = [.sortedKeys, .withoutEscapingSlashes]
        return String(decoding: try encoder.encode(value), as: UTF8.self)
    }

    static func value<Value: Decodable>(_ type: Value.Type, _ text: String) throws -> Value {
        try JSONDecoder().decode(type, from: Data(text.utf8))
    }
}
