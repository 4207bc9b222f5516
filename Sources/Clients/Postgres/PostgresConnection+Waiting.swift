internal import CPostgres

extension PostgresConnection {
    /// Runs a prepared statement, which is prepared first if the session does not know it.
    @discardableResult
    public func execute(
        _ statement: PreparedStatement, parameters: PostgresParameters
    ) throws(PostgresError) -> PostgresResult {
        var pipeline = PostgresPipeline()
        pipeline.append(statement, parameters)
        return try single(pipeline)
    }

    /// Runs a prepared statement, which is prepared first if the session does not know it.
    @discardableResult
    public func execute(
        _ statement: PreparedStatement, _ values: PostgresValue...
    ) throws(PostgresError) -> PostgresResult {
        try execute(statement, parameters: PostgresParameters(values))
    }

    /// Runs one statement that is parsed each time.
    @discardableResult
    public func execute(
        _ sql: String, parameters: PostgresParameters
    ) throws(PostgresError) -> PostgresResult {
        var pipeline = PostgresPipeline()
        pipeline.append(sql, parameters)
        return try single(pipeline)
    }

    /// Runs one statement that is parsed each time.
    @discardableResult
    public func execute(
        _ sql: String, _ values: PostgresValue...
    ) throws(PostgresError) -> PostgresResult {
        try execute(sql, parameters: PostgresParameters(values))
    }

    /// Runs any number of statements without parameters, as `psql` would. Unless they hold a BEGIN,
    /// they are one transaction. Their rows come as text.
    /// - Returns: one result a statement.
    @discardableResult
    public func run(_ sql: String) throws(PostgresError) -> [PostgresResult] {
        submit(simple: sql)
        return try finish()
    }

    /// Runs the statements of a pipeline with one round trip.
    /// - Returns: one result a statement, in order.
    /// - Throws: the first error, with the statement's place in `statementIndex`.
    @discardableResult
    public func run(_ pipeline: PostgresPipeline) throws(PostgresError) -> [PostgresResult] {
        submit(pipeline)
        return try finish()
    }

    /// Runs `body` in a transaction: commits what it did, or rolls back if it throws.
    ///
    /// - Throws: what `body` throws, or a `PostgresError`. After a connection loss at the COMMIT it
    ///   is unknown whether it took effect.
    @discardableResult
    public func transaction<Result>(
        _ begin: StaticString = "BEGIN", _ body: () throws -> Result
    ) throws -> Result {
        try run("\(begin)")
        do {
            let result = try body()
            // The server answers COMMIT of a failed transaction with ROLLBACK, and no error.
            guard try run("COMMIT").last?.commandTag == "COMMIT" else {
                throw PostgresError(
                    .executing, "COMMIT", "a statement had failed, so all was rolled back",
                    sqlState: .inFailedTransaction)
            }
            return result
        } catch {
            rollBack()
            throw error
        }
    }

    /// Ends an open transaction, if there is one and the server can be reached.
    public func rollBack() {
        switch transactionStatus {
        case .inTransaction, .failedTransaction: _ = try? run("ROLLBACK")
        case .idle, .active, .unknown: break
        }
    }

    /// Ends what the server is doing for this connection, through a second connection; the
    /// statement then fails with 57014. May be called between `submit` and `takeResults`.
    ///
    /// libpq's own `PQcancel` can wait for a dead server without a bound.
    public func cancel(timeout: Duration = .seconds(5)) throws(PostgresError) {
        var settings = PostgresOptions(applicationName: "heartline cancel")
        settings.connectTimeout = timeout
        settings.responseTimeout = timeout
        do throws(PostgresError) {
            let second = try PostgresConnection(address, options: settings)
            try second.execute("SELECT pg_cancel_backend($1)", .int4(backendProcessID))
        } catch {
            var failure = error
            failure.operation = .cancelling
            throw failure
        }
    }

    private func single(_ pipeline: PostgresPipeline) throws(PostgresError) -> PostgresResult {
        submit(pipeline)
        do throws(PostgresError) {
            guard let result = try finish().last else {
                throw PostgresError(.executing, "", "the server answered nothing")
            }
            return result
        } catch {
            var failure = error
            failure.statementIndex = nil
            throw failure
        }
    }

    func finish() throws(PostgresError) -> [PostgresResult] {
        while !advance() { waitForAnswer() }
        return try takeResults()
    }

    /// Waits until something can be read or sent; gives the connection up when nothing comes.
    func waitForAnswer() {
        let ready = waitForSocket(
            socketDescriptor, orWritable: wantsWrite, timeout: options.responseTimeout)
        if !ready { giveUp("no answer within \(options.responseTimeout)") }
    }
}
