internal import Bytes
internal import Postgres
internal import Schemas

/// A round of `PushDelivery` as statements, and the answers to them.
///
/// Each question looks at `blocks` in both directions: whoever has blocked, or is blocked, is told
/// nothing from the commit of the block on.
enum PushQueries {
    /// Plans are kept: one that was made while the tables were small would read all of them when they are
    /// large. A confirmation that is lost with the server is made up for by sending once more.
    static let session =
        """
        SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off; \
        SET enable_bitmapscan = off; SET synchronous_commit = off
        """

    private static let confirm = PreparedStatement(
        "push_confirm",
        """
        WITH known AS ( \
        SELECT p.account_id, p.push_id FROM unnest($1::uuid[], $2::uuid[]) AS c(account_id, push_id) \
        JOIN heartline.pushes p ON p.account_id = c.account_id AND p.push_id = c.push_id \
        WHERE p.delivered_at IS NULL ORDER BY 1, 2 FOR UPDATE OF p) \
        UPDATE heartline.pushes p SET delivered_at = now() FROM known k \
        WHERE p.account_id = k.account_id AND p.push_id = k.push_id
        """)

    private static let time = PreparedStatement("push_time", "SELECT now()")

    private static let cursors = PreparedStatement(
        "push_cursors",
        """
        SELECT c.n::int8, p.created_at \
        FROM unnest($1::uuid[], $2::uuid[]) WITH ORDINALITY AS c(account_id, push_id, n) \
        JOIN heartline.pushes p ON p.account_id = c.account_id AND p.push_id = c.push_id \
        WHERE p.created_at > now() - interval '30 days'
        """)

    /// Whether nobody has blocked anybody, of the account and the push's peer.
    private static func isUnblocked(_ account: String) -> String {
        """
        NOT EXISTS (SELECT FROM heartline.blocks b \
        WHERE b.blocker = \(account) AND b.blocked = p.peer) \
        AND NOT EXISTS (SELECT FROM heartline.blocks b \
        WHERE b.blocker = p.peer AND b.blocked = \(account))
        """
    }

    /// What is sent to an account without being asked for by a cursor.
    private static let isOpen =
        """
        p.delivered_at IS NULL AND p.created_at > now() - interval '30 days' \
        AND (p.kind = 'message' OR p.created_at > now() - interval '1 day')
        """

    /// `$1` accounts, `$2` and `$3` positions, `$4` whether they are cursors, `$5` rows for each, `$6`
    /// bytes of all bodies.
    private static let pages = PreparedStatement(
        "push_pages",
        """
        SELECT a.n::int8, p.push_id, p.created_at, p.delivered_at, \
        CASE WHEN sum(octet_length(p.body)) OVER (ORDER BY a.n, p.created_at, p.push_id) <= $6 \
        THEN p.body END \
        FROM unnest($1::uuid[], $2::timestamptz[], $3::uuid[], $4::int8[]) \
        WITH ORDINALITY AS a(account_id, created_at, push_id, cursor, n) \
        CROSS JOIN LATERAL ( \
        SELECT p.push_id, p.created_at, p.delivered_at, p.body FROM ( \
        (SELECT p.* FROM heartline.pushes p WHERE p.account_id = a.account_id \
        AND (p.created_at, p.push_id) > (a.created_at, a.push_id) AND \(isOpen) \
        AND \(isUnblocked("a.account_id")) ORDER BY p.created_at, p.push_id LIMIT $5) \
        UNION ALL \
        (SELECT p.* FROM heartline.pushes p WHERE p.account_id = a.account_id \
        AND (p.created_at, p.push_id) > (a.created_at, a.push_id) \
        AND p.created_at > now() - interval '30 days' AND p.delivered_at IS NOT NULL \
        AND p.delivered_at > CASE a.cursor WHEN 0 THEN now() - interval '25 hours' \
        ELSE '-infinity' END \
        AND (a.cursor <> 0 OR p.kind = 'mutual' AND p.created_at > now() - interval '1 day') \
        AND \(isUnblocked("a.account_id")) ORDER BY p.created_at, p.push_id LIMIT $5) \
        ) p ORDER BY p.created_at, p.push_id LIMIT $5) p \
        ORDER BY a.n, p.created_at, p.push_id
        """)

