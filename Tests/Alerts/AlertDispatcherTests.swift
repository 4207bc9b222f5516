import Alerts
import Bytes
import Postgres
import Schemas
import Synchronization
import System
import TestSupport
import Testing

/// The dispatcher on a real PostgreSQL.
@Suite struct AlertDispatcherTests {
    private let tables: AlertTables

    init() throws { tables = try AlertTables() }

    @Test func anAlertIsSentAndItsResolve() throws {
        try tables.fleet(100)
        let dispatcher = AlertDispatcher.quick(tables.database, [.unheard])
        dispatcher.start()
        try tables.open(3)
        try tables.open(4, kind: .stale)
        try eventually("both messages") {
            try tables.messages() == ["firing stale 4", "firing offline 3"]
        }
        try tables.resolve(3)
        try eventually("the resolve") { try tables.messages().last == "resolved offline 3" }
        #expect(try tables.count("alert_dispatch WHERE state = 'ended'") == 1)
        try eventually("an empty list of news") { try tables.count("alert_news") == 0 }
        try eventually("an acknowledgement") {
            try tables.count("alert_deliveries WHERE delivered_at IS NULL") == 0
        }
        let payload = try tables.connection.execute(
            """
            SELECT payload FROM heartline.alert_deliveries ORDER BY delivery_id DESC LIMIT 1
            """
        ).only().jsonb(0)
        for part in [
            #""v": 1"#, #""event": "resolved""#, #""kind": "offline""#, #""reason": "silent""#,
            #""device_id": "00000000-0000-0000-0000-000000000003""#, #""resolved_at": "20"#,
        ] {
            #expect(payload.contains(part), "\(payload)")
        }
        dispatcher.stop()
        #expect(!dispatcher.hasLease)
    }

    @Test func whatWasOpenWhileNobodyDispatchedIsSentOnce() throws {
        try tables.fleet(100)
        try tables.open(1, kind: .down)
        try tables.open(2, kind: .down)
        try tables.resolve(2, kind: .down)
        for _ in 0..<3 {
            let dispatcher = AlertDispatcher.quick(tables.database, [.unheard])
            dispatcher.start()
            eventually("a round") { dispatcher.roundCount > 1 }
            dispatcher.stop()
        }
        #expect(try tables.messages() == ["firing down 1"])
        try tables.resolve(1, kind: .down)
        let dispatcher = AlertDispatcher.quick(tables.database, [.unheard])
        dispatcher.start()
        try eventually("the resolve") {
            try tables.messages() == ["firing down 1", "resolved down 1"]
        }
        dispatcher.stop()
    }

    @Test func receiversAreSentTheKindsTheyTake() throws {
        let some = AlertReceiverSettings(
            name: "some", kinds: ["stale"], target: .notify(channel: "test_unheard"))
        let dispatcher = AlertDispatcher.quick(tables.database, [.unheard, some])
        dispatcher.start()
        try tables.open(1, kind: .down)
        try tables.open(2, kind: .stale)
        try eventually("the messages") { try tables.messages("some") == ["firing stale 2"] }
        try eventually("the others") {
            try tables.messages() == ["firing down 1", "firing stale 2"]
        }
        // Whoever comes later is not told of the end of what it was not told of.
        dispatcher.reload(
            AlertsConfiguration(receivers: [
                .unheard,
                AlertReceiverSettings(name: "late", target: .notify(channel: "test_unheard")),
            ]))
        try tables.open(3, kind: .down)
        try eventually("the message for both") {
            try tables.messages("late") == ["firing down 3"]
        }
        try tables.resolve(1, kind: .down)
        try tables.resolve(3, kind: .down)
        try eventually("the resolves") {
            try tables.messages("late") == ["firing down 3", "resolved down 3"]
                && tables.messages().suffix(2).sorted() == ["resolved down 1", "resolved down 3"]
        }
        #expect(try tables.messages("some") == ["firing stale 2"])
        dispatcher.stop()
    }

    @Test func aHundredThousandDevicesAreOneMessage() throws {
        let count = 100_000
        try tables.fleet(count)
        try tables.connection.run("ANALYZE heartline.device_status")
        // Whoever takes offline alerts takes what stands for them.
        let offline = AlertReceiverSettings(
            name: "offline", kinds: ["offline"], target: .notify(channel: "test_unheard"))
        let dispatcher = AlertDispatcher.quick(
            tables.database, wait: 2_000, within: 3_600_000, [.unheard, offline])
        dispatcher.start()
        let start = ContinuousClock.now
        // As partitions find it out: some before others.
        for part in 0..<10 { try tables.open(part * count / 10..<(part + 1) * count / 10) }
        try eventually("all of them decided", seconds: 300) {
            try tables.count("alert_dispatch WHERE state = 'grouped'") == count
        }
        print("100,000 alerts decided after \(ContinuousClock.now - start)")
        #expect(try tables.messages() == ["firing mass-offline fleet"])
        #expect(try tables.count("alerts WHERE kind = 'offline'") == Int64(count))
        let named = try tables.connection.execute(
            "SELECT device_count FROM heartline.alerts WHERE kind = 'mass-offline'"
        ).only().int8(0)
        // It is as many as were seen when it was opened; the others join.
        #expect(named >= 10_000 && named <= 100_000)
        for part in 0..<10 { try tables.resolve(part * count / 10..<(part + 1) * count / 10) }
        try eventually("all of them ended", seconds: 300) {
            try tables.count("alert_dispatch WHERE state <> 'ended'") == 0
        }
        print("and resolved after \(ContinuousClock.now - start)")
        #expect(
            try tables.messages() == ["firing mass-offline fleet", "resolved mass-offline fleet"])
        #expect(try tables.messages("offline") == tables.messages())
        // Both stand in the topic as well.
        let values = try tables.connection.execute(
            "SELECT convert_from(value, 'UTF8') FROM heartline.outbox WHERE topic = 'alerts' ORDER BY sequence"
        ).map { try $0.text(0) }
        #expect(values.count == 2)
        #expect(
            values[0].contains(#""type":"opened""#) && values[0].contains(#""count":\#(named)"#))
        #expect(values[1].contains(#""type":"resolved""#) && values[1].contains("mass-offline"))
        dispatcher.stop()
    }

