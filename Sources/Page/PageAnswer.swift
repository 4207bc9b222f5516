internal import Bytes
internal import HTTP

/// An answer of the page, with the headers that all of them have.
struct PageAnswer: Sendable {
    var status: Status
    var contentType: StaticString = "text/html; charset=utf-8"
    var headers: [Header]
    var body: ByteBuffer

    init(_ status: Status, _ html: HTML, headers: [Header] = []) {
        self.status = status
        self.headers = Self.headers + headers
        body = html.bytes
    }

    /// 303: another page has what is wanted.
    init(goingTo path: PagePath, headers: [Header] = []) {
        status = .seeOther
        self.headers = Self.headers + [Header("Location", path.description)] + headers
        body = ByteBuffer()
    }

    /// A file of ours.
    init(asset: [UInt8], _ contentType: StaticString) {
        status = .ok
        self.contentType = contentType
        // New with each release, and near; so it is asked for each time.
        headers = [
            Header("Cache-Control", "no-cache"), Header("X-Content-Type-Options", "nosniff"),
            Header("Cross-Origin-Resource-Policy", "same-origin"),
        ]
        body = ByteBuffer(asset)
    }

    /// What keeps other sites and other people's text out: only our own script and styles run, no frame may
    /// hold the page, and no site learns where a link was followed from.
    ///
    /// `Referrer-Policy` is not `no-referrer`, with which browsers hide the origin of our own forms.
    static let headers = [
        Header(
            "Content-Security-Policy",
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
        ),
        Header("X-Content-Type-Options", "nosniff"), Header("X-Frame-Options", "DENY"),
        Header("Referrer-Policy", "same-origin"),
        Header("Cross-Origin-Resource-Policy", "same-origin"), Header("Cache-Control", "no-store"),
    ]

    func respond(_ exchange: borrowing Exchange) {
        exchange.respond(status, contentType: contentType, headers: headers, body.span)
    }

    func respond(_ response: DeferredResponse) {
        response.respond(status, contentType: contentType, headers: headers, body)
    }
}
