import EventLog
import TestSupport
import Testing

struct EventLogContractTests {
    /// Another log joins by a line of its own.
    static let implementations = [
        EventLogImplementation("EmbeddedLog") { body in try withLog { try body($0) } }
    ]

    @Test(arguments: implementations, EventLogRule.allCases)
    func keepsThePromise(of implementation: EventLogImplementation, _ rule: EventLogRule) throws {
        try implementation.check(rule)
    }
}
