internal import Bytes
internal import Crypto
internal import HTTP
internal import Postgres
internal import Schemas
internal import System
internal import Updates

/// What requests for updates read and change. None of it takes the registry's lock.
extension Registry {
    struct LookupQuestion: Sendable {
        var target: UpdateRequest.Target
        var address: ClientAddress?
    }

    private static let recordColumns =
        """
        a.installation_id, a.device, a.app, a.source, a.filter, a.refinement, a.team, a.channel, \
        a.credential, a.version, a.asset_name, a.fingerprint, a.revoked_at IS NOT NULL
        """
    private static let recordCount = 13

    private static let findIDs = PreparedStatement(
        "find_installation_ids",
        """
        SELECT \(recordColumns), i.id_digest, i.retired_at IS NOT NULL, \
        i.confirmed_at IS NULL AND i.attempt_id IS NOT NULL \
        FROM heartline.app_installation_ids i JOIN heartline.app_installations a USING \
        (installation_id) WHERE i.id_digest = ANY ($1::bytea[])
        """)

    private static let findLinks = PreparedStatement(
        "find_update_links",
        """
        SELECT \(recordColumns), l.link_digest, l.revoked_at IS NOT NULL, l.anywhere \
        FROM heartline.update_links l JOIN heartline.app_installations a USING (installation_id) \
        WHERE l.link_digest = ANY ($1::bytea[])
        """)

    private static let findPairings = PreparedStatement(
        "find_paired_addresses",
        """
        SELECT host(address), device, admin FROM heartline.paired_addresses \
        WHERE address = ANY ($1::text[]::inet[])
        """)

    /// Looks the ids of many requests up with three statements, in one round trip.
    ///
    /// An id that is shown for the first time is noted: the app that has it runs.
    func lookUp(_ questions: [LookupQuestion]) throws -> [UpdateLookup] {
        var (ids, links): ([Digest], [Digest]) = ([], [])
        var addresses: Set<String> = []
        for question in questions {
            switch question.target {
            case .installation(let digest): ids.append(digest)
            case .link(let digest): links.append(digest)
            }
            if let address = question.address { addresses.insert("\(address)") }
        }
        var pipeline = PostgresPipeline()
        pipeline.append(Self.findIDs, Self.digests(ids))
        pipeline.append(Self.findLinks, Self.digests(links))
        pipeline.append(Self.findPairings, PostgresParameters(.textArray(addresses.sorted())))
        let results = try connection.run(pipeline)
        var pairings: [String: [(device: String, isAdmin: Bool)]] = [:]
        for row in results[2] {
            pairings[try row.text(0), default: []].append((try row.text(1), try row.bool(2)))
        }
        var found: [Digest: Found] = [:]
        for (place, result) in results[..<2].enumerated() {
            for row in result {
                let bytes = try row.bytea(Self.recordCount)
                let digest = Digest(bytes: bytes.span)
                found[digest] = Found(
                    record: try record(row), isOver: try row.bool(Self.recordCount + 1),
                    mark: try row.bool(Self.recordCount + 2), isLink: place == 1)
            }
        }
        return questions.map { question in
            let digest =
                switch question.target {
                case .installation(let digest), .link(let digest): digest
                }
            guard let known = found[digest] else { return .unknown }
            var access = UpdateLookup.Access()
            if let address = question.address {
                access.isPaired =
                    pairings["\(address)"]?.contains {
                        $0.isAdmin || $0.device == known.record.device
                    } ?? false
            }
            if known.isLink {
                if known.isOver || known.record.isRevoked { return .unknown }
                access.isAnywhere = known.mark
                return .found(known.record, access: access, isFirst: false)
            }
            if known.record.isRevoked { return .unknown }
            if known.isOver { return .retired(known.record) }
            return .found(known.record, access: access, isFirst: known.mark)
        }
    }

    private struct Found {
        var record: InstallationRecord
        /// Retired, or revoked.
        var isOver: Bool
        /// Of an id: not confirmed yet; of a link: good from anywhere.
        var mark: Bool
        var isLink: Bool
    }

    private static func digests(_ digests: [Digest]) -> PostgresParameters {
        var elements = ByteBuffer()
        for digest in digests {
            elements.appendBigEndian(Int32(32))
            elements.append(digest)
        }
        var parameters = PostgresParameters()
        parameters.append(arrayOf: .bytea, count: digests.count, elements: elements.span)
        return parameters
    }

