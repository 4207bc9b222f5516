public import Bytes
internal import CPostgres

extension PostgresConnection {
    /// Something that the server has been sent and has yet to answer.
    enum Expectation {
        case preparation(PreparedStatement, index: Int)
        case statement(subject: String, index: Int)
        case simple(subject: String)
        case copy(subject: String, tuples: ByteBuffer)
        /// The end of a pipeline.
        case sync

        var operation: PostgresError.Operation {
            switch self {
            case .preparation: .preparing
            case .copy: .copyingIn
            case .statement, .simple, .sync: .executing
            }
        }

        var subject: String {
            switch self {
            case .preparation(let statement, _): statement.name
            case .statement(let subject, _), .simple(let subject), .copy(let subject, _): subject
            case .sync: "the end of a pipeline"
            }
        }

        var index: Int? {
            switch self {
            case .preparation(_, let index), .statement(_, let index): index
            case .simple, .copy, .sync: nil
            }
        }
    }

    // MARK: Submitting

    /// Hands a pipeline over without waiting. What was submitted before must have been taken.
    ///
    /// Errors are kept for `takeResults`.
    public func submit(_ pipeline: PostgresPipeline) {
        guard begin(), !pipeline.isEmpty else { return }
        unsafe _ = PQenterPipelineMode(handle)
        var preparing: [String: String] = [:]
        for (index, step) in pipeline.steps.enumerated() {
            let sent =
                switch step {
                case .prepared(let statement, let parameters):
                    prepare(statement, parameters, index, &preparing)
                        && send(parameters, statement.name, isName: true, index)
                case .unnamed(let sql, let parameters):
                    send(parameters, sql, isName: false, index)
                }
            if !sent { return lose() }
        }
        expected.append(.sync)
        guard unsafe PQpipelineSync(handle) == 1 else { return lose() }
        _ = advance()
    }

    /// Hands any number of statements without parameters over without waiting.
    public func submit(simple sql: String) {
        guard begin() else { return }
        expected.append(.simple(subject: PostgresError.shortened(sql)))
        guard unsafe PQsendQuery(handle, sql) == 1 else { return lose() }
        _ = advance()
    }

    /// Hands a `COPY … FROM STDIN (FORMAT binary)` and its tuples over without waiting.
    ///
    /// - Parameter tuples: without header and trailer; for each tuple a 2-byte number of fields,
    ///   then each field's 4-byte length and bytes.
    public func submit(copy sql: String, tuples: ByteBuffer) {
        guard begin() else { return }
        expected.append(.copy(subject: PostgresError.shortened(sql), tuples: tuples))
        guard unsafe PQsendQuery(handle, sql) == 1 else { return lose() }
        _ = advance()
    }

    /// Sends and reads what can be without waiting.
    /// - Returns: whether all that was submitted is answered, or has failed.
    public func advance() -> Bool {
        while answered < expected.count {
            flush()
            guard answered < expected.count else { break }
            guard unsafe PQconsumeInput(handle) == 1 else {
                lose()
                break
            }
            var hasProgressed = false
            while answered < expected.count {
                if copySource != nil, !feedCopy() { break }
                if unsafe answered == expected.count || PQisBusy(handle) == 1 { break }
                takeAnswer()
                hasProgressed = true
            }
            if !hasProgressed { break }
        }
        return answered == expected.count
    }

    /// The answers to what was submitted, one a statement, in order. Call it when `advance` has
    /// returned true.
    /// - Throws: the first error, with the statement's place in `statementIndex`.
    public func takeResults() throws(PostgresError) -> [PostgresResult] {
        precondition(answered == expected.count, "results are taken before they are there")
        if unsafe handle != nil && PQpipelineStatus(handle) != PQ_PIPELINE_OFF {
            unsafe _ = PQexitPipelineMode(handle)
        }
        let (taken, error) = (results, failure)
        forgetWork()
        if let error { throw error }
        return taken
    }

    /// Whether something was submitted whose results were not taken.
    public var hasOutstandingWork: Bool { !expected.isEmpty || failure != nil }

    // MARK: Parts

    func forgetWork() {
        expected.removeAll(keepingCapacity: true)
        answered = 0
        results = []
        failure = nil
        copySource = nil
        hasUnsentBytes = false
    }

    private func begin() -> Bool {
        precondition(!hasOutstandingWork, "work is submitted before earlier results are taken")
        if isUsable { return true }
        failure = PostgresError(
            .executing, "", "the connection is closed", isConnectionBroken: true)
        return false
    }

    /// Sends the text of a statement that the session does not know.
    private func prepare(
        _ statement: PreparedStatement, _ parameters: PostgresParameters, _ index: Int,
        _ preparing: inout [String: String]
    ) -> Bool {
        if let known = prepared[statement.name] ?? preparing[statement.name] {
            precondition(known == statement.sql, "two statements are named \(statement.name)")
            return true
        }
        preparing[statement.name] = statement.sql
        expected.append(.preparation(statement, index: index))
        let types = parameters.fields.map(\.type.rawValue)
        return unsafe PQsendPrepare(
            handle, statement.name, statement.sql, Int32(types.count), types) == 1
    }

