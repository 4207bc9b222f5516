import Bytes
import Curl
import Ingest
import Schemas
import Synchronization
import System
import Zlib

extension Bench {
    /// Lines a CPU-second from HTTP to the log, beside heartbeats on the same front-end.
    ///
    /// - Parameter share: the numbers of requests are divided by it.
    static func telemetry(oneOf share: Int) throws {
        say(
            "Telemetry, HTTP to log: a CPU-second of the front-end and the log, without the sender")
        let bench = try BenchAgents()
        defer { bench.remove() }
        let devices = try bench.registry.addDevices(count: 64)
        try bench.startFrontEnd()
        guard let frontEnd = bench.frontEnd else { return }
        let url = "http://127.0.0.1:\(frontEnd.boundAddress.port)"
        let beat = BenchSender(
            "\(url)/api/v1/heartbeat", bodies: devices.map { BenchSender.heartbeat($0) })
        // Every device is in memory from here on.
        _ = try beat.run(requests: 2_000 / share)
        let heartbeats = try beat.run(requests: 60_000 / share)
        let beats = Double(heartbeats.answered) / heartbeats.cpu
        say("  heartbeats, one a request: \(rounded(beats)) a CPU-second")
        for (lines, requests) in [(1, 40_000), (10, 20_000), (100, 6_000), (5_000, 120)] {
            let bodies = devices.map { BenchSender.lines(lines, of: $0) }
            try report(
                "\(lines) a request", "\(url)/v1/telemetry", bodies, lines, requests / share, beats)
        }
        let packed = try devices.map { device in
            let body = BenchSender.lines(100, of: device)
            return try Deflate.pack(body.span)
        }
        try report(
            "100 a request, gzip", "\(url)/v1/telemetry", packed, 100, 6_000 / share, beats,
            headers: [("Content-Encoding", "gzip")])
        if let counters = frontEnd.telemetry {
            say(
                "  \(counters.accepted) lines accepted, \(counters.rejected) rejected,"
                    + " \(counters.unavailable) requests turned away, \(counters.lost) records lost"
            )
        }
    }

    private static func report(
        _ what: String, _ url: String, _ bodies: [ByteBuffer], _ lines: Int, _ requests: Int,
        _ heartbeats: Double, headers: [(name: String, value: String)] = []
    ) throws {
        let spent = try BenchSender(url, bodies: bodies, headers: headers).run(requests: requests)
        let rate = Double(spent.answered * lines) / spent.cpu
        say(
            "  lines, \(what): \(rounded(rate)) a CPU-second; ratio to heartbeats"
                + " \(ratio(rate / heartbeats))")
        note(
            "telemetry lines, \(what)", rate, "a CPU-second",
            beside: ("heartbeats on the same front-end", heartbeats))
    }
}

/// Sends bodies one after another over a few connections, from a thread whose CPU time is known.
private final class BenchSender: Sendable {
    struct Spent: Sendable {
        /// Requests answered 200.
        var answered: Int
        /// Seconds of CPU time of the process, but for the sender's.
        var cpu: Double
    }

    private static let parallel = 16
    private static let patience: Int64 = 120_000

    private let url: String
    private let bodies: [ByteBuffer]
    private let headers: [(name: String, value: String)]

    init(_ url: String, bodies: [ByteBuffer], headers: [(name: String, value: String)] = []) {
        self.url = url
        self.bodies = bodies
        self.headers = headers
    }

    func run(requests: Int) throws -> Spent {
        let result = Mutex<Result<(answered: Int, cpu: UInt64), any Error>?>(nil)
        let before = SystemClock.processCPUNanoseconds()
        let thread = SystemThread.start("sender") {
            let outcome = Result { try self.send(requests) }
            result.withLock { $0 = outcome }
        }
        thread.join()
        let cpu = SystemClock.processCPUNanoseconds() - before
        guard let sent = try result.withLock({ $0 })?.get() else {
            throw Failure("measuring telemetry: the sender ended without a word")
        }
        return Spent(
            answered: sent.answered, cpu: max(1e-9, Double(cpu &- sent.cpu) / 1e9))
    }

    private func send(_ requests: Int) throws -> (answered: Int, cpu: UInt64) {
        let request = try CurlRequest(
            .post, url, headers: headers + [("Content-Type", "application/json")],
            usesEnvironmentProxy: false)
        var transfers = try CurlTransfers(
            maximumTransfers: Self.parallel, maximumConnections: Self.parallel)
        var started = 0
        var answered = 0
        var ended = 0
        var other: String?
        let deadline = SystemClock.monotonicMilliseconds() + Self.patience
        while ended < requests {
            while started < requests, !transfers.isFull {
                let body = bodies[started % bodies.count]
                try transfers.start(request, body: body.span)
                started += 1
            }
            ended += try transfers.poll(milliseconds: 100) { completion, _ in
                if completion.status == 200 {
                    answered += 1
                } else {
                    other = "\(completion.status) \(completion.error.map { "\($0)" } ?? "")"
                }
            }
            if let other {
                throw Failure("measuring telemetry: \(url) answered \(other)")
            }
            guard SystemClock.monotonicMilliseconds() < deadline else {
                throw Failure("measuring telemetry: \(ended) of \(requests) answers in 120 s")
            }
        }
        return (answered, SystemClock.threadCPUNanoseconds())
    }

    static func heartbeat(_ device: DeviceID) -> ByteBuffer {
        ByteBuffer(
            """
            {"device_id":"\(device)","status":"connected","tunnel_up":true,\
            "last_handshake":"2026-06-26T09:00:00Z"}
            """.utf8)
    }

    /// Samples of twenty names, and a line of the agent's log after every nine of them.
    static func lines(_ count: Int, of device: DeviceID) -> ByteBuffer {
        var text = ""
        for index in 0..<count {
            let head =
                "{\"device_id\":\"\(device)\",\"ts\":\"2026-06-26T09:00:00.\(100 + index % 900)Z\""
            if index % 10 == 9 {
                text +=
                    head
                    + ",\"level\":\"info\",\"tag\":\"wireguard\",\"message\":\"handshake \(index) completed in 31 ms\"}\n"
            } else {
                text +=
                    head
                    + ",\"name\":\"interface.wg0.rx_bytes.\(index % 20)\",\"value\":\(Double(index) * 1.37)}\n"
            }
        }
        return ByteBuffer(text.utf8)
    }
}
