import Bytes
import Curl
import Schemas
import System

/// Everything in a soak that is no heartbeat: people who wave, meet and write, and devices that send
/// telemetry; on a thread of its own, with a book of what was answered 200.
final class SoakPeople: Sendable {
    /// What must be found afterwards.
    struct Book: Sendable {
        var waves = 0
        /// Who waved at whom, at a token that was good.
        var waved: Set<Pair> = []
        var encounters = 0
        var messages = 0
        /// Telemetry's samples and log lines.
        var samples = 0
        var logLines = 0
        /// Answers that were neither 200 nor a message's 403 over a connection that is not yet made.
        var refused = 0
        var unanswered = 0
        var firstRefusal: String?

        /// Pairs who waved at each other.
        var matches: Int {
            waved.count { $0.from < $0.to && waved.contains(Pair(from: $0.to, to: $0.from)) }
        }
    }

    struct Pair: Hashable, Sendable {
        var from: Int
        var to: Int
    }

    private enum Action {
        case register(Int, generation: Int)
        case wave(Pair)
        case encounter
        case message
        case telemetry(samples: Int, logLines: Int)
    }

    private static let parallel = 16
    private static let neighbours = 5
    private static let actionsPerSecond = 60
    private static let telemetryPerSecond = 20
    private static let samplesPerRequest = 20
    private static let linesPerRequest = 2
    /// Tokens are good for five minutes.
    private static let rotationMilliseconds: Int64 = 100_000

    private let people: [SoakPerson]
    private let devices: [DeviceID]
    private let url: String
    private let thread = SoakThread<Book>("people")

    init(_ url: String, _ people: [SoakPerson], _ devices: [DeviceID]) {
        self.url = url
        self.people = people
        self.devices = devices
    }

    func start() { thread.start { [self] in try run() } }

    /// Waits for the last answers.
    func stop() throws -> Book { try thread.stop() }

    // MARK: - The thread

    /// A person's requests, made once.
    private struct Requests {
        var register, wave, encounter, message: CurlRequest

        init(_ url: String, _ person: SoakPerson) throws {
            func post(_ path: String) throws -> CurlRequest {
                try CurlRequest(
                    .post, url + path,
                    headers: [
                        ("Content-Type", "application/json"),
                        ("Authorization", "Bearer \(person.session)"),
                    ], usesEnvironmentProxy: false)
            }
            register = try post("/v1/token")
            wave = try post("/v1/wave")
            encounter = try post("/v1/encounter")
            message = try post("/v1/message")
        }
    }

    private struct Running: ~Copyable {
        var transfers: CurlTransfers
        var actions: [UInt64: Action] = [:]
        var next: UInt64 = 0

        init() throws {
            transfers = try CurlTransfers(
                maximumTransfers: SoakPeople.parallel, maximumConnections: SoakPeople.parallel)
        }

        mutating func start(_ action: Action, _ request: CurlRequest, _ text: String) throws {
            next += 1
            actions[next] = action
            try transfers.start(request, body: ByteBuffer(text.utf8).span, tag: next)
        }
    }