    /// Sends a statement by its name, or by its text.
    private func send(
        _ parameters: PostgresParameters, _ statement: String, isName: Bool, _ index: Int
    ) -> Bool {
        let fields = parameters.fields
        precondition(fields.count <= 65_535, "a statement takes 65,535 parameters at most")
        let subject = isName ? statement : PostgresError.shortened(statement)
        expected.append(.statement(subject: subject, index: index))
        let sizes = fields.map { max(0, $0.size) }
        let formats: [Int32] = fields.map { $0.isText ? 0 : 1 }
        return unsafe parameters.bytes.withUnsafeBytes { raw in
            let values: [UnsafePointer<CChar>?] = unsafe fields.map { field in
                field.size < 0
                    ? nil
                    : unsafe (raw.baseAddress! + field.start).assumingMemoryBound(to: CChar.self)
            }
            if isName {
                return unsafe PQsendQueryPrepared(
                    handle, statement, Int32(fields.count), values, sizes, formats, 1) == 1
            }
            let types = fields.map(\.type.rawValue)
            return unsafe PQsendQueryParams(
                handle, statement, Int32(fields.count), types, values, sizes, formats, 1) == 1
        }
    }

    /// Gives the socket what it takes.
    func flush() {
        switch unsafe PQflush(handle) {
        case 0: hasUnsentBytes = false
        case 1: hasUnsentBytes = true
        default:
            // The server may have said why before it hung up.
            unsafe _ = PQconsumeInput(handle)
            lose()
        }
    }

    /// Reads one result of the statement that is next in turn.
    private func takeAnswer() {
        let current = expected[answered]
        guard let result = unsafe PQgetResult(handle) else {
            // The end of a statement's results, unless the connection's end is meant. Nothing of
            // the kind follows the end of a pipeline.
            if unsafe PQstatus(handle) == CONNECTION_BAD { return lose() }
            if case .sync = current { return }
            answered += 1
            return
        }
        switch unsafe PQresultStatus(result) {
        case PGRES_COMMAND_OK, PGRES_TUPLES_OK, PGRES_EMPTY_QUERY:
            if case .preparation(let statement, _) = current {
                prepared[statement.name] = statement.sql
                unsafe PQclear(result)
            } else {
                results.append(unsafe PostgresResult(owning: result, subject: current.subject))
            }
        case PGRES_PIPELINE_SYNC:
            unsafe PQclear(result)
            answered += 1
        case PGRES_PIPELINE_ABORTED:
            unsafe PQclear(result)
        case PGRES_COPY_IN:
            unsafe PQclear(result)
            if case .copy(_, let tuples) = current {
                beginCopy(tuples)
            } else {
                unsafe _ = PQputCopyEnd(handle, "COPY FROM STDIN goes through copyIn")
            }
        case PGRES_COPY_OUT, PGRES_COPY_BOTH:
            unsafe PQclear(result)
            giveUp("COPY TO STDOUT goes through copyOut")
        default:
            var error = unsafe PostgresError(current.operation, current.subject, result: result)
            error.statementIndex = current.index
            unsafe PQclear(result)
            if failure == nil { failure = error }
            if unsafe PQstatus(handle) == CONNECTION_BAD { lose() }
        }
    }

    /// Notes that the connection is gone: everything outstanding has failed.
    func lose() {
        let current = answered < expected.count ? expected[answered] : nil
        let operation = current?.operation ?? .executing
        let subject = current?.subject ?? ""
        var reason = failure
        // What was read before the end can hold the server's own reason.
        while reason == nil, unsafe PQstatus(handle) == CONNECTION_BAD,
            let result = unsafe PQgetResult(handle)
        {
            if unsafe PQresultStatus(result) == PGRES_FATAL_ERROR {
                reason = unsafe PostgresError(operation, subject, result: result)
            }
            unsafe PQclear(result)
        }
        let text = PostgresError.tidy(unsafe String(cString: PQerrorMessage(handle)))
        breakOff(reason ?? PostgresError(operation, subject, text), at: current)
    }

    /// Hangs up: what the server does now is unknown.
    func giveUp(_ reason: String) {
        let current = answered < expected.count ? expected[answered] : nil
        breakOff(
            PostgresError(current?.operation ?? .executing, current?.subject ?? "", reason),
            at: current)
    }

    private func breakOff(_ error: PostgresError, at current: Expectation?) {
        unsafe PQfinish(handle)
        unsafe handle = nil
        prepared = [:]
        var error = error
        error.isConnectionBroken = true
        error.statementIndex = error.statementIndex ?? current?.index
        failure = error
        answered = expected.count
        copySource = nil
        hasUnsentBytes = false
    }
}
