internal import Bytes
internal import Curl

/// Why a source could not be asked; for people, and without secrets: hosts are named, addresses with
/// their queries are not.
public struct SourceFault: Error, Hashable, Sendable, CustomStringConvertible {
    public enum Kind: Sendable, Hashable {
        /// The same may succeed in a moment.
        case transient
        case permanent
        /// Nobody wants it any more.
        case cancelled
    }

    public var kind: Kind
    public var description: String

    init(_ kind: Kind, _ description: String) {
        self.kind = kind
        self.description = description
    }

    /// What asks sources could not be set up.
    public static let unprepared = SourceFault(
        .permanent,
        "No source can be asked from this server; its certificate authorities are amiss.")
}

/// Takes in what a source sends, piece by piece.
protocol SourceSink: AnyObject {
    /// - Returns: whether the body is wanted. Not called for redirects that are followed.
    func began(status: Int, headers: SourceHeaders) -> Bool
    /// - Returns: whether more is wanted.
    func received(_ bytes: Span<UInt8>) -> Bool
}

/// Headers of an answer by name.
struct SourceHeaders {
    private var values: [String: String] = [:]

    init() {}

    init(_ list: [(name: String, value: String)]) {
        for (name, value) in list where values[name] == nil { values[name] = value }
    }

    /// - Parameter name: in lower case.
    subscript(_ name: String) -> String? { values[name] }

    var contentLength: Int64? {
        values["content-length"].flatMap { Int64($0) }.flatMap { $0 >= 0 ? $0 : nil }
    }

    var isWebPage: Bool {
        let type = values["content-type"]?.lowercased() ?? ""
        return type.hasPrefix("text/html") || type.hasPrefix("application/xhtml")
    }
}

/// Fetches from sources: follows a bounded number of redirects, each judged as the first address was,
/// and shows credentials only to the server that they are for.
///
/// Blocks its thread; one for each thread.
final class SourceFetcher {
    struct Request {
        var url: String
        var method = CurlFetch.Method.get
        var headers: [(name: String, value: String)] = []
        var credential: SourceCredential?
        var limits = CurlFetch.Limits()
    }

    private let fetch: CurlFetch
    private let policy: AddressPolicy
    private let trust: CurlRequest.Trust

    static let maximumRedirects = 5

    init(_ configuration: UpdatesConfiguration) throws {
        fetch = try CurlFetch()
        policy = AddressPolicy(allowedHosts: configuration.allowedHosts)
        trust = configuration.certificateAuthorities.map { .authorities(file: $0) } ?? .system
    }

    /// - Parameter goesOn: asked about once a second.
    func run(
        _ request: Request, into sink: any SourceSink, goesOn: @escaping () -> Bool
    ) throws(SourceFault) {
        guard let first = WebPlace(request.url) else {
            throw SourceFault(.permanent, "The source is no http or https address.")
        }
        var url = request.url
        var place = first
        for _ in 0...Self.maximumRedirects {
            var headers = request.headers
            headers.append((name: "User-Agent", value: "heartline"))
            if let credential = request.credential, place.isSameServer(as: first) {
                headers.append((name: "Authorization", value: credential.header))
            }
            let receiver = Receiver(policy, host: place.host, sink, goesOn)
            try run(request, url, place, headers, receiver)
            guard let location = receiver.location else { return }
            guard let target = Redirect.target(location, from: url), let next = WebPlace(target)
            else {
                throw SourceFault(.permanent, "\(place.host) redirects to no web address.")
            }
            guard !next.hasCredentials else {
                throw SourceFault(
                    .permanent, "\(place.host) redirects to an address with a password.")
            }
            guard next.isSecure || !place.isSecure else {
                throw SourceFault(
                    .permanent, "\(place.host) redirects from https to http, which is refused.")
            }
            url = target
            place = next
        }
        throw SourceFault(
            .permanent, "\(first.host) redirects more than \(Self.maximumRedirects) times.")
    }

    private func run(
        _ request: Request, _ url: String, _ place: WebPlace,
        _ headers: [(name: String, value: String)], _ receiver: Receiver
    ) throws(SourceFault) {
        let ending: CurlFetchEnding
        do throws(CurlError) {
            ending = try fetch.run(
                request.method, url, headers: headers, limits: request.limits, trust: trust,
                into: receiver)
        } catch {
            throw SourceFault(
                Self.isTransient(error.kind) ? .transient : .permanent,
                "\(place.host) could not be reached: \(Self.words(error)).")
        }
        switch ending {
        case .complete: return
        case .refusedAddress:
            throw SourceFault(
                .permanent,
                "\(place.host) has a private address; an operator can allow it with --allow-host.")
        case .stopped:
            if !receiver.goesOn {
                throw SourceFault(.cancelled, "It is not wanted any more.")
            }
        }
    }

    private static func isTransient(_ kind: CurlError.Kind) -> Bool {
        switch kind {
        case .refused, .unreachable, .unresolved, .timeout, .disconnected: true
        case .invalidRequest, .tls, .badAnswer, .answerTooLarge, .tooMany, .outOfMemory, .other:
            false
        }
    }

    private static func words(_ error: CurlError) -> String {
        switch error.kind {
        case .unresolved: "its name is not known"
        case .refused: "it refuses connections"
        case .unreachable: "there is no way to it"
        case .timeout: "it did not answer in time"
        case .tls: "its certificate or TLS is not in order"
        case .disconnected: "it closed the connection before all was there"
        case .badAnswer: "it does not speak HTTP as it should"
        case .invalidRequest: "the address is not in order"
        case .answerTooLarge, .tooMany, .outOfMemory, .other: "error \(error.code)"
        }
    }

    private final class Receiver: CurlFetchReceiver {
        private let policy: AddressPolicy
        private let host: String
        private let sink: any SourceSink
        private let wish: () -> Bool
        /// Where a redirect leads.
        private(set) var location: String?
        private var discarded = 0

        init(
            _ policy: AddressPolicy, host: String, _ sink: any SourceSink,
            _ wish: @escaping () -> Bool
        ) {
            self.policy = policy
            self.host = host
            self.sink = sink
            self.wish = wish
        }

        var goesOn: Bool { wish() }

        func allows(address: [UInt8]) -> Bool { policy.allows(address, of: host) }

        func began(status: Int, headers: [(name: String, value: String)]) -> Bool {
            let named = SourceHeaders(headers)
            if [301, 302, 303, 307, 308].contains(status), let target = named["location"] {
                location = target
                return true
            }
            return sink.began(status: status, headers: named)
        }

        func received(_ bytes: Span<UInt8>) -> Bool {
            if location == nil { return sink.received(bytes) }
            // The body of a redirect says nothing.
            discarded += bytes.count
            return discarded <= 64 << 10
        }
    }
}

/// Gathers a small answer.
final class SmallAnswer: SourceSink {
    private(set) var status = 0
    private(set) var headers = SourceHeaders()
    private(set) var body = ByteBuffer()
    private(set) var isTooLarge = false
    private let limit: Int
    private let wantsBody: Bool

    init(limit: Int = 8 << 20, wantsBody: Bool = true) {
        self.limit = limit
        self.wantsBody = wantsBody
    }

    func began(status: Int, headers: SourceHeaders) -> Bool {
        self.status = status
        self.headers = headers
        return wantsBody
    }

    func received(_ bytes: Span<UInt8>) -> Bool {
        guard body.count + bytes.count <= limit else {
            isTooLarge = true
            return false
        }
        body.append(bytes)
        return true
    }
}
