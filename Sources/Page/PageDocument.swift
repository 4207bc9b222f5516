internal import Schemas

/// What every document of the page has around its content.
enum PageDocument {
    /// - Parameters:
    ///   - title: before the name of the program; text of our own.
    ///   - live: where the content's parts come from; `nil`: it stands still.
    ///   - search: what was looked for.
    static func signedIn(
        title: String, live: PagePath? = nil, search: String = "", _ main: (inout HTML) -> Void
    ) -> HTML {
        document(title) { html in
            html.element("header", .css("top")) { html in
                html.element("nav", .text(.label, "Heartline")) {
                    $0.element("a", .css("home"), .href(.fleet)) {
                        $0.markup("<img src=\"/icon.svg\" alt=\"\" width=\"22\" height=\"22\">")
                        $0.text("Heartline")
                    }
                }
                html.element(
                    "form", .css("search"), .fixed("role", "search"), .fixed("method", "get"),
                    .fixed("action", "/search")
                ) { html in
                    html.markup("<label class=\"unseen\" for=\"q\">Find a device</label>")
                    html.void(
                        "input", .id("q"), .fixed("name", "q"), .fixed("type", "search"),
                        .text(.value, search), .fixed("autocomplete", "off"),
                        .fixed("spellcheck", "false"), .number("maxlength", 256),
                        .fixed("placeholder", "Device id, address or hardware id"))
                    html.element("button", text: "Find")
                }
                html.element("div", .css("session")) { html in
                    if live != nil {
                        html.markup("<span id=\"connection\" class=\"connection\" hidden></span>")
                        html.markup(
                            "<button id=\"pause\" type=\"button\" aria-pressed=\"false\" hidden>Pause</button>"
                        )
                    }
                    html.markup(
                        "<form method=\"post\" action=\"/logout\"><button>Sign out</button></form>")
                }
            }
            if let live {
                html.element(
                    "main", .id("main"), .number("tabindex", -1), .live(live), content: main)
                html.markup("<p id=\"announcement\" class=\"unseen\" role=\"status\"></p>")
            } else {
                html.element("main", .id("main"), .number("tabindex", -1), content: main)
            }
            html.markup("<footer><p>Times are UTC.</p>")
            if let live, let page = live.page {
                html.element("noscript") { html in
                    html.element("p") { html in
                        html.text("Without JavaScript this page stands still. ")
                        html.element("a", .href(page), text: "Look again")
                    }
                }
            }
            html.markup("</footer>")
        }
    }

    /// A document for who is not let in, or not yet.
    static func outside(title: String, _ main: (inout HTML) -> Void) -> HTML {
        document(title) { html in
            html.element("main", .id("main"), .css("gate"), content: main)
        }
    }

    private static func document(_ title: String, _ body: (inout HTML) -> Void) -> HTML {
        var html = HTML()
        html.markup(
            """
            <!DOCTYPE html><html lang="en"><head><meta charset="utf-8">\
            <meta name="viewport" content="width=device-width, initial-scale=1">\
            <meta name="color-scheme" content="light dark">
            """)
        html.element("title", text: "\(title) · Heartline")
        html.markup(
            """
            <link rel="stylesheet" href="/page.css"><link rel="icon" href="/icon.svg" type="image/svg+xml">\
            <script src="/page.js" defer></script></head><body>\
            <a class="skip" href="#main">Skip to the content</a>
            """)
        body(&html)
        html.markup("</body></html>")
        return html
    }

    // MARK: - Short documents

    /// - Parameters:
    ///   - fault: why an attempt did not go through.
    ///   - target: where to go then.
    static func login(fault: String?, target: PagePath?) -> HTML {
        outside(title: "Sign in") { html in
            html.markup(
                "<h1><img src=\"/icon.svg\" alt=\"\" width=\"28\" height=\"28\">Heartline</h1>")
            if let fault {
                html.element("p", .css("fault"), .fixed("role", "alert"), text: fault)
            }
            html.element("form", .fixed("method", "post"), .fixed("action", "/login")) { html in
                if let target {
                    html.void(
                        "input", .fixed("type", "hidden"), .fixed("name", "to"),
                        .text(.value, target.description))
                }
                html.markup("<label for=\"token\">The operators’ token</label>")
                html.void(
                    "input", .id("token"), .fixed("name", "token"), .fixed("type", "password"),
                    .fixed("autocomplete", "current-password"), .flag("required"),
                    .flag("autofocus"))
                html.element("button", text: "Sign in")
            }
            html.markup(
                """
                <p class="hint">It stands in <code>admin-token</code> of the data directory. Quicker: \
                <code>heartline page</code> prints a link that signs you in.</p>
                """)
        }
    }

    /// - Parameters:
    ///   - heading: text of our own.
    ///   - way: where to go on from here.
    static func message(_ heading: String, _ text: String, way: (PagePath, String)? = nil) -> HTML {
        outside(title: heading) { html in
            html.element("h1", text: heading)
            html.element("p", text: text)
            if let way {
                html.element("p") { $0.element("a", .href(way.0), text: way.1) }
            }
        }
    }

    /// The same for who is signed in.
    static func notice(_ heading: String, _ text: String, search: String = "") -> HTML {
        signedIn(title: heading, search: search) { html in
            html.element("h1", text: heading)
            html.element("p", .css("lead"), text: text)
            html.element("p") { $0.element("a", .href(.fleet), text: "To the fleet") }
        }
    }
}

extension PagePath {
    /// The page that a stream brings up to date; `nil` for all else.
    var page: PagePath? {
        switch self {
        case .fleetLive: .fleet
        case .deviceLive(let device): .device(device)
        default: nil
        }
    }
}
