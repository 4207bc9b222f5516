public import Curl
public import Schemas
internal import Synchronization
internal import System

/// How a fleet is simulated.
public struct SimulatorSettings: Sendable {
    /// Where the front-end is: `http://127.0.0.1:8080`. The path of heartbeats is added.
    public var url: String
    /// Of one agent. Default: the document's timers; `faster(by:)` for demonstrations.
    public var agent = AgentSettings()
    public var faults = FaultPlan()
    /// The same seed chooses the same agents for the same faults.
    public var seed: UInt64 = 1
    /// Requests on their way at once, and connections; at least 1. Further ones wait. Default: 64.
    public var maximumInFlight = 64
    /// The contract's timeouts: connecting 10 s, reading 30 s, writing 10 s; together 50 s at most.
    public var limits = CurlRequest.Limits(timeout: .seconds(50), silence: .seconds(30))
    public var trust = CurlRequest.Trust.system
    /// `nil`: until stopped.
    public var duration: Duration?
    /// Told what agents see, on the simulator's thread: it must be quick. Default: nobody is told.
    public var observe: (@Sendable (FleetObservation) -> Void)?
    /// At the end, what is on its way is waited for so long, then given up. Default: 1 s.
    public var lastWait: Duration = .seconds(1)

    public init(url: String) { self.url = url }
}

/// Where a fleet's requests go.
struct SimulatorRequests: Sendable {
    let heartbeat: CurlRequest
    let provision: CurlRequest

    init(_ settings: SimulatorSettings) throws(CurlError) {
        var base = Substring(settings.url)
        while base.last == "/" { base.removeLast() }
        func request(_ path: String) throws(CurlError) -> CurlRequest {
            try CurlRequest(
                .post, base + path,
                headers: [
                    ("Content-Type", "application/json"), ("User-Agent", "heartline-simulate"),
                ],
                // Between a simulated device and its server no proxy of this machine has a place.
                limits: settings.limits, trust: settings.trust, usesEnvironmentProxy: false)
        }
        heartbeat = try request("/api/v1/heartbeat")
        provision = try request("/api/v1/provision")
    }
}

/// Runs a fleet of agents against a front-end over HTTP.
public final class Simulator: Sendable {
    enum Members: Sendable {
        case devices([DeviceID])
        case provisioning(FleetProvisioning)

        var count: Int {
            switch self {
            case .devices(let devices): devices.count
            case .provisioning(let provisioning): provisioning.tokens.count
            }
        }
    }

    private let members: Members
    private let settings: SimulatorSettings
    private let requests: SimulatorRequests
    private let published: Mutex<FleetReport>

    /// A fleet of devices that have their configuration.
    /// - Throws: `CurlError` if the URL is not of HTTP.
    public convenience init(
        agents: [DeviceID], settings: SimulatorSettings
    ) throws(CurlError) {
        try self.init(.devices(agents), settings)
    }

    /// A fleet of agents that provision themselves first, one for each token.
    /// - Throws: `CurlError` if the URL is not of HTTP.
    public convenience init(
        provisioning: FleetProvisioning, settings: SimulatorSettings
    ) throws(CurlError) {
        try self.init(.provisioning(provisioning), settings)
    }

    private init(_ members: Members, _ settings: SimulatorSettings) throws(CurlError) {
        precondition(settings.maximumInFlight >= 1)
        requests = try SimulatorRequests(settings)
        self.members = members
        self.settings = settings
        var report = FleetReport()
        report.agents = members.count
        published = Mutex(report)
    }

    /// The latest report; at most a second old while the fleet runs, and complete afterwards. Any
    /// thread may ask.
    public var report: FleetReport { published.withLock { $0 } }

    /// Runs the fleet until it is asked to stop or its duration is over. Blocks the calling thread,
    /// which does all the work; not twice at once.
    /// - Throws: `CurlError` if libcurl itself fails; failed requests are counted instead.
    public func run(until stop: StopFlag) throws(CurlError) {
        var transfers = try CurlTransfers(
            maximumTransfers: settings.maximumInFlight,
            maximumConnections: settings.maximumInFlight)
        var shell = SimulatorShell(members, settings: settings, requests: requests)
        shell.publish(to: published)
        while !stop.isRequested, !shell.isOver {
            try shell.step(&transfers, wakingOn: stop.descriptor)
            if shell.isReportDue { shell.publish(to: published) }
        }
        try shell.drain(&transfers, milliseconds: settings.lastWait.milliseconds)
        shell.publish(to: published)
    }
}
