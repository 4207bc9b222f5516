import Foundation
import Ingest
import Pipeline
import System

/// Every subcommand, in the order of the overview.
let commands: [Command] = [
    Up.command, Demo.command, IngestCommand.command, ProcessCommand.command, Migrate.command,
    Topics.create, Topics.check, DeviceAdd.command, DeviceList.command, DeviceShow.command,
    DeviceChanges.suspend, DeviceChanges.resume, DeviceChanges.rotate, DeviceChanges.remove,
    DeviceChanges.interval, ForwardCommands.list, ForwardCommands.add, ForwardCommands.remove,
    ForwardCommands.set, TokenCommands.create, TokenCommands.list, TokenCommands.revoke,
    AuditList.command,
    AlertCommands.list, AlertCommands.silence, AlertCommands.silences, AlertCommands.unsilence,
    AlertCommands.acknowledge,
    InstallationCommands.add, InstallationCommands.list, InstallationCommands.show,
    InstallationCommands.revoke, InstallationCommands.pair, InstallationCommands.unpair,
    LinkCommands.create, LinkCommands.revoke,
    Simulate.command, Status.command, Doctor.command, PageLink.command, Export.command,
    Prune.command, PipelineLint.command, PipelineTest.command, PipelineResume.command,
    DeadLetterCommands.list, DeadLetterCommands.show, DeadLetterCommands.replay,
    Replay.command, Bench.command, Soak.command,
    Version.command,
]

/// Finds the command that the first words name.
func find(_ words: [String]) throws(UsageError) -> (command: Command, rest: [String]) {
    for count in [2, 1] where words.count >= count {
        let name = words.prefix(count).joined(separator: " ")
        if let command = commands.first(where: { $0.name == name }) {
            return (command, Array(words.dropFirst(count)))
        }
    }
    let group = commands.filter { $0.name.hasPrefix("\(words[0]) ") }
    if group.isEmpty {
        var message = "unknown command \"\(words[0])\""
        let names = Set(commands.map { String($0.name.prefix { $0 != " " }) })
        if let near = NearestName.of(words[0], among: names.sorted()) {
            message += ": did you mean heartline \(near)?"
        }
        throw UsageError(message)
    }
    var message = "unknown command \"\(words[0]) \(words[1])\""
    let names = group.map { String($0.name.dropFirst(words[0].count + 1)) }
    if let near = NearestName.of(words[1], among: names) {
        message += ": did you mean heartline \(words[0]) \(near)?"
    }
    throw UsageError(message)
}

func run(_ words: [String]) -> ExitCode {
    if words.isEmpty {
        Terminal.write(Help.overview(commands), to: .errors)
        return .usage
    }
    if words == ["help", "--man"] {
        Terminal.write(ManPage.text(commands))
        return .done
    }
    if ["help", "--help", "-h"].contains(words[0]) {
        Terminal.write(Help.overview(commands))
        return .done
    }
    let group = commands.filter { $0.name.hasPrefix("\(words[0]) ") }
    if !group.isEmpty, words.count >= 2, ["help", "--help", "-h"].contains(words[1]) {
        Terminal.write(Help.group(words[0], group))
        return .done
    }
    if !group.isEmpty, words.count == 1, !commands.contains(where: { $0.name == words[0] }) {
        Terminal.write(Help.group(words[0], group), to: .errors)
        return .usage
    }
    var pointer = "heartline --help"
    do {
        let (command, rest) = try find(words[0] == "--version" ? ["version"] : words)
        pointer = "heartline \(command.name) --help"
        let arguments = try Arguments(
            rest, of: command, environment: ProcessInfo.processInfo.environment)
        if arguments.wantsHelp {
            Terminal.write(Help.of(command))
            return .done
        }
        return try command.run(arguments)
    } catch let error as UsageError {
        Terminal.write(
            "heartline: \(error.message)\n\(pointer) tells what there is.\n", to: .errors)
        return .usage
    } catch let error as SecretError {
        // The user's to set, as options are.
        Terminal.write("heartline: \(error)\n", to: .errors)
        return .usage
    } catch {
        Terminal.write("heartline: \(error)\n", to: .errors)
        return .failed
    }
}

SystemMemory.returnLargeBlocks()
exit(run(Array(CommandLine.arguments.dropFirst())).rawValue)
