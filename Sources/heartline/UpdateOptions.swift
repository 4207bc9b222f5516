import HTTP
import Ingest
import Pipeline
import System
import Updates

/// Options of the roles that serve app updates.
enum UpdateOptions {
    static let file = Option.path(
        "updates", "FILE", default: "updates.yaml",
        "how apps are fetched and installed; where the default is not there, nothing is installed")
    private static let listen = Option.address(
        "update-listen",
        "a listener without TLS for the update routes alone, for a trusted network (default: they are on --listen)"
    )
    private static let proxies = Option(
        name: "trusted-proxies", kind: .text("ADDRESS"), defaultValue: nil,
        help:
            "an address or prefix of proxies whose X-Forwarded-For tells who asks for updates; several times",
        repeats: true)
    private static let allowHost = Option(
        name: "allow-host", kind: .text("HOST"), defaultValue: nil,
        help: "a host of sources that may have a private address; several times", repeats: true)

    static let all = [file, listen, proxies, allowHost]

    /// - Parameter directory: where downloads are kept; absolute.
    static func settings(_ arguments: Arguments, directory: String) throws -> UpdateSettings {
        var settings = UpdateSettings(directory: directory)
        let path = arguments.text("updates")
        if FileSystem.exists(path) || arguments.given.contains("updates") {
            settings.configuration = try UpdatesFile.load(path)
        }
        settings.configuration.allowedHosts += arguments.all("allow-host")
        if let text = arguments.optionalText("update-listen") {
            var limits = ServerLimits()
            limits.drainMilliseconds = 4_000
            do throws(HTTPError) {
                settings.listener = ServerConfiguration(
                    address: try SocketAddress(parsing: text), limits: limits, name: "updates")
            } catch {
                throw UsageError("--update-listen: \(error)")
            }
        }
        for text in arguments.all("trusted-proxies").flatMap({ $0.split(separator: ",") }) {
            guard let network = ClientNetwork(String(text)) else {
                throw UsageError(
                    "--trusted-proxies has addresses and prefixes, as 10.0.0.0/8, not \"\(text)\"")
            }
            settings.trustedProxies.append(network)
        }
        return settings
    }
}
