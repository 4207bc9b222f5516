import Bytes
import Fleet
import Foundation
import Schemas
import Synchronization
import Testing

/// Fleets that begin with a token each.
@Suite struct FleetProvisioningTests {
    static func token(_ index: Int) -> DeviceID {
        DeviceID(high: 0xAAAA_AAAA_AAAA_4AAA, low: 0x8000_0000_0000_0000 + UInt64(index))
    }

    static func model(
        _ count: Int, faults: String? = nil, seed: UInt64 = 1, ramp: Int64 = 10_000
    ) throws -> FleetModel {
        var provisioning = FleetProvisioning(tokens: (0..<count).map(token), salt: [])
        provisioning.rampMilliseconds = ramp
        return FleetModel(
            provisioning: provisioning,
            faults: try faults.map { text in try FaultPlan(parsing: text) } ?? FaultPlan(),
            seed: seed, start: EventTime(milliseconds: 0))
    }

    /// Runs a fleet; every request is answered 20 ms later.
    /// - Parameter provision: `nil` from a request that is not answered 200.
    static func run(
        _ model: inout FleetModel, until end: Int64,
        provision: (FleetRequest) -> Result<DeviceID, ProvisioningFailure>
    ) -> [FleetRequest] {
        var all: [FleetRequest] = []
        var new: ContiguousArray<FleetRequest> = []
        var waiting: [(at: EventTime, request: FleetRequest)] = []
        while true {
            let wake = [model.nextWake, waiting.first?.at].compactMap(\.self).min()
            guard let now = wake, now.milliseconds < end else { return all }
            while let first = waiting.first, first.at <= now {
                waiting.removeFirst()
                let agent = first.request.agent
                if first.request.heartbeat == nil {
                    model.answer(
                        agent: agent, provisioning: provision(first.request), at: now, into: &new)
                } else {
                    model.answer(
                        agent: agent, sequence: first.request.sequence, .accepted(nil), at: now,
                        into: &new)
                }
            }
            model.advance(to: now, into: &new)
            for request in new {
                all.append(request)
                waiting.append((now + 20, request))
            }
            new.removeAll()
        }
    }

    static func device(_ request: FleetRequest) -> Result<DeviceID, ProvisioningFailure> {
        .success(DeviceID(high: 1, low: UInt64(request.agent) + 1))
    }

