import Foundation
import HTTP
import Ingest
import Metrics
import Schemas
import TestSupport
import Testing

/// What a front-end tells Prometheus, over real sockets.
@Suite("A front-end's metrics") struct FrontEndMetricsTests {
    private static let token = String(repeating: "t0ken-", count: 8)

    private func rig(devices: Int) throws -> (rig: Rig, sources: MetricsSources) {
        let sources = MetricsSources()
        let token = try AdminToken(Self.token)
        let rig = try Rig(devices: devices) {
            $0.adminToken = token
            $0.metrics = MetricsAccess(sources, tokens: [token])
            $0.salt = Array("a salt of a good length".utf8)
            $0.proximity = ProximitySettings()
            $0.sockets = SocketSettings()
            $0.provisioning.limit = nil
        }
        let frontEnd = rig.frontEnd
        sources.set("front-end") { [weak frontEnd] in frontEnd?.write(to: &$0) }
        return (rig, sources)
    }

    private func read(_ rig: Rig) throws -> MetricsReading {
        let address = try #require(rig.frontEnd.adminAddress)
        let answer = try RawClient(host: address.host, port: address.port).request(
            "GET", "/metrics", body: [], headers: ["Authorization: Bearer \(Self.token)"])
        #expect(answer.status == 200)
        return MetricsReading(answer.text)
    }

    @Test("each answer is counted once, by its route and the class of its status")
    func routes() throws {
        let (rig, _) = try rig(devices: 2)
        let client = try rig.client()
        for _ in 0..<3 { #expect(try rig.beat(rig.devices[0]).status == 200) }
        #expect(
            try client.request("POST", "/api/v1/heartbeat", body: "{".utf8).status == 400)
        #expect(try client.request("GET", "/api/v1/heartbeat", body: []).status == 405)
        #expect(try client.request("POST", "/api/v1/provision", body: "{".utf8).status == 400)
        #expect(try client.request("GET", "/v1/nearby", body: []).status == 401)
        #expect(try rig.client().request("GET", "/ws", body: []).status == 426)
        #expect(try rig.client().request("GET", "/nothing", body: []).status == 404)
        func count(
            _ route: String, _ status: String, _ listener: String = "public"
        ) throws -> Double {
            try read(rig).sum(
                "heartline_http_responses_total",
                ["listener": listener, "route": route, "status": status]) ?? 0
        }
        // Counters are up to a round of the loop old.
        #expect(try eventually { try count("other", "4xx") == 1 })
        #expect(try count("/api/v1/heartbeat", "2xx") == 3)
        #expect(try count("/api/v1/heartbeat", "4xx") == 2)
        #expect(try count("/api/v1/provision", "4xx") == 1)
        #expect(try count("/v1/nearby", "4xx") == 1)
        #expect(try count("/ws", "4xx") == 1)
        #expect(try count("/metrics", "2xx", "admin") >= 1)
        let reading = try read(rig)
        let route = ["listener": "public", "route": "/api/v1/heartbeat"]
        #expect(reading.sum("heartline_http_request_duration_seconds_count", route) == 5)
        let sum = try #require(reading.sum("heartline_http_request_duration_seconds_sum", route))
        #expect(sum > 0)
        #expect(reading.sum("heartline_heartbeats_total", ["result": "accepted"]) == 3)
        #expect(reading.sum("heartline_cache_misses_total") == 1)
        // A request that no handler saw, since its head is none.
        let broken = try rig.client()
        try broken.send("NONSENSE\r\n\r\n".utf8)
        #expect(try broken.response().status == 400)
        #expect(try eventually { try count("other", "4xx") == 2 })
    }

    @Test("thousands of devices, of paths and of error texts make no series")
    func bounded() throws {
        let (rig, _) = try rig(devices: 1)
        #expect(try rig.beat(rig.devices[0]).status == 200)
        let client = try rig.client()
        func load(_ numbers: Range<Int>) throws {
            for number in numbers {
                let id = DeviceID(high: 0x1000, low: UInt64(number))
                _ = try client.request(
                    "POST", "/api/v1/heartbeat", body: Rig.body(id).utf8)
                _ = try client.request("GET", "/path/\(number)", body: [])
                _ = try client.request(
                    "POST", "/api/v1/heartbeat", body: "{\"device_id\":\"\(number)\"".utf8)
                rig.frontEnd.readiness.set("database", "text \(number)")
            }
            rig.frontEnd.readiness.set("database", nil)
        }
        try load(0..<5)
        let few = try read(rig)
        try load(5..<2_000)
        let many = try read(rig)
        func series(_ reading: MetricsReading) -> Set<String> {
            Set(reading.samples.map { "\($0.name) \($0.labels.sorted { $0.key < $1.key })" })
        }
        // The page's own route was asked for in between.
        let more = series(many).subtracting(series(few)).filter { !$0.contains("/metrics") }
        #expect(more.isEmpty, "\(more.prefix(5))")
        #expect(many.samples.count < 1_000)
        #expect(many.sum("heartline_metrics_dropped_series") == 0)
    }
}
