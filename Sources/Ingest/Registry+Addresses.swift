internal import Postgres
internal import System

/// Free addresses of the network's prefix. All of this is called under the network's lock.
extension Registry {
    static let highestAddress = PreparedStatement(
        "highest_address",
        """
        SELECT host(internal_address) FROM heartline.devices \
        ORDER BY internal_address DESC LIMIT 1
        """)

    // The index gives the addresses in order, so this reads no further than it finds.
    private static let gaps = PreparedStatement(
        "address_gaps",
        """
        SELECT host(used + 1), host(next - 1) FROM (SELECT internal_address AS used, \
        lead(internal_address) OVER (ORDER BY internal_address) AS next \
        FROM heartline.devices WHERE internal_address >= $1) addresses \
        WHERE next > used + 1 LIMIT $2
        """)

    /// A larger prefix is not searched at each request once it is known to be full.
    private static let smallPool: Int64 = 65_536
    private static let searchPauseMilliseconds: Int64 = 10_000

    /// Up to `count` free addresses: those behind the highest in use, and only when they run out the
    /// gaps that removed devices left.
    ///
    /// Of a prefix of more than 65,536 addresses that was found to be full, up to ten seconds may pass
    /// until an address that was given back is found.
    /// - Parameter highest: that in use; `nil` if none is.
    func freeAddresses(
        atMost count: Int, above highest: UInt32?, in pool: AddressPool
    ) throws -> [UInt32] {
        var addresses = pool.following(highest, atMost: count)
        if addresses.count == count { return addresses }
        let now = SystemClock.monotonicMilliseconds()
        if pool.capacity > Self.smallPool, now < addressSearch.pausedUntil { return addresses }
        // From where the last search ended, so that gaps that were filled are not read again.
        let start = addressSearch.start ?? pool.firstHost
        let found = try gaps(from: start, atMost: count - addresses.count, in: pool)
        addresses += found
        addressSearch.start = found.last ?? start
        if addresses.count < count, start > pool.firstHost {
            let given = Set(addresses)
            let missing = count - addresses.count
            let lower = try gaps(from: pool.firstHost, atMost: count, in: pool)
                .filter { !given.contains($0) }
            addresses += lower.prefix(missing)
            addressSearch.start = lower.prefix(missing).last
        }
        if addresses.count < count {
            addressSearch.pausedUntil = now + Self.searchPauseMilliseconds
        }
        return addresses
    }

    private func gaps(
        from start: UInt32, atMost count: Int, in pool: AddressPool
    ) throws -> [UInt32] {
        var ranges: [ClosedRange<UInt32>] = []
        if start == pool.firstHost {
            let lowest = try connection.execute(
                """
                SELECT host(internal_address) FROM heartline.devices \
                ORDER BY internal_address LIMIT 1
                """)
            if let first = try lowest.first.flatMap({ AddressPool.parse(try $0.text(0)) }),
                first > pool.firstHost
            {
                ranges.append(pool.firstHost...(first - 1))
            }
        }
        // One of them may be nothing but the server's own address.
        let rows = try connection.execute(
            Self.gaps, .inet(AddressPool.text(start)), .int8(Int64(count) + 1))
        for row in rows {
            guard let first = AddressPool.parse(try row.text(0)),
                let last = AddressPool.parse(try row.text(1)), first <= last
            else { continue }
            ranges.append(first...last)
        }
        return pool.addresses(in: ranges, atMost: count)
    }
}

/// Where a registry looks for gaps between addresses.
struct AddressSearch {
    /// The next search begins here; `nil`: at the first address.
    var start: UInt32?
    /// Monotonic milliseconds before which a large prefix is taken to be full.
    var pausedUntil: Int64 = .min
}
