import EventLog
import TestSupport
import Testing

struct EventLogContractTests {
    /// Another log joins by a line of its own.
    static let implementations = [
        EventLogImplementation("EmbeddedLog") { body in
            // Longer than the rules wait: the doorbell alone must wake consumers.
            var settings = EmbeddedLogSettings()
            settings.wakeMilliseconds = 600_000
            try withLog(settings) { try body($0) }
        },
        // On librdkafka's mock cluster, which makes topics in its own way.
        EventLogImplementation("KafkaLog") { body in try MockKafka.withLog { try body($0) } },
    ]

    @Test(arguments: implementations, EventLogRule.allCases)
    func keepsThePromise(of implementation: EventLogImplementation, _ rule: EventLogRule) throws {
        try implementation.check(rule)
    }
}
