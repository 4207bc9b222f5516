internal import Foundation

/// What is merged into an app's `Info.plist` before it is signed, as a property list (the apps'
/// contract, "Detect support at runtime", "Local Network privacy and ATS").
///
/// The signing command merges it: `IPAHub` replaces what stands there; each domain of
/// `NSExceptionDomains` is added to those that are there; the purpose text is taken only where the
/// app has none, or a blank one.
public struct AppMetadata: Sendable {
    public var destinations: [UpdateDestination]
    /// The installation's new id, 48 hexadecimal digits.
    public var installationID: String
    public var app: TrackedApp
    public var team: String?

    public init(
        destinations: [UpdateDestination], installationID: String, app: TrackedApp, team: String?
    ) {
        self.destinations = destinations
        self.installationID = installationID
        self.app = app
        self.team = team
    }

    static let purpose =
        "Connect to your Mac to check for and install updates through ipa-hub"

    public var updateURLs: [String] {
        var query = "source=\(Self.encoded(app.source.description))"
        if let filter = app.filter { query += "&filter=\(Self.encoded(filter))" }
        if let team { query += "&team=\(Self.encoded(team))" }
        return destinations.map { "\($0.base)/api/app/\(installationID)/update?\(query)" }
    }

    /// The property list as XML.
    public var propertyList: String {
        var hub = "<key>updateURL</key><array>"
        for url in updateURLs { hub += "<string>\(Self.escaped(url))</string>" }
        hub += "</array>"
        func add(_ key: String, _ value: String?) {
            guard let value else { return }
            hub += "\n<key>\(key)</key><string>\(Self.escaped(value))</string>"
        }
        add("source", app.source.description)
        add("filter", app.filter)
        add("team", team)
        if app.source.hasReleases { add("release", app.channel.rawValue) }
        var domains = ""
        var seen: Set<String> = []
        for destination in destinations where !destination.isSecure {
            guard seen.insert(destination.host).inserted else { continue }
            domains += """
                <key>\(Self.escaped(destination.host))</key>
                <dict><key>NSExceptionAllowsInsecureHTTPLoads</key><true/></dict>

                """
        }
        return """
            <?xml version="1.0" encoding="UTF-8"?>
            <!DOCTYPE plist PUBLIC "-//Apple//DTD PLIST 1.0//EN" "http://www.apple.com/DTDs/PropertyList-1.0.dtd">
            <plist version="1.0">
            <dict>
            <key>IPAHub</key>
            <dict>
            \(hub)
            </dict>
            <key>NSLocalNetworkUsageDescription</key>
            <string>\(Self.escaped(Self.purpose))</string>
            <key>NSAppTransportSecurity</key>
            <dict>
            <key>NSExceptionDomains</key>
            <dict>
            \(domains)</dict>
            </dict>
            </dict>
            </plist>

            """
    }

    private static func encoded(_ text: String) -> String {
        var result = ""
        for byte in text.utf8 {
            switch byte {
            case 0x30...0x39, 0x41...0x5A, 0x61...0x7A, 0x2D, 0x2E, 0x5F, 0x7E:
                result.unicodeScalars.append(Unicode.Scalar(byte))
            default: result += String(format: "%%%02X", byte)
            }
        }
        return result
    }

    private static func escaped(_ text: String) -> String {
        var result = ""
        for scalar in text.unicodeScalars {
            switch scalar {
            case "&": result += "&amp;"
            case "<": result += "&lt;"
            case ">": result += "&gt;"
            case "\u{0}"..<"\u{20}": result += " "
            default: result.unicodeScalars.append(scalar)
            }
        }
        return result
    }
}

/// Where an app finds this server.
public struct UpdateDestination: Hashable, Sendable {
    /// A name or an address, an IPv6 one without brackets.
    public var host: String
    public var port: UInt16
    public var isSecure: Bool

    public init(host: String, port: UInt16, isSecure: Bool = false) {
        self.host = host
        self.port = port
        self.isSecure = isSecure
    }

    /// Scheme, host and port.
    public var base: String {
        let shown = host.contains(":") ? "[\(host)]" : host
        return "\(isSecure ? "https" : "http")://\(shown):\(port)"
    }

    /// The destinations that an app gets.
    ///
    /// - Parameters:
    ///   - configured: instead of what this machine has.
    ///   - listening: the address that is listened on.
    ///   - addresses: of this machine's interfaces.
    ///   - name: of this machine, without domain.
    public static func all(
        configured: [String]?, listening: String, port: UInt16, isSecure: Bool,
        addresses: [String], name: String
    ) -> [UpdateDestination] {
        var hosts: [String]
        if let configured {
            hosts = configured
        } else if listening == "0.0.0.0" || listening == "::" {
            let isSix = listening == "::"
            hosts = name.isEmpty ? [] : ["\(name.lowercased()).local"]
            hosts += addresses.filter { $0.contains(":") == isSix && isUsable($0) }
        } else {
            hosts = [listening]
        }
        var seen: Set<String> = []
        return hosts.filter { seen.insert($0).inserted }
            .map { UpdateDestination(host: $0, port: port, isSecure: isSecure) }
    }

    /// Whether another machine could reach the address: no loopback, link-local, unspecified or group.
    static func isUsable(_ address: String) -> Bool {
        if address.contains(":") {
            let lower = address.lowercased()
            let isLinkLocal = ["fe8", "fe9", "fea", "feb"].contains { lower.hasPrefix($0) }
            return lower != "::" && lower != "::1" && !isLinkLocal && !lower.hasPrefix("ff")
        }
        let first = address.split(separator: ".").first.flatMap { Int($0) } ?? 0
        return first != 0 && first != 127 && first < 224 && !address.hasPrefix("169.254.")
    }
}
