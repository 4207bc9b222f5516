internal import EventLog
internal import HTTP
public import Metrics
internal import TLS

extension FrontEnd {
    /// What this front-end counts. Reads counters, takes short locks, and waits for nothing.
    public func write(to page: inout MetricsPage) {
        server.counters.write(to: &page, listener: "public")
        updateServer?.counters.write(to: &page, listener: "updates")
        admin?.write(to: &page)
        writeHeartbeats(to: &page)
        page.gauge(
            "heartline_log_queue_bytes",
            "Bytes of events that wait for the log to take them.", producer.queuedBytes)
        page.gauge(
            "heartline_log_queue_limit_bytes",
            "Bytes at which the queue to the log refuses more.", settings.queueBytes)
        page.gauge(
            "heartline_cache_devices", "Devices whose answer is kept in memory.", cachedAnswers)
        page.gauge(
            "heartline_cache_bytes", "Bytes of the answers that are kept in memory.", cachedBytes)
        if let provisioning {
            let help: StaticString = "Provisionings by what became of them."
            for (result, count) in [
                ("provisioned", provisioning.provisionedCount) as (StaticString, UInt64),
                ("refused", provisioning.refusedCount), ("failed", provisioning.failedCount),
                ("limited", provisioning.limitedCount),
                ("overloaded", provisioning.overloadedCount),
            ] {
                page.counter("heartline_provisionings_total", help, count, .init("result", result))
            }
        }
        if let telemetry {
            let help: StaticString = "Samples and log lines of devices by what became of them."
            for (result, count) in [
                ("accepted", telemetry.accepted) as (StaticString, UInt64),
                ("rejected", telemetry.rejected), ("lost", telemetry.lost),
            ] {
                page.counter(
                    "heartline_telemetry_lines_total", help, count, .init("result", result))
            }
            page.counter(
                "heartline_telemetry_unavailable_total",
                "Requests with telemetry that were answered 503.", telemetry.unavailable)
        }
        if let pushes = pushCounters {
            page.gauge(
                "heartline_push_accounts", "Accounts with sockets here.", pushes.accounts.value)
            page.counter(
                "heartline_pushes_sent_total", "Pushes sent, once for each socket.",
                pushes.sent.value)
            page.counter(
                "heartline_pushes_confirmed_total", "Pushes that a socket has confirmed.",
                pushes.confirmed.value)
            let help: StaticString = "Sockets that were closed or refused, by why."
            for (reason, count) in [
                ("session-ended", pushes.ended.value) as (StaticString, UInt64),
                ("slow", pushes.slow.value), ("refused", pushes.refused.value),
            ] {
                page.counter(
                    "heartline_push_sockets_ended_total", help, count, .init("reason", reason))
            }
        }
        if let expiry = settings.server.tls?.expirySeconds {
            page.gauge(
                "heartline_tls_certificate_expiry_timestamp_seconds",
                "When the certificate of the public listener ends, in seconds since 1970.", expiry)
        }
    }

    private func writeHeartbeats(to page: inout MetricsPage) {
        let help: StaticString = "Heartbeats by how they were answered."
        for (result, count) in [
            ("accepted", counters.accepted) as (StaticString, UInt64),
            ("bad-request", counters.badRequest), ("forbidden", counters.forbidden),
            ("failed", counters.failed), ("unavailable", counters.unavailable),
        ] {
            page.counter("heartline_heartbeats_total", help, count, .init("result", result))
        }
        page.counter(
            "heartline_heartbeats_lost_total",
            "Heartbeats that are not in the log for a reason of ours.", counters.lost)
        page.counter(
            "heartline_heartbeats_shed_total",
            "Heartbeats answered 200 that the full queue to the log refused.", counters.shed)
        page.counter(
            "heartline_heartbeats_flagged_total",
            "Heartbeats taken with a faulty optional field.", counters.flagged)
        page.counter(
            "heartline_cache_misses_total", "Heartbeats that had to wait for the database.",
            counters.misses)
        page.counter(
            "heartline_beacons_total", "Beacons that the log's queue took.", counters.beacons)
    }
}

extension AdminListener {
    public func write(to page: inout MetricsPage) {
        counters.write(to: &page, listener: "admin")
    }
}

extension ServerCounters {
    /// - Parameter listener: which one.
    func write(to page: inout MetricsPage, listener: StaticString) {
        let label = MetricsPage.Label("listener", listener)
        page.gauge(
            "heartline_http_connections", "Connections open now.", connectionsOpen, label)
        page.counter(
            "heartline_http_connections_accepted_total", "Connections accepted.",
            connectionsAccepted, label)
        page.counter(
            "heartline_http_connections_rejected_total",
            "Connections refused because there were too many.", connectionsRejected, label)
        page.counter(
            "heartline_http_accept_pauses_total",
            "Times that accepting stopped for want of file descriptors or memory.", acceptPauses,
            label)
        page.gauge(
            "heartline_http_in_flight_bytes",
            "Bytes of requests and answers that are under way.", bytesInFlight, label)
        page.gauge("heartline_websockets", "WebSockets open now.", webSocketsOpen, label)
        page.counter(
            "heartline_websockets_opened_total", "WebSockets opened.", webSocketsOpened, label)
        for (direction, messages, bytes) in [
            ("in", webSocketMessagesReceived, webSocketBytesReceived) as (StaticString, Int, Int),
            ("out", webSocketMessagesSent, webSocketBytesSent),
        ] {
            page.counter(
                "heartline_websocket_messages_total", "Messages over WebSockets.", messages, label,
                .init("direction", direction))
            page.counter(
                "heartline_websocket_bytes_total", "Bytes of messages over WebSockets.", bytes,
                label, .init("direction", direction))
        }
        let classes: [StaticString] = ["1xx", "2xx", "3xx", "4xx", "5xx"]
        for route in routes {
            let name = MetricsPage.Label("route", configured: route.name)
            for (index, text) in classes.enumerated() {
                let count = route.answers[index + 1]
                // A route that nobody asks for is told once, not ten times.
                guard count > 0 || index == 1 else { continue }
                page.counter(
                    "heartline_http_responses_total",
                    "Answers by route and class of status; other is what is no route.", count,
                    label, name, .init("status", text))
            }
            guard route.durations.count > 0 else { continue }
            page.histogram(
                "heartline_http_request_duration_seconds",
                "From a request's being read whole to the beginning of its answer.",
                route.durations, label, name)
        }
    }
}
