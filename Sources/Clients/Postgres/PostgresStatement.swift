/// A statement that a connection prepares once, at its first use, and then knows by name.
public struct PreparedStatement: Hashable, Sendable {
    /// Unique among the statements of a program: two statements of one name are a programming error.
    public let name: String
    public let sql: String

    public init(_ name: String, _ sql: String) {
        self.name = name
        self.sql = sql
    }
}

extension PreparedStatement {
    /// A name of a table, column or schema as SQL writes it, whatever is in it (PostgreSQL manual, 4.1.1).
    public static func quoted(_ name: String) -> String {
        let parts = name.split(separator: "\"", omittingEmptySubsequences: false)
        return "\"\(parts.joined(separator: "\"\""))\""
    }
}

/// Statements that are sent together and answered together, with one round trip.
///
/// Unless they hold a `BEGIN`, they are one transaction: if one fails, those after it are not run
/// and those before it are rolled back.
public struct PostgresPipeline: Sendable {
    enum Step: Sendable {
        case prepared(PreparedStatement, PostgresParameters)
        case unnamed(String, PostgresParameters)
    }

    private(set) var steps: [Step] = []

    public init() {}

    public var count: Int { steps.count }
    public var isEmpty: Bool { steps.isEmpty }

    public mutating func append(
        _ statement: PreparedStatement, _ parameters: PostgresParameters = PostgresParameters()
    ) {
        steps.append(.prepared(statement, parameters))
    }

    /// Appends a statement that is parsed each time.
    public mutating func append(
        _ sql: String, _ parameters: PostgresParameters = PostgresParameters()
    ) {
        steps.append(.unnamed(sql, parameters))
    }

    public mutating func removeAll() { steps.removeAll(keepingCapacity: true) }
}
