import Alerts
import Foundation
import HTTP
import Ingest
import Pipeline
import Schemas
import System
import TLS

/// Options that `up`, `demo`, `ingest` and `process` share.
enum InstanceOptions {
    static let data = Option.path("data", "DIR", default: "data", "where everything is kept")
    static let listen = Option.address("listen", default: "127.0.0.1:8080", "where devices come to")
    static let admin = Option.address("admin", default: "127.0.0.1:8081", "where operators come to")
    static let workerAdmin = Option.address(
        "admin", "where operators come to (default: nowhere)")
    static let pipelines = Option.path(
        "pipelines", "DIR", default: "pipelines",
        "pipeline files; where the default is not there, every pipeline with its defaults")
    static let alerts = Option.path(
        "alerts", "FILE", default: "alerts.yaml",
        "who is told of alerts; where the default is not there, nobody")
    static let partitions = Option.integer(
        "partitions", 1...1_024,
        "of every topic, when it is first made (default: \(TopicPlan.embeddedDefault))")
    static let retention = Option.integer(
        "retention-gib", 1...100_000, default: 8, "size in GiB above which a topic loses its oldest"
    )
    static let spool = Option.integer(
        "spool-mib", 1...100_000_000, default: 4_096,
        "size in MiB of what may wait under --data while Kafka is away; above it devices get 503")
    static let database = Option.text(
        "database", "URL", "address of PostgreSQL, as libpq takes it")
    static let loops = Option.integer(
        "loops", 1...256, "event loops of the front-end (default: one for each core, at most 8)")
    static let durability = Option(
        name: "heartbeats", kind: .choice(["queued", "acked"]), defaultValue: "queued",
        help: "acked: answer a heartbeat only when the log has stored it")
    static let insecure = Option.flag(
        "insecure-listen", "allow a listener without TLS on an address that others can reach")
    static let certificate = Option.path(
        "tls-certificate", "FILE", "PEM chain; with --tls-key, the public listener speaks TLS")
    static let key = Option.path("tls-key", "FILE", "PEM private key of --tls-certificate")
    static let clientAuthority = Option.path(
        "tls-client-ca", "FILE",
        "PEM authorities of client certificates: a client is asked for one, whose subject CN must be the id of the device it speaks for"
    )
    static let clientRequired = Option.flag(
        "tls-client-required", "refuse clients without a certificate of --tls-client-ca")
    static let adminToken = Option.path(
        "admin-token-file", "FILE",
        "what operators show to /admin/v1, readable by its owner only; or HEARTLINE_ADMIN_TOKEN (default: up makes DIR/admin-token; other roles answer health only)"
    )
    static let metricsToken = Option.path(
        "metrics-token-file", "FILE",
        "what Prometheus shows to /metrics, and may do nothing else with; or HEARTLINE_METRICS_TOKEN. The operators' token is good for it too"
    )
    static let adminName = Option(
        name: "admin-name", kind: .text("NAME"), defaultValue: nil,
        help:
            "a name the page may be reached by, beside addresses and localhost; several times",
        repeats: true)
    static let provisionLimit = Option.integer(
        "provision-limit", 0...1_000_000, default: 60,
        "provisionings at once, and again each minute, from one client address; 0: no limit")
    static let frontEndName = Option.text(
        "name", "NAME",
        "of this front-end, stable over restarts (default: host name and listening address)")
    static let logLevel = Option(
        name: "log-level", kind: .choice(["debug", "info", "notice", "warning", "error"]),
        defaultValue: "notice", help: "least that is logged, on standard error")
    static let logFormat = Option(
        name: "log-format", kind: .choice(["text", "json"]), defaultValue: "text",
        help: "of log lines")

    static let network = Option.text(
        "network", "PREFIX", default: "10.64.0.0/10",
        "IPv4 prefix of device addresses, fixed at the first start")

    static let frontEnd =
        [
            listen, admin, adminToken, adminName, metricsToken, loops, durability, certificate, key,
            clientAuthority, clientRequired, insecure, frontEndName, provisionLimit,
        ] + ProximityOptions.options
    static let logging = [logLevel, logFormat]

    static func retentionBytes(_ arguments: Arguments) -> Int64 {
        Int64(arguments.integer("retention-gib")) << 30
    }

