internal import Foundation

/// A line of a command's output, read.
public enum InstallerLine: Sendable, Hashable {
    case progress(String, completed: Int64?, total: Int64?)
    case warning(String)
    /// Why it will fail; told if it does.
    case error(String)
    /// The user must choose something; told if the command fails.
    case selection(UpdateSelection)

    /// Longest message that is handed on, in characters.
    public static let maximumMessage = 500
    private static let maximumChoices = 100

    /// Reads `warning: …`, `error: …`, `progress: …`, `progress 12/80: …` and `selection: {…}`, the words in
    /// any case; any other text is progress. `nil` for an empty line.
    public init?(_ text: String) {
        let line = String(
            text.unicodeScalars.map { $0.value < 0x20 || $0.value == 0x7F ? " " : Character($0) }
        ).trimmingCharacters(in: .whitespaces)
        if line.isEmpty { return nil }
        let colon = line.firstIndex(of: ":")
        let head = colon.map { line[..<$0].lowercased() } ?? ""
        let rest = colon.map {
            line[line.index(after: $0)...].trimmingCharacters(in: .whitespaces)
        }
        let message = String((rest ?? "").prefix(Self.maximumMessage))
        if !message.isEmpty {
            if head == "warning" {
                self = .warning(message)
                return
            }
            if head == "error" {
                self = .error(message)
                return
            }
            if head == "selection", let selection = Self.selection(rest ?? "") {
                self = .selection(selection)
                return
            }
            if head.hasPrefix("progress"), let counts = Self.counts(head.dropFirst(8)) {
                self = .progress(message, completed: counts.0, total: counts.1)
                return
            }
        }
        self = .progress(String(line.prefix(Self.maximumMessage)), completed: nil, total: nil)
    }

    /// Nothing, or ` 12/80`; `nil` for anything else.
    private static func counts(_ text: Substring) -> (Int64?, Int64?)? {
        if text.isEmpty { return (nil, nil) }
        guard text.hasPrefix(" ") else { return nil }
        let parts = text.dropFirst().split(separator: "/", omittingEmptySubsequences: false)
        guard parts.count == 2, let completed = Int64(parts[0]), let total = Int64(parts[1]),
            completed >= 0, total > 0
        else { return nil }
        return (completed, total)
    }

    private struct SelectionText: Decodable {
        var key: String
        var message: String
        var choices: [UpdateSelection.Choice]
    }

    private static func selection(_ text: String) -> UpdateSelection? {
        guard
            let read = try? JSONDecoder().decode(SelectionText.self, from: Data(text.utf8)),
            !read.key.isEmpty, read.choices.count <= maximumChoices
        else { return nil }
        return UpdateSelection(
            key: String(read.key.prefix(100)),
            message: String(read.message.prefix(maximumMessage)), choices: read.choices)
    }
}
