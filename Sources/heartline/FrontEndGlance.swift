import Foundation
import Metrics
import System

/// What a running instance says of itself, for `heartline status`.
struct FrontEndGlance {
    var url: String
    /// Why it could not be asked; `nil` if it could.
    var fault: String?
    /// Parts that are not ready, with their reasons.
    var unready: [String] = []
    /// `nil` where this user may not read its token.
    var metrics: MetricsReading?
    var monotonic = SystemClock.monotonicMilliseconds()

    private struct Readiness: Decodable {
        struct Reason: Decodable {
            var part: String
            var reason: String
        }
        var reasons: [Reason]
    }

    /// Asks; waits for two seconds at most, twice.
    init(_ client: AdminClient) {
        var client = client
        client.timeout = .seconds(2)
        url = client.url
        do {
            let ready = try client.get("/readyz")
            let reasons = try JSONDecoder().decode(
                Readiness.self, from: Data(ready.body.utf8)
            ).reasons
            unready = reasons.map { "\($0.part): \($0.reason)" }
            guard client.token != nil else { return }
            let page = try client.get("/metrics")
            if page.status == 200 { metrics = MetricsReading(page.body) }
        } catch {
            fault = "\(error)"
        }
    }

    /// Some lines for people.
    /// - Parameter earlier: what it said before, for rates.
    func text(since earlier: FrontEndGlance?) -> String {
        var text = "\nfront-end  \(url) "
        if let fault { return text + "does not answer: \(fault)\n" }
        text += unready.isEmpty ? "ready\n" : "is not ready\n"
        for reason in unready { text += "           \(reason)\n" }
        guard let metrics else { return text }
        let before = earlier?.metrics
        var parts: [String] = []
        if let rate = rate("heartline_heartbeats_total", ["result": "accepted"], since: earlier) {
            parts.append("\(FleetScreen.rate(rate)) heartbeats")
        }
        if let lost = rate("heartline_heartbeats_lost_total", since: earlier), lost > 0 {
            parts.append("\(FleetScreen.rate(lost)) lost")
        }
        let route = ["listener": "public", "route": "/api/v1/heartbeat"]
        for (name, share) in [("half", 0.5), ("99 %", 0.99)] {
            if let bound = metrics.quantile(
                share, of: "heartline_http_request_duration_seconds", route, since: before)
            {
                parts.append("\(name) within \(Self.time(bound))")
            }
        }
        if let rate = rate(
            "heartline_http_responses_total", ["listener": "public", "status": "5xx"],
            since: earlier), rate > 0
        {
            parts.append("\(FleetScreen.rate(rate)) answers 5xx")
        }
        if !parts.isEmpty { text += "           \(parts.joined(separator: ", "))\n" }
        parts = []
        func amount(_ name: String, _ labels: [String: String] = [:]) -> Int64 {
            Int64(metrics.sum(name, labels) ?? 0)
        }
        parts.append("\(amount("heartline_http_connections", ["listener": "public"])) connections")
        parts.append("\(amount("heartline_websockets", ["listener": "public"])) WebSockets")
        parts.append("\(Self.size(amount("heartline_log_queue_bytes"))) wait for the log")
        let spooled = amount("heartline_spool_bytes")
        if spooled > 0 { parts.append("\(Self.size(spooled)) spooled") }
        parts.append("\(Self.size(amount("process_resident_memory_bytes"))) of memory")
        if let cores = rate("process_cpu_seconds_total", since: earlier) {
            parts.append("\(Double(Int(cores * 100)) / 100) cores")
        }
        return text + "           \(parts.joined(separator: ", "))\n"
    }

    /// A second, since `earlier`; `nil` where that cannot be told.
    private func rate(
        _ name: String, _ labels: [String: String] = [:], since earlier: FrontEndGlance?
    ) -> Double? {
        guard let earlier, monotonic > earlier.monotonic, let now = metrics?.sum(name, labels)
        else { return nil }
        // What nobody had counted yet was 0.
        let before = earlier.metrics.map { $0.sum(name, labels) ?? 0 }
        guard let before, now >= before else { return nil }
        return (now - before) * 1_000 / Double(monotonic - earlier.monotonic)
    }

    private static func time(_ seconds: Double) -> String {
        seconds < 1 ? "\(seconds * 1_000) ms".replacing(".0 ms", with: " ms") : "\(seconds) s"
    }

    private static func size(_ bytes: Int64) -> String {
        if bytes < 1 << 10 { return "\(bytes) bytes" }
        if bytes < 1 << 20 { return "\(bytes >> 10) KiB" }
        return bytes < 10 << 30 ? "\(bytes >> 20) MiB" : "\(bytes >> 30) GiB"
    }
}
