internal import Bytes
internal import HTTP
internal import JWT
internal import Schemas

/// What a request of the proximity service asks for, free of its connection.
enum ProximityCall: Sendable {
    case exchange(ExchangeRequest)
    /// An exchange whose token was found good.
    case signIn(SignIn)
    case request(ProximityRequest, by: Caller)
    /// The second half of `erase`: whom the account had to do with has been told.
    case eraseRows(by: Caller)
}

/// Who asks, by the session that was shown.
struct Caller: Hashable, Sendable {
    var session: SessionID
    var account: AccountID
}

struct ExchangeRequest: Sendable {
    var provider: IdentityProvider.Name
    var idToken: ByteBuffer
    /// Empty: none.
    var nonce: ByteBuffer
    /// It has waited for the provider's keys, and does so once only.
    var hasWaited = false
}

/// Who a provider says that a person is.
struct SignIn: Sendable {
    var provider: IdentityProvider.Name
    var claims: JWTClaims
}

/// What people with a session ask for.
enum ProximityRequest: Sendable {
    case revoke
    case register(token: InlineText, tier: DistanceTier, cell: Geohash?)
    case nearby(Geohash, DistanceTier)
    case encounter(EncounterReport)
    case wave(InlineText)
    /// 32 bytes in Base64.
    case storeKey(String)
    case fetchKey(InlineText)
    case block(InlineText)
    case message(MessageID, ConnectionID, ByteBuffer)
    case erase
}

struct EncounterReport: Sendable {
    var id: EncounterID
    var remoteToken: InlineText
    var tier: DistanceTier
    var engine: InlineText
    var cell: Geohash?
}

/// An answer that says what is wrong with a request.
struct ProximityFault: Error, Sendable {
    var status: Status
    /// Needs no escaping.
    var message: StaticString

    init(_ status: Status, _ message: StaticString) {
        self.status = status
        self.message = message
    }

    static let unauthorized = ProximityFault(.unauthorized, "unauthorized")
    static let forbidden = ProximityFault(.forbidden, "forbidden")
    static let unavailable = ProximityFault(.serviceUnavailable, "unavailable")
    static let overloaded = ProximityFault(.serviceUnavailable, "overloaded")
}

extension ProximityFault {
    var headers: [Header] {
        switch status {
        case .unauthorized: [Header("WWW-Authenticate", "Bearer realm=\"heartline\"")]
        // Spread, so that not all come again at once.
        case .serviceUnavailable: [Header("Retry-After", String(UInt32.random(in: 1...5)))]
        default: []
        }
    }
}

extension DeferredResponse {
    func respond(_ fault: ProximityFault) {
        var body = ByteBuffer()
        body.append("{\"error\":\"")
        body.append(fault.message)
        body.append("\"}")
        respond(fault.status, contentType: "application/json", headers: fault.headers, body)
    }

    /// Answers 200 with a JSON document.
    func respond(json body: ByteBuffer) {
        respond(.ok, contentType: "application/json", body)
    }

    /// Answers `{}`: what was to be written is.
    func respondDone() {
        var body = ByteBuffer()
        body.append("{}")
        respond(json: body)
    }
}
