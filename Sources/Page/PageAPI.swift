internal import Bytes
internal import Crypto
public import HTTP
internal import Schemas
internal import System

/// The page's routes on one event loop. A browser shows a session's cookie, a program the operators' token.
public final class PageAPI {
    private let service: PageService

    public init(_ service: PageService) { self.service = service }

    /// Answers a request, or leaves it to others.
    /// - Returns: whether it is one of the page's.
    public func handle(_ request: borrowing Request, _ exchange: borrowing Exchange) -> Bool {
        guard let path = PagePath(parsing: request.path) else { return false }
        let isPosted = path == .login || path == .logout
        let isRead = request.method == .get || request.method == .head
        guard isRead && path != .logout || isPosted && request.method == .post else {
            exchange.respondError(
                .methodNotAllowed, "method not allowed",
                headers: [
                    Header(
                        "Allow",
                        path == .logout ? "POST" : isPosted ? "GET, HEAD, POST" : "GET, HEAD")
                ])
            return true
        }
        let authorization = request.header("authorization")
        let origin = RequestOrigin(
            host: request.header("host"), origin: request.header("origin"),
            fetchSite: request.header("sec-fetch-site"))
        if authorization == nil, !origin.isAddressed(toOneOf: service.settings.names) {
            PageAnswer(
                .forbidden,
                PageDocument.message(
                    "Not by this name",
                    "The page answers to addresses and to localhost; other names are given with --admin-name."
                )
            ).respond(exchange)
            return true
        }
        if origin.isFromElsewhere {
            PageAnswer(
                .forbidden,
                PageDocument.message(
                    "Asked for by another site",
                    "Another site led here. If it was you who followed a link, go on from here.",
                    way: (path.isDocument ? path : .fleet, "Open it"))
            ).respond(exchange)
            return true
        }
        switch path {
        case .styles:
            PageAnswer(asset: PackageResources.page_css, "text/css; charset=utf-8").respond(
                exchange)
        case .script:
            PageAnswer(asset: PackageResources.page_js, "text/javascript; charset=utf-8")
                .respond(exchange)
        case .icon:
            PageAnswer(asset: PackageResources.icon_svg, "image/svg+xml").respond(exchange)
        case .login where isRead:
            // What only looks whether a link leads somewhere does not use it up.
            if request.method == .get, let code = FormFields(request.query ?? "")["code"] {
                signIn(code: code).respond(exchange)
            } else {
                PageAnswer(.ok, PageDocument.login(fault: nil, target: nil)).respond(exchange)
            }
        case .login: signIn(request).respond(exchange)
        case .logout:
            if let cookie = cookie(request) { service.sessions.end(cookie) }
            PageAnswer(
                goingTo: .login,
                headers: [
                    Header(
                        "Set-Cookie",
                        "\(service.cookieName)=; Path=/; HttpOnly; SameSite=Strict; Max-Age=0")
                ]
            ).respond(exchange)
        default: answer(path, authorization, request, exchange)
        }
        return true
    }

    // MARK: - For who is let in

    private func answer(
        _ path: PagePath, _ authorization: String?, _ request: borrowing Request,
        _ exchange: borrowing Exchange
    ) {
        var session: Digest?
        if let authorization {
            let verdict = service.settings.judge(authorization, request.clientAddress)
            if verdict != .letIn {
                refusal(verdict, target: nil).respond(exchange)
                return
            }
        } else {
            session = cookie(request).flatMap {
                service.sessions.find($0, now: SystemClock.monotonicMilliseconds())
            }
            guard session != nil else {
                if path.page != nil {
                    exchange.respondError(.unauthorized, "signed out")
                } else {
                    PageAnswer(
                        .unauthorized, PageDocument.login(fault: nil, target: path),
                        headers: [Self.challenge]
                    ).respond(exchange)
                }
                return
            }
        }
        switch path {
        case .fleetLive: stream(.fleet, session, exchange)
        case .deviceLive(let device): stream(.device(device), session, exchange)
        case .device(let device): submit(.device(device), exchange)
        case .devices(let state): submit(.devices(state), exchange)
        case .search: submit(.search(FormFields(request.query ?? "")["q"] ?? ""), exchange)
        default: submit(.fleet, exchange)
        }
    }

