import Bytes
import Fleet
import Schemas
import Testing

/// The agents' document, row by row: its state diagram, its recovery table, the contract's retries.
@Suite struct AgentTests {
    /// Runs one agent and keeps what it asked for.
    struct Bench {
        var agent: Agent
        var settings = AgentSettings()
        var effects: ContiguousArray<AgentEffect> = []
        var now = EventTime(milliseconds: 0)

        init(firstHeartbeat: Int64 = 0) {
            agent = Agent(firstHeartbeat: EventTime(milliseconds: firstHeartbeat))
        }

        /// Hands it one event.
        @discardableResult
        mutating func on(_ event: AgentEvent) -> [AgentEffect] {
            effects.removeAll()
            agent.handle(event, at: now, settings: settings, into: &effects)
            return Array(effects)
        }

        /// Moves to when it wants to be woken, and wakes it.
        mutating func wake() throws -> [AgentEffect] {
            now = try #require(agent.wakeTime)
            return on(.timer)
        }

        /// To the state between two heartbeats.
        mutating func start() {
            on(.booted)
            on(.loaded(isProvisioned: true))
            on(.tunnelStarted)
        }

        mutating func answer(_ outcome: HeartbeatOutcome) -> [AgentEffect] {
            on(.answered(sequence: sequence, outcome))
        }

        /// Wakes it for a heartbeat and answers that with 200.
        mutating func beat(_ hash: String = "h") throws -> AgentHeartbeat {
            let heartbeat = try #require(sent(try wake()))
            _ = answer(.accepted(AgentTests.hash(hash)))
            return heartbeat
        }

        private(set) var sequence: UInt32 = 0

        mutating func sent(_ effects: [AgentEffect]) -> AgentHeartbeat? {
            for case .send(let heartbeat, let sequence) in effects {
                self.sequence = sequence
                return heartbeat
            }
            return nil
        }
    }

    static func hash(_ text: String) -> ForwardsHash { ForwardsHash(ByteBuffer(text.utf8).span) }

    // MARK: The state diagram

    @Test func bootLeadsToAppInit() {
        var bench = Bench()
        #expect(bench.agent.state == .boot)
        #expect(bench.on(.booted) == [.load])
        #expect(bench.agent.state == .appInit)
    }

    @Test func anAgentWithoutConfigurationProvisionsThenStartsItsTunnel() {
        var bench = Bench()
        bench.on(.booted)
        #expect(bench.on(.loaded(isProvisioned: false)) == [.provision])
        #expect(bench.agent.state == .provision)
        #expect(bench.on(.provisioned) == [.startTunnel])
        #expect(bench.agent.state == .tunnelUp)
    }

    @Test func anAgentWithConfigurationStartsItsTunnelAtOnce() {
        var bench = Bench()
        bench.on(.booted)
        #expect(bench.on(.loaded(isProvisioned: true)) == [.startTunnel])
        #expect(bench.agent.state == .tunnelUp)
        #expect(!bench.agent.tunnel.isUp)
    }

    @Test func aFailedProvisioningGoesThroughAppRetryToAppInit() throws {
        var bench = Bench()
        bench.on(.booted)
        bench.on(.loaded(isProvisioned: false))
        #expect(bench.on(.provisioningFailed(.unanswered)) == [])
        #expect(bench.agent.state == .appRetry)
        #expect(try bench.wake() == [.load])
        #expect(bench.agent.state == .appInit)
        #expect(bench.on(.loaded(isProvisioned: false)) == [.provision])
    }

