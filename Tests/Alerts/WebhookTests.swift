import Alerts
import Bytes
import Crypto
import Postgres
import Schemas
import Synchronization
import System
import TestSupport
import Testing

/// A webhook over real sockets.
@Suite struct WebhookTests {
    private let tables: AlertTables

    init() throws { tables = try AlertTables() }

    /// What the receiving end was sent, and how it answers now.
    private final class Receiver: Sendable {
        struct Message: Hashable, Sendable {
            var key: String
            var body: String
            var signature: String
            var wasAcknowledged: Bool
        }

        private let state = Mutex(
            (messages: [Message](), answer: HTTPTestServer.Answer.status(200, "")))

        var messages: [Message] { state.withLock { $0.messages } }
        var acknowledged: [String] {
            messages.filter(\.wasAcknowledged).map(\.key)
        }

        func answer(_ answer: HTTPTestServer.Answer) { state.withLock { $0.answer = answer } }

        func take(_ request: HTTPTestServer.Request) -> HTTPTestServer.Answer {
            state.withLock { state in
                var isAcknowledged = false
                if case .status(200..<300, _) = state.answer { isAcknowledged = true }
                state.messages.append(
                    Message(
                        key: request.header("Idempotency-Key") ?? "",
                        body: request.body.span.text,
                        signature: request.header("X-Heartline-Signature") ?? "",
                        wasAcknowledged: isAcknowledged))
                return state.answer
            }
        }
    }

    private static func settings(_ url: String, timeout: Int64 = 60_000) -> AlertReceiverSettings {
        var webhook = WebhookSettings(url: url, secret: ByteBuffer("secret".utf8))
        webhook.timeout = timeout
        webhook.usesEnvironmentProxy = false
        var settings = AlertReceiverSettings(name: "test", target: .webhook(webhook))
        settings.retryInitial = 20
        settings.retryLimit = 200
        return settings
    }

    @Test func messagesAreSignedAndNamed() throws {
        let receiver = Receiver()
        let server = HTTPTestServer { receiver.take($0) }
        defer { server.stop() }
        let dispatcher = AlertDispatcher.quick(
            tables.database, [Self.settings(server.url + "/hook?a=b")])
        dispatcher.start()
        try tables.open(1, kind: .stale)
        eventually("a message") { receiver.messages.count == 1 }
        let message = try #require(receiver.messages.first)
        let alert = try #require(try AlertAdministration.alerts(tables.connection).first)
        #expect(message.key == "\(alert.id):firing")
        #expect(message.body.contains(message.key))
        let parts = message.signature.split(separator: ",")
        try #require(parts.count == 2 && parts[0].hasPrefix("t=") && parts[1].hasPrefix("v1="))
        let signed = ByteBuffer("\(parts[0].dropFirst(2)).\(message.body)".utf8)
        let key = ByteBuffer("secret".utf8)
        #expect(parts[1].dropFirst(3) == HMACSHA256.authenticate(signed.span, key: key.span).hex)
        try eventually("the acknowledgement") {
            try tables.count("alert_deliveries WHERE delivered_at IS NOT NULL") == 1
        }
        dispatcher.stop()
    }

    @Test(arguments: [
        HTTPTestServer.Answer.status(503, "no"), .status(429, ""), .status(404, "who?"),
        .status(302, ""), .never, .close, .raw("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nno"),
    ])
    func aReceiverThatFailedMissesNothing(_ answer: HTTPTestServer.Answer) throws {
        let receiver = Receiver()
        receiver.answer(answer)
        let server = HTTPTestServer { receiver.take($0) }
        defer { server.stop() }
        var timeout: Int64 = 60_000
        if case .never = answer { timeout = 3_000 }
        let dispatcher = AlertDispatcher.quick(
            tables.database, [Self.settings(server.url, timeout: timeout)])
        dispatcher.start()
        for device in 0..<5 {
            try tables.open(device, kind: .stale)
        }
        try eventually("firing messages") { try tables.messages().count == 5 }
        for device in 0..<5 { try tables.resolve(device, kind: .stale) }
        try eventually("all messages") { try tables.messages().count == 10 }
        try eventually("failures") {
            try tables.count("alert_deliveries WHERE attempts > 1 AND last_error IS NOT NULL") > 0
        }
        #expect(try tables.count("alert_deliveries WHERE delivered_at IS NOT NULL") == 0)
        // A device's next message waits for the one before.
        #expect(!receiver.messages.contains { $0.key.hasSuffix("resolved") })
        receiver.answer(.status(204, ""))
        try eventually("acknowledgements") {
            try tables.count("alert_deliveries WHERE delivered_at IS NULL") == 0
        }
        dispatcher.stop()
        let taken = receiver.acknowledged
        #expect(taken.count == 10 && Set(taken).count == 10)
        for key in taken where key.hasSuffix("firing") {
            let resolved = key.replacing(":firing", with: ":resolved")
            #expect(taken.firstIndex(of: key) ?? .max < taken.firstIndex(of: resolved) ?? -1)
        }
    }