    @Test func oneOfTwoDispatches_andTheOtherTakesOver() throws {
        try tables.fleet(100)
        let first = AlertDispatcher.quick(tables.database, wait: 60_000, [.unheard])
        first.start()
        eventually("the lease") { first.hasLease }
        let second = AlertDispatcher.quick(tables.database, wait: 60_000, [.unheard])
        second.start()
        try tables.open(1)
        try eventually("it is held") {
            try tables.count("alert_dispatch WHERE state = 'held'") == 1
        }
        #expect(!second.hasLease && second.roundCount == 0)
        let seen = try tables.connection.execute("SELECT seen_at FROM heartline.alert_dispatch")
            .only().timestamptz(0)
        // The first one's session is cut, as by the death of its process, and somebody else is quicker.
        first.stop()
        eventually("the takeover") { second.hasLease && second.roundCount > 0 }
        try tables.open(2)
        try eventually("both are held") {
            try tables.count("alert_dispatch WHERE state = 'held'") == 2
        }
        #expect(
            try tables.connection.execute("SELECT min(seen_at) FROM heartline.alert_dispatch")
                .only().timestamptz(0) == seen)
        second.stop()
    }

    @Test func aLostSessionIsNoticedAndNothingIsLost() throws {
        let obstacles = Mutex<[String?]>([])
        var settings = AlertDispatcherSettings()
        settings.obstacleChanged = { obstacle in obstacles.withLock { $0.append(obstacle) } }
        let dispatcher = AlertDispatcher.quick(
            tables.database, [.unheard], settings: settings)
        dispatcher.start()
        eventually("the lease") { dispatcher.hasLease }
        for episode in 0..<5 {
            try tables.connection.execute(
                """
                SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                 WHERE datname = current_database() AND application_name LIKE 'heartline alert%'
                """)
            try tables.open(1, kind: .down, episode: episode)
            try tables.resolve(1, kind: .down)
            try tables.open(episode + 10, kind: .stale)
            try eventually("the message") {
                try tables.messages().contains("firing stale \(episode + 10)")
            }
        }
        try eventually("acknowledgements") {
            try tables.count("alert_deliveries WHERE delivered_at IS NULL") == 0
        }
        dispatcher.stop()
        #expect(obstacles.withLock { $0.contains { $0 != nil } && $0.last == .some(nil) })
    }

    @Test func silencesHoldBackAndLetGo() throws {
        let dispatcher = AlertDispatcher.quick(tables.database, [.unheard])
        dispatcher.start()
        let device = AlertTables.device(1)
        let silence = try AlertAdministration.silence(
            tables.connection, device: device, milliseconds: 3_600_000, reason: "new cable",
            by: "ann")
        let later = try AlertAdministration.silence(
            tables.connection, kind: "stale", from: silence.endsAt, milliseconds: 1_000,
            reason: "to come", by: "ann")
        try tables.open(1, kind: .stale)
        try tables.open(2, kind: .stale)
        try eventually("the loud one") { try tables.messages() == ["firing stale 2"] }
        try eventually("the silenced one") {
            try tables.count("alert_dispatch WHERE state = 'silenced'") == 1
        }
        #expect(
            try AlertAdministration.silences(tables.connection).map(\.id) == [silence.id, later.id])
        #expect(try AlertAdministration.unsilence(tables.connection, silence.id, by: "bob"))
        #expect(try AlertAdministration.unsilence(tables.connection, later.id, by: "bob"))
        #expect(try !AlertAdministration.unsilence(tables.connection, later.id, by: "bob"))
        try eventually("what was silenced") {
            try tables.messages() == ["firing stale 2", "firing stale 1"]
        }
        #expect(try AlertAdministration.silences(tables.connection).isEmpty)
        #expect(try AlertAdministration.silences(tables.connection, all: true).count == 1)
        dispatcher.stop()
        let audit = try tables.connection.execute(
            "SELECT actor || ' ' || action || ' ' || entity FROM heartline.audit_log ORDER BY audit_id"
        ).map { try $0.text(0) }
        #expect(
            audit == [
                "ann alert.silence \(silence.id)", "ann alert.silence \(later.id)",
                "bob alert.unsilence \(silence.id)", "bob alert.unsilence \(later.id)",
            ])
    }

    @Test func acknowledgedAlertsNameWhoLooksAfterThem() throws {
        try tables.open(1, kind: .stale)
        let alert = try #require(try AlertAdministration.alerts(tables.connection).first)
        #expect(alert.acknowledgedBy == nil && alert.kind == "stale" && alert.state == nil)
        let missing = AlertTables.device(99)
        for actor in ["ann", "bob"] {
            #expect(
                try AlertAdministration.acknowledge(
                    tables.connection, [alert.id, missing], by: actor) == [alert.id])
        }
        let listed = try AlertAdministration.alerts(
            tables.connection, kind: "stale", device: AlertTables.device(1))
        #expect(listed.map(\.acknowledgedBy) == ["ann"])
        try tables.resolve(1, kind: .stale)
        #expect(try AlertAdministration.alerts(tables.connection).isEmpty)
        #expect(try AlertAdministration.alerts(tables.connection, all: true).count == 1)
        #expect(try tables.count("audit_log WHERE action = 'alert.acknowledge'") == 1)
    }
}
