internal import Bytes
internal import Crypto
internal import Postgres
internal import Schemas
internal import System

/// What an agent asks for with `POST /api/v1/provision`, once its form is known to be good.
struct ProvisionRequest: Sendable {
    /// SHA-256 of the registration token's 16 bytes.
    var tokenDigest: Digest
    /// UTF-8, compared byte by byte.
    var hardwareID: ByteBuffer

    /// What the contract's sample sends where the system gives it no id: no device's own.
    private static let placeholder = ByteBuffer("unknown".utf8)

    /// Whether another request with the same hardware id means the same device.
    var namesDevice: Bool { hardwareID != Self.placeholder }
}

/// What came of a request.
enum ProvisionOutcome: Sendable {
    /// - device: made, or known before by its hardware id.
    /// - answer: the body of the answer.
    case provisioned(device: DeviceID, version: Int64, isSuspended: Bool, answer: ByteBuffer)
    /// Unknown or over: what is forgotten cannot be told from what never was.
    case tokenExpired
    case tokenUsed
    /// No address is left; the token stays good.
    case poolExhausted
}

/// The connection was lost between the commit and its answer.
struct ProvisionInDoubt: Error, CustomStringConvertible {
    /// What came of the requests if it was committed.
    var outcomes: [ProvisionOutcome]
    /// One of the tokens that it consumes, and for which device: all was committed, or nothing.
    var token: DeviceID
    var device: DeviceID
    var cause: PostgresError

    var description: String { "\(cause)" }
}

/// The keys that a device will get, made before the transaction: nobody has to wait for them.
struct ProvisionKeys {
    var pair: X25519KeyPair
    var presharedKey: [UInt8]

    init() throws(CryptoError) {
        pair = try X25519KeyPair.generate()
        presharedKey = try Random.bytes(32)
    }
}

extension Registry {
    // MARK: - Tokens

    private static func tokenStates(_ name: String, _ suffix: StaticString) -> PreparedStatement {
        PreparedStatement(
            name,
            """
            SELECT request.place, token.token_id, token.expires_at <= clock_timestamp(), \
            token.used_at IS NOT NULL \
            FROM unnest($1::bytea[]) WITH ORDINALITY AS request (digest, place) \
            JOIN heartline.registration_tokens token ON token.token_digest = request.digest \
            \(suffix)
            """)
    }

    private static let tokensSeen = tokenStates("provision_tokens_seen", "")
    // Sorted, so that two that lock several cannot wait for each other.
    private static let tokensLocked = tokenStates(
        "provision_tokens_locked", "ORDER BY token.token_id FOR UPDATE OF token")

    private enum TokenState {
        case unknown, expired, used
        case good(DeviceID)
    }

    private static func parameters(tokensOf requests: [ProvisionRequest]) -> PostgresParameters {
        var digests = ByteBuffer()
        for request in requests {
            digests.appendBigEndian(Int32(32))
            digests.append(request.tokenDigest)
        }
        var parameters = PostgresParameters()
        parameters.append(arrayOf: .bytea, count: requests.count, elements: digests.span)
        return parameters
    }

    private static func tokenStates(
        _ rows: PostgresResult, count: Int
    ) throws -> [TokenState] {
        var states = [TokenState](repeating: .unknown, count: count)
        for row in rows {
            let place = Int(try row.int8(0)) - 1
            let (high, low) = try row.uuid(1)
            if try row.bool(2) {
                states[place] = .expired
            } else if try row.bool(3) {
                states[place] = .used
            } else {
                states[place] = .good(DeviceID(high: high, low: low))
            }
        }
        return states
    }

    /// What can be refused already, without any lock and before keys are made: a token that is over
    /// or used will not get better.
    /// - Returns: for each request its refusal, or `nil`.
    func refusals(_ requests: [ProvisionRequest]) throws -> [ProvisionOutcome?] {
        let rows = try connection.execute(
            Self.tokensSeen, parameters: Self.parameters(tokensOf: requests))
        return try Self.tokenStates(rows, count: requests.count).map { state in
            switch state {
            case .unknown, .expired: .tokenExpired
            case .used: .tokenUsed
            case .good: nil
            }
        }
    }

    // MARK: - Devices

    private static let devicesByHardware = PreparedStatement(
        "devices_by_hardware",
        """
        SELECT d.hardware_id, d.device_id, d.version, d.suspended, host(d.internal_address), \
        d.expected_interval, \(DeviceConfiguration.forwardsColumn) \
        FROM heartline.devices d WHERE d.hardware_id = ANY($1::bytea[])
        """)