    @Test func aReceiverThatIsNotThereIsSentEverythingWhenItIs() throws {
        let port = HTTPTestServer.closedPort()
        let dispatcher = AlertDispatcher.quick(
            tables.database, [Self.settings("http://127.0.0.1:\(port)")])
        dispatcher.start()
        try tables.open(0..<40, kind: .stale)
        try eventually("a failure") {
            try tables.count("alert_deliveries WHERE last_error LIKE '%onnect%'") > 0
        }
        let receiver = Receiver()
        let server = HTTPTestServer(port: port) { receiver.take($0) }
        defer { server.stop() }
        eventually("all of it") { Set(receiver.acknowledged).count == 40 }
        try eventually("acknowledgements") {
            try tables.count("alert_deliveries WHERE delivered_at IS NULL") == 0
        }
        #expect(receiver.acknowledged.count == 40)
        dispatcher.stop()
    }

    @Test func aMessageThatIsRefusedHoldsUpItsOwnDeviceOnly() throws {
        let receiver = Receiver()
        let server = HTTPTestServer { request in
            request.body.span.text.contains("00000000-0000-0000-0000-000000000001")
                ? .status(400, "never") : receiver.take(request)
        }
        defer { server.stop() }
        let dispatcher = AlertDispatcher.quick(tables.database, [Self.settings(server.url)])
        dispatcher.start()
        try tables.open(0..<10, kind: .stale)
        eventually("the others") { receiver.acknowledged.count == 9 }
        try tables.resolve(0..<10, kind: .stale)
        eventually("their resolves") { receiver.acknowledged.count == 18 }
        try eventually("tries") { try tables.count("alert_deliveries WHERE attempts > 2") == 1 }
        let row = try tables.connection.execute(
            "SELECT event, last_error FROM heartline.alert_deliveries WHERE attempts > 0"
        ).only()
        #expect(try row.text(0) == "firing")
        #expect(try row.text(1) == "it answered 400")
        #expect(try tables.count("alert_deliveries WHERE delivered_at IS NULL") == 2)
        dispatcher.stop()
    }

    @Test func nothingIsSentTwiceOverALossOfTheDatabase() throws {
        let receiver = Receiver()
        let url = tables.database.url
        let cuts = Mutex(0)
        let server = HTTPTestServer { request in
            let answer = receiver.take(request)
            // The session is lost while the receiver takes the message.
            if receiver.messages.count % 10 == 3 {
                let cut = try? PostgresConnection(url).execute(
                    """
                    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                     WHERE datname = current_database()
                       AND application_name = 'heartline alert receiver'
                    """)
                cuts.withLock { $0 += cut?.count ?? 0 }
            }
            return answer
        }
        defer { server.stop() }
        let dispatcher = AlertDispatcher.quick(
            tables.database, [Self.settings(server.url, timeout: 60_000)])
        dispatcher.start()
        try tables.open(0..<100, kind: .stale)
        try eventually("acknowledgements") {
            try tables.count("alert_deliveries WHERE delivered_at IS NOT NULL") == 100
        }
        dispatcher.stop()
        #expect(cuts.withLock { $0 } > 0)
        #expect(receiver.acknowledged.count == 100)
        #expect(Set(receiver.acknowledged).count == 100)
    }

    @Test func twoProcessesSendOnce() throws {
        let receiver = Receiver()
        let server = HTTPTestServer { receiver.take($0) }
        defer { server.stop() }
        let dispatchers = (0..<2).map { _ in
            AlertDispatcher.quick(tables.database, [Self.settings(server.url)])
        }
        for dispatcher in dispatchers { dispatcher.start() }
        try tables.open(0..<50, kind: .stale)
        eventually("all of it") { receiver.acknowledged.count >= 50 }
        try eventually("acknowledgements") {
            try tables.count("alert_deliveries WHERE delivered_at IS NULL") == 0
        }
        dispatchers[0].stop()
        try tables.resolve(0..<50, kind: .stale)
        eventually("the resolves") { receiver.acknowledged.count >= 100 }
        dispatchers[1].stop()
        #expect(Set(receiver.acknowledged).count == 100 && receiver.acknowledged.count == 100)
    }

    @Test func notificationsComeThroughPostgreSQL() throws {
        let listener = try tables.database.connect()
        try listener.listen("test_alerts")
        let dispatcher = AlertDispatcher.quick(
            tables.database,
            [AlertReceiverSettings(name: "test", target: .notify(channel: "test_alerts"))])
        dispatcher.start()
        try tables.open(0..<300, kind: .stale)
        var payloads: [String] = []
        try eventually("notifications") {
            payloads += try listener.notifications().map(\.payload)
            return payloads.count >= 300
        }
        try tables.resolve(7, kind: .stale)
        try eventually("the resolve") {
            payloads += try listener.notifications().map(\.payload)
            return payloads.count >= 301
        }
        for (device, length) in [(400, 7_000), (401, 9_000)] {
            try tables.connection.execute(
                """
                INSERT INTO heartline.alerts (alert_id, kind, entity, episode, partition, reason, opened_at)
                VALUES (gen_random_uuid(), 'front-end-lost', $1, 0, 0, repeat('x', $2), now())
                """, .text("front \(device)"), .int4(Int32(length)))
        }
        try eventually("long ones") {
            payloads += try listener.notifications().map(\.payload)
            return payloads.count >= 303
        }
        // PostgreSQL takes less than 8,000 bytes.
        #expect(payloads.contains { $0.utf8.count > 7_000 && $0.hasSuffix("}") })
        #expect(payloads.count { !$0.contains("\"reason\"") } == 1)
        #expect(Set(payloads).count == 303)
        #expect(payloads.count { $0.contains(#""event": "resolved""#) } == 1)
        #expect(payloads.allSatisfy { $0.utf8.count < 8_000 && $0.hasPrefix("{") })
        dispatcher.stop()
    }
}
