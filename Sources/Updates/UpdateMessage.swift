public import Bytes
internal import JSON

/// A line of an update stream, as the apps' contract has it.
public enum UpdateMessage: Sendable, Hashable {
    case progress(UpdateProgress)
    case check(UpdateCheck, extras: CheckExtras)
    case installed(InstallResult)
    case selection(UpdateSelection)
    case error(String)

    /// Whether nothing comes behind it.
    public var isLast: Bool { if case .progress = self { false } else { true } }

    /// Appends the line with its end.
    public func append(to bytes: inout ByteBuffer) {
        switch self {
        case .progress(let progress):
            bytes.append("{\"type\":\"progress\",\"progress\":{\"step\":")
            bytes.append(jsonString: progress.step.rawValue)
            bytes.append(",\"message\":")
            bytes.append(jsonString: progress.message)
            if let completed = progress.completed {
                bytes.append(",\"completed\":")
                bytes.append(decimal: completed)
            }
            if let total = progress.total {
                bytes.append(",\"total\":")
                bytes.append(decimal: total)
            }
            bytes.append("}}\n")
        case .check(let check, let extras):
            bytes.append("{\"type\":\"result\",\"result\":")
            bytes.append(check, extras)
            bytes.append("}\n")
        case .installed(let result):
            bytes.append("{\"type\":\"result\",\"result\":")
            result.append(to: &bytes)
            bytes.append("}\n")
        case .selection(let selection):
            bytes.append("{\"type\":\"selection\",\"selection\":")
            selection.append(to: &bytes)
            bytes.append("}\n")
        case .error(let message):
            bytes.append("{\"type\":\"error\",\"message\":")
            bytes.append(jsonString: message)
            bytes.append("}\n")
        }
    }
}

/// How far a step is.
public struct UpdateProgress: Sendable, Hashable {
    public enum Step: String, Sendable, CaseIterable {
        case check, download, sign, install, open
    }

    public var step: Step
    public var message: String
    public var completed: Int64?
    public var total: Int64?

    public init(
        _ step: Step, _ message: String, completed: Int64? = nil, total: Int64? = nil
    ) {
        self.step = step
        self.message = message
        self.completed = completed
        self.total = total
    }
}

/// What an answer says beside the check itself.
public struct CheckExtras: Sendable, Hashable {
    public enum Prefetch: String, Sendable { case disabled, complete, background }

    public var prefetched: Bool?
    public var prefetch: Prefetch?
    /// Of global links: whether an installation follows.
    public var installing: Bool?
    public var job: String?

    public init(
        prefetched: Bool? = nil, prefetch: Prefetch? = nil, installing: Bool? = nil,
        job: String? = nil
    ) {
        self.prefetched = prefetched
        self.prefetch = prefetch
        self.installing = installing
        self.job = job
    }
}

/// What an installation came to.
public struct InstallResult: Sendable, Hashable {
    public var device: String
    public var app: String
    public var version: String?
    public var source: String
    public var assetName: String?
    public var reopened: Bool
    public var warnings: [String]

    public init(
        device: String, app: String, version: String?, source: String, assetName: String?,
        reopened: Bool, warnings: [String]
    ) {
        self.device = device
        self.app = app
        self.version = version
        self.source = source
        self.assetName = assetName
        self.reopened = reopened
        self.warnings = warnings
    }

    func append(to bytes: inout ByteBuffer) {
        bytes.append("{\"device\":{\"id\":")
        bytes.append(jsonString: device)
        bytes.append("},\"app\":{\"name\":")
        bytes.append(jsonString: app)
        bytes.appendMember("version", version)
        bytes.append(",\"source\":")
        bytes.append(jsonString: source)
        bytes.appendMember("asset", assetName)
        bytes.append(reopened ? ",\"reopened\":true" : ",\"reopened\":false")
        bytes.append("},\"warnings\":[")
        for (index, warning) in warnings.enumerated() {
            if index > 0 { bytes.append(UInt8(ascii: ",")) }
            bytes.append(jsonString: warning)
        }
        bytes.append("]}")
    }
}

extension UpdateSelection {
    /// Appends the object alone.
    public func append(to bytes: inout ByteBuffer) {
        bytes.append("{\"key\":")
        bytes.append(jsonString: key)
        bytes.append(",\"message\":")
        bytes.append(jsonString: message)
        bytes.append(",\"choices\":[")
        for (index, choice) in choices.enumerated() {
            bytes.append(index == 0 ? "{\"id\":" : ",{\"id\":")
            bytes.append(jsonString: choice.id)
            bytes.append(",\"label\":")
            bytes.append(jsonString: choice.label)
            bytes.append("}")
        }
        bytes.append("]}")
    }
}

extension ByteBuffer {
    /// Appends a check as one JSON object.
    public mutating func append(_ check: UpdateCheck, _ extras: CheckExtras) {
        append(check.isAvailable ? "{\"available\":true" : "{\"available\":false")
        appendMember("current", check.current)
        appendMember("latest", check.latest)
        if check.isAvailable, let asset = check.asset {
            append(",\"asset\":{\"id\":")
            append(jsonString: asset.id)
            append(",\"name\":")
            append(jsonString: asset.name)
            append(",\"url\":")
            append(jsonString: asset.url)
            append("}")
        }
        appendMember("reason", check.reason)
        if let prefetched = extras.prefetched {
            append(prefetched ? ",\"prefetched\":true" : ",\"prefetched\":false")
        }
        appendMember("prefetch", extras.prefetch?.rawValue)
        if let installing = extras.installing {
            append(installing ? ",\"installing\":true" : ",\"installing\":false")
        }
        appendMember("job", extras.job)
        append("}")
    }

    mutating func appendMember(_ name: StaticString, _ value: String?) {
        guard let value else { return }
        append(",\"")
        append(name)
        append("\":")
        append(jsonString: value)
    }
}
