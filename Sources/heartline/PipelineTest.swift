import Pipeline
import System

/// `heartline pipeline test`.
enum PipelineTest {
    static let command = Command(
        name: "pipeline test", summary: "run the cases that pipeline files contain",
        details: """
            Each case goes through the processor itself with the file's settings; what is compared is
            what the tables would hold. Needs neither a log nor a database.
            """,
        operands: PipelineFiles.operands, options: [PipelineFiles.option]
    ) { arguments in
        var passed = 0
        var failed = 0
        var isReadable = true
        for path in try PipelineFiles.paths(arguments) {
            let file: PipelineFile
            do throws(PipelineFileErrors) {
                file = try PipelineFile.load(path)
            } catch {
                Terminal.write("\(error)\n", to: .errors)
                isReadable = false
                continue
            }
            for result in file.runCases() {
                if result.differences.isEmpty {
                    passed += 1
                    Terminal.write("ok      \(result.name)\n")
                    continue
                }
                failed += 1
                Terminal.write("FAILED  \(result.name) (\(path):\(result.mark))\n")
                for difference in result.differences {
                    Terminal.write(
                        "  \(path):\(difference.mark): \(difference.what)\n    expected  \(difference.expected)\n    got       \(difference.got)\n"
                    )
                }
            }
        }
        Terminal.write("\(passed) passed, \(failed) failed\n")
        return failed == 0 && isReadable ? .done : .failed
    }
}
