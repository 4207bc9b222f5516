/// What is known of an installation when its source is asked.
public struct TrackedApp: Sendable, Hashable {
    public var source: UpdateSource
    public var channel: UpdateChannel
    public var filter: String?
    public var refinement: String?
    public var version: String?
    public var assetName: String?
    public var fingerprint: String?
    /// A credential for the source; never shown.
    public var credential: SourceCredential?

    public init(
        source: UpdateSource, channel: UpdateChannel = .latest, filter: String? = nil,
        refinement: String? = nil, version: String? = nil, assetName: String? = nil,
        fingerprint: String? = nil, credential: SourceCredential? = nil
    ) {
        self.source = source
        self.channel = channel
        self.filter = filter
        self.refinement = refinement
        self.version = version
        self.assetName = assetName
        self.fingerprint = fingerprint
        self.credential = credential
    }
}

/// The value of an `Authorization` header. Does not show itself.
public struct SourceCredential: Hashable, Sendable, CustomStringConvertible {
    public let header: String

    /// - Returns: `nil` for what is no header's value: 1 to 4096 printable ASCII characters. One word
    ///   is taken as a bearer token.
    public init?(_ text: String) {
        guard (1...4_096).contains(text.utf8.count),
            text.utf8.allSatisfy({ $0 >= 0x20 && $0 < 0x7F })
        else { return nil }
        header = text.contains(" ") ? text : "Bearer \(text)"
    }

    public var description: String { "SourceCredential(hidden)" }
}

/// What a source holds now.
public struct SourceState: Sendable, Hashable {
    /// The tag of a release; `nil` for a file.
    public var version: String?
    /// Files that could be taken.
    public var assets: [ReleaseAsset]
    /// Why versions cannot be compared, where they cannot.
    public var reason: String?

    public init(version: String?, assets: [ReleaseAsset], reason: String? = nil) {
        self.version = version
        self.assets = assets
        self.reason = reason
    }
}

/// What a check came to.
public struct UpdateCheck: Sendable, Hashable {
    public var isAvailable: Bool
    public var current: String?
    public var latest: String?
    public var asset: ReleaseAsset?
    public var reason: String?
    /// To be saved, so that the next release is decided by it.
    public var refinement: String?

    public init(
        isAvailable: Bool, current: String? = nil, latest: String? = nil,
        asset: ReleaseAsset? = nil, reason: String? = nil, refinement: String? = nil
    ) {
        self.isAvailable = isAvailable
        self.current = current
        self.latest = latest
        self.asset = asset
        self.reason = reason
        self.refinement = refinement
    }
}

/// How a check ended.
public enum CheckOutcome: Sendable, Hashable {
    case checked(UpdateCheck)
    /// The user must say which file is meant.
    case selection(UpdateSelection)
    /// The source could not be asked, or has nothing; for people, without secrets.
    case failed(String)
}

/// What a user must choose before it can go on.
public struct UpdateSelection: Sendable, Hashable {
    public struct Choice: Sendable, Hashable, Codable {
        public var id: String
        public var label: String

        public init(id: String, label: String) {
            self.id = id
            self.label = label
        }
    }

    public var key: String
    public var message: String
    public var choices: [Choice]

    public init(key: String, message: String, choices: [Choice]) {
        self.key = key
        self.message = message
        self.choices = choices
    }
}

extension CheckOutcome {
    /// Compares what a source holds with what is installed.
    public static func make(_ app: TrackedApp, _ state: SourceState) -> CheckOutcome {
        let assets = state.assets
        let asset: ReleaseAsset
        var refinement: String?
        if app.source.hasReleases {
            switch AssetChoice.make(
                assets, filter: app.filter, refinement: app.refinement,
                installedName: app.assetName)
            {
            case .chosen(let chosen, let saved):
                asset = chosen
                refinement = saved == app.refinement ? nil : saved
            case .ambiguous(let candidates):
                return .selection(
                    UpdateSelection(
                        key: "asset", message: "Select an IPA",
                        choices: candidates.map { .init(id: $0.id, label: $0.name) }))
            case .none:
                if assets.isEmpty, state.version == nil {
                    return .checked(
                        UpdateCheck(
                            isAvailable: false, current: app.version, reason: state.reason))
                }
                return .failed(
                    "Release \(state.version ?? "") of \(app.source) has no IPA.")
            }
        } else if let only = assets.first {
            asset = only
        } else {
            return .failed("\(app.source) holds nothing that could be installed.")
        }
        var check = UpdateCheck(
            isAvailable: false, current: app.version, latest: state.version, asset: asset,
            refinement: refinement)
        if let reason = state.reason {
            check.reason = reason
        } else if app.source.hasReleases {
            check.isAvailable =
                app.version != state.version
                || app.fingerprint != nil && app.fingerprint != asset.fingerprint
        } else if let known = app.fingerprint {
            check.isAvailable = known != asset.fingerprint
        } else {
            check.reason =
                "It is not known which file is installed, so it cannot be compared reliably."
        }
        return .checked(check)
    }
}
