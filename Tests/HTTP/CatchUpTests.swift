import HTTP
import Synchronization
import System
import Testing

/// What a loop says of how far it has read.
@Suite("Catching up") struct CatchUpTests {
    struct Findings: Sendable {
        /// For each request, up to when the loop had said to have read before it handed it over.
        var told: [Int: Int64] = [:]
        var count = 0
    }

    /// Hangs now and then.
    private final class Observer: RequestHandler {
        private let findings: Box
        private var caughtUp: Int64 = 0
        private var calls = 0

        final class Box: Sendable { let value = Mutex(Findings()) }

        init(_ findings: Box) { self.findings = findings }

        func handle(_ request: borrowing Request, _ exchange: borrowing Exchange) {
            let number = Int(request.query ?? "") ?? -1
            let told = caughtUp
            findings.value.withLock { $0.told[number] = told }
            calls += 1
            if calls % 128 == 0 { Waker().wait(milliseconds: 50) }
            exchange.respond(.ok, contentType: "text/plain", [UInt8]().span)
        }

        func caughtUp(to milliseconds: Int64) {
            caughtUp = milliseconds
            findings.value.withLock { $0.count += 1 }
        }
    }

    private struct Plan {
        var connections: Int
        var turns: Int
        /// Sends over the same connections again and again.
        var keeps: Bool
    }

    private static func send(_ number: Int, over client: RawClient) -> Int64 {
        _ = client.send("GET /x?\(number) HTTP/1.1\r\nHost: a\r\n\r\n")
        // From here on it waits in the server's socket.
        return SystemClock.monotonicMilliseconds()
    }

    @Test("What was sent before a time has been handed over when the loop says so")
    func caughtUp() throws {
        let box = Observer.Box()
        let configuration = try ServerConfiguration(host: "127.0.0.1", port: 0, name: "test")
        let server = try Server(configuration: configuration) { _ in Observer(box) }
        try server.start()
        defer { server.stop() }
        let port = server.boundAddress.port
        let sent = Mutex<[Int: Int64]>([:])
        let failures = Mutex<[String]>([])
        // More connections than one round has room for, and always some that are new.
        let plans = [
            Plan(connections: 600, turns: 2, keeps: true),
            Plan(connections: 100, turns: 6, keeps: false),
            Plan(connections: 30, turns: 15, keeps: false),
        ]
        let threads = plans.enumerated().map { index, plan in
            let base = (index + 1) * 1_000_000
            return SystemThread.start("client") {
                do {
                    var kept: [RawClient] = []
                    for turn in 0..<plan.turns {
                        if !plan.keeps || kept.isEmpty {
                            kept = try (0..<plan.connections).map { _ in try RawClient(port: port) }
                        }
                        for (place, client) in kept.enumerated() {
                            let number = base + turn * plan.connections + place
                            let time = Self.send(number, over: client)
                            sent.withLock { $0[number] = time }
                        }
                        for client in kept { _ = try client.readAnswer() }
                    }
                } catch { failures.withLock { $0.append("\(error)") } }
            }
        }
        for thread in threads { thread.join() }
        #expect(failures.withLock { $0 } == [])
        let findings = box.value.withLock { $0 }
        let times = sent.withLock { $0 }
        #expect(findings.told.count == times.count)
        let early = times.filter { findings.told[$0.key, default: .max] > $0.value }
        #expect(early.isEmpty, "\(early.count) of \(times.count) requests waited unread")
        #expect(findings.count > 3)
        // And it goes on saying so while nobody comes.
        #expect(eventually { box.value.withLock { $0.count } > findings.count + 3 })
    }
}
