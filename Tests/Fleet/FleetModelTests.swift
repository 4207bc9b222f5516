import Bytes
import Fleet
import Schemas
import Testing

@Suite struct FleetModelTests {
    static func devices(_ count: Int) -> [DeviceID] {
        (0..<count).map { DeviceID(high: 0x1234_5678_9ABC_4DEF, low: UInt64($0)) }
    }

    static func hash(_ text: String) -> ForwardsHash { ForwardsHash(ByteBuffer(text.utf8).span) }

    static func model(
        _ count: Int, faults: String? = nil, seed: UInt64 = 1
    ) throws -> FleetModel {
        FleetModel(
            devices: devices(count),
            faults: try faults.map { text in try FaultPlan(parsing: text) } ?? FaultPlan(),
            seed: seed, start: EventTime(milliseconds: 0))
    }

    /// Runs a fleet whose every request is answered after `latency`, and gives all requests.
    static func run(
        _ model: inout FleetModel, until end: Int64, latency: Int64 = 20,
        answer: (FleetRequest) -> HeartbeatOutcome = { _ in .accepted(nil) }
    ) -> [FleetRequest] {
        var all: [FleetRequest] = []
        var new: ContiguousArray<FleetRequest> = []
        var waiting: [(at: EventTime, request: FleetRequest)] = []
        while true {
            let wake = [model.nextWake, waiting.first?.at].compactMap(\.self).min()
            guard let now = wake, now.milliseconds < end else { return all }
            while let first = waiting.first, first.at <= now {
                waiting.removeFirst()
                model.answer(
                    agent: first.request.agent, sequence: first.request.sequence,
                    answer(first.request), at: now, into: &new)
            }
            model.advance(to: now, into: &new)
            for request in new {
                all.append(request)
                waiting.append((now + latency, request))
            }
            new.removeAll()
        }
    }

    @Test func everyAgentSendsOneHeartbeatAnIntervalSpreadOverIt() throws {
        var model = try Self.model(1_000)
        let requests = Self.run(&model, until: 300_000)
        #expect(requests.count == 10_000)
        var byAgent = [Int](repeating: 0, count: 1_000)
        for request in requests { byAgent[request.agent] += 1 }
        #expect(byAgent.allSatisfy { $0 == 10 })
        // No second of the first interval has much more than its thirtieth of the fleet.
        var bySecond = [Int](repeating: 0, count: 30)
        for request in requests where request.time.milliseconds < 30_000 {
            bySecond[Int(request.time.milliseconds / 1_000)] += 1
        }
        #expect(bySecond.reduce(0, +) == 1_000)
        #expect(bySecond.allSatisfy { $0 > 5 && $0 < 80 })
    }

    static let everyFault = Fault.allCases.map { "\($0.name)=8%:40s/100s" }.joined(separator: ",")

    @Test(arguments: 0..<UInt64(20))
    func theSameSeedGivesTheSameRequests(_ seed: UInt64) throws {
        func requests(_ seed: UInt64) throws -> [FleetRequest] {
            var model = try Self.model(200, faults: Self.everyFault, seed: seed)
            return Self.run(&model, until: 400_000) { request in
                switch request.agent % 5 {
                case 0: .unanswered
                case 1: .refused(status: 500)
                case 2: .accepted(Self.hash("\(request.time.milliseconds / 90_000)"))
                default: .accepted(Self.hash("h"))
                }
            }
        }
        let first = try requests(seed)
        #expect(first.count > 1_000)
        #expect(try requests(seed) == first)
        #expect(try requests(seed + 1_000) != first)
    }

