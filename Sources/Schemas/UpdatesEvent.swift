public import Bytes
internal import JSON

/// Something that happened while an app was checked for updates, downloaded or installed. A record of
/// topic `updates`; its key is the installation's internal id, so all of one comes in order.
public struct UpdatesEvent: Sendable, Equatable {
    /// What an attempt is about.
    public enum Action: String, Sendable, CaseIterable {
        case prefetch, install
    }

    public enum Step: UInt8, Sendable, CaseIterable {
        case check = 1, download, sign, install

        public var text: StaticString {
            switch self {
            case .check: "check"
            case .download: "download"
            case .sign: "sign"
            case .install: "install"
            }
        }
    }

    /// A check's outcome.
    public struct Check: Sendable, Equatable {
        public var channel: String?
        /// The release that is installed; `nil`: not known.
        public var current: String?
        /// The release that the source holds.
        public var latest: String?
        public var isAvailable: Bool
        /// The attempt that the check proves to have succeeded: it came with the id that only the app
        /// of that attempt has.
        public var confirmed: DeviceID?

        public init(
            channel: String? = nil, current: String? = nil, latest: String? = nil,
            isAvailable: Bool, confirmed: DeviceID? = nil
        ) {
            self.channel = channel
            self.current = current
            self.latest = latest
            self.isAvailable = isAvailable
            self.confirmed = confirmed
        }
    }

    /// A stretch of an attempt.
    public enum Stage: Sendable, Equatable {
        /// A step began.
        case step(Step)
        /// The user must choose something.
        case selection(key: String)
        case result(warnings: Int64)
        case error(String)
        /// What became of it is not known.
        case lost(String)
        /// The client went away; the attempt may go on.
        case disconnected
    }

    public struct Attempt: Sendable, Equatable {
        public var id: DeviceID
        public var action: Action
        /// The release that is to be installed, once it is known.
        public var release: String?
        public var stage: Stage

        public init(id: DeviceID, action: Action, release: String? = nil, stage: Stage) {
            self.id = id
            self.action = action
            self.release = release
            self.stage = stage
        }
    }

    public enum Kind: Sendable, Equatable {
        case checked(Check)
        case attempt(Attempt)
        /// An id came that a newer one has replaced and that is therefore answered no more: a copy of
        /// the app is somewhere.
        case cloned
        /// The time went on: to every partition, so that what never ends can be told.
        case clock
    }

    public var origin: EventOrigin
    /// The installation's internal id; of `clock` it says nothing.
    public var installation: DeviceID
    /// As operators write it, for example `gh:owner/repo`.
    public var source: String
    public var kind: Kind

    public init(origin: EventOrigin, installation: DeviceID, source: String, kind: Kind) {
        self.origin = origin
        self.installation = installation
        self.source = source
        self.kind = kind
    }
}

extension ByteBuffer {
    /// Appends the event as the value of a record of topic `updates`.
    public mutating func append(_ event: UpdatesEvent) {
        append("{\"v\":1,\"type\":\"")
        switch event.kind {
        case .checked: append("checked")
        case .cloned: append("cloned")
        case .clock: append("clock")
        case .attempt(let attempt):
            switch attempt.stage {
            case .step: append("progress")
            case .selection: append("selection")
            case .result: append("result")
            case .error: append("error")
            case .lost: append("lost")
            case .disconnected: append("disconnected")
            }
        }
        append("\",\"id\":\"")
        append(event.origin)
        append("\"")
        if event.kind != .clock {
            append(",\"installation_id\":\"")
            append(event.installation)
            append("\",\"source\":")
            append(jsonString: event.source)
        }
        switch event.kind {
        case .checked(let check): append(check)
        case .attempt(let attempt): append(attempt)
        case .cloned, .clock: break
        }
        append(UInt8(ascii: "}"))
    }

    private mutating func append(_ check: UpdatesEvent.Check) {
        append(check.isAvailable ? ",\"available\":true" : ",\"available\":false")
        if let channel = check.channel {
            append(",\"channel\":")
            append(jsonString: channel)
        }
        if let current = check.current {
            append(",\"current\":")
            append(jsonString: current)
        }
        if let latest = check.latest {
            append(",\"latest\":")
            append(jsonString: latest)
        }
        if let confirmed = check.confirmed {
            append(",\"confirmed\":\"")
            append(confirmed)
            append("\"")
        }
    }

