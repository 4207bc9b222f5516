import Pipeline
import System

/// `heartline pipeline lint`.
enum PipelineLint {
    static let command = Command(
        name: "pipeline lint", summary: "check pipeline files",
        details: "Prints everything that is wrong as file:line:column: message.",
        operands: PipelineFiles.operands, options: [PipelineFiles.option]
    ) { arguments in
        var isClean = true
        for path in try PipelineFiles.paths(arguments) {
            do throws(PipelineFileErrors) {
                let file = try PipelineFile.load(path)
                Terminal.write("\(path): ok (\(file.name), \(file.cases.count) tests)\n")
            } catch {
                Terminal.write("\(error)\n", to: .errors)
                isClean = false
            }
        }
        return isClean ? .done : .failed
    }
}

/// The files that `pipeline lint` and `pipeline test` look at.
enum PipelineFiles {
    static let operands = Operands(
        placeholder: "[FILE...]", count: 0...10_000,
        help: "pipeline files; without any: all of the pipelines folder")
    static let option = Option.path(
        "pipelines", "DIR", default: "pipelines", "folder of the pipeline files")

    static func paths(_ arguments: Arguments) throws -> [String] {
        if !arguments.operands.isEmpty { return arguments.operands }
        let folder = arguments.text("pipelines")
        guard FileSystem.isDirectory(folder) else {
            throw Failure(
                "reading pipelines: there is no folder \(folder); name files, or --pipelines DIR")
        }
        return try FileSystem.names(in: folder).filter {
            $0.hasSuffix(".yaml") || $0.hasSuffix(".yml")
        }
        .map { "\(folder)/\($0)" }
    }
}
