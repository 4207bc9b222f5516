import Alerts
import Bytes
import Postgres
import Schemas
import Synchronization
import System
import TestSupport
import Testing

/// A database with a fleet, in which tests do what pipelines do.
final class AlertTables {
    let database: TestDatabase
    let connection: PostgresConnection

    init() throws {
        database = try TestDatabase.make()
        connection = try database.connect()
    }

    /// Devices 0 to `count` - 1 report.
    func fleet(_ count: Int) throws {
        try connection.execute(
            """
            INSERT INTO heartline.device_status
                (device_id, partition, state, reason, since, last_seen, flags, flapping, transitions)
            SELECT lpad(to_hex(n), 32, '0')::uuid, 0, 'healthy', 'fresh', now(), now(), '[]', false, 0
              FROM generate_series(0, $1 - 1) AS n
            """, .int8(Int64(count)))
    }

    static func device(_ number: Int) -> DeviceID { DeviceID(high: 0, low: UInt64(number)) }

    /// An alert of each device opens, in one transaction.
    func open(_ devices: Range<Int>, kind: AlertKind = .offline, episode: Int = 0) throws {
        let time = "now()"
        try connection.transaction {
            if kind == .offline {
                try connection.execute(
                    """
                    UPDATE heartline.device_status SET state = 'offline'
                     WHERE device_id IN (SELECT lpad(to_hex(n), 32, '0')::uuid
                                           FROM generate_series($1, $2) AS n)
                    """, .int8(Int64(devices.lowerBound)), .int8(Int64(devices.upperBound) - 1))
            }
            try connection.execute(
                """
                INSERT INTO heartline.alerts
                    (alert_id, kind, entity, device_id, episode, partition, reason, opened_at)
                SELECT md5($3 || n || '/' || $4)::uuid, $3, lpad(to_hex(n), 32, '0')::uuid,
                       lpad(to_hex(n), 32, '0')::uuid, $4, 0, 'silent', \(time)
                  FROM generate_series($1, $2) AS n
                """, .int8(Int64(devices.lowerBound)), .int8(Int64(devices.upperBound) - 1),
                .text(kind.rawValue), .int8(Int64(episode)))
        }
    }

    func open(_ device: Int, kind: AlertKind = .offline, episode: Int = 0) throws {
        try open(device..<device + 1, kind: kind, episode: episode)
    }

    func resolve(_ devices: Range<Int>, kind: AlertKind = .offline) throws {
        try connection.transaction {
            try connection.execute(
                """
                UPDATE heartline.device_status SET state = 'healthy'
                 WHERE device_id IN (SELECT lpad(to_hex(n), 32, '0')::uuid
                                       FROM generate_series($1, $2) AS n)
                """, .int8(Int64(devices.lowerBound)), .int8(Int64(devices.upperBound) - 1))
            try connection.execute(
                """
                UPDATE heartline.alerts SET resolved_at = now()
                 WHERE kind = $3 AND resolved_at IS NULL
                   AND device_id IN (SELECT lpad(to_hex(n), 32, '0')::uuid
                                       FROM generate_series($1, $2) AS n)
                """, .int8(Int64(devices.lowerBound)), .int8(Int64(devices.upperBound) - 1),
                .text(kind.rawValue))
        }
    }

    func resolve(_ device: Int, kind: AlertKind = .offline) throws {
        try resolve(device..<device + 1, kind: kind)
    }

    func count(_ sql: String) throws -> Int64 {
        try connection.execute("SELECT count(*) FROM heartline.\(sql)").only().int8(0)
    }

    /// Messages for a receiver, in order: `firing offline 3`.
    func messages(_ receiver: String = "test") throws -> [String] {
        var messages: [String] = []
        for row in try connection.execute(
            """
            SELECT d.event, a.kind, a.entity, a.device_id IS NOT NULL FROM heartline.alert_deliveries d
              JOIN heartline.alerts a USING (alert_id) WHERE receiver = $1 ORDER BY delivery_id
            """, .text(receiver))
        {
            let entity = try row.text(2)
            let number = UInt64(entity.suffix(12), radix: 16).map { "\($0)" } ?? entity
            messages.append(
                "\(try row.text(0)) \(try row.text(1)) \(try row.bool(3) ? number : entity)")
        }
        return messages
    }
}

/// Waits until `condition` holds, and says what never came otherwise.
func eventually(
    _ what: String, seconds: Int = 120, sourceLocation: SourceLocation = #_sourceLocation,
    _ condition: () throws -> Bool
) rethrows {
    let pause = Waker()
    let start = ContinuousClock.now
    while try !condition() {
        if ContinuousClock.now - start > .seconds(seconds) {
            Issue.record("never came: \(what)", sourceLocation: sourceLocation)
            return
        }
        pause.wait(milliseconds: 20)
    }
}

extension AlertDispatcher {
    /// One whose clockwork is quick, and whose receiver `test` only gathers messages.
    static func quick(
        _ database: TestDatabase, wait: Int64 = 300, within: Int64 = 60_000,
        _ receivers: [AlertReceiverSettings] = [],
        settings: AlertDispatcherSettings? = nil
    ) -> AlertDispatcher {
        var dispatch = AlertDispatchSettings()
        dispatch.groupWait = wait
        dispatch.massWithin = within
        var own = settings ?? AlertDispatcherSettings()
        own.pollMilliseconds = 50
        return AlertDispatcher(
            database: database.url,
            configuration: AlertsConfiguration(dispatch: dispatch, receivers: receivers),
            settings: own)
    }
}

extension AlertReceiverSettings {
    static let unheard = AlertReceiverSettings(
        name: "test", target: .notify(channel: "test_unheard"))
}
