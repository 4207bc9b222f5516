internal import System

/// Runs the commands of an installation. Blocks its thread.
public enum InstallerRun {
    /// - Parameters:
    ///   - values: what stands for the placeholders.
    ///   - goesOn: asked several times a second.
    ///   - line: what the command writes, read.
    public static func run(
        _ command: UpdateJob.Command, _ installer: UpdatesConfiguration.Installer,
        _ values: [String: String], in workingDirectory: String, goesOn: () -> Bool,
        line: (InstallerLine) -> Void
    ) -> UpdateJob.CommandOutcome {
        guard let template = installer.arguments(command), !template.isEmpty else {
            return .failed(status: -1, message: "no command is configured for it")
        }
        let words = template.map { fill($0, values) }
        var settings = ChildProcess.Settings(words[0], Array(words.dropFirst()))
        settings.environment.merge(installer.environment) { $1 }
        settings.workingDirectory = workingDirectory
        do throws(SystemError) {
            let ending = try ChildProcess.run(
                settings, milliseconds: installer.timeout(command), goesOn: goesOn
            ) { text in
                if let read = InstallerLine(text) { line(read) }
            }
            switch ending {
            case .ended(.exited(0)): return .done
            case .ended(.exited(let status)):
                return .failed(status: status, message: "the command ended with status \(status)")
            case .ended(.signalled(let signal)):
                return .failed(
                    status: 128 + signal, message: "the command was ended by signal \(signal)")
            case .timedOut:
                return .timedOut(
                    message: "the command took longer than \(installer.timeout(command) / 1_000) s")
            case .cancelled: return .cancelled
            }
        } catch {
            Log.warning("running an installer's command", ["error": "\(error)"])
            return .failed(status: -1, message: "the command could not be started")
        }
    }

    /// Puts values in the place of `{name}`; an argument stays one argument, whatever is in it.
    static func fill(_ word: String, _ values: [String: String]) -> String {
        var result = ""
        var rest = word[...]
        while let start = rest.firstIndex(of: "{"),
            let end = rest[start...].firstIndex(of: "}")
        {
            result += rest[..<start]
            let name = String(rest[rest.index(after: start)..<end])
            result += values[name] ?? String(rest[start...end])
            rest = rest[rest.index(after: end)...]
        }
        return result + rest
    }
}
