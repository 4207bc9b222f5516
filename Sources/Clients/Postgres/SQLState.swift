/// A five-character SQLSTATE, as PostgreSQL reports it with each of its errors.
///
/// - SeeAlso: PostgreSQL manual, appendix A, "PostgreSQL Error Codes".
public struct SQLState: Hashable, Sendable, CustomStringConvertible {
    /// Five upper-case letters and digits.
    public let code: String

    /// `nil` unless `code` is five upper-case letters and digits.
    public init?(_ code: some StringProtocol) {
        guard code.utf8.count == 5,
            code.utf8.allSatisfy({ 0x30...0x39 ~= $0 || 0x41...0x5A ~= $0 })
        else { return nil }
        self.code = String(code)
    }

    private init(known code: String) { self.code = code }

    /// The first two characters: what kind of error it is.
    public var classCode: Substring { code.prefix(2) }

    public var description: String { code }

    public static let characterNotInRepertoire = SQLState(known: "22021")
    public static let invalidTextRepresentation = SQLState(known: "22P02")
    public static let foreignKeyViolation = SQLState(known: "23503")
    public static let uniqueViolation = SQLState(known: "23505")
    public static let checkViolation = SQLState(known: "23514")
    public static let inFailedTransaction = SQLState(known: "25P02")
    public static let invalidPassword = SQLState(known: "28P01")
    public static let undefinedDatabase = SQLState(known: "3D000")
    public static let serializationFailure = SQLState(known: "40001")
    public static let deadlockDetected = SQLState(known: "40P01")
    public static let insufficientPrivilege = SQLState(known: "42501")
    public static let undefinedTable = SQLState(known: "42P01")
    public static let duplicateDatabase = SQLState(known: "42P04")
    public static let tooManyConnections = SQLState(known: "53300")
    public static let lockNotAvailable = SQLState(known: "55P03")
    public static let queryCanceled = SQLState(known: "57014")
    public static let adminShutdown = SQLState(known: "57P01")
    public static let crashShutdown = SQLState(known: "57P02")
    public static let cannotConnectNow = SQLState(known: "57P03")
}
