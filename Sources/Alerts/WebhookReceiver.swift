internal import Bytes
internal import Crypto
internal import Curl
internal import System

/// What a webhook is sent beside the body, by which it knows sender and repeats.
public enum WebhookSignature {
    /// `t=<time>,v1=<hex>`: HMAC-SHA256 with the secret over the time, a point, and the body.
    /// - Parameter time: seconds since 1970.
    public static func header(body: Span<UInt8>, secret: Span<UInt8>, time: Int64) -> String {
        var message = ByteBuffer()
        message.append(decimal: time)
        message.append(UInt8(ascii: "."))
        message.append(body)
        return "t=\(time),v1=\(HMACSHA256.authenticate(message.span, key: secret).hex)"
    }
}

extension ReceiverWorker {
    func serve(
        _ webhook: WebhookSettings, _ store: DeliveryStore, _ health: inout ReceiverHealth,
        _ results: inout DeliveryResults
    ) throws {
        var transfers = try CurlTransfers(
            maximumTransfers: webhook.concurrency, maximumConnections: webhook.concurrency)
        var flying: [UInt64: Delivery] = [:]
        do {
            while goesOn {
                let isIdle = try fly(webhook, store, &transfers, &flying, &health, &results)
                if isIdle {
                    let pause = health.notBefore - SystemClock.monotonicMilliseconds()
                    try waitForNews(store, milliseconds: pause > 0 ? min(pause, 1_000) : 1_000)
                } else {
                    try land(&transfers, &flying, &health, &results, milliseconds: 100)
                }
                try store.write(&results)
            }
        } catch {
            // Of what is under way, those that are acknowledged must not be sent again.
            try drain(&transfers, &flying, &health, &results, milliseconds: webhook.timeout)
            throw error
        }
        try drain(&transfers, &flying, &health, &results, milliseconds: 3_000)
        try store.write(&results)
    }

    /// Sends what is due, as far as there is room.
    /// - Returns: whether nothing is under way.
    private func fly(
        _ webhook: WebhookSettings, _ store: DeliveryStore, _ transfers: inout CurlTransfers,
        _ flying: inout [UInt64: Delivery], _ health: inout ReceiverHealth,
        _ results: inout DeliveryResults
    ) throws -> Bool {
        let now = SystemClock.monotonicMilliseconds()
        // One that failed is tried with a single message.
        let room = health.failures > 0 ? 1 - flying.count : webhook.concurrency - flying.count
        guard now >= health.notBefore, room > 0 else { return flying.isEmpty }
        for delivery in try store.due(limit: room, besides: flying.values.map(\.id)) {
            do throws(CurlError) {
                try transfers.start(
                    request(webhook, delivery), body: delivery.body.span, tag: UInt64(delivery.id))
                flying[UInt64(delivery.id)] = delivery
            } catch {
                health.refuse("\(error)")
                results.failed.append(
                    .init(
                        id: delivery.id,
                        delay: health.delay(afterFailures: delivery.attempts + 1),
                        reason: "\(error)"))
            }
        }
        return flying.isEmpty
    }

    private func request(
        _ webhook: WebhookSettings, _ delivery: Delivery
    ) throws(CurlError) -> CurlRequest {
        var headers = [
            (name: "Content-Type", value: "application/json"),
            (name: "User-Agent", value: "heartline"),
            (name: "Idempotency-Key", value: delivery.key),
        ]
        if let secret = webhook.secret {
            let signature = WebhookSignature.header(
                body: delivery.body.span, secret: secret.span,
                time: SystemClock.wallMilliseconds() / 1_000)
            headers.append((name: "X-Heartline-Signature", value: signature))
        }
        if let authorization = webhook.authorization {
            headers.append((name: "Authorization", value: authorization))
        }
        let timeout = Duration.milliseconds(webhook.timeout)
        return try CurlRequest(
            .post, webhook.url, headers: headers,
            limits: .init(connectTimeout: timeout, timeout: timeout, answerBytes: 64 << 10),
            usesEnvironmentProxy: webhook.usesEnvironmentProxy)
    }

    /// Waits for answers.
    private func land(
        _ transfers: inout CurlTransfers, _ flying: inout [UInt64: Delivery],
        _ health: inout ReceiverHealth, _ results: inout DeliveryResults, milliseconds: Int64
    ) throws(CurlError) {
        try transfers.poll(milliseconds: milliseconds, orReadable: waker.descriptor) {
            completion, _ in
            guard let delivery = flying.removeValue(forKey: completion.tag) else { return }
            // An answer that is too large is an answer: what it would say is of no interest.
            let reason = completion.error.map { "\($0)" } ?? "it answered \(completion.status)"
            let verdict =
                completion.error == nil
                ? ReceiverHealth.verdict(status: completion.status) : .away
            switch verdict {
            case .acknowledged:
                results.acknowledged.append(delivery.id)
                if health.succeed() { results.hasRecovered = true }
            case .refused:
                health.refuse(reason)
                results.failed.append(
                    .init(
                        id: delivery.id,
                        delay: health.delay(afterFailures: delivery.attempts + 1), reason: reason))
            case .away:
                let wait = health.fail(reason, now: SystemClock.monotonicMilliseconds())
                let own = health.delay(afterFailures: delivery.attempts + 1)
                results.failed.append(
                    .init(id: delivery.id, delay: max(wait, own), reason: reason))
            }
        }
        waker.drain()
    }

    private func drain(
        _ transfers: inout CurlTransfers, _ flying: inout [UInt64: Delivery],
        _ health: inout ReceiverHealth, _ results: inout DeliveryResults, milliseconds: Int64
    ) throws(CurlError) {
        let end = SystemClock.monotonicMilliseconds() + milliseconds
        while !flying.isEmpty {
            let left = end - SystemClock.monotonicMilliseconds()
            if left <= 0 { return }
            try land(&transfers, &flying, &health, &results, milliseconds: left)
        }
    }
}
