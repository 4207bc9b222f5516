internal import Bytes
internal import CPostgres
internal import Glibc

/// One connection to a PostgreSQL server, and the only owner of its libpq handle.
///
/// Calls come in two forms. The plain ones (`execute`, `run`, `copyIn`, …) wait for the answer. The
/// others hand work over (`submit`), look after it (`advance`), and fetch the answer (`takeResults`),
/// for callers that wait on `socketDescriptor` among other things.
///
/// Every session has `plan_cache_mode=force_generic_plan` (custom plans stall large batches),
/// `TimeZone=UTC` and UTF-8; `search_path` is left alone.
/// - Thread safety: not `Sendable`. One thread at a time.
@safe public final class PostgresConnection {
    let address: String
    public let options: PostgresOptions
    var handle: OpaquePointer?
    private let noticeReceiver: NoticeReceiver?

    /// Statements that the session knows: name to text.
    var prepared: [String: String] = [:]
    /// What was submitted, in order; the first `answered` of it are done.
    var expected: [Expectation] = []
    var answered = 0
    var results: [PostgresResult] = []
    var failure: PostgresError?
    /// Tuples of a COPY that the server waits for.
    var copySource: (tuples: ByteBuffer, offset: Int)?
    /// libpq still holds bytes that the socket did not take.
    var hasUnsentBytes = false

    /// Connects, and sets the session up.
    ///
    /// - Parameter address: a `postgresql://` URL or `key=value` pairs, as libpq takes them.
    /// - Throws: also if the server is older than PostgreSQL 13. No error shows a password.
    public init(
        _ address: String, options: PostgresOptions = PostgresOptions()
    ) throws(PostgresError) {
        self.address = address
        self.options = options
        noticeReceiver = options.notice.map { NoticeReceiver($0) }
        unsafe handle = nil
        try connect()
    }

    deinit { unsafe PQfinish(handle) }

    /// Ends the connection. Every later call but `reconnect` fails.
    public func close() {
        unsafe PQfinish(handle)
        unsafe handle = nil
        prepared = [:]
        forgetWork()
    }

    /// Ends the connection and makes a new one to the same address. What the session had (prepared
    /// statements, a transaction, locks, LISTEN) is gone.
    public func reconnect() throws(PostgresError) {
        close()
        try connect()
    }

    // MARK: State

    public enum TransactionStatus: Sendable, Hashable {
        case idle
        /// A statement is being answered.
        case active
        case inTransaction
        /// Only ROLLBACK is accepted.
        case failedTransaction
        /// The connection is lost.
        case unknown
    }

    public var transactionStatus: TransactionStatus {
        guard unsafe handle != nil else { return .unknown }
        return switch unsafe PQtransactionStatus(handle) {
        case PQTRANS_IDLE: .idle
        case PQTRANS_ACTIVE: .active
        case PQTRANS_INTRANS: .inTransaction
        case PQTRANS_INERROR: .failedTransaction
        default: .unknown
        }
    }

    /// Whether the connection can be used, as far as is known without asking the server.
    public var isUsable: Bool { unsafe handle != nil && PQstatus(handle) == CONNECTION_OK }

    /// The socket to wait on between `submit` and `takeResults`; -1 if there is none.
    public var socketDescriptor: Int32 { unsafe handle == nil ? -1 : PQsocket(handle) }

    /// Whether to wait until `socketDescriptor` is writable as well as readable.
    public var wantsWrite: Bool { hasUnsentBytes || copySource != nil }

    /// For example 150020 for PostgreSQL 15.20; 0 if there is no connection.
    public var serverVersion: Int { Int(unsafe PQserverVersion(handle)) }

    /// The process of the server that serves this connection; 0 if there is none.
    public var backendProcessID: Int32 { unsafe PQbackendPID(handle) }

    // MARK: Connecting

    private func connect() throws(PostgresError) {
        unsafe handle = try start()
        do throws(PostgresError) {
            try waitUntilConnected()
            unsafe _ = PQsetErrorVerbosity(handle, PQERRORS_DEFAULT)
            guard serverVersion >= 130_000 else {
                throw PostgresError(
                    .connecting, "",
                    "the server is version \(serverVersion / 10_000), and 13 or newer is needed")
            }
            unsafe _ = PQsetnonblocking(handle, 1)
            var settings = "SET plan_cache_mode = force_generic_plan; SET TimeZone = 'UTC'"
            if let limit = options.statementTimeout {
                settings += "; SET statement_timeout = \(limit.wholeMilliseconds)"
            }
            try run(settings)
        } catch {
            close()
            var failure = error
            failure.operation = .connecting
            failure.subject = ""
            throw failure
        }
    }

