import Bytes
import Curl
import Fleet
import JSON
import Schemas
import Synchronization
import System
import Testing

/// A fleet over real HTTP, with quick agents.
@Suite struct SimulatorTests {
    static let answer = #"{"device_id":"x","status":"ok","forwards_hash":"one"}"#

    static func settings(_ url: String, intervalMilliseconds: Int64 = 100) -> SimulatorSettings {
        var settings = SimulatorSettings(url: url)
        settings.agent.heartbeatMilliseconds = intervalMilliseconds
        settings.agent.retryPauseMilliseconds = 5
        settings.agent.rekeyAfterMilliseconds = 400
        settings.maximumInFlight = 8
        settings.lastWait = .seconds(60)
        return settings
    }

    /// Runs a fleet until `condition` holds of its report; a deadline ends it otherwise.
    static func run(
        _ agents: Int, _ settings: SimulatorSettings,
        until condition: (FleetReport) -> Bool
    ) throws -> FleetReport {
        try run(
            try Simulator(agents: FleetModelTests.devices(agents), settings: settings),
            until: condition)
    }

    static func run(
        _ simulator: Simulator, until condition: (FleetReport) -> Bool
    ) throws -> FleetReport {
        let stop = StopFlag()
        let failure = Mutex<CurlError?>(nil)
        let thread = SystemThread.start("test-fleet") {
            do throws(CurlError) {
                try simulator.run(until: stop)
            } catch { failure.withLock { $0 = error } }
        }
        let deadline = SystemClock.monotonicMilliseconds() + 120_000
        let waker = Waker()
        while !condition(simulator.report), SystemClock.monotonicMilliseconds() < deadline,
            failure.withLock({ $0 }) == nil
        {
            waker.wait(milliseconds: 10)
        }
        stop.request()
        thread.join()
        if let error = failure.withLock({ $0 }) { throw error }
        return simulator.report
    }

    @Test func everyAgentIsHeardAndEveryAnswerCounted() throws {
        let seen = Mutex<Set<String>>([])
        let server = TestServer { request in
            guard request.line == "POST /api/v1/heartbeat HTTP/1.1" else {
                return .status(404, "{}")
            }
            let parser = JSONParser(JSONFields(["device_id", "tunnel_up", "last_handshake"]))
            do throws(JSONError) {
                try parser.parse(request.body.span)
            } catch { return .status(400, "{}") }
            guard let device = parser.string(0), parser.bool(1) == true,
                parser.withString(2, { EventTime(parsing: $0) != nil }) == true
            else { return .status(400, "{}") }
            seen.withLock { _ = $0.insert(device) }
            return .status(200, Self.answer)
        }
        defer { server.stop() }
        // A slash at the end of the URL is not doubled.
        let report = try Self.run(50, Self.settings(server.url + "/")) { _ in
            seen.withLock { $0.count } == 50 && server.requests > 200
        }
        #expect(seen.withLock { $0 } == Set(FleetModelTests.devices(50).map(\.description)))
        #expect(report.requests == server.requests)
        #expect(report.statuses == [200: report.requests])
        #expect(report.latency.count == UInt64(report.requests))
        #expect(report.errors.isEmpty)
        #expect(report.conditions[.connected] == 50)
        #expect(report.connectionsOpened == server.connectionsOpened)
        #expect(report.connectionsOpened <= 8)
        #expect(report.inFlight == 0)
        #expect(report.summary.contains("50 agents"))
        #expect(report.progressLine.contains("connected 50"))
    }

    @Test func aChangedHashRebuildsTunnelsOverHTTP() throws {
        let server = TestServer { _ in .status(200, Self.answer) }
        defer { server.stop() }
        let changing = Mutex(false)
        let other = TestServer { _ in
            let hash = changing.withLock { $0 } ? "two" : "one"
            return .status(200, #"{"device_id":"x","forwards_hash":"\#(hash)"}"#)
        }
        defer { other.stop() }
        let report = try Self.run(20, Self.settings(other.url)) { report in
            // Only once all have their first hash.
            if (report.statuses[200] ?? 0) > 60 { changing.withLock { $0 = true } }
            return report.counts.tunnelRebuilds >= 20
        }
        #expect(report.counts.configurationChanges == 20)
        #expect(report.counts.tunnelRebuilds == 20)
    }

    @Test func aRefusingServerIsAskedThreeTimesAndTheFleetGoesOn() throws {
        let server = TestServer { _ in .status(500, #"{"error":"heartbeat failed"}"#) }
        defer { server.stop() }
        let report = try Self.run(10, Self.settings(server.url)) {
            $0.counts.heartbeatsFailed >= 30
        }
        #expect(report.requests >= 90)
        #expect(Array(report.statuses.keys) == [500])
        #expect(report.conditions[.connected] == 10)
    }

    @Test func aServerThatIsNotThereIsCountedAsRefused() throws {
        let settings = Self.settings("http://127.0.0.1:\(TestServer.closedPort())")
        let report = try Self.run(5, settings) { $0.counts.heartbeatsFailed >= 10 }
        #expect(Array(report.errors.keys) == [.refused])
        #expect(report.statuses.isEmpty)
        #expect(report.lastError?.kind == .refused)
        #expect(report.summary.contains("no answer: refused"))
    }

    @Test func aServerThatHangsIsGivenUpAfterTheTimeout() throws {
        let server = TestServer { _ in .never }
        defer { server.stop() }
        var settings = Self.settings(server.url)
        settings.limits.timeout = .milliseconds(60)
        settings.lastWait = .zero
        let report = try Self.run(4, settings) { $0.counts.heartbeatsFailed >= 4 }
        #expect(Array(report.errors.keys) == [.timeout])
    }

    @Test func anAnswerThatIsNotTheContractsIsCounted() throws {
        let server = TestServer { _ in .status(200, "<html>") }
        defer { server.stop() }
        let report = try Self.run(4, Self.settings(server.url)) { $0.unreadableAnswers >= 8 }
        #expect(report.counts.heartbeatsFailed >= 8)
    }

    @Test func malformedRequestsLeaveAsTheyAre() throws {
        let bodies = Mutex<Set<[UInt8]>>([])
        let server = TestServer { request in
            bodies.withLock { _ = $0.insert(request.body.bytes) }
            return .status(400, "{}")
        }
        defer { server.stop() }
        var settings = Self.settings(server.url, intervalMilliseconds: 20)
        settings.faults = FaultPlan([.init(.malformed, share: .agents(3))])
        let report = try Self.run(3, settings) { $0.counts.malformedRequests >= 300 }
        #expect(report.counts.malformedRequests >= 300)
        let seen = bodies.withLock { $0 }
        #expect(seen.contains([]))
        #expect(seen.contains { $0.contains(0xFF) })
        #expect(seen.contains { $0.count > 4_000 })
    }

    @Test func aDurationEndsTheRun() throws {
        let server = TestServer { _ in .status(200, Self.answer) }
        defer { server.stop() }
        var settings = Self.settings(server.url)
        settings.duration = .milliseconds(300)
        let simulator = try Simulator(agents: FleetModelTests.devices(5), settings: settings)
        try simulator.run(until: StopFlag())
        #expect(simulator.report.elapsed >= .milliseconds(300))
        #expect(simulator.report.requests == server.requests)
        #expect(simulator.report.requests > 0)
    }

    @Test func aFleetCannotSpeakToSomethingElseThanHTTP() {
        #expect(throws: CurlError.self) {
            try Simulator(agents: [], settings: SimulatorSettings(url: "tcp://host:1"))
        }
    }
}
