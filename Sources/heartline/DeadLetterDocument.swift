import Bytes
import Crypto
import Pipeline
import Schemas
import System

/// A dead letter for programs, and for people.
struct DeadLetterDocument: Encodable {
    var id: String
    var time: String
    var pipeline: String?
    var topic: String
    var partition: Int32
    var offset: Int64
    var reason: String
    /// `waiting`, or what became of it; absent if that is not known.
    var replay: String?
    var key: String?
    var value: String?
    var value_base64: String?
    var table: String?
    var row_base64: String?

    init(_ letter: StoredDeadLetter, state: String?) {
        id = "\(letter.id)"
        time = "\(letter.time)"
        pipeline = letter.pipeline.isEmpty ? nil : letter.pipeline
        topic = letter.content.letter.topic.rawValue
        partition = letter.content.letter.partition
        offset = letter.content.letter.offset
        reason = letter.content.letter.reason
        replay = state
        switch letter.content.subject {
        case .record(let key, let value):
            self.key = String(validating: key.span.array, as: UTF8.self)
            guard let value else { return }
            // Text as text; bytes as they were.
            if let text = String(validating: value.span.array, as: UTF8.self) {
                self.value = text
            } else {
                value_base64 = Base64.encode(value.span)
            }
        case .row(let table, let tuple):
            self.table = table
            row_base64 = Base64.encode(tuple.span)
        }
    }

    /// Several lines for people.
    var page: String {
        var lines = [
            ("dead letter", id), ("time", time), ("pipeline", pipeline ?? "not told"),
            ("record", "\(topic)/\(partition) at offset \(offset)"), ("reason", reason),
            ("replay", replay ?? "not known"),
        ]
        if let key { lines.append(("key", key)) }
        if let value { lines.append(("value", value)) }
        if let value_base64 { lines.append(("value, Base64", value_base64)) }
        if let table { lines.append(("table", table)) }
        if let row_base64 { lines.append(("row, Base64", row_base64)) }
        return lines.map { FleetScreen.pad($0.0, 16) + $0.1.shownSafely + "\n" }.joined() + "\n"
    }
}

extension DeadLetterContent {
    /// Bytes that it carries.
    var sizeBytes: Int {
        switch subject {
        case .record(let key, let value): key.count + (value?.count ?? 0)
        case .row(_, let tuple): tuple.count
        }
    }
}

extension String {
    /// What came from outside as a terminal may show it: control characters, and those that turn the
    /// direction of writing, by their number.
    var shownSafely: String {
        var text = ""
        for scalar in unicodeScalars {
            switch scalar.properties.generalCategory {
            case .control, .format, .lineSeparator, .paragraphSeparator, .surrogate, .privateUse:
                text += "\\u{\(String(scalar.value, radix: 16))}"
            default: text.unicodeScalars.append(scalar)
            }
        }
        return text
    }
}

/// Letters by pipeline and reason; bounded, whatever the reasons are.
struct DeadLetterCounts {
    private struct Group: Hashable {
        var pipeline: String
        var reason: String
    }

    private static let limit = 1_000
    private var groups: [Group: (letters: Int, waiting: Int)] = [:]
    private(set) var total = 0

    mutating func add(_ letter: StoredDeadLetter, isReplayed: Bool) {
        total += 1
        var group = Group(pipeline: letter.pipeline, reason: letter.content.letter.reason)
        if groups[group] == nil, groups.count >= Self.limit {
            group = Group(pipeline: letter.pipeline, reason: "other reasons")
        }
        groups[group, default: (0, 0)].letters += 1
        if !isReplayed { groups[group, default: (0, 0)].waiting += 1 }
    }

    private struct Document: Encodable {
        var pipeline: String
        var reason: String
        var letters: Int
        var waiting: Int
    }

    func write(asJSON: Bool) throws {
        let sorted = groups.sorted {
            ($1.value.letters, $0.key.pipeline, $0.key.reason)
                < ($0.value.letters, $1.key.pipeline, $1.key.reason)
        }
        if !asJSON {
            Terminal.write(
                FleetScreen.pad("letters", 10) + FleetScreen.pad("waiting", 10)
                    + FleetScreen.pad("pipeline", 20) + "reason\n")
        }
        for (group, count) in sorted {
            if asJSON {
                Terminal.write(
                    try JSONText.line(
                        Document(
                            pipeline: group.pipeline, reason: group.reason, letters: count.letters,
                            waiting: count.waiting)))
            } else {
                Terminal.write(
                    FleetScreen.pad("\(count.letters)", 10)
                        + FleetScreen.pad("\(count.waiting)", 10)
                        + FleetScreen.pad(group.pipeline, 20) + group.reason.shownSafely + "\n")
            }
        }
    }
}

/// What a replay did.
struct DeadLetterTally {
    private(set) var total = 0
    private(set) var published = 0
    private(set) var written = 0
    private(set) var kept = 0
    private(set) var known = 0
    /// By reason: how many, and one of them.
    private(set) var refused: [String: (count: Int, example: StoredDeadLetter.ID)] = [:]

    mutating func add(_ outcome: DeadLetterReplay.Outcome, _ letter: StoredDeadLetter) {
        total += 1
        switch outcome {
        case .published: published += 1
        case .written: written += 1
        case .kept: kept += 1
        case .known: known += 1
        case .refused(let reason): refused[reason, default: (0, letter.id)].count += 1
        }
    }

    func text(isDry: Bool) -> String {
        if total == 0 { return "There is no such dead letter.\n" }
        let would = isDry ? "would be " : ""
        var text = ""
        if published > 0 { text += "\(published) records \(would)published again\n" }
        if written > 0 { text += "\(written) rows \(would)written\n" }
        if kept > 0 {
            text += "\(kept) rows left out: their tables have newer ones, or none to have\n"
        }
        if known > 0 { text += "\(known) letters had been replayed before\n" }
        for (reason, group) in refused.sorted(by: { $0.key < $1.key }) {
            text += "\(group.count) letters not replayed, as \(group.example): \(reason)\n"
        }
        return text
    }
}
