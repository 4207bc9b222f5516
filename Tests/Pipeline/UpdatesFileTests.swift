import Foundation
import Pipeline
import System
import Testing
import Updates

@Suite("updates.yaml") struct UpdatesFileTests {
    private func errors(_ text: String) -> String {
        do throws(PipelineFileErrors) {
            _ = try UpdatesFile.parse(Array(text.utf8), path: "updates.yaml")
            return "none"
        } catch {
            return "\(error)"
        }
    }

    @Test("an empty file has the defaults: routes work, and nothing can be installed")
    func defaults() throws {
        let read = try UpdatesFile.parse(Array("# nothing\n".utf8), path: "u")
        #expect(read == UpdatesConfiguration() && read.installer == nil)
    }

    @Test("everything that it may say")
    func all() throws {
        let folder = try FileSystem.makeTemporaryDirectory("/tmp/heartline-updates-file-")
        defer { FileSystem.removeTree(folder) }
        try FileSystem.write("the-token\n", to: "\(folder)/token", mode: 0o600)
        let text = """
            github: { api: "http://127.0.0.1:1/api/", token_file: token }
            cache: { size_mib: 10, file_mib: 5 }
            sources: { checks: 1, downloads: 2, silence: 5s, check_timeout: 20s, retries: 0 }
            allow_hosts: [mac.local, 10.0.0.5, "fd00::1"]
            destinations: [mac.ts.net]
            installer:
              sign: [/bin/cp, "{ipa}", "{signed}"]
              install: [/bin/echo, "--device={device}", "{team}"]
              running: [/bin/true, "{device}"]
              open: [/bin/true]
              sign_timeout: 1m
              running_timeout: 2s
              concurrency: 2
              environment: { LANG: C }
            """
        let read = try UpdatesFile.parse(Array(text.utf8), path: "\(folder)/updates.yaml")
        #expect(read.gitHub.api == "http://127.0.0.1:1/api")
        #expect(read.gitHub.credential?.header == "Bearer the-token")
        #expect(read.cache.sizeBytes == 10 << 20 && read.cache.fileBytes == 5 << 20)
        #expect(read.sources.silence == 5_000 && read.sources.retries == 0)
        #expect(read.allowedHosts == ["mac.local", "10.0.0.5", "fd00::1"])
        #expect(read.destinations == ["mac.ts.net"])
        let installer = try #require(read.installer)
        #expect(installer.install == ["/bin/echo", "--device={device}", "{team}"])
        #expect(installer.signTimeout == 60_000 && installer.installTimeout == 600_000)
        #expect(installer.concurrency == 2 && installer.environment == ["LANG": "C"])
        #expect(!"\(read)".contains("the-token"))
    }

    @Test(
        "mistakes are told with their place",
        arguments: [
            (
                "githb: {}",
                "updates.yaml:1:1: unknown key \"githb\" in updates: did you mean github?"
            ),
            (
                "github: { api: ftp://x }",
                "updates.yaml:1:16: github.api is an http or https address"
            ),
            ("allow_hosts: [\"http://x\"]", "updates.yaml:1:15: allow_hosts has host names"),
            ("installer: { sign: [/bin/cp] }", "updates.yaml:1:12: installer has no install"),
            (
                "installer: { sign: cp a b, install: [/bin/cp] }",
                "updates.yaml:1:20: sign is a list of arguments"
            ),
            (
                "installer: { sign: [cp], install: [/bin/cp] }",
                "updates.yaml:1:21: sign begins with the absolute path of a program, not \"cp\""
            ),
            (
                "installer: { sign: [/bin/cp, \"{ipb}\"], install: [/bin/cp] }",
                "updates.yaml:1:30: unknown placeholder {ipb}: did you mean ipa?"
            ),
            (
                "installer: { sign: [/bin/cp], install: [/bin/cp], open: [/bin/cp] }",
                "open needs running"
            ),
            (
                "sources: { silence: 5 }",
                "updates.yaml:1:21: sources.silence is a time with its unit"
            ),
            ("cache: { size_mib: 0 }", "updates.yaml:1:20: cache.size_mib is 0 but must be from 1"),
        ])
    func mistakes(_ text: String, _ message: String) {
        #expect(errors(text).contains(message), "\(errors(text))")
    }
}