    private func record(_ row: PostgresRow) throws -> InstallationRecord {
        let (high, low) = try row.uuid(0)
        let id = DeviceID(high: high, low: low)
        let source = try row.text(3)
        guard let parsed = UpdateSource(source) else {
            throw RegistryError(
                "reading an installation", .badSetting, "\(id.shortened) has no source")
        }
        var credential: SourceCredential?
        if let sealed = try row.optionalBytea(8) {
            guard let text = box.openText(sealed, of: "\(id)"),
                let opened = SourceCredential(text)
            else {
                throw RegistryError(
                    "opening the credential of installation \(id.shortened)", .damagedSecrets,
                    "it does not open under HEARTLINE_SECRET_KEY")
            }
            credential = opened
        }
        return InstallationRecord(
            id: id, device: try row.text(1), app: try row.text(2), team: try row.optionalText(6),
            tracked: TrackedApp(
                source: parsed, channel: UpdateChannel(rawValue: try row.text(7)) ?? .latest,
                filter: try row.optionalText(4), refinement: try row.optionalText(5),
                version: try row.optionalText(9), assetName: try row.optionalText(10),
                fingerprint: try row.optionalText(11), credential: credential),
            isRevoked: try row.bool(12))
    }

    /// Notes that an id was shown for the first time: what its app is, is installed, and the ids before
    /// it are over.
    /// - Returns: the attempt that has thereby succeeded, and the installation as it is now; `nil` if
    ///   another request came first, or the id is not one that an attempt made.
    func confirm(
        _ digest: Digest
    ) throws -> (attempt: DeviceID, record: InstallationRecord)? {
        try connection.transaction {
            let rows = try connection.execute(
                """
                UPDATE heartline.app_installation_ids SET confirmed_at = now() \
                WHERE id_digest = $1 AND confirmed_at IS NULL AND retired_at IS NULL \
                AND attempt_id IS NOT NULL \
                RETURNING installation_id, generation, attempt_id
                """, .bytea(ByteBuffer(digest.bytes)))
            guard let row = rows.first else { return nil }
            let (high, low) = try row.uuid(0)
            let (attemptHigh, attemptLow) = try row.uuid(2)
            try connection.execute(
                """
                UPDATE heartline.app_installation_ids SET retired_at = now() \
                WHERE installation_id = $1 AND generation < $2 AND retired_at IS NULL
                """, .uuid(high, low), .int8(try row.int8(1)))
            let updated = try connection.execute(
                """
                UPDATE heartline.app_installations a SET version = i.version, \
                asset_name = i.asset_name, fingerprint = i.fingerprint, updated_at = now() \
                FROM heartline.app_installation_ids i WHERE i.id_digest = $1 \
                AND a.installation_id = i.installation_id RETURNING \(Self.recordColumns)
                """, .bytea(ByteBuffer(digest.bytes)))
            guard let newest = updated.first else { return nil }
            return (DeviceID(high: attemptHigh, low: attemptLow), try record(newest))
        }
    }

    /// Issues an id for the app that an attempt is about to sign.
    func issueID(
        _ installation: DeviceID, attempt: DeviceID, version: String?, assetName: String?,
        fingerprint: String?
    ) throws -> String {
        let id = try UpdateRequest.newID()
        guard let digest = UpdateRequest.digest(of: id) else {
            preconditionFailure("a new id is none")
        }
        try connection.execute(
            """
            WITH next AS (UPDATE heartline.app_installations SET generation = generation + 1 \
            WHERE installation_id = $1 RETURNING generation) \
            INSERT INTO heartline.app_installation_ids \
            (id_digest, installation_id, generation, attempt_id, version, asset_name, fingerprint) \
            SELECT $2, $1, generation, $3, $4, $5, $6 FROM next
            """,
            .uuid(installation.high, installation.low), .bytea(ByteBuffer(digest.bytes)),
            .uuid(attempt.high, attempt.low), Self.text(version), Self.text(assetName),
            Self.text(fingerprint))
        return id
    }

    /// Notes that an attempt has succeeded.
    func noteInstalled(_ installation: DeviceID, attempt: DeviceID) throws {
        try connection.execute(
            """
            UPDATE heartline.app_installations a SET version = i.version, \
            asset_name = i.asset_name, fingerprint = i.fingerprint, updated_at = now() \
            FROM heartline.app_installation_ids i WHERE i.installation_id = $1 \
            AND i.attempt_id = $2 AND a.installation_id = $1
            """, .uuid(installation.high, installation.low), .uuid(attempt.high, attempt.low))
    }

    func saveRefinement(_ refinement: String, of installation: DeviceID) throws {
        try connection.execute(
            """
            UPDATE heartline.app_installations SET refinement = $2, updated_at = now() \
            WHERE installation_id = $1
            """, .uuid(installation.high, installation.low), .text(refinement))
    }

    /// Takes the lock that makes one installation at a time of an app, over all front-ends; it is held
    /// by this connection until `unlockInstallation`, or until it is lost.
    func lockInstallation(_ installation: DeviceID) throws -> Bool {
        try connection.execute(
            "SELECT pg_try_advisory_lock($1)", .int8(Self.lockKey(installation))
        ).only().bool(0)
    }

    func unlockInstallation(_ installation: DeviceID) throws {
        try connection.execute(
            "SELECT pg_advisory_unlock($1)", .int8(Self.lockKey(installation)))
    }

    private static func lockKey(_ installation: DeviceID) -> Int64 {
        Int64(bitPattern: installation.high ^ installation.low)
    }

    private static func text(_ value: String?) -> PostgresValue {
        value.map { .text($0) } ?? .null
    }
}