    /// Parses the address, adds what it leaves open, and lets libpq begin.
    private func start() throws(PostgresError) -> OpaquePointer {
        var pairs = try PostgresConnection.parse(address)
        func setDefault(_ key: String, _ value: String) {
            if pairs[key] == nil { pairs[key] = value }
        }
        let silence = options.deadPeerTimeout.wholeMilliseconds
        setDefault("application_name", options.applicationName)
        setDefault("tcp_user_timeout", String(silence))
        setDefault("keepalives_idle", String(max(1, silence / 3_000)))
        setDefault("keepalives_interval", String(max(1, silence / 6_000)))
        setDefault("keepalives_count", "4")
        pairs["client_encoding"] = "UTF8"
        let ordered = pairs.sorted { $0.key < $1.key }
        let started = unsafe withCStrings(ordered.map(\.key)) { keys in
            unsafe withCStrings(ordered.map(\.value)) { values in
                unsafe PQconnectStartParams(keys, values, 0)
            }
        }
        guard let started = unsafe started else {
            throw PostgresError(.connecting, "", "there is no memory for a connection")
        }
        // The verbose form is the only one that shows the SQLSTATE of a refused connection.
        unsafe _ = PQsetErrorVerbosity(started, PQERRORS_VERBOSE)
        if let noticeReceiver {
            unsafe noticeReceiver.register(with: started)
        } else {
            unsafe _ = PQsetNoticeProcessor(started, { _, _ in }, nil)
        }
        return unsafe started
    }

    /// The parts of an address. libpq's own message can repeat the address with its password, so
    /// only the part before the first quotation mark is shown.
    private static func parse(_ address: String) throws(PostgresError) -> [String: String] {
        var reason: UnsafeMutablePointer<CChar>?
        guard let list = unsafe PQconninfoParse(address, &reason) else {
            let text = unsafe reason.map { unsafe String(cString: $0) } ?? ""
            unsafe PQfreemem(reason)
            let shown = text.prefix { $0 != "\"" && !$0.isNewline }
            throw PostgresError(
                .connecting, "",
                "the address is not a PostgreSQL URL or list of key=value pairs (\(shown)…)")
        }
        defer { unsafe PQconninfoFree(list) }
        var pairs: [String: String] = [:]
        var item = unsafe list
        while let keyword = unsafe item.pointee.keyword {
            if let value = unsafe item.pointee.val {
                unsafe pairs[String(cString: keyword)] = String(cString: value)
            }
            unsafe item += 1
        }
        return pairs
    }

    private func waitUntilConnected() throws(PostgresError) {
        let deadline = Deadline(after: options.connectTimeout)
        var status = PGRES_POLLING_WRITING
        if unsafe PQstatus(handle) == CONNECTION_BAD { status = PGRES_POLLING_FAILED }
        while true {
            switch status {
            case PGRES_POLLING_OK: return
            case PGRES_POLLING_READING, PGRES_POLLING_WRITING:
                let ready = waitForSocket(
                    socketDescriptor, orWritable: status == PGRES_POLLING_WRITING,
                    timeout: .milliseconds(deadline.milliseconds))
                guard ready else {
                    throw PostgresError(
                        .connecting, "",
                        "no answer within \(options.connectTimeout). Check that the server runs and can be reached",
                        isConnectionBroken: true)
                }
                status = unsafe PQconnectPoll(handle)
            default:
                throw connectionFailure()
            }
        }
    }

    /// Takes `… FATAL:  28P01: password authentication failed for user "x"` apart.
    private func connectionFailure() -> PostgresError {
        let text = PostgresError.tidy(unsafe String(cString: PQerrorMessage(handle)))
        var state: SQLState?
        var message = text
        let words = text.split(separator: " ")
        for word in words where word.count == 6 && word.last == ":" {
            // Every SQLSTATE has a digit; "FATAL" does not.
            guard let found = SQLState(word.dropLast()), word.contains(where: \.isNumber)
            else { continue }
            state = found
            message = words.filter { $0 != word }.joined(separator: " ")
            break
        }
        return PostgresError(
            .connecting, "", message, sqlState: state, isConnectionBroken: true)
    }
}

/// Lends strings to C as a list that ends with a null pointer.
private func withCStrings<Result>(
    _ strings: [String], _ body: (UnsafePointer<UnsafePointer<CChar>?>) -> Result
) -> Result {
    var copies: [UnsafeMutablePointer<CChar>?] = unsafe strings.map { unsafe strdup($0) }
    unsafe copies.append(nil)
    defer { unsafe copies.forEach { unsafe free($0) } }
    return unsafe copies.map { unsafe UnsafePointer($0) }
        .withUnsafeBufferPointer { unsafe body($0.baseAddress!) }
}

/// Hands the server's notices on. Called by libpq on the thread that uses the connection.
final class NoticeReceiver: Sendable {
    private let receive: @Sendable (String) -> Void

    init(_ receive: @escaping @Sendable (String) -> Void) { self.receive = receive }

    /// The owner must hold `self` until `connection` is finished.
    func register(with connection: OpaquePointer) {
        unsafe _ = PQsetNoticeProcessor(
            connection,
            { context, message in
                guard let context = unsafe context, let message = unsafe message else { return }
                let receiver = unsafe Unmanaged<NoticeReceiver>.fromOpaque(context)
                    .takeUnretainedValue()
                receiver.receive(PostgresError.tidy(unsafe String(cString: message)))
            }, Unmanaged.passUnretained(self).toOpaque())
    }
}