    private static func parameters(hardwareOf requests: [ProvisionRequest]) -> PostgresParameters {
        var elements = ByteBuffer()
        var count = 0
        for request in requests where request.namesDevice {
            count += 1
            elements.appendBigEndian(Int32(request.hardwareID.count))
            elements.append(request.hardwareID)
        }
        var parameters = PostgresParameters()
        parameters.append(arrayOf: .bytea, count: count, elements: elements.span)
        return parameters
    }

    private static func knownDevices(
        _ rows: PostgresResult
    ) throws -> [ByteBuffer: ProvisionPlan.Device] {
        var devices: [ByteBuffer: ProvisionPlan.Device] = [:]
        for row in rows {
            let hardwareID = try row.bytea(0)
            let (high, low) = try row.uuid(1)
            devices[hardwareID] = ProvisionPlan.Device(
                device: DeviceID(high: high, low: low), hardwareID: hardwareID, isNew: false,
                version: try row.int8(2), isSuspended: try row.bool(3),
                address: try row.text(4),
                expectedIntervalMilliseconds: try row.optionalInterval(5).map { $0 / 1_000 },
                forwards: DeviceConfiguration.forwards(try row.optionalText(6) ?? ""))
        }
        return devices
    }

    // MARK: - The transaction

    /// Provisions all of `requests` in one transaction, with the outcomes that they would have had one
    /// after another: two with one token, or of one device, may be among them.
    ///
    /// Tokens, addresses, devices and the events that tell of them are committed together, or none.
    /// - Parameters:
    ///   - keys: for each request its own.
    ///   - salt: `SERVER_SALT`.
    /// - Throws: `ProvisionInDoubt` if the connection was lost at the commit; after anything else nothing
    ///   was done.
    func provision(
        _ requests: [ProvisionRequest], keys: [ProvisionKeys], salt: [UInt8]
    ) throws -> [ProvisionOutcome] {
        do {
            var reading = PostgresPipeline()
            reading.append("BEGIN")
            reading.append(Self.networkLock)
            // Each statement sees what was committed before it: these, all that the lock waited for.
            reading.append(Self.tokensLocked, Self.parameters(tokensOf: requests))
            reading.append(Self.devicesByHardware, Self.parameters(hardwareOf: requests))
            reading.append(Self.highestAddress)
            reading.append(Self.openPoolAlert)
            let read = try connection.run(reading)
            let (pool, network) = try Self.network(read[1])
            var plan = ProvisionPlan(network: network, salt: salt, box: box)
            plan.known = try Self.knownDevices(read[3])
            let needed = requests.count { !$0.namesDevice || plan.known[$0.hardwareID] == nil }
            let highest = try read[4].first.flatMap { AddressPool.parse(try $0.text(0)) }
            plan.free = try freeAddresses(atMost: needed, above: highest, in: pool)[...]
            let tokens = try Self.tokenStates(read[2], count: requests.count)
            var outcomes: [ProvisionOutcome] = []
            for (index, request) in requests.enumerated() {
                switch tokens[index] {
                case .unknown, .expired: outcomes.append(.tokenExpired)
                case .used: outcomes.append(.tokenUsed)
                case .good(let token):
                    outcomes.append(try plan.add(request, token: token, keys[index]))
                }
            }
            var writing = PostgresPipeline()
            plan.write(to: &writing)
            var events = plan.events
            let openAlert = try read[5].first.map { try $0.uuid(0) }
            if plan.isExhausted {
                if openAlert == nil { try raisePoolAlert(&writing, &events) }
            } else if plan.hasNewDevices, let (high, low) = openAlert {
                resolvePoolAlert(DeviceID(high: high, low: low), &writing, &events)
            }
            events.add(to: &writing)
            writing.append("COMMIT")
            do throws(PostgresError) {
                try connection.run(writing)
            } catch {
                guard error.isConnectionLoss, let probe = plan.consumed.first else { throw error }
                throw ProvisionInDoubt(
                    outcomes: outcomes, token: probe.token, device: probe.device, cause: error)
            }
            return outcomes
        } catch {
            connection.rollBack()
            throw error
        }
    }

    /// Finds out, on another connection, whether the transaction was committed.
    func wasCommitted(_ doubt: ProvisionInDoubt) throws -> Bool {
        try connection.transaction {
            // The server may be at it still: this waits for its end.
            _ = try lockNetwork()
            let rows = try connection.execute(
                """
                SELECT FROM heartline.registration_tokens WHERE token_id = $1 AND device_id = $2
                """,
                .uuid(doubt.token.high, doubt.token.low),
                .uuid(doubt.device.high, doubt.device.low))
            return !rows.isEmpty
        }
    }
}
