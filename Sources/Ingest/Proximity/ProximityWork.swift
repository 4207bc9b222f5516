internal import Bytes
internal import Crypto
internal import HTTP
internal import JSON
internal import JWT
internal import Postgres
internal import Schemas

/// One request's statements, and what their results mean. No I/O: many of them share a round trip.
struct ProximityWork {
    let call: ProximityCall
    /// Of a sign-in.
    private let session: (token: String, id: SessionID)?
    private let newAccount: AccountID?

    init(_ call: ProximityCall) throws(CryptoError) {
        self.call = call
        if case .signIn = call {
            session = try SessionID.make()
            newAccount = try AccountID.random()
        } else {
            session = nil
            newAccount = nil
        }
    }

    /// What a request comes to.
    enum Outcome {
        case done
        case json(ByteBuffer)
        case fault(ProximityFault)
        /// `done`, once these are in the log.
        case publish([ProximityEvent])
        /// Once these are in the log, its rows are to be erased.
        case erase([ProximityEvent], Caller)
        /// `done`, and the session has ended.
        case ended(SessionID)
    }

    /// In this order requests of a batch are written, so that no two transactions wait for each other.
    var order: (kind: Int, key: String) {
        switch call {
        case .signIn(let signIn): return (0, "\(signIn.provider) \(signIn.claims.subject)")
        case .exchange, .eraseRows: return (9, "")
        case .request(let request, let caller):
            switch request {
            case .revoke: return (1, caller.session.digest.hex)
            case .register(let token, _, _): return (2, token.description)
            case .storeKey: return (3, caller.account.description)
            case .block: return (4, caller.account.description)
            default: return (5, "")
            }
        }
    }

    /// Whether it is done alone, in a transaction of its own.
    var isLarge: Bool { if case .eraseRows = call { true } else { false } }

    // MARK: - Statements

    /// - Returns: the number of statements.
    func append(to pipeline: inout PostgresPipeline) -> Int {
        var parameters = PostgresParameters()
        switch call {
        case .exchange: return 0
        case .signIn(let signIn):
            guard let session, let newAccount else { return 0 }
            parameters.append(newAccount)
            parameters.append(text: signIn.provider.rawValue)
            parameters.append(text: signIn.claims.subject)
            parameters.append(optional: signIn.claims.name)
            parameters.append(optional: signIn.claims.email)
            parameters.append(session.id)
            pipeline.append(ProximityStatements.signIn, parameters)
            return 1
        case .eraseRows(let caller):
            parameters.append(caller.account)
            pipeline.append(ProximityStatements.erase, parameters)
            return 1
        case .request(let request, let caller): return append(request, caller, to: &pipeline)
        }
    }

    private func append(
        _ request: ProximityRequest, _ caller: Caller, to pipeline: inout PostgresPipeline
    ) -> Int {
        var parameters = PostgresParameters()
        switch request {
        case .revoke:
            parameters.append(caller.session)
            pipeline.append(ProximityStatements.revoke, parameters)
        case .register(let token, let tier, let cell):
            parameters.append(token)
            parameters.append(caller.account)
            parameters.append(tier)
            parameters.append(cell)
            pipeline.append(ProximityStatements.register, parameters)
            var account = PostgresParameters()
            account.append(caller.account)
            pipeline.append(ProximityStatements.dropOldest, account)
            return 2
        case .nearby(let cell, let tier):
            // Near a pole a neighbour can be one's own neighbour's twin.
            let cells = Set([cell] + cell.neighbors).map(\.description).sorted()
            parameters.append(.textArray(cells))
            parameters.append(tier)
            parameters.append(caller.account)
            pipeline.append(ProximityStatements.nearby, parameters)
        case .encounter(let report):
            parameters.append(report.remoteToken)
            parameters.append(caller.account)
            parameters.append(report.tier)
            pipeline.append(ProximityStatements.resolveEncounter, parameters)
        case .wave(let token):
            parameters.append(token)
            parameters.append(caller.account)
            pipeline.append(ProximityStatements.resolve, parameters)
        case .storeKey(let key):
            parameters.append(caller.account)
            parameters.append(text: key)
            pipeline.append(ProximityStatements.storeKey, parameters)
        case .fetchKey(let token):
            parameters.append(token)
            parameters.append(caller.account)
            pipeline.append(ProximityStatements.fetchKey, parameters)
        case .block(let token):
            parameters.append(token)
            parameters.append(caller.account)
            pipeline.append(ProximityStatements.block, parameters)
        case .message(_, let connection, _):
            parameters.append(connection)
            parameters.append(caller.account)
            pipeline.append(ProximityStatements.connection, parameters)
        case .erase:
            parameters.append(caller.account)
            pipeline.append(ProximityStatements.pairs, parameters)
        }
        return 1
    }

