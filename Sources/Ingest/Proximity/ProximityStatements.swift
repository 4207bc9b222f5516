internal import Crypto
internal import Postgres
internal import Schemas

/// What the proximity service asks of PostgreSQL and writes to it.
///
/// The database's clock decides what is still good, so that front-ends need not agree on theirs.
enum ProximityStatements {
    /// A token's row that has been registered within one rotation.
    private static func isLive(_ row: String) -> String {
        "\(row).registered_at > now() - interval '5 minutes'"
    }

    /// Neither of the two blocked the other.
    private static func isOpen(_ one: String, _ other: String) -> String {
        """
        NOT EXISTS (SELECT FROM heartline.blocks b WHERE b.blocker = \(one) AND b.blocked = \(other)) \
        AND NOT EXISTS (SELECT FROM heartline.blocks b WHERE b.blocker = \(other) AND b.blocked = \(one))
        """
    }

    /// How many tokens an account may have at a time: some devices, each with its last few.
    static let tokensOfAccount = 32
    /// Tokens of one answer of `nearby`.
    static let nearbyTokens = 200

    static let signIn = PreparedStatement(
        "proximity_sign_in",
        """
        WITH account AS (
            INSERT INTO heartline.accounts AS a
                (account_id, provider, provider_subject, display_name, email)
            VALUES ($1, $2, $3, $4, $5)
            ON CONFLICT (provider, provider_subject) DO UPDATE SET
                display_name = coalesce(excluded.display_name, a.display_name),
                email = coalesce(excluded.email, a.email)
            RETURNING account_id, display_name, email),
        session AS (
            INSERT INTO heartline.sessions (token_hash, account_id, expires_at)
            SELECT $6, account_id, now() + interval '7 days' FROM account)
        SELECT account_id, display_name, email FROM account
        """)

    static let revoke = PreparedStatement(
        "proximity_revoke", "DELETE FROM heartline.sessions WHERE token_hash = $1")

    /// Another's token is not taken as long as it is live.
    static let register = PreparedStatement(
        "proximity_register",
        """
        INSERT INTO heartline.presence AS p (token, account_id, tier, geohash, registered_at)
        VALUES ($1, $2, $3, $4, now())
        ON CONFLICT (token) DO UPDATE SET account_id = excluded.account_id,
            tier = excluded.tier, geohash = excluded.geohash,
            registered_at = excluded.registered_at
        WHERE p.account_id = excluded.account_id OR NOT (\(isLive("p")))
        """)

    static let dropOldest = PreparedStatement(
        "proximity_drop_oldest",
        """
        DELETE FROM heartline.presence WHERE token IN (
            SELECT token FROM heartline.presence WHERE account_id = $1
            ORDER BY registered_at DESC, token OFFSET \(tokensOfAccount))
        """)

    /// In an order by chance, which tells nothing of who came when.
    static let nearby = PreparedStatement(
        "proximity_nearby",
        """
        SELECT p.token FROM heartline.presence p
        WHERE p.geohash = ANY($1) AND p.tier = $2 AND p.account_id <> $3
            AND \(isLive("p")) AND \(isOpen("$3", "p.account_id"))
        ORDER BY random() LIMIT \(nearbyTokens)
        """)

    /// Whose a token is, if the caller may have to do with them.
    static let resolve = PreparedStatement(
        "proximity_resolve",
        """
        SELECT p.account_id FROM heartline.presence p
        WHERE p.token = $1 AND p.account_id <> $2
            AND \(isLive("p")) AND \(isOpen("$2", "p.account_id"))
        """)

    /// As `resolve`, with the caller's own token: one of the tier that is reported, if there is one.
    static let resolveEncounter = PreparedStatement(
        "proximity_resolve_encounter",
        """
        SELECT p.account_id, o.token FROM heartline.presence p, LATERAL (
            SELECT o.token FROM heartline.presence o
            WHERE o.account_id = $2 AND \(isLive("o"))
            ORDER BY o.tier = $3 DESC, o.registered_at DESC, o.token LIMIT 1) o
        WHERE p.token = $1 AND p.account_id <> $2
            AND \(isLive("p")) AND \(isOpen("$2", "p.account_id"))
        """)

    static let storeKey = PreparedStatement(
        "proximity_store_key",
        """
        INSERT INTO heartline.peer_keys (account_id, public_key) VALUES ($1, $2)
        ON CONFLICT (account_id) DO UPDATE SET public_key = excluded.public_key,
            stored_at = excluded.stored_at
        """)

    /// Whose a token is or was: by who broadcasts it now, or by the caller's own wave at it.
    private static let peer = """
        SELECT account_id FROM heartline.presence WHERE token = $1 AND account_id <> $2
        UNION SELECT to_account FROM heartline.waves WHERE from_account = $2 AND token = $1
        """

    /// A row with NULL: connected, and no key is stored yet.
    static let fetchKey = PreparedStatement(
        "proximity_fetch_key",
        """
        SELECT k.public_key FROM (\(peer)) p
        JOIN heartline.connections c ON c.first_account = least(p.account_id, $2)
            AND c.second_account = greatest(p.account_id, $2)
        LEFT JOIN heartline.peer_keys k ON k.account_id = p.account_id
        WHERE \(isOpen("$2", "p.account_id"))
        ORDER BY k.public_key IS NULL LIMIT 1
        """)

    static let block = PreparedStatement(
        "proximity_block",
        """
        WITH peer AS (\(peer)),
        made AS (
            INSERT INTO heartline.blocks (blocker, blocked)
            SELECT $2, account_id FROM peer ORDER BY account_id ON CONFLICT DO NOTHING)
        SELECT account_id FROM peer
        """)

    static let connection = PreparedStatement(
        "proximity_connection",
        """
        SELECT c.first_account, c.second_account FROM heartline.connections c
        WHERE c.connection_id = $1 AND $2 IN (c.first_account, c.second_account)
            AND \(isOpen("c.first_account", "c.second_account"))
        """)

    /// Whom an account has waved at, was waved at by, or is connected with.
    static let pairs = PreparedStatement(
        "proximity_pairs",
        """
        SELECT to_account FROM heartline.waves WHERE from_account = $1
        UNION SELECT from_account FROM heartline.waves WHERE to_account = $1
        UNION SELECT second_account FROM heartline.connections WHERE first_account = $1
        UNION SELECT first_account FROM heartline.connections WHERE second_account = $1
        """)

    /// All that names the account refers to this row and goes with it.
    static let erase = PreparedStatement(
        "proximity_erase", "DELETE FROM heartline.accounts WHERE account_id = $1")
}

extension PostgresParameters {
    mutating func append(_ id: some ProximityID) { append(uuidHigh: id.high, low: id.low) }

    mutating func append(_ session: SessionID) {
        let bytes = session.digest.bytes
        append(bytea: bytes.span)
    }

    mutating func append(_ text: InlineText) { append(text: text.span) }

    mutating func append(_ cell: Geohash?) {
        if let cell { append(text: cell.description) } else { appendNull(.text) }
    }

    mutating func append(_ tier: DistanceTier) { append(int4: Int32(tier.rawValue)) }

    mutating func append(optional text: String?) {
        if let text { append(text: text) } else { appendNull(.text) }
    }
}

extension PostgresRow {
    func account(_ column: Int) throws(PostgresError) -> AccountID {
        let (high, low) = try uuid(column)
        return AccountID(high: high, low: low)
    }
}