    /// Who is told of alerts, by the file that the options name.
    static func alerts(_ arguments: Arguments) throws -> AlertsConfiguration {
        let path = arguments.text("alerts")
        if !FileSystem.exists(path) && !arguments.given.contains("alerts") {
            return AlertsConfiguration()
        }
        return try AlertsFile.load(path)
    }

    static func configureLog(_ arguments: Arguments) {
        let level: Log.Level =
            switch arguments.text("log-level") {
            case "debug": .debug
            case "info": .info
            case "warning": .warning
            case "error": .error
            default: .notice
            }
        Log.configure(
            minimum: level, format: arguments.text("log-format") == "json" ? .json : .text)
    }

    /// The front-end as the options describe it.
    static func frontEnd(
        _ arguments: Arguments, secrets: ServerSecrets
    ) throws -> FrontEndSettings {
        let listen = try address("listen", arguments)
        let admin = try address("admin", arguments)
        let tls = try tls(arguments)
        for (name, address, isPlain) in [("listen", listen, tls == nil), ("admin", admin, true)]
        where isPlain && !address.isLoopback && !arguments.flag("insecure-listen") {
            throw UsageError(
                "--\(name) \(address) can be reached by others, and has no TLS: give --tls-certificate and --tls-key, or --insecure-listen where something in front of it has"
            )
        }
        let loops =
            arguments.optionalInteger("loops")
            ?? min(8, ProcessInfo.processInfo.activeProcessorCount)
        var limits = ServerLimits()
        // Within the ten seconds that an orderly end may take, the log and the database have a part.
        limits.drainMilliseconds = 4_000
        var settings = FrontEndSettings(
            server: ServerConfiguration(
                address: listen, loops: loops, limits: limits, tls: tls, name: "http"),
            admin: ServerConfiguration(address: admin, loops: 1, limits: limits, name: "admin"),
            secretKey: secrets.secretKey)
        settings.salt = secrets.salt
        settings.adminNames = arguments.all("admin-name")
        let provisionings = arguments.integer("provision-limit")
        settings.provisioning.limit?.burst = provisionings
        settings.provisioning.limit?.perMinute = provisionings
        if provisionings == 0 { settings.provisioning.limit = nil }
        settings.proximity = try ProximityOptions.settings(arguments)
        settings.sockets = SocketSettings()
        if let name = arguments.optionalText("name") { settings.name = name }
        settings.durability = arguments.text("heartbeats") == "acked" ? .acked : .queued
        settings.flushMilliseconds = 2_000
        return settings
    }

    /// The operators' listener of a worker, if one is wanted.
    static func workerAdmin(_ arguments: Arguments) throws -> ServerConfiguration? {
        guard arguments.optionalText("admin") != nil else { return nil }
        let address = try address("admin", arguments)
        guard address.isLoopback else {
            throw UsageError(
                "--admin \(address) can be reached by others; take an address of this machine's own"
            )
        }
        return ServerConfiguration(address: address, loops: 1, name: "admin")
    }

    private static func address(_ name: String, _ arguments: Arguments) throws -> SocketAddress {
        do throws(HTTPError) {
            return try SocketAddress(parsing: arguments.text(name))
        } catch {
            throw UsageError("--\(name): \(error)")
        }
    }

    private static func tls(_ arguments: Arguments) throws -> TLSContext? {
        let authority = arguments.optionalText("tls-client-ca")
        let isRequired = arguments.flag("tls-client-required")
        if isRequired, authority == nil {
            throw UsageError("--tls-client-required needs --tls-client-ca")
        }
        switch (arguments.optionalText("tls-certificate"), arguments.optionalText("tls-key")) {
        case (nil, nil):
            guard authority == nil else {
                throw UsageError("--tls-client-ca needs --tls-certificate and --tls-key")
            }
            return nil
        case (let certificate?, let key?):
            let context = try TLSContext(
                TLSContext.Files(
                    certificateChain: certificate, privateKey: key, clientAuthority: authority,
                    requiresClientCertificate: isRequired))
            for warning in context.warnings { Log.warning("TLS", ["tls.warning": warning]) }
            return context
        default: throw UsageError("--tls-certificate and --tls-key go together")
        }
    }
}