    @Test func sharesAreExactAndDisjoint() throws {
        var model = try Self.model(
            1_000, faults: "tunnel-down=10%,stale=5%,recovering=7,silent=0.01%")
        _ = Self.run(&model, until: 200_000)
        var byFault: [Fault: Int] = [:]
        for index in 0..<model.count {
            if let fault = model.agent(index).fault { byFault[fault, default: 0] += 1 }
        }
        #expect(byFault == [.tunnelDown: 100, .stale: 50, .recovering: 7, .silent: 1])
        let conditions = model.conditions()
        #expect(conditions[AgentCondition.tunnelDown.rawValue] == 100)
        #expect(conditions[AgentCondition.stale.rawValue] == 50)
        #expect(conditions[AgentCondition.recovering.rawValue] == 7)
        #expect(conditions[AgentCondition.silent.rawValue] == 1)
        #expect(conditions[AgentCondition.connected.rawValue] == 842)
        #expect(conditions.reduce(0, +) == 1_000)
    }

    @Test func aFaultWithADurationEndsAndComesBack() throws {
        var model = try Self.model(1, faults: "silent=1:60s/200s")
        let requests = Self.run(&model, until: 1_000_000).map { $0.time.milliseconds }
        var gaps = zip(requests, requests.dropFirst()).map { $1 - $0 }.filter { $0 > 30_000 }
        if let first = requests.first, first > 30_000 { gaps.append(first) }
        // 60 s without a heartbeat are one or two heartbeats that are missing.
        #expect(gaps.count >= 4)
        #expect(gaps.allSatisfy { $0 == 60_000 || $0 == 90_000 })
    }

    @Test func aFaultThatLastsItsWholePeriodKeepsTheFleetAlive() throws {
        var model = try Self.model(10, faults: "silent=100%:1ms/1ms")
        #expect(!Self.run(&model, until: 2_000).isEmpty || model.nextWake != nil)
    }

    @Test func aChangedHashIsCountedWithItsRebuild() throws {
        var model = try Self.model(50)
        _ = Self.run(&model, until: 120_000) { request in
            .accepted(Self.hash(request.time.milliseconds < 60_000 ? "old" : "new"))
        }
        #expect(model.counts.configurationChanges == 50)
        #expect(model.counts.tunnelRebuilds == 50)
    }

    @Test func aServerThatIsAwayIsAskedThreeTimesAHeartbeat() throws {
        var model = try Self.model(10)
        let requests = Self.run(&model, until: 60_000, latency: 1) { _ in .unanswered }
        #expect(requests.count > 50 && requests.count <= 60)
        #expect(model.counts.heartbeatsFailed >= 15)
    }

    @Test func agentsThatGaveUpAreStartedAgainWhenTheFaultEnds() throws {
        var model = try Self.model(20, faults: "tunnel-fails=20:50s/150s")
        _ = Self.run(&model, until: 3_000_000)
        #expect(model.counts.userNotices > 200)
        #expect(model.counts.tunnelRebuilds > 200)
        let requests = Self.run(&model, until: 3_400_000)
        #expect(Set(requests.map(\.agent)).count == 20)
    }

    @Test func aLateShellMissesHeartbeatsAndDoesNotMakeUpForThem() throws {
        var model = try Self.model(100)
        var requests: ContiguousArray<FleetRequest> = []
        model.advance(to: EventTime(milliseconds: 0), into: &requests)
        model.advance(to: EventTime(milliseconds: 30_000), into: &requests)
        #expect(requests.count == 100)
        for request in requests {
            var more: ContiguousArray<FleetRequest> = []
            model.answer(
                agent: request.agent, sequence: request.sequence, .accepted(nil),
                at: EventTime(milliseconds: 1_000_000), into: &more)
            #expect(more.isEmpty)
        }
        requests.removeAll()
        model.advance(to: EventTime(milliseconds: 1_030_000), into: &requests)
        #expect(requests.count == 100)
    }

    @Test func anEmptyFleetHasNothingToDo() throws {
        var model = try Self.model(0, faults: "silent=5%")
        var requests: ContiguousArray<FleetRequest> = []
        #expect(model.nextWake == nil)
        model.advance(to: EventTime(milliseconds: 1), into: &requests)
        #expect(requests.isEmpty)
    }
}
