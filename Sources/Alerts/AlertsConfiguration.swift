public import Bytes

/// Who is told of alerts, and how they are grouped: what `alerts.yaml` says.
public struct AlertsConfiguration: Sendable, Equatable {
    public var dispatch: AlertDispatchSettings
    /// By names that differ.
    public var receivers: [AlertReceiverSettings]

    public init(
        dispatch: AlertDispatchSettings = .init(), receivers: [AlertReceiverSettings] = []
    ) {
        self.dispatch = dispatch
        self.receivers = receivers
    }
}

/// One receiver of alerts. Its name is what the database knows it by: messages for a name wait until a
/// receiver of that name takes them.
public struct AlertReceiverSettings: Sendable, Equatable {
    public enum Target: Sendable, Equatable {
        case webhook(WebhookSettings)
        case alertmanager(AlertmanagerSettings)
        /// A channel of PostgreSQL's NOTIFY.
        case notify(channel: String)
    }

    public var name: String
    /// Kinds of alerts that it is sent; `nil`: all. Whoever is sent `offline` is sent `mass-offline` as
    /// well, which stands for many of them.
    public var kinds: Set<String>?
    public var target: Target
    /// Wait after the first failure in milliseconds; it doubles with each further one. Default: 1 s.
    public var retryInitial: Int64 = 1_000
    /// The longest wait between two tries in milliseconds. Default: 5 min.
    public var retryLimit: Int64 = 300_000

    public init(name: String, kinds: Set<String>? = nil, target: Target) {
        self.name = name
        self.kinds = kinds
        self.target = target
    }

    /// The kinds that it is sent, in order; `nil`: all.
    var sentKinds: [String]? {
        guard var kinds else { return nil }
        if kinds.contains(AlertDispatch.offline) { kinds.insert(AlertDispatch.massOffline) }
        return kinds.sorted()
    }
}

/// A POST of JSON for each message.
public struct WebhookSettings: Sendable, Equatable {
    public var url: String
    /// Key of the signature; `nil`: messages are not signed.
    public var secret: ByteBuffer?
    /// Value of the header `Authorization`; a secret.
    public var authorization: String?
    /// For one request, in milliseconds. Range: 100 ms to 2 min. Default: 10 s.
    public var timeout: Int64 = 10_000
    /// Requests under way at once. Default: 8.
    public var concurrency = 8
    /// Whether `http_proxy` and its kin are followed.
    public var usesEnvironmentProxy = true

    public init(url: String, secret: ByteBuffer? = nil) {
        self.url = url
        self.secret = secret
    }
}

/// A Prometheus Alertmanager.
public struct AlertmanagerSettings: Sendable, Equatable {
    /// Without `/api/v2/alerts`.
    public var url: String
    /// Value of the header `Authorization`; a secret.
    public var authorization: String?
    /// For one request, in milliseconds. Range: 100 ms to 2 min. Default: 10 s.
    public var timeout: Int64 = 10_000
    /// Time between repeats of what is firing, in milliseconds. Alertmanager takes an alert for resolved
    /// when four of them have not come. Range: 1 s to 1 h. Default: 1 min.
    public var repeatInterval: Int64 = 60_000
    /// Alerts in one request. Range: 1 to 500. Default: 500.
    public var batch: Int64 = 500
    /// Whether `http_proxy` and its kin are followed.
    public var usesEnvironmentProxy = true

    public init(url: String) { self.url = url }
}