    private func run() throws -> Book {
        let requests = try people.map { try Requests(url, $0) }
        let telemetry = try CurlRequest(
            .post, url + "/v1/telemetry",
            headers: [("Content-Type", "application/x-ndjson")],
            usesEnvironmentProxy: false)
        var running = try Running()
        var book = Book()
        // The generation of each person's token, and when it was registered.
        var registered = people.map { _ in (generation: 0, at: Int64.min / 2) }
        var asked = registered
        let began = SystemClock.monotonicMilliseconds()
        var acted = 0
        var sent = 0
        while true {
            let now = SystemClock.monotonicMilliseconds()
            let isEnding = thread.isStopping
            if isEnding, running.transfers.running == 0 { return book }
            let elapsed = Int(now - began)
            if !isEnding {
                while acted < elapsed * Self.actionsPerSecond / 1_000, !running.transfers.isFull {
                    let turn = acted / people.count
                    let one = acted % people.count
                    acted += 1
                    // A token that is old comes first.
                    if now - asked[one].at > Self.rotationMilliseconds {
                        let generation = asked[one].generation + 1
                        asked[one] = (generation, now)
                        try running.start(
                            .register(one, generation: generation), requests[one].register,
                            "{\"token\":\"\(token(one, generation))\",\"tier\":\(1 + one % 3),\"geohash\":\"u2fk9\"}"
                        )
                        continue
                    }
                    // Each second round they look at the other side, so waves are answered.
                    let step = 1 + (turn / 2) % Self.neighbours
                    let other = (one + (turn % 2 == 0 ? step : people.count - step)) % people.count
                    guard other != one, now - registered[other].at < 2 * Self.rotationMilliseconds
                    else { continue }
                    let target = token(other, registered[other].generation)
                    switch (acted + 3 * turn) % 7 {
                    case 0...2:
                        try running.start(
                            .wave(Pair(from: one, to: other)), requests[one].wave,
                            "{\"token\":\"\(target)\"}")
                    case 3, 4:
                        let id = EncounterID(
                            high: 0x50AC_0000_0000_4000, low: 1 << 63 | UInt64(acted))
                        try running.start(
                            .encounter, requests[one].encounter,
                            "{\"id\":\"\(id)\",\"remoteAnonToken\":\"\(target)\",\"tier\":2,\"engine\":\"ble\",\"geohash\":\"u2fk9\"}"
                        )
                    default:
                        guard book.waved.contains(Pair(from: one, to: other)),
                            book.waved.contains(Pair(from: other, to: one)),
                            let pair = AccountPair(people[one].account, people[other].account)
                        else { continue }
                        let id = MessageID(
                            high: 0x50AD_0000_0000_4000, low: 1 << 63 | UInt64(acted))
                        try running.start(
                            .message, requests[one].message,
                            "{\"id\":\"\(id)\",\"connectionID\":\"\(pair.connection)\",\"senderID\":\"me\",\"ciphertext\":\"\(String(repeating: "QUJD", count: 40))\"}"
                        )
                    }
                }
                while sent < elapsed * Self.telemetryPerSecond / 1_000, !running.transfers.isFull {
                    let device = devices[sent % devices.count]
                    sent += 1
                    try running.start(
                        .telemetry(
                            samples: Self.samplesPerRequest, logLines: Self.linesPerRequest),
                        telemetry, lines(device, sent))
                }
            }
            try running.transfers.poll(milliseconds: 5) { completion, answer in
                guard let action = running.actions.removeValue(forKey: completion.tag) else {
                    return
                }
                guard completion.error == nil else {
                    book.unanswered += 1
                    return
                }
                guard completion.status == 200 else {
                    // The pipeline that makes connections may be the one that is being killed.
                    if case .message = action, completion.status == 403 { return }
                    book.refused += 1
                    if book.firstRefusal == nil {
                        book.firstRefusal = "\(action): \(completion.status) \(answer.text)"
                    }
                    return
                }
                switch action {
                case .register(let person, let generation):
                    registered[person] = (generation, now)
                case .wave(let pair):
                    book.waves += 1
                    book.waved.insert(pair)
                case .encounter: book.encounters += 1
                case .message: book.messages += 1
                case .telemetry(let samples, let lines):
                    book.samples += samples
                    book.logLines += lines
                }
            }
        }
    }

    private func token(_ person: Int, _ generation: Int) -> String {
        "soak-\(person)-\(generation)"
    }

    /// All of them sound.
    private func lines(_ device: DeviceID, _ number: Int) -> String {
        let time = "\(EventTime(milliseconds: SystemClock.wallMilliseconds()))"
        let head = "{\"device_id\":\"\(device)\",\"ts\":\"\(time)\""
        var text = ""
        for index in 0..<Self.samplesPerRequest {
            text +=
                "\(head),\"name\":\"wg0.counter.\(index % 10)\",\"value\":\(number * 7 + index)}\n"
        }
        for index in 0..<Self.linesPerRequest {
            text +=
                "\(head),\"level\":\"info\",\"tag\":\"wireguard\",\"message\":\"handshake \(number).\(index) completed\"}\n"
        }
        return text
    }
}