    @Test func everyAgentProvisionsOnceWithinTheRampThenBeats() throws {
        var model = try Self.model(500)
        #expect(model.device(7) == nil)
        let requests = Self.run(&model, until: 100_000, provision: Self.device)
        let provisionings = requests.filter { $0.heartbeat == nil }
        #expect(provisionings.map(\.agent) == Array(0..<500))
        #expect(provisionings.allSatisfy { $0.time.milliseconds < 10_000 })
        #expect(provisionings[250].time == EventTime(milliseconds: 5_000))
        #expect(model.counts.provisioned == 500)
        #expect(model.device(7) == DeviceID(high: 1, low: 8))
        // Three to four intervals.
        var beats = [Int](repeating: 0, count: 500)
        for request in requests where request.heartbeat != nil { beats[request.agent] += 1 }
        #expect(beats.allSatisfy { $0 == 3 || $0 == 4 })
        var body = ByteBuffer()
        model.write(try #require(requests.last), into: &body)
        #expect(body.span.text.contains("\"device_id\":\"00000000-0000-0001-"))
    }

    @Test func theBodyIsTokenAndHardwareIDAndTheSameSeedIsTheSameHardware() throws {
        let model = try Self.model(1_000)
        var body = ByteBuffer()
        var now: ContiguousArray<FleetRequest> = []
        var copy = model
        copy.advance(to: EventTime(milliseconds: 0), into: &now)
        model.write(try #require(now.first), into: &body)
        let fields = try JSONDecoder().decode([String: String].self, from: Data(body.bytes))
        #expect(fields == ["token": Self.token(0).description, "hwid": model.hardwareID(0)])
        let ids = (0..<1_000).map { model.hardwareID($0) }
        #expect(Set(ids).count == 1_000)
        #expect(ids.allSatisfy { DeviceID($0) != nil && $0 == $0.uppercased() })
        #expect(try Self.model(1_000).hardwareID(999) == ids[999])
        #expect(try Self.model(1_000, seed: 2).hardwareID(999) != ids[999])
    }

    @Test func aTokenThatIsRefusedIsTriedThreeTimesAndTheUserIsTold() throws {
        var model = try Self.model(3)
        let requests = Self.run(&model, until: 200_000) { _ in .failure(.refused(status: 403)) }
        #expect(requests.count == 9)
        #expect(model.counts.provisioningsFailed == 9)
        #expect(model.counts.userNotices == 3)
        #expect(model.counts.provisioned == 0)
        #expect(model.conditions()[AgentCondition.failed.rawValue] == 3)
        #expect(model.nextWake == nil)
    }

    @Test func aServerThatIsAwayAtFirstIsAskedAgainAfterOneSecondAndTwo() throws {
        var model = try Self.model(1)
        var tries = 0
        let requests = Self.run(&model, until: 20_000) { request in
            tries += 1
            return tries < 3 ? .failure(.unanswered) : Self.device(request)
        }
        #expect(
            requests.filter { $0.heartbeat == nil }.map(\.time.milliseconds) == [0, 1_020, 3_040])
        #expect(model.counts.provisioned == 1)
        #expect(model.counts.provisioningsFailed == 2)
    }

    @Test func aConfigurationThatDoesNotDecryptIsClearedAndAskedForAgain() throws {
        var model = try Self.model(1)
        var tries = 0
        _ = Self.run(&model, until: 20_000) { request in
            tries += 1
            return tries == 1 ? .failure(.undecryptable) : Self.device(request)
        }
        #expect(tries == 2)
        #expect(model.device(0) == DeviceID(high: 1, low: 1))
    }

    // MARK: Over HTTP

    /// A server that knows tokens, and devices by their hardware ids.
    private static func server() -> TestServer {
        let used = Mutex<Set<String>>([])
        return TestServer { request in
            let body = Data(request.body.bytes)
            if request.line == "POST /api/v1/provision HTTP/1.1" {
                guard let fields = try? JSONDecoder().decode([String: String].self, from: body),
                    let token = fields["token"], let hardwareID = fields["hwid"],
                    DeviceID(token) != nil
                else { return .status(400, #"{"error":"invalid token format"}"#) }
                guard used.withLock({ $0.insert(token).inserted }) else {
                    return .status(400, #"{"error":"token already used"}"#)
                }
                let payload = AgentConfigurationTests.payload().replacing(
                    AgentConfigurationTests.device, with: token)
                guard
                    let answer = try? AgentConfigurationTests.answer(
                        payload, hardwareID: hardwareID)
                else { return .status(500, #"{"error":"provisioning failed"}"#) }
                return .status(200, answer.span.text)
            }
            struct Beat: Decodable { var device_id: String }
            guard let beat = try? JSONDecoder().decode(Beat.self, from: body),
                used.withLock({ $0.contains(beat.device_id) })
            else { return .status(400, #"{"error":"invalid device id"}"#) }
            let fields = AgentConfigurationTests.payload().replacing(
                AgentConfigurationTests.device, with: beat.device_id)
            return .status(200, fields.dropLast() + #","status":"ok","forwards_hash":"h"}"#)
        }
    }

    @Test func agentsProvisionThemselvesDecryptAndBeatOverHTTP() throws {
        let server = Self.server()
        defer { server.stop() }
        let seen = Mutex<[FleetObservation]>([])
        var settings = SimulatorTests.settings(server.url)
        settings.observe = { observation in seen.withLock { $0.append(observation) } }
        // The last token is the first one again.
        var provisioning = FleetProvisioning(
            tokens: (0..<40).map(Self.token) + [Self.token(0)],
            salt: AgentConfigurationTests.salt)
        provisioning.rampMilliseconds = 50
        let simulator = try Simulator(provisioning: provisioning, settings: settings)
        let report = try SimulatorTests.run(simulator) { report in
            (report.statuses[200] ?? 0) > 200 && report.counts.userNotices == 1
        }
        #expect(report.agents == 41)
        #expect(report.counts.provisioned == 40)
        #expect(report.provisioningStatuses == [200: 40, 400: 3])
        #expect(Array(report.statuses.keys) == [200])
        #expect(report.provisioningLatency.count == 43)
        #expect(report.faultyAnswers == 0)
        #expect(report.unreadableAnswers == 0)
        #expect(report.connectionsOpened <= 8)
        #expect(report.summary.contains("provisioned: 40, tries that failed: 3"))
        let observations = seen.withLock { $0 }
        let devices = Set((0..<40).map(Self.token))
        #expect(Set(observations.filter { $0.kind == .provisioned }.map(\.device)) == devices)
        let hashes = observations.filter { $0.kind == .configuration(hash: "h") }
        #expect(hashes.count == 40)
        #expect(Set(hashes.map(\.device)) == devices)
    }

    @Test func aWrongSaltIsSeenAsWhatCannotBeDecrypted() throws {
        let server = Self.server()
        defer { server.stop() }
        var settings = SimulatorTests.settings(server.url)
        settings.agent.attempts = 1
        var provisioning = FleetProvisioning(
            tokens: (0..<5).map(Self.token), salt: Array("not the server's salt".utf8))
        provisioning.rampMilliseconds = 1
        let simulator = try Simulator(provisioning: provisioning, settings: settings)
        let report = try SimulatorTests.run(simulator) { $0.counts.userNotices == 5 }
        #expect(report.counts.provisioned == 0)
        #expect(report.unreadableAnswers == 5)
        #expect(report.provisioningStatuses == [200: 5])
        #expect(report.statuses.isEmpty)
    }
}
