internal import CPostgres

/// A PostgreSQL call that failed: what was being done, what the server or libpq said, what to do next.
public struct PostgresError: Error, Hashable, Sendable, CustomStringConvertible {
    public enum Operation: String, Sendable {
        case connecting, preparing, executing, cancelling
        case copyingIn = "copying in"
        case copyingOut = "copying out"
        case reading = "reading the result of"
        case listening
    }

    public var operation: Operation
    /// The statement's name, or the beginning of its text; empty where there is none.
    public var subject: String
    /// Place of the statement in its pipeline, from 0; `nil` outside a pipeline.
    public var statementIndex: Int?
    /// `nil` where the error arose in this process or on the way to the server.
    public var sqlState: SQLState?
    public var message: String
    /// What the server adds. It can hold values of the row, so `description` leaves it out.
    public var detail: String?
    public var hint: String?
    public var constraint: String?
    public var table: String?
    public var column: String?
    /// The connection is unusable: `reconnect()` before the next call.
    public var isConnectionBroken: Bool

    public init(
        _ operation: Operation, _ subject: String = "", _ message: String,
        sqlState: SQLState? = nil, isConnectionBroken: Bool = false
    ) {
        self.operation = operation
        self.subject = subject
        self.sqlState = sqlState
        self.message = message
        self.isConnectionBroken = isConnectionBroken
    }

    /// The server went away, or is not there to be connected to: nobody's data is at fault.
    /// After a COMMIT it is unknown whether it took effect.
    public var isConnectionLoss: Bool {
        guard let sqlState else { return isConnectionBroken }
        // A server that answers a connection with, say, a wrong password is there.
        if isConnectionBroken && operation != .connecting { return true }
        return sqlState.classCode == "08" || sqlState == .adminShutdown
            || sqlState == .crashShutdown || sqlState == .cannotConnectNow
    }

    /// The row's own fault (classes 22 and 23, and 54: a value too large for an index): the same
    /// row fails again.
    public var isDataError: Bool {
        guard let sqlState, !isConnectionLoss else { return false }
        return ["22", "23", "54"].contains(sqlState.classCode)
    }

    /// Lost against a concurrent transaction: the same transaction may succeed if run again.
    public var isSerialization: Bool {
        sqlState == .serializationFailure || sqlState == .deadlockDetected
    }

    /// The server lacks memory, disk or connections (class 53), was told to give up (57014), or a
    /// lock was not to be had (55P03).
    public var isShortage: Bool {
        guard let sqlState else { return false }
        return sqlState.classCode == "53" || sqlState == .queryCanceled
            || sqlState == .lockNotAvailable
    }

    /// The same work may succeed later without a change to it.
    public var isRetryable: Bool { isConnectionLoss || isSerialization || isShortage }

    public var description: String {
        var text = operation.rawValue
        text += subject.isEmpty ? " (PostgreSQL)" : " \(subject)"
        if let statementIndex { text += " (statement \(statementIndex) of a pipeline)" }
        text += ": \(message)"
        if let sqlState { text += " (\(sqlState))" }
        if let constraint { text += ", constraint \(constraint)" }
        if let hint { text += ". \(hint)" }
        return text
    }
}

extension PostgresError {
    /// The error that a `PGRES_FATAL_ERROR` result carries.
    init(_ operation: Operation, _ subject: String, result: OpaquePointer?) {
        func field(_ code: Unicode.Scalar) -> String? {
            unsafe PQresultErrorField(result, Int32(code.value)).map { unsafe String(cString: $0) }
        }
        let whole = unsafe String(cString: PQresultErrorMessage(result))
        self.init(
            operation, subject, field("M") ?? PostgresError.tidy(whole),
            sqlState: field("C").flatMap { SQLState($0) })
        detail = field("D")
        hint = field("H")
        constraint = field("n")
        table = field("t")
        column = field("c")
    }

    /// What libpq says of a connection, on one line.
    static func tidy(_ text: String) -> String {
        let joined = text.split(whereSeparator: \.isNewline)
            .filter { !$0.hasPrefix("LOCATION:") }
            .map { $0.drop(while: \.isWhitespace) }
            .joined(separator: "; ")
        return joined.isEmpty ? "the connection to the server was lost" : joined
    }

    /// The beginning of a statement's text, on one line.
    static func shortened(_ sql: String) -> String {
        let words = sql.prefix(200).split(whereSeparator: \.isWhitespace).joined(separator: " ")
        return words.count > 60 ? words.prefix(60) + "…" : words
    }
}