    @Test func aTunnelThatIsUpBeginsTheHeartbeat() throws {
        var bench = Bench(firstHeartbeat: 12_000)
        bench.start()
        #expect(bench.agent.state == .heartbeat)
        #expect(bench.agent.tunnel.isUp)
        #expect(bench.agent.wakeTime == EventTime(milliseconds: 12_000))
        let heartbeat = try #require(bench.sent(try bench.wake()))
        #expect(
            heartbeat
                == AgentHeartbeat(
                    status: .connected, isTunnelUp: true,
                    lastHandshake: EventTime(milliseconds: 0)))
    }

    @Test func heartbeatsAreThirtySecondsApartWhateverAnAnswerTakes() throws {
        var bench = Bench(firstHeartbeat: 5_000)
        bench.start()
        var times: [Int64] = []
        for delay in [0, 1, 29_999, 31_000, 200] as [Int64] {
            _ = bench.sent(try bench.wake())
            times.append(bench.now.milliseconds)
            #expect(bench.agent.wakeTime == nil, "nothing more while an answer is awaited")
            bench.now = bench.now + delay
            #expect(bench.answer(.accepted(Self.hash("h"))) == [])
        }
        // The answer after 31 s makes it miss one moment, and keep its place.
        #expect(times == [5_000, 35_000, 65_000, 95_000, 155_000])
    }

    @Test func theFirstHashIsKeptAndAnotherRebuildsTheTunnel() throws {
        var bench = Bench()
        bench.start()
        _ = try bench.beat("one")
        #expect(bench.agent.state == .heartbeat)
        #expect(bench.agent.forwardsHash == Self.hash("one"))
        _ = try bench.beat("one")
        #expect(bench.agent.state == .heartbeat)

        _ = bench.sent(try bench.wake())
        bench.now = bench.now + 80
        #expect(
            bench.answer(.accepted(Self.hash("two")))
                == [.configurationChanged, .stopTunnel, .startTunnel])
        #expect(bench.agent.state == .tunnelRebuild)
        #expect(!bench.agent.tunnel.isUp)
        bench.now = bench.now + 20
        #expect(bench.on(.tunnelStarted) == [])
        #expect(bench.agent.state == .heartbeat)
        #expect(bench.agent.wakeTime == EventTime(milliseconds: 90_000))
        let heartbeat = try bench.beat("two")
        #expect(heartbeat.lastHandshake == EventTime(milliseconds: 60_100))
        #expect(bench.agent.state == .heartbeat, "the new hash is in use now")
    }

    @Test func anAnswerWithoutAHashChangesNothing() throws {
        var bench = Bench()
        bench.start()
        _ = try bench.beat("one")
        _ = bench.sent(try bench.wake())
        #expect(bench.answer(.accepted(nil)) == [])
        #expect(bench.agent.forwardsHash == Self.hash("one"))
        #expect(bench.agent.state == .heartbeat)
    }

    @Test func anAnswerToAnOlderRequestChangesNothing() throws {
        var bench = Bench()
        bench.start()
        _ = try bench.beat("one")
        let before = bench.agent
        #expect(bench.on(.answered(sequence: 1, .accepted(Self.hash("two")))) == [])
        #expect(bench.agent == before)
        _ = bench.sent(try bench.wake())
        let waiting = bench.agent
        #expect(bench.on(.answered(sequence: 1, .accepted(Self.hash("two")))) == [])
        #expect(bench.agent == waiting)
    }

    // MARK: The recovery table

    @Test func provisioningIsTriedThreeTimesThenTheUserIsTold() throws {
        var bench = Bench()
        bench.on(.booted)
        bench.on(.loaded(isProvisioned: false))
        for pause in [1_000, 2_000] as [Int64] {
            let before = bench.now
            #expect(bench.on(.provisioningFailed(.unanswered)) == [])
            #expect(bench.agent.wakeTime == before + pause)
            _ = try bench.wake()
            #expect(bench.on(.loaded(isProvisioned: false)) == [.provision])
        }
        #expect(bench.on(.provisioningFailed(.unanswered)) == [.notifyUser(.provisioning)])
        #expect(bench.agent.state == .failed)
        #expect(bench.agent.wakeTime == nil)
        // The user starts it again.
        #expect(bench.on(.booted) == [.load])
    }

    @Test func aRefusedProvisioningIsTriedAgainAtOnceThenTheUserIsTold() throws {
        var bench = Bench()
        bench.on(.booted)
        bench.on(.loaded(isProvisioned: false))
        for _ in 0..<2 {
            #expect(bench.on(.provisioningFailed(.refused(status: 403))) == [])
            #expect(bench.agent.state == .appRetry)
            #expect(bench.agent.wakeTime == EventTime(milliseconds: 0))
            #expect(try bench.wake() == [.load])
            #expect(bench.on(.loaded(isProvisioned: false)) == [.provision])
        }
        #expect(
            bench.on(.provisioningFailed(.refused(status: 403))) == [.notifyUser(.provisioning)])
        #expect(bench.agent.state == .failed)
        #expect(bench.agent.wakeTime == nil)
    }

    @Test func anAgentThatIsProvisionedAtTheThirdTryHasAllTriesForItsTunnel() throws {
        var bench = Bench()
        bench.on(.booted)
        bench.on(.loaded(isProvisioned: false))
        for _ in 0..<2 {
            bench.on(.provisioningFailed(.unanswered))
            _ = try bench.wake()
            bench.on(.loaded(isProvisioned: false))
        }
        #expect(bench.on(.provisioned) == [.startTunnel])
        for _ in 0..<2 {
            #expect(bench.on(.tunnelFailed) == [])
            #expect(try bench.wake() == [.startTunnel])
        }
        #expect(bench.on(.tunnelStarted) == [])
        #expect(bench.agent.state == .heartbeat)
    }

    @Test func aConfigurationThatCannotBeDecryptedIsClearedAndAskedForAgain() throws {
        var bench = Bench()
        bench.on(.booted)
        bench.on(.loaded(isProvisioned: false))
        #expect(bench.on(.provisioningFailed(.undecryptable)) == [.clearConfiguration])
        #expect(bench.agent.state == .appRetry)
        #expect(try bench.wake() == [.load])
        #expect(bench.on(.loaded(isProvisioned: false)) == [.provision])
    }

    @Test func aTunnelIsStartedThreeTimesThenTheUserIsTold() throws {
        var bench = Bench()
        bench.on(.booted)
        bench.on(.loaded(isProvisioned: true))
        for pause in [1_000, 2_000] as [Int64] {
            let before = bench.now
            #expect(bench.on(.tunnelFailed) == [])
            #expect(bench.agent.state == .tunnelUp)
            #expect(bench.agent.wakeTime == before + pause)
            #expect(try bench.wake() == [.startTunnel])
        }
        #expect(bench.on(.tunnelFailed) == [.notifyUser(.tunnelStart)])
        #expect(bench.agent.state == .failed)
    }

    @Test func aTunnelThatStartsAtTheThirdTryIsUp() throws {
        var bench = Bench()
        bench.on(.booted)
        bench.on(.loaded(isProvisioned: true))
        bench.on(.tunnelFailed)
        _ = try bench.wake()
        bench.on(.tunnelFailed)
        _ = try bench.wake()
        #expect(bench.on(.tunnelStarted) == [])
        #expect(bench.agent.state == .heartbeat)
        #expect(bench.agent.tunnel.isUp)
    }

    @Test func aRebuildIsTriedThreeTimesThenTheUserIsTold() throws {
        var bench = Bench()
        bench.start()
        _ = try bench.beat("one")
        _ = bench.sent(try bench.wake())
        _ = bench.answer(.accepted(Self.hash("two")))
        bench.on(.tunnelFailed)
        #expect(bench.agent.state == .tunnelRebuild)
        #expect(try bench.wake() == [.startTunnel])
        bench.on(.tunnelFailed)
        #expect(try bench.wake() == [.startTunnel])
        #expect(bench.on(.tunnelFailed) == [.notifyUser(.tunnelStart)])
        #expect(bench.agent.state == .failed)
    }

    @Test func aConnectionThatFailsIsTriedAgainAfterOneAndTwoSecondsThenOnlyLogged() throws {
        var bench = Bench()
        bench.start()
        let first = bench.sent(try bench.wake())
        #expect(bench.answer(.unanswered) == [])
        #expect(bench.agent.wakeTime == EventTime(milliseconds: 1_000))
        #expect(bench.sent(try bench.wake()) == first, "a retry repeats the same body")
        #expect(bench.answer(.unanswered) == [])
        #expect(bench.agent.wakeTime == EventTime(milliseconds: 3_000))
        #expect(bench.sent(try bench.wake()) == first)
        #expect(bench.answer(.unanswered) == [.log(.heartbeat)])
        #expect(bench.agent.state == .heartbeat)
        #expect(bench.agent.wakeTime == EventTime(milliseconds: 30_000))
        // The next heartbeat has its three tries again.
        _ = bench.sent(try bench.wake())
        #expect(bench.answer(.unanswered) == [])
        #expect(bench.agent.wakeTime == EventTime(milliseconds: 31_000))
    }

    @Test(arguments: [400, 403, 429, 500, 503])
    func aRefusalIsTriedAgainAtOnceThenOnlyLogged(_ status: Int) throws {
        var bench = Bench()
        bench.start()
        let first = bench.sent(try bench.wake())
        #expect(bench.sent(bench.answer(.refused(status: status))) == first)
        #expect(bench.sent(bench.answer(.refused(status: status))) == first)
        #expect(bench.answer(.refused(status: status)) == [.log(.heartbeat)])
        #expect(bench.now == EventTime(milliseconds: 0))
        #expect(bench.agent.wakeTime == EventTime(milliseconds: 30_000))
    }

    @Test func anAnswerThatCannotBeReadIsOnlyLogged() throws {
        var bench = Bench()
        bench.start()
        _ = bench.sent(try bench.wake())
        #expect(bench.answer(.unreadable) == [.log(.heartbeat)])
        #expect(bench.agent.wakeTime == EventTime(milliseconds: 30_000))
    }

    @Test func withoutWiFiItLooksThreeTimesThenPausesUntilWiFiIsBack() throws {
        var bench = Bench()
        bench.start()
        bench.on(.faultBegan(.wifi))
        #expect(try bench.wake() == [])
        #expect(bench.agent.wakeTime == EventTime(milliseconds: 1_000))
        #expect(try bench.wake() == [])
        #expect(bench.agent.wakeTime == EventTime(milliseconds: 3_000))
        #expect(try bench.wake() == [.log(.networkLost)])
        #expect(bench.agent.state == .paused)
        #expect(bench.agent.wakeTime == nil)
        bench.now = EventTime(milliseconds: 70_000)
        #expect(bench.on(.faultEnded) == [])
        #expect(bench.agent.state == .heartbeat)
        let heartbeat = try bench.beat()
        #expect(bench.now == EventTime(milliseconds: 70_000))
        #expect(heartbeat.lastHandshake == EventTime(milliseconds: 70_000))
        #expect(bench.agent.wakeTime == EventTime(milliseconds: 90_000), "its place is kept")
    }

    @Test func wiFiThatIsBackBeforeThePauseIsUsedAtOnce() throws {
        var bench = Bench()
        bench.start()
        bench.on(.faultBegan(.wifi))
        #expect(try bench.wake() == [])
        bench.now = EventTime(milliseconds: 400)
        bench.on(.faultEnded)
        #expect(bench.agent.wakeTime == EventTime(milliseconds: 400))
        _ = try bench.beat()
        #expect(bench.agent.wakeTime == EventTime(milliseconds: 30_000))
    }

    @Test func storageThatFailsFallsBack() {
        var bench = Bench()
        bench.start()
        let before = bench.agent
        #expect(bench.on(.storageFailed) == [.useFallbackStorage])
        #expect(bench.agent == before)
    }

    // MARK: Faults

    @Test func aPulledCableSendsNothingAndLosesHandshakes() throws {
        var bench = Bench()
        bench.start()
        _ = try bench.beat()
        bench.on(.faultBegan(.silent))
        for _ in 0..<5 { #expect(try bench.wake() == [.log(.heartbeat)]) }
        #expect(bench.now == EventTime(milliseconds: 150_000))
        bench.now = EventTime(milliseconds: 160_000)
        bench.on(.faultEnded)
        let heartbeat = try bench.beat()
        #expect(bench.now == EventTime(milliseconds: 180_000))
        #expect(heartbeat.isTunnelUp)
        #expect(heartbeat.lastHandshake == EventTime(milliseconds: 160_000))
    }

    @Test func aCableThatIsPulledBetweenTwoTriesEndsTheTries() throws {
        var bench = Bench()
        bench.start()
        _ = bench.sent(try bench.wake())
        bench.on(.faultBegan(.silent))
        #expect(bench.answer(.unanswered) == [])
        #expect(try bench.wake() == [.log(.heartbeat)])
        #expect(bench.agent.wakeTime == EventTime(milliseconds: 30_000))
    }

    @Test func aTunnelThatIsDownIsSaidToBeDownWithItsLastHandshake() throws {
        var bench = Bench()
        bench.start()
        _ = try bench.beat()
        bench.now = EventTime(milliseconds: 10_000)
        bench.on(.faultBegan(.tunnelDown))
        for _ in 0..<6 {
            let heartbeat = try bench.beat()
            #expect(heartbeat.status == .connected)
            #expect(!heartbeat.isTunnelUp)
            #expect(heartbeat.lastHandshake == EventTime(milliseconds: 0))
        }
        bench.on(.faultEnded)
        #expect(try bench.beat().isTunnelUp)
    }

    @Test func aStaleTunnelIsSaidToBeUpAndItsHandshakeAges() throws {
        var bench = Bench()
        bench.start()
        for _ in 0..<5 { _ = try bench.beat() }  // 0 … 120 s
        bench.on(.faultBegan(.stale))
        for _ in 0..<10 {
            let heartbeat = try bench.beat()
            #expect(heartbeat.isTunnelUp)
            #expect(heartbeat.lastHandshake == EventTime(milliseconds: 120_000))
        }
        bench.on(.faultEnded)
        let heartbeat = try bench.beat()
        #expect(heartbeat.lastHandshake == EventTime(milliseconds: 420_000))
    }

    @Test func aRecoveringAgentSaysSo() throws {
        var bench = Bench()
        bench.start()
        bench.on(.faultBegan(.recovering))
        let during = try bench.beat()
        #expect(during.status == .recovering)
        #expect(!during.isTunnelUp)
        bench.on(.faultEnded)
        let after = try bench.beat()
        #expect(after.status == .connected)
        #expect(after.isTunnelUp)
    }

    @Test func anAgentThatIsStoppedSaysSoOnceAndIsSilent() throws {
        var bench = Bench()
        bench.start()
        _ = try bench.beat()
        bench.now = EventTime(milliseconds: 7_000)
        let effects = bench.on(.faultBegan(.stopped))
        let spoken = bench.sent(effects)
        let last = try #require(spoken)
        #expect(last.status == .stopped)
        #expect(!last.isTunnelUp)
        // A word that is lost is said again.
        #expect(bench.answer(.unanswered) == [])
        #expect(bench.sent(try bench.wake()) == last)
        _ = bench.answer(.accepted(Self.hash("other")))
        #expect(bench.agent.state == .stopped)
        #expect(bench.agent.wakeTime == nil)
        bench.now = EventTime(milliseconds: 500_000)
        #expect(bench.on(.faultEnded) == [.load])
        #expect(bench.on(.loaded(isProvisioned: true)) == [.startTunnel])
        bench.on(.tunnelStarted)
        #expect(try bench.beat().status == .connected)
        #expect(bench.now == EventTime(milliseconds: 500_000))
    }

    @Test func aFlappingTunnelIsDownForTwoHeartbeatsAndUpForTwo() throws {
        var bench = Bench()
        bench.start()
        bench.on(.faultBegan(.flapping))
        var ups: [Bool] = []
        for _ in 0..<8 { ups.append(try bench.beat().isTunnelUp) }
        #expect(ups == [false, false, true, true, false, false, true, true])
        _ = try bench.beat()
        bench.on(.faultEnded)
        #expect(try bench.beat().isTunnelUp)
    }

    @Test func aTunnelThatCannotStartSilencesTheAgentUntilItsUserStartsItAgain() throws {
        var bench = Bench()
        bench.start()
        #expect(bench.on(.faultBegan(.tunnelFails)) == [.stopTunnel, .startTunnel])
        bench.on(.tunnelFailed)
        _ = try bench.wake()
        bench.on(.tunnelFailed)
        _ = try bench.wake()
        #expect(bench.on(.tunnelFailed) == [.notifyUser(.tunnelStart)])
        #expect(bench.on(.faultEnded) == [.load])
    }

    @Test(
        arguments: [(Fault.clockAhead, 86_400_000), (.clockBehind, -86_400_000)] as [(Fault, Int64)]
    )
    func aWrongClockMovesTheClaimedHandshakeAndNothingElse(
        _ fault: Fault, _ error: Int64
    ) throws {
        var bench = Bench()
        bench.start()
        bench.on(.faultBegan(fault))
        let heartbeat = try bench.beat()
        #expect(heartbeat.lastHandshake == EventTime(milliseconds: error))
        #expect(bench.agent.wakeTime == EventTime(milliseconds: 30_000))
        bench.on(.faultEnded)
        #expect(try bench.beat().lastHandshake == EventTime(milliseconds: 0))
    }

    @Test func malformedHeartbeatsTakeEveryFormInTurn() throws {
        var bench = Bench()
        bench.start()
        bench.on(.faultBegan(.malformed))
        let ways = AgentHeartbeat.Malformation.allCases.filter { $0 != .none }
        var seen: [AgentHeartbeat.Malformation] = []
        for _ in ways { seen.append(try bench.beat().malformation) }
        #expect(seen == ways)
    }

    @Test func anAgentFitsInFewBytes() {
        #expect(MemoryLayout<Agent>.stride <= 128)
    }
}
