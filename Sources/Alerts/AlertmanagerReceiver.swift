internal import Bytes
internal import Curl
internal import Schemas
internal import System

extension ReceiverWorker {
    /// Sends what is new in batches, and everything that is firing again and again: Alertmanager
    /// forgets what is not repeated.
    ///
    /// All on one thread, one request at a time, so no repeat can come after its own resolve.
    func serve(
        _ manager: AlertmanagerSettings, _ store: DeliveryStore, _ health: inout ReceiverHealth,
        _ results: inout DeliveryResults
    ) throws {
        var transfers = try CurlTransfers(maximumTransfers: 1, maximumConnections: 1)
        let request = try request(manager)
        let lifetime = manager.repeatInterval * 4
        // What this process was not there for may be about to be forgotten.
        var repeatAt = SystemClock.monotonicMilliseconds()
        var repeated: DeviceID?
        var limit = manager.batch
        while goesOn {
            let now = SystemClock.monotonicMilliseconds()
            if now < health.notBefore {
                try waitForNews(store, milliseconds: min(health.notBefore - now, 1_000))
                continue
            }
            let due = try store.dueForAlertmanager(limit: limit, lifetime: lifetime)
            if !due.isEmpty {
                let verdict = try send(due, request, &transfers, &health)
                limit = note(verdict, due, limit, manager, &health, &results)
                try store.write(&results)
                continue
            }
            if now >= repeatAt {
                let start = repeated ?? DeviceID(high: 0, low: 0)
                let page = try store.firing(after: start, limit: manager.batch, lifetime: lifetime)
                let isDone = page.count < manager.batch
                if !page.isEmpty {
                    switch try send(page, request, &transfers, &health).verdict {
                    case .acknowledged: if health.succeed() { results.hasRecovered = true }
                    case .refused: break
                    case .away: continue
                    }
                    try store.write(&results)
                }
                repeated = isDone ? nil : page.last?.alert
                if isDone { repeatAt = now + manager.repeatInterval }
                continue
            }
            try waitForNews(store, milliseconds: min(repeatAt - now, 1_000))
        }
    }

    private typealias Answer = (verdict: ReceiverHealth.Verdict, reason: String)

    /// Takes down what became of a batch.
    /// - Returns: how many to send next: one that is refused is found by smaller batches.
    private func note(
        _ answer: Answer, _ batch: [Delivery], _ limit: Int64, _ manager: AlertmanagerSettings,
        _ health: inout ReceiverHealth, _ results: inout DeliveryResults
    ) -> Int64 {
        switch answer.verdict {
        case .acknowledged:
            results.acknowledged += batch.map(\.id)
            if health.succeed() { results.hasRecovered = true }
            return min(manager.batch, limit * 2)
        case .refused where batch.count > 1:
            return max(1, Int64(batch.count) / 2)
        case .refused, .away:
            let wait = max(0, health.notBefore - SystemClock.monotonicMilliseconds())
            for delivery in batch {
                let own = health.delay(afterFailures: delivery.attempts + 1)
                results.failed.append(
                    .init(
                        id: delivery.id,
                        delay: answer.verdict == .away ? wait : own, reason: answer.reason))
            }
            return limit
        }
    }

    private func request(_ manager: AlertmanagerSettings) throws(CurlError) -> CurlRequest {
        var headers = [
            (name: "Content-Type", value: "application/json"),
            (name: "User-Agent", value: "heartline"),
        ]
        if let authorization = manager.authorization {
            headers.append((name: "Authorization", value: authorization))
        }
        let timeout = Duration.milliseconds(manager.timeout)
        let base = manager.url.hasSuffix("/") ? String(manager.url.dropLast()) : manager.url
        return try CurlRequest(
            .post, "\(base)/api/v2/alerts", headers: headers,
            limits: .init(connectTimeout: timeout, timeout: timeout, answerBytes: 64 << 10),
            usesEnvironmentProxy: manager.usesEnvironmentProxy)
    }

    /// Sends one batch and waits for the answer.
    private func send(
        _ batch: [Delivery], _ request: CurlRequest, _ transfers: inout CurlTransfers,
        _ health: inout ReceiverHealth
    ) throws(CurlError) -> Answer {
        var body = ByteBuffer()
        body.append(UInt8(ascii: "["))
        for (index, delivery) in batch.enumerated() {
            if index > 0 { body.append(UInt8(ascii: ",")) }
            body.append(delivery.body)
        }
        body.append(UInt8(ascii: "]"))
        try transfers.start(request, body: body.span)
        var answer: Answer?
        var end: Int64?
        while answer == nil {
            let now = SystemClock.monotonicMilliseconds()
            if !goesOn { end = end ?? now + 3_000 }
            if let end, now >= end { break }
            try transfers.poll(milliseconds: 200) { completion, _ in
                if let error = completion.error {
                    answer = (.away, "\(error)")
                } else {
                    answer = (
                        ReceiverHealth.verdict(status: completion.status),
                        "it answered \(completion.status)"
                    )
                }
            }
        }
        guard let answer else { return (.away, "the process ended before it answered") }
        switch answer.verdict {
        case .acknowledged: break
        case .refused: health.refuse(answer.reason)
        case .away: _ = health.fail(answer.reason, now: SystemClock.monotonicMilliseconds())
        }
        return answer
    }
}
