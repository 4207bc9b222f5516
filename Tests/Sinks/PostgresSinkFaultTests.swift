import Bytes
import Postgres
import Schemas
import Sinks
import System
import TestSupport
import Testing

/// What a sink reports when the server, the network or another session is in the way.
@Suite struct PostgresSinkFaultTests {
    @Test func aSessionEndedInTheMiddleOfACommitLeavesNothingBehindOrEverything() throws {
        let server = try SinkOnServer(.make())
        let claim = try #require(server.claim())
        let blocker = try server.database.connect()
        try blocker.run("BEGIN; LOCK TABLE heartline.sink_log IN ACCESS EXCLUSIVE MODE")
        let stored = commit(epoch: claim.epoch, 0, 7) { commit in
            commit.keep(1, "once")
            commit.log(1, "{}")
        }
        server.send(.commit(stored))
        let observer = try server.database.connect()
        let isEnded = try waitUntil {
            try observer.execute(
                """
                SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                 WHERE application_name = 'heartline test' AND wait_event_type = 'Lock'
                """
            ).only().int8(0) == 1
        }
        #expect(isEnded)
        try blocker.run("ROLLBACK")
        #expect(server.reply()?.failure?.kind == .outcomeUnknown)
        guard case .verified(let epoch, let offset, _) = server.ask(.verify) else {
            Issue.record("the sink did not connect again")
            return
        }
        #expect(epoch == claim.epoch)
        #expect(offset == 0)
        #expect(server.ask(.commit(stored))?.isCommitted == true)
        #expect(try server.count("sink_kept") == 1)
        #expect(try server.count("sink_log") == 1)
    }

    @Test func aSessionEndedBetweenCommitsIsMadeAgain() throws {
        let server = try SinkOnServer(.make())
        let claim = try #require(server.claim())
        let observer = try server.database.connect()
        _ = try observer.execute(
            """
            SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
             WHERE application_name = 'heartline test'
            """)
        let stored = commit(epoch: claim.epoch, 0, 7) { $0.keep(1, "once") }
        if server.ask(.commit(stored))?.isCommitted != true {
            guard case .verified(_, let offset, _) = server.ask(.verify) else {
                Issue.record("the sink did not connect again")
                return
            }
            #expect(offset == 0)
            #expect(server.ask(.commit(stored))?.isCommitted == true)
        }
        #expect(try server.count("sink_kept") == 1)
    }

    @Test func aServerThatIsDownIsUnavailableAndThenServesAgain() throws {
        let own = try TestServer()
        defer { own.remove() }
        let server = try SinkOnServer(own.makeDatabase())
        let claim = try #require(server.claim())
        own.stop()
        let stored = commit(epoch: claim.epoch, 0, 7) { $0.keep(1, "once") }
        let kinds = (0..<5).map { _ in server.ask(.commit(stored))?.failure?.kind }
        #expect(kinds.last == .unavailable)
        #expect(!kinds.contains(.refused))
        #expect(!kinds.contains(nil))
        try own.start()
        let isBack = waitUntil {
            if case .verified(_, 0, _) = server.ask(.verify) { true } else { false }
        }
        #expect(isBack)
        #expect(server.ask(.commit(stored))?.isCommitted == true)
        #expect(try server.count("sink_kept") == 1)
    }

    @Test(arguments: [8_192, 16])
    func twoSinksThatWriteTheSameKeysInOppositeOrderNeverDeadlock(copyRows: Int) throws {
        let database = try TestDatabase.make()
        let one = try SinkOnServer(database, copyRows: copyRows, pipeline: "one")
        let two = try SinkOnServer(database, copyRows: copyRows, pipeline: "two")
        let epochs = [try #require(one.claim()).epoch, try #require(two.claim()).epoch]
        let keys = Array(UInt64(0)..<300)
        for round in Int64(0)..<20 {
            let ascending = commit(epoch: epochs[0], round, round + 1) { commit in
                for key in keys { commit.keep(key, "one") }
            }
            let descending = commit(epoch: epochs[1], round, round + 1) { commit in
                for key in keys.reversed() { commit.keep(key, "two") }
            }
            one.send(.commit(ascending))
            two.send(.commit(descending))
            #expect(one.reply()?.isCommitted == true)
            #expect(two.reply()?.isCommitted == true)
        }
        #expect(try one.count("sink_kept") == 300)
    }

    @Test func aPartitionThatWaitsHoldsUpThoseOfItsConnectionOnlyAndEachKeepsItsOrder() throws {
        let server = try SinkOnServer(.make(), pipeline: "lanes", connections: 2)
        var epochs: [Int64] = []
        for partition in Int32(0)..<4 {
            epochs.append(try #require(server.claim(partition: partition)).epoch)
        }
        #expect(
            try server.query(
                "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'heartline lanes'"
            ) == 2)
        // Only the commit of partition 0 needs this row.
        let blocker = try server.database.connect()
        try blocker.run(
            """
            BEGIN; SELECT FROM heartline.stream_partitions
             WHERE pipeline = 'lanes' AND partition = 0 FOR UPDATE
            """)
        for round in Int64(0)..<3 {
            for partition in Int32(0)..<4 {
                server.send(
                    .commit(
                        commit(epoch: epochs[Int(partition)], round, round + 1) {
                            $0.log(Int64(partition) * 10 + round, "{}")
                        }), partition: partition)
            }
        }
        var done: [Int32] = []
        for _ in 0..<6 {
            let reply = try #require(server.wholeReply())
            #expect(reply.outcome.isCommitted)
            done.append(reply.partition)
        }
        #expect(done == [1, 3, 1, 3, 1, 3])
        #expect(server.sink.nextReply() == nil)
        try blocker.run("ROLLBACK")
        done = []
        for _ in 0..<6 {
            let reply = try #require(server.wholeReply())
            #expect(reply.outcome.isCommitted)
            done.append(reply.partition)
        }
        #expect(done == [0, 2, 0, 2, 0, 2])
        #expect(try server.count("sink_log") == 12)
    }

    @Test func aFullQueueTakesNothing() throws {
        let database = try TestDatabase.make()
        var settings = PostgresSink.Settings(
            address: database.url, pipeline: "full", source: .heartbeats, tables: [], owner: "tests"
        )
        settings.queueLimit = 0
        let sink = PostgresSink(settings, waker: Waker())
        defer { sink.close() }
        #expect(!sink.submit(StoreRequest(ticket: 1, partition: 0, action: .verify)))
    }

    /// Asks again until the answer is yes, for half a minute.
    private func waitUntil(_ condition: () throws -> Bool) rethrows -> Bool {
        let pause = Waker()
        for _ in 0..<600 {
            if try condition() { return true }
            pause.wait(milliseconds: 50)
        }
        return false
    }
}
