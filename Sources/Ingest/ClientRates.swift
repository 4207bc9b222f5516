internal import Synchronization

/// Token buckets by client, in bounded memory. Used by all event loops.
///
/// Of a bucket only the moment is kept at which it will be full again (the generic cell rate
/// algorithm); one that is full by now needs no memory.
package final class ClientRates<Client: Hashable & Sendable>: Sendable {
    private struct Table {
        /// Monotonic microseconds at which the client's bucket will be full.
        var full: [Client: Int64] = [:]
        /// That of all clients for whom there was no room.
        var others: Int64 = 0
        var nextSweep: Int64 = 0
    }

    private let limit: ProvisionLimit
    /// Time in which one token is refilled.
    private let interval: Int64
    private let table = Mutex(Table())
    /// Time between sweeps: each looks at every client.
    private static var sweepMicroseconds: Int64 { 1_000_000 }

    package init(_ limit: ProvisionLimit) {
        self.limit = limit
        interval = max(1, 60_000_000 / Int64(max(1, limit.perMinute)))
    }

    /// Takes a token of the client's bucket.
    /// - Parameter now: monotonic milliseconds.
    /// - Returns: `nil` if there was one, otherwise the milliseconds until there will be.
    package func take(_ client: Client, now milliseconds: Int64) -> Int64? {
        let now = milliseconds * 1_000
        return table.withLock { table in
            if table.full[client] == nil, table.full.count >= limit.clients {
                makeRoom(&table, now)
                if table.full.count >= limit.clients { return take(&table.others, now) }
            }
            return take(&table.full[client, default: now], now)
        }
    }

    private func take(_ full: inout Int64, _ now: Int64) -> Int64? {
        let next = max(full, now) + interval
        let wait = next - now - interval * Int64(max(1, limit.burst))
        if wait > 0 { return (wait + 999) / 1_000 }
        full = next
        return nil
    }

    private func makeRoom(_ table: inout Table, _ now: Int64) {
        guard now >= table.nextSweep else { return }
        table.nextSweep = now + Self.sweepMicroseconds
        table.full = table.full.filter { $0.value > now }
    }

    /// Clients that are remembered now.
    package var count: Int { table.withLock { $0.full.count } }
}