    private func submit(_ wish: PageService.Wish, _ exchange: borrowing Exchange) {
        let response = exchange.deferred()
        if !service.submit(wish, response) {
            PageAnswer(
                .serviceUnavailable,
                PageDocument.notice("Not now", "Too many ask for the page at once."),
                headers: [Header("Retry-After", "1")]
            ).respond(response)
        }
    }

    private func stream(
        _ channel: PageService.Channel, _ session: Digest?, _ exchange: borrowing Exchange
    ) {
        guard service.reserveStream() else {
            exchange.respondError(
                .serviceUnavailable, "too many streams", headers: [Header("Retry-After", "10")])
            return
        }
        let stream = exchange.stream(
            .ok, contentType: "text/event-stream",
            headers: [
                Header("Cache-Control", "no-store"), Header("X-Content-Type-Options", "nosniff"),
                Header("X-Accel-Buffering", "no"),
            ])
        service.watch(channel, stream, session)
    }

    // MARK: - Signing in

    private static let challenge = Header("WWW-Authenticate", "Bearer realm=\"heartline\"")

    private func cookie(_ request: borrowing Request) -> String? {
        Cookies.value(of: service.cookieName, in: request.head.headers("cookie"))
    }

    private func signIn(_ request: borrowing Request) -> PageAnswer {
        let fields = FormFields(request.withBody { $0.text })
        let target = fields["to"].flatMap { PagePath(parsing: $0) }
        // Blanks and line ends come along when it is copied.
        let token = (fields["token"] ?? "").filter { !$0.isWhitespace }
        let verdict = service.settings.judge("Bearer \(token)", request.clientAddress)
        guard verdict == .letIn else { return refusal(verdict, target: target) }
        return begin(target)
    }

    private func signIn(code text: String) -> PageAnswer {
        let now = SystemClock.wallMilliseconds()
        guard let code = LoginCode(text, key: service.settings.key),
            code.isValid(now: now, since: service.startedAt), service.sessions.use(code, now: now)
        else {
            return PageAnswer(
                .unauthorized,
                PageDocument.login(
                    fault: "This link was used or is too old: it is good once, for ten minutes.",
                    target: nil), headers: [Self.challenge])
        }
        return begin(nil)
    }

    private func begin(_ target: PagePath?) -> PageAnswer {
        guard let session = try? service.sessions.begin(now: SystemClock.monotonicMilliseconds())
        else {
            return PageAnswer(
                .internalServerError,
                PageDocument.message("Not now", "This machine has no random numbers to give."))
        }
        let target = target.flatMap { $0.isDocument ? $0 : nil }
        let seconds = PageSessions.validMilliseconds / 1_000
        return PageAnswer(
            goingTo: target ?? .fleet,
            headers: [
                Header(
                    "Set-Cookie",
                    "\(service.cookieName)=\(session); Path=/; HttpOnly; SameSite=Strict; Max-Age=\(seconds)"
                )
            ])
    }

    private func refusal(_ verdict: PageSettings.Verdict, target: PagePath?) -> PageAnswer {
        if case .tooMany(let seconds) = verdict {
            return PageAnswer(
                .tooManyRequests,
                PageDocument.login(
                    fault:
                        "Too many wrong tokens came from this address. Try again in \(seconds) s.",
                    target: target), headers: [Header("Retry-After", String(seconds))])
        }
        return PageAnswer(
            .unauthorized,
            PageDocument.login(fault: "This is not the operators’ token.", target: target),
            headers: [Self.challenge])
    }
}

extension PagePath {
    /// Whether a person can be led there.
    var isDocument: Bool {
        switch self {
        case .fleet, .devices, .device, .search: true
        default: false
        }
    }
}
