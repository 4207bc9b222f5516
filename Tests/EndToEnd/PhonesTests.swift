import Foundation
import Glibc
import System
import TestSupport
import Testing

/// Phones that share no code with us: Tests/Contract/phones.py, written from the clients' documents.
@Suite("heartline up: two phones, written from the documents alone, in Python", .realTime)
struct PhonesTests {
    private static let root = URL(filePath: #filePath).deletingLastPathComponent()
        .deletingLastPathComponent().deletingLastPathComponent().path(percentEncoded: false)
    private static let python = root + ".build/agent-python/bin/python3"
    private static var isInstalled: Bool { FileSystem.exists(python) }

    private static func phones(_ words: [String]) async throws -> String {
        let process = try HeartlineProcess(
            [root + "Tests/Contract/phones.py"] + words, executable: python)
        let hasEnded = await holds(within: 600) { process.hasEnded }
        if !hasEnded { process.send(SIGKILL) }
        let status = await process.waitForEnd()
        #expect(status == 0, "\(process.output())\(process.errors().suffix(4_000))")
        return process.output()
    }

    @Test(
        "sign in, meet, wave, exchange keys, write, miss messages, are revoked, block and erase",
        .enabled(if: isInstalled, "scripts/bootstrap test installs what it needs"))
    func play() async throws {
        let folder = try TemporaryFolder()
        _ = try await Self.phones(["keys", "--folder", folder.path])
        try FileSystem.makeDirectory("\(folder.path)/pipelines", mode: 0o755)
        for name in ["encounters", "messages", "mutual-waves"] {
            let text = try String(
                contentsOfFile: Self.root + "pipelines/\(name).yaml", encoding: .utf8)
            _ = try folder.write(text, to: "pipelines/\(name).yaml")
        }
        let running = try await RunningHeartline(
            in: folder,
            [
                "--apple-audience", "app.example", "--apple-jwks", "\(folder.path)/apple.json",
                "--google-audience", "app.example", "--google-jwks",
                "\(folder.path)/google.json",
            ])
        let output = try await Self.phones(
            ["play", "--folder", folder.path, "--server", running.places.listen])
        #expect(output.contains("done"), "\(running.process.errors().suffix(4_000))")
    }
}