    private mutating func append(_ attempt: UpdatesEvent.Attempt) {
        append(",\"attempt_id\":\"")
        append(attempt.id)
        append("\",\"action\":\"")
        append(text: attempt.action.rawValue)
        append("\"")
        if let release = attempt.release {
            append(",\"release\":")
            append(jsonString: release)
        }
        switch attempt.stage {
        case .step(let step):
            append(",\"step\":\"")
            append(step.text)
            append("\"")
        case .selection(let key):
            append(",\"key\":")
            append(jsonString: key)
        case .result(let warnings):
            append(",\"warnings\":")
            append(decimal: warnings)
        case .error(let message), .lost(let message):
            append(",\"message\":")
            append(jsonString: message)
        case .disconnected: break
        }
    }
}

/// Reads records of topic `updates`. One for each thread.
public final class UpdatesDecoder {
    private let parser: JSONParser

    private static let fields = JSONFields([
        "v", "type", "id", "installation_id", "source", "available", "channel", "current", "latest",
        "confirmed", "attempt_id", "action", "release", "step", "key", "warnings", "message",
    ])

    private enum Field {
        static let v = 0, type = 1, id = 2, installation = 3, source = 4, available = 5
        static let channel = 6, current = 7, latest = 8, confirmed = 9, attempt = 10, action = 11
        static let release = 12, step = 13, key = 14, warnings = 15, message = 16
    }

    public init() { parser = JSONParser(Self.fields, maximumBytes: 1 << 20) }

    public func decode(_ value: Span<UInt8>) -> Decoded<UpdatesEvent> {
        do throws(JSONError) { try parser.parse(value) } catch { return .malformed("\(error)") }
        return Self.read(parser)
    }

    private static func read(_ parser: borrowing JSONParser) -> Decoded<UpdatesEvent> {
        guard let version = parser.integer(Field.v) else { return .malformed("no version \"v\"") }
        guard version == 1 else { return .malformed("version \"v\" \(version) is not known") }
        guard let type = parser.string(Field.type) else { return .malformed("no \"type\"") }
        guard let id = parser.bytes(Field.id), let origin = EventOrigin(parsing: id) else {
            return .malformed("\"id\" is not an event id")
        }
        if type == "clock" {
            return .event(
                UpdatesEvent(
                    origin: origin, installation: DeviceID(high: 0, low: 0), source: "",
                    kind: .clock))
        }
        let known = [
            "checked", "cloned", "progress", "selection", "result", "error", "lost",
            "disconnected",
        ]
        guard known.contains(type) else { return .skipped }
        guard let installation = uuid(parser, Field.installation) else {
            return .malformed("\"installation_id\" is not a UUID")
        }
        guard let source = parser.string(Field.source) else { return .malformed("no \"source\"") }
        let kind: UpdatesEvent.Kind
        switch type {
        case "cloned": kind = .cloned
        case "checked":
            guard let isAvailable = parser.bool(Field.available) else {
                return .malformed("no \"available\"")
            }
            let confirmed = uuid(parser, Field.confirmed)
            if confirmed == nil, parser.kind(Field.confirmed) != .absent {
                return .malformed("\"confirmed\" is not a UUID")
            }
            kind = .checked(
                UpdatesEvent.Check(
                    channel: parser.string(Field.channel), current: parser.string(Field.current),
                    latest: parser.string(Field.latest), isAvailable: isAvailable,
                    confirmed: confirmed))
        default:
            guard let attempt = uuid(parser, Field.attempt) else {
                return .malformed("\"attempt_id\" is not a UUID")
            }
            guard let action = parser.string(Field.action).flatMap(UpdatesEvent.Action.init) else {
                return .malformed("\"action\" is neither prefetch nor install")
            }
            let stage: UpdatesEvent.Stage
            switch type {
            case "progress":
                // A step that came after this code says nothing to us.
                guard let step = step(parser) else { return .skipped }
                stage = .step(step)
            case "selection": stage = .selection(key: parser.string(Field.key) ?? "")
            case "result": stage = .result(warnings: parser.integer(Field.warnings) ?? 0)
            case "error": stage = .error(parser.string(Field.message) ?? "")
            case "lost": stage = .lost(parser.string(Field.message) ?? "")
            default: stage = .disconnected
            }
            kind = .attempt(
                UpdatesEvent.Attempt(
                    id: attempt, action: action, release: parser.string(Field.release),
                    stage: stage))
        }
        return .event(
            UpdatesEvent(origin: origin, installation: installation, source: source, kind: kind))
    }

    private static func uuid(_ parser: borrowing JSONParser, _ field: Int) -> DeviceID? {
        guard let text = parser.bytes(field) else { return nil }
        return DeviceID(parsing: text)
    }

    private static func step(_ parser: borrowing JSONParser) -> UpdatesEvent.Step? {
        guard let text = parser.bytes(Field.step) else { return nil }
        for step in UpdatesEvent.Step.allCases where text.equals(step.text) { return step }
        return nil
    }
}