    // MARK: - Results

    /// - Parameter results: of its own statements.
    func outcome(_ results: ArraySlice<PostgresResult>) throws(PostgresError) -> Outcome {
        guard let first = results.first else { return .fault(.unavailable) }
        switch call {
        case .exchange: return .fault(.unavailable)
        case .signIn(let signIn): return .json(try sessionDocument(first.only(), signIn.provider))
        case .eraseRows(let caller): return .ended(caller.session)
        case .request(let request, let caller): return try outcome(request, caller, first)
        }
    }

    private func outcome(
        _ request: ProximityRequest, _ caller: Caller, _ result: PostgresResult
    ) throws(PostgresError) -> Outcome {
        switch request {
        case .revoke: return .ended(caller.session)
        case .register:
            return result.affectedRows > 0
                ? .done : .fault(ProximityFault(.conflict, "token in use"))
        case .storeKey: return .done
        case .nearby:
            var body = ByteBuffer()
            body.append(UInt8(ascii: "["))
            for row in result {
                if row.index > 0 { body.append(UInt8(ascii: ",")) }
                body.append(jsonString: try row.text(0))
            }
            body.append(UInt8(ascii: "]"))
            return .json(body)
        case .encounter(let report):
            guard let row = result.first,
                let pair = AccountPair(caller.account, try row.account(0))
            else { return .done }
            return .publish([
                .encounter(pair, by: caller.account, report, ownToken: InlineText(try row.text(1)))
            ])
        case .wave(let token):
            guard let row = result.first,
                let pair = AccountPair(caller.account, try row.account(0))
            else { return .done }
            return .publish([.wave(pair, by: caller.account, token)])
        case .fetchKey:
            guard let row = result.first else { return .fault(.forbidden) }
            guard let key = try row.optionalText(0) else {
                return .fault(ProximityFault(.notFound, "no public key"))
            }
            var body = ByteBuffer()
            body.append("{\"publicKey\":")
            body.append(jsonString: key)
            body.append("}")
            return .json(body)
        case .block:
            let events = try blocks(caller, result)
            return events.isEmpty ? .done : .publish(events)
        case .message(let id, _, let body):
            guard let row = result.first,
                let pair = AccountPair(try row.account(0), try row.account(1))
            else { return .fault(.forbidden) }
            return .publish([.message(pair, by: caller.account, id, body)])
        case .erase: return .erase(try blocks(caller, result), caller)
        }
    }

    private func blocks(
        _ caller: Caller, _ result: PostgresResult
    ) throws(PostgresError) -> [ProximityEvent] {
        var events: [ProximityEvent] = []
        for row in result {
            guard let pair = AccountPair(caller.account, try row.account(0)) else { continue }
            events.append(.block(pair, by: caller.account))
        }
        return events
    }

    private func sessionDocument(
        _ row: PostgresRow, _ provider: IdentityProvider.Name
    ) throws(PostgresError) -> ByteBuffer {
        var body = ByteBuffer()
        body.append("{\"token\":\"")
        body.append(text: session?.token ?? "")
        body.append("\",\"account\":{\"id\":\"")
        body.append(try row.account(0))
        body.append("\",\"providerID\":")
        body.append(jsonString: provider.rawValue)
        // What is not known is empty: the client takes both for texts.
        body.append(",\"displayName\":")
        body.append(jsonString: try row.optionalText(1) ?? "")
        body.append(",\"email\":")
        body.append(jsonString: try row.optionalText(2) ?? "")
        body.append("}}")
        return body
    }

    /// What a failure of its statements alone means.
    func outcome(_ error: PostgresError) -> Outcome? {
        guard error.sqlState == .foreignKeyViolation else { return nil }
        // The account was erased after its session was looked up; or the other one was.
        if case .request(.block, _) = call, error.constraint == "blocks_blocked_fkey" {
            return .done
        }
        return .fault(.unauthorized)
    }
}

extension AccountID {
    /// A new account's id: a UUID of version 4 (RFC 9562, section 5.4).
    static func random() throws(CryptoError) -> AccountID {
        AccountID(
            high: try Random.integer() & ~0xF000 | 0x4000,
            low: try Random.integer() & ~(3 << 62) | 2 << 62)
    }
}
