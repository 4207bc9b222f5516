import Fleet
import Testing

@Suite struct FaultPlanTests {
    static let readable: [(String, [FaultPlan.Entry])] = [
        (
            "silent=5%:60s,tunnel-down=3%,stale=2%",
            [
                .init(
                    .silent, share: .percent(5), durationMilliseconds: 60_000,
                    periodMilliseconds: 240_000),
                .init(.tunnelDown, share: .percent(3)),
                .init(.stale, share: .percent(2)),
            ]
        ),
        (
            " flapping = 0.5 % : 1.5m / 1h ",
            [
                .init(
                    .flapping, share: .percent(0.5), durationMilliseconds: 90_000,
                    periodMilliseconds: 3_600_000)
            ]
        ),
        ("malformed=12", [.init(.malformed, share: .agents(12))]),
        (
            "wifi=100%:1ms/1ms",
            [
                .init(.wifi, share: .percent(100), durationMilliseconds: 1, periodMilliseconds: 1)
            ]
        ),
        ("clock-ahead=0", [.init(.clockAhead, share: .agents(0))]),
    ]

    @Test(arguments: readable)
    func isRead(_ text: String, _ entries: [FaultPlan.Entry]) throws {
        #expect(try FaultPlan(parsing: text).entries == entries)
    }

    @Test(arguments: Fault.allCases)
    func everyFaultHasAName(_ fault: Fault) throws {
        #expect(try FaultPlan(parsing: "\(fault.name)=1%").entries.map(\.fault) == [fault])
    }

    static let unreadable: [(String, part: String, reason: String)] = [
        ("", "", "nothing stands there"),
        ("silent=5%,", "", "nothing stands there"),
        ("silent", "silent", "no share; write `silent=5%` or `silent=5%:60s`"),
        ("silnet=5%", "silnet=5%", "no fault `silnet`; known are silent, wifi, tunnel-down,"),
        ("stale=1%,Silent=5%", "Silent=5%", "no fault `Silent`"),
        ("silent=", "silent=", "`` is no share"),
        ("silent=five", "silent=five", "`five` is no share"),
        ("silent=-5%", "silent=-5%", "`-5%` is no share from 0% to 100%"),
        ("silent=101%", "silent=101%", "`101%` is no share from 0% to 100%"),
        ("silent=nan%", "silent=nan%", "`nan%` is no share"),
        ("silent=1e1%", "silent=1e1%", "`1e1%` is no share"),
        ("silent=1.2.3%", "silent=1.2.3%", "`1.2.3%` is no share"),
        ("silent=1.5", "silent=1.5", "`1.5` is no share"),
        ("silent=99999999999999999999", "silent=99999999999999999999", "is no share"),
        ("silent=5%:", "silent=5%:", "`` is no duration"),
        ("silent=5%:60", "silent=5%:60", "`60` is no duration; write a number with ms, s, m"),
        ("silent=5%:0s", "silent=5%:0s", "`0s` is no duration"),
        ("silent=5%:-1s", "silent=5%:-1s", "`-1s` is no duration"),
        ("silent=5%:infs", "silent=5%:infs", "`infs` is no duration"),
        ("silent=5%:999999999999h", "silent=5%:999999999999h", "is no duration"),
        ("silent=5%:60s:2", "silent=5%:60s:2", "more than one `:`"),
        ("silent=5%:60s/5m/1h", "silent=5%:60s/5m/1h", "more than one `/`"),
        ("silent=5%:60s/30s", "silent=5%:60s/30s", "the period is shorter than the fault"),
        ("silent=5%,silent=1%", "silent=1%", "`silent` stands there twice"),
        ("silent=60%,stale=41%", "stale=41%", "the shares up to here are 101 %"),
    ]

    @Test(arguments: unreadable)
    func isRefusedWithItsPlaceAndReason(_ text: String, _ part: String, _ reason: String) {
        do {
            _ = try FaultPlan(parsing: text)
            Issue.record("`\(text)` was read")
        } catch {
            #expect(error.part == part)
            #expect(error.reason.contains(reason), "\(error)")
            #expect(error.description.hasPrefix("reading the faults, at `\(part)`: "))
        }
    }
}