    /// `$1` accounts, `$2` and `$3` positions among what was confirmed, `$4` rows that nobody has confirmed
    /// and `$5` others, for each; `$6` bytes of all bodies.
    private static let news = PreparedStatement(
        "push_news",
        """
        SELECT a.n::int8, p.push_id, p.created_at, p.delivered_at, \
        CASE WHEN sum(octet_length(p.body)) OVER (ORDER BY a.n, p.delivered_at, p.place, p.push_id) \
        <= $6 \
        THEN p.body END \
        FROM unnest($1::uuid[], $2::timestamptz[], $3::uuid[]) \
        WITH ORDINALITY AS a(account_id, since, since_id, n) \
        CROSS JOIN LATERAL ( \
        (SELECT p.push_id, p.created_at, p.delivered_at, p.body, p.created_at AS place \
        FROM heartline.pushes p WHERE p.account_id = a.account_id AND \(isOpen) AND \(isUnblocked("a.account_id")) \
        ORDER BY p.created_at, p.push_id LIMIT $4) \
        UNION ALL \
        (SELECT p.push_id, p.created_at, p.delivered_at, p.body, p.delivered_at \
        FROM heartline.pushes p WHERE p.account_id = a.account_id \
        AND (p.delivered_at, p.push_id) > (a.since, a.since_id) AND p.delivered_at IS NOT NULL \
        AND p.created_at > now() - interval '30 days' AND \(isUnblocked("a.account_id")) \
        ORDER BY p.delivered_at, p.push_id LIMIT $5) \
        ) p ORDER BY a.n, p.delivered_at, p.place, p.push_id
        """)

    /// The round as one pipeline, and so as one transaction.
    static func pipeline(for round: PushRound, _ limits: PushLimits) -> PostgresPipeline {
        var pipeline = PostgresPipeline()
        if !round.confirmations.isEmpty {
            pipeline.append(
                confirm,
                PostgresParameters(
                    accounts(round.confirmations.map(\.account)),
                    ids(round.confirmations.map(\.push))))
        }
        // Before what is read, so that nothing read is older.
        pipeline.append(time)
        if !round.cursors.isEmpty {
            pipeline.append(
                cursors,
                PostgresParameters(
                    accounts(round.cursors.map(\.account)), ids(round.cursors.map(\.push))))
        }
        if !round.pages.isEmpty {
            var parameters = PostgresParameters(accounts(round.pages.map(\.account)))
            parameters.append(times: round.pages.map(\.position.time))
            parameters.append(ids(round.pages.map(\.position.id)))
            parameters.append(.int8Array(round.pages.map { $0.hasCursor ? 1 : 0 }))
            parameters.append(int8: Int64(limits.pageRows))
            parameters.append(int8: Int64(limits.roundBytes))
            pipeline.append(pages, parameters)
        }
        if !round.news.isEmpty {
            var parameters = PostgresParameters(accounts(round.news.map(\.account)))
            parameters.append(times: round.news.map(\.since.time))
            parameters.append(ids(round.news.map(\.since.id)))
            parameters.append(int8: Int64(limits.openRows))
            parameters.append(int8: Int64(limits.deliveredRows))
            parameters.append(int8: Int64(limits.roundBytes))
            pipeline.append(news, parameters)
        }
        return pipeline
    }

    /// - Parameter results: of the round's pipeline.
    static func answer(
        to round: PushRound, _ results: [PostgresResult]
    ) throws(PostgresError) -> PushAnswer {
        var place = round.confirmations.isEmpty ? 0 : 1
        var answer = PushAnswer(
            time: try results[place].only().timestamptz(0),
            cursors: [Int64?](repeating: nil, count: round.cursors.count), pages: [], news: [])
        place += 1
        if !round.cursors.isEmpty {
            for row in results[place] {
                answer.cursors[Int(try row.int8(0)) - 1] = try row.timestamptz(1)
            }
            place += 1
        }
        if !round.pages.isEmpty {
            answer.pages = try pushes(results[place], round.pages.count)
            place += 1
        }
        if !round.news.isEmpty { answer.news = try pushes(results[place], round.news.count) }
        return answer
    }

    private static func pushes(
        _ rows: PostgresResult, _ count: Int
    ) throws(PostgresError) -> [[StoredPush]] {
        var lists = [[StoredPush]](repeating: [], count: count)
        for row in rows {
            let id = try row.uuid(1)
            lists[Int(try row.int8(0)) - 1].append(
                StoredPush(
                    id: PushID(high: id.high, low: id.low), createdAt: try row.timestamptz(2),
                    deliveredAt: try row.optionalTimestamptz(3), body: try row.optionalTextBytes(4))
            )
        }
        return lists
    }

    private static func accounts(_ accounts: [AccountID]) -> PostgresValue {
        .uuidArray(accounts.map { ($0.high, $0.low) })
    }

    private static func ids(_ pushes: [PushID]) -> PostgresValue {
        .uuidArray(pushes.map { ($0.high, $0.low) })
    }
}

extension PostgresParameters {
    fileprivate mutating func append(times: [Int64]) {
        var elements = ByteBuffer()
        for time in times {
            elements.appendBigEndian(Int32(8))
            elements.appendBigEndian(time)
        }
        append(arrayOf: .timestamptz, count: times.count, elements: elements.span)
    }
}
