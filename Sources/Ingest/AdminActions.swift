internal import Bytes
internal import HTTP
internal import Schemas

/// What the operators' routes do. Bodies and queries are checked strictly: a mistyped field of a
/// change is an error and not ignored.
enum AdminActions {
    /// Devices that one request can add; keys are made while it waits.
    static let maximumAddition = 10_000
    /// Tokens that one request can make.
    static let maximumTokens = 10_000
    private static let page = 1...1_000

    // MARK: - Devices

    private struct DevicesPage: Encodable {
        var devices: [DeviceSummary]
        /// What `after` of the next page is; absent on the last one.
        var next: String?
    }

    static func listDevices(_ call: AdminCall, _ registry: Registry) throws -> AdminAnswer {
        let limit = try call.query.integer("limit", page) ?? 100
        let after = try call.query.uuid("after")
        let devices = try registry.devices(limit: limit, after: after)
        return try AdminAnswer(
            DevicesPage(
                devices: devices,
                next: devices.count == limit ? devices.last.map { "\($0.device)" } : nil))
    }

    private struct Addition: Decodable {
        var count: Int?
        var expected_interval_ms: Int64?
        static let fields = ["count", "expected_interval_ms"]
    }

    private struct DevicesAdded: Encodable {
        var device_ids: [String]
    }

    static func addDevices(_ call: AdminCall, _ registry: Registry) throws -> AdminAnswer {
        let addition: Addition = try AdminBody.decode(
            call.body, Addition.fields, mayBeEmpty: true)
        let count = addition.count ?? 1
        guard (1...maximumAddition).contains(count) else {
            throw AdminFault(.badRequest, "\"count\" is 1 to \(maximumAddition)")
        }
        let devices = try registry.addDevices(
            count: count,
            expectedInterval: addition.expected_interval_ms.map { .milliseconds($0) },
            by: call.request)
        return try AdminAnswer(
            DevicesAdded(device_ids: devices.map(\.description)), status: .created)
    }

    static func showDevice(_ call: AdminCall, _ registry: Registry) throws -> AdminAnswer {
        let id = try call.device()
        guard let device = try registry.device(id) else {
            throw AdminFault(.notFound, "no device has the id \(id)")
        }
        return try AdminAnswer(device)
    }

    /// `null` is the fleet's interval; a body without the field says nothing and is an error.
    private struct Interval: Decodable {
        var value: Int64?
        static let fields = ["expected_interval_ms"]

        private enum CodingKeys: String, CodingKey { case expected_interval_ms }

        init(from decoder: any Decoder) throws {
            let values = try decoder.container(keyedBy: CodingKeys.self)
            if try values.decodeNil(forKey: .expected_interval_ms) { return }
            value = try values.decode(Int64.self, forKey: .expected_interval_ms)
        }
    }

    static func setInterval(_ call: AdminCall, _ registry: Registry) throws -> AdminAnswer {
        let interval: Interval = try AdminBody.decode(call.body, Interval.fields)
        // Checked here, so that no number is too large for a duration.
        if let value = interval.value, !(1_000...7 * 86_400_000).contains(value) {
            throw AdminFault(
                .badRequest, "\"expected_interval_ms\" is 1000 to 604800000, or null")
        }
        return try AdminAnswer(
            registry.setInterval(
                call.device(), interval.value.map { .milliseconds($0) }, by: call.request))
    }

    // MARK: - Forwards

    private struct Forwards: Codable {
        var forwards: [PortForward]
        static let fields = ["forwards"]
    }

    static func listForwards(_ call: AdminCall, _ registry: Registry) throws -> AdminAnswer {
        try AdminAnswer(Forwards(forwards: registry.forwards(of: call.device())))
    }

    static func setForwards(_ call: AdminCall, _ registry: Registry) throws -> AdminAnswer {
        let list: Forwards = try AdminBody.decode(call.body, Forwards.fields)
        return try AdminAnswer(
            registry.setForwards(of: call.device(), list.forwards, by: call.request))
    }

    static func addForward(_ call: AdminCall, _ registry: Registry) throws -> AdminAnswer {
        let forward: PortForward = try AdminBody.decode(
            call.body, ["protocol", "listen_port", "target_host", "target_port"])
        return try AdminAnswer(
            registry.addForward(to: call.device(), forward, by: call.request))
    }

    static func removeForward(_ call: AdminCall, _ registry: Registry) throws -> AdminAnswer {
        guard let transport = call.query["protocol"],
            let port = try call.query.integer("listen_port", 1...65_535)
        else {
            throw AdminFault(
                .badRequest, "the query names the forward: ?protocol=tcp&listen_port=8080")
        }
        return try AdminAnswer(
            registry.removeForward(
                from: call.device(), transport: transport, listenPort: UInt16(clamping: port),
                by: call.request))
    }

    // MARK: - Tokens

    private struct TokensPage: Encodable {
        var tokens: [TokenSummary]
    }

    static func listTokens(_ call: AdminCall, _ registry: Registry) throws -> AdminAnswer {
        let limit = try call.query.integer("limit", page) ?? 100
        return try AdminAnswer(TokensPage(tokens: registry.tokens(limit: limit)))
    }

    private struct TokenWish: Decodable {
        var count: Int?
        var ttl_ms: Int64?
        var note: String?
        static let fields = ["count", "ttl_ms", "note"]
    }

    private struct TokensMade: Encodable {
        var tokens: [RegistrationToken]
    }

    static func createTokens(_ call: AdminCall, _ registry: Registry) throws -> AdminAnswer {
        let wish: TokenWish = try AdminBody.decode(
            call.body, TokenWish.fields, mayBeEmpty: true)
        let count = wish.count ?? 1
        guard (1...maximumTokens).contains(count) else {
            throw AdminFault(.badRequest, "\"count\" is 1 to \(maximumTokens)")
        }
        let tokens = try registry.createTokens(
            count: count, ttl: .milliseconds(wish.ttl_ms ?? 86_400_000), note: wish.note ?? "",
            by: call.request)
        return try AdminAnswer(TokensMade(tokens: tokens), status: .created)
    }

    private struct TokenRevoked: Encodable {
        var token_id: String
        var changed: Bool
    }

    static func revokeToken(_ call: AdminCall, _ registry: Registry) throws -> AdminAnswer {
        guard let id = DeviceID(call.parameters[0]) else {
            throw AdminFault(.notFound, "no token has this id: it is not a UUID")
        }
        let changed = try registry.revokeToken(id, by: call.request)
        return try AdminAnswer(TokenRevoked(token_id: "\(id)", changed: changed))
    }

    // MARK: - Audit

    private struct AuditPage: Encodable {
        var entries: [AuditEntry]
        /// What `before` of the next page is; absent on the last one.
        var next: Int64?
    }

    static func listAudit(_ call: AdminCall, _ registry: Registry) throws -> AdminAnswer {
        let limit = try call.query.integer("limit", page) ?? 100
        let before = try call.query.integer("before", 1...Int.max)
        let entries = try registry.auditLog(
            limit: limit, before: before.map { Int64($0) }, entity: call.query["entity"])
        return try AdminAnswer(
            AuditPage(
                entries: entries,
                next: entries.count == limit ? entries.last?.number : nil))
    }
}
