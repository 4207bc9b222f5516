import Bytes
import Foundation
import System
import TestSupport
import Testing
import Updates

@Suite("The installer's commands") struct InstallerTests {
    @Test("a line is progress, a warning, an error or a selection")
    func lines() {
        #expect(InstallerLine("copying") == .progress("copying", completed: nil, total: nil))
        #expect(
            InstallerLine("Progress 3/8: frames") == .progress("frames", completed: 3, total: 8))
        #expect(InstallerLine("progress: at it") == .progress("at it", completed: nil, total: nil))
        #expect(InstallerLine("WARNING: old") == .warning("old"))
        #expect(InstallerLine("error:  no profile ") == .error("no profile"))
        #expect(
            InstallerLine(
                "selection: {\"key\":\"team\",\"message\":\"Which?\",\"choices\":[{\"id\":\"1\",\"label\":\"A\"}]}"
            )
                == .selection(
                    UpdateSelection(
                        key: "team", message: "Which?", choices: [.init(id: "1", label: "A")])))
        // What looks like one and is none is progress.
        for text in ["selection: {}", "progress 3/0: x", "progress -1/2: x", "error:", "a: b"] {
            guard case .progress(let message, nil, nil) = InstallerLine(text) else {
                Issue.record("\(text)")
                continue
            }
            #expect(message == text)
        }
        #expect(InstallerLine("  \t ") == nil && InstallerLine("") == nil)
        #expect(
            InstallerLine("a\u{1B}[31mb") == .progress("a [31mb", completed: nil, total: nil))
        let long = InstallerLine(String(repeating: "x", count: 5_000))
        #expect(
            long
                == .progress(
                    String(repeating: "x", count: InstallerLine.maximumMessage), completed: nil,
                    total: nil))
    }

    private func run(
        _ script: String, timeout: Int64 = 120_000, values: [String: String] = [:],
        more: [String] = [], goesOn: () -> Bool = { true }
    ) throws -> (UpdateJob.CommandOutcome, [InstallerLine]) {
        let folder = try FileSystem.makeTemporaryDirectory("/tmp/heartline-installer-")
        defer { FileSystem.removeTree(folder) }
        var installer = UpdatesConfiguration.Installer(
            sign: ["/bin/sh", "-c", script, "sh"] + more, install: ["/bin/true"])
        installer.signTimeout = timeout
        installer.environment = ["GREETING": "hello"]
        var lines: [InstallerLine] = []
        let outcome = InstallerRun.run(
            .sign, installer, values, in: folder, goesOn: goesOn, line: { lines.append($0) })
        return (outcome, lines)
    }

    private func said(_ lines: [InstallerLine]) -> [String] {
        lines.map {
            if case .progress(let message, _, _) = $0 { message } else { "\($0)" }
        }
    }

    @Test("values stay one argument each, whatever is in them, and no shell reads them")
    func arguments() throws {
        let evil = "a; touch /tmp/evil $(id) \"'`\n*"
        let (outcome, lines) = try run(
            "printf '%s\\n' \"$#\" \"$1\" \"$2\" \"$GREETING\"; pwd; env | grep -c SECRET",
            values: ["device": evil, "app": "x{device}y"], more: ["{device}", "--app={app}{other}"])
        #expect(outcome == .failed(status: 1, message: "the command ended with status 1"))
        let text = said(lines)
        #expect(text[0] == "2" && text[1] == "a; touch /tmp/evil $(id) \"'`" && text[2] == "*")
        // A value is not read for placeholders again.
        #expect(text[3] == "--app=x{device}y{other}" && text[4] == "hello")
        #expect(text[5].hasPrefix("/tmp/heartline-installer-") && text[6] == "0")
    }

    @Test("lines come while the command runs, errors among them")
    func live() throws {
        let folder = try FileSystem.makeTemporaryDirectory("/tmp/heartline-installer-")
        defer { FileSystem.removeTree(folder) }
        let gate = "\(folder)/gate"
        // The command waits for what only its first line makes happen.
        let installer = UpdatesConfiguration.Installer(
            sign: [
                "/bin/sh", "-c",
                "echo first >&2; while [ ! -e \(gate) ]; do sleep 0.02; done; printf last",
            ], install: ["/bin/true"])
        var lines: [InstallerLine] = []
        let outcome = InstallerRun.run(
            .sign, installer, [:], in: folder, goesOn: { true },
            line: {
                lines.append($0)
                try? FileSystem.write("", to: gate, mode: 0o600)
            })
        #expect(outcome == .done && said(lines) == ["first", "last"])
    }

    @Test("a command that takes too long, or is not wanted any more, ends with all it has started")
    func ends() throws {
        let script = "sleep 1000 & echo $!; wait"
        let (late, lines) = try run(script, timeout: 300)
        guard case .timedOut = late else { return #expect(Bool(false), "\(late)") }
        let child = try #require(said(lines).first.flatMap { Int32($0) })
        #expect(try eventually { !ChildProcess.exists(child) })
        let (unwanted, _) = try run(script, goesOn: { false })
        #expect(unwanted == .cancelled)
    }

    @Test("a signal, and a program that is not there, are failures")
    func failures() throws {
        #expect(
            try run("kill -9 $$").0
                == .failed(status: 137, message: "the command was ended by signal 9"))
        var installer = UpdatesConfiguration.Installer(sign: ["/nowhere/x"], install: [])
        installer.running = nil
        for command in [UpdateJob.Command.sign, .running, .install] {
            guard
                case .failed(status: -1, _) = InstallerRun.run(
                    command, installer, [:], in: "/tmp", goesOn: { true }, line: { _ in })
            else {
                Issue.record("\(command)")
                continue
            }
        }
    }
}

@Suite("What is merged into a signed app") struct AppMetadataTests {
    static let id = String(repeating: "0123456789abcdef", count: 3)

    private func metadata(_ destinations: [UpdateDestination]) throws -> [String: Any] {
        var app = TrackedApp(source: UpdateSource("gh:owner/repo")!, channel: .preRelease)
        app.filter = "tv & <1>"
        let text = AppMetadata(
            destinations: destinations, installationID: Self.id, app: app, team: "ABC123"
        ).propertyList
        let read = try unsafe PropertyListSerialization.propertyList(
            from: Data(text.utf8), options: [], format: nil)
        return try #require(read as? [String: Any])
    }

    @Test(
        "the dictionary has every destination, source, filter, team and channel, and no release in the URLs"
    )
    func dictionary() throws {
        let list = try metadata([
            UpdateDestination(host: "my-mac.local", port: 19464),
            UpdateDestination(host: "192.168.1.10", port: 19464),
            UpdateDestination(host: "fd00::10", port: 19464),
        ])
        let hub = try #require(list["IPAHub"] as? [String: Any])
        let query = "source=gh%3Aowner%2Frepo&filter=tv%20%26%20%3C1%3E&team=ABC123"
        #expect(
            hub["updateURL"] as? [String] == [
                "http://my-mac.local:19464/api/app/\(Self.id)/update?\(query)",
                "http://192.168.1.10:19464/api/app/\(Self.id)/update?\(query)",
                "http://[fd00::10]:19464/api/app/\(Self.id)/update?\(query)",
            ])
        #expect(hub["source"] as? String == "gh:owner/repo")
        #expect(hub["filter"] as? String == "tv & <1>")
        #expect(hub["team"] as? String == "ABC123")
        #expect(hub["release"] as? String == "pre-release")
    }

    @Test(
        "each HTTP host has an exception of its own, without port and brackets; HTTPS ones have none"
    )
    func transport() throws {
        let list = try metadata([
            UpdateDestination(host: "a.local", port: 1),
            UpdateDestination(host: "fd00::10", port: 1),
            UpdateDestination(host: "b.example", port: 2, isSecure: true),
            UpdateDestination(host: "a.local", port: 3),
        ])
        let transport = try #require(list["NSAppTransportSecurity"] as? [String: Any])
        let domains = try #require(
            transport["NSExceptionDomains"] as? [String: [String: Bool]])
        let exception = ["NSExceptionAllowsInsecureHTTPLoads": true]
        #expect(domains == ["a.local": exception, "fd00::10": exception])
        #expect(transport.count == 1)
        #expect((list["NSLocalNetworkUsageDescription"] as? String)?.isEmpty == false)
    }

    @Test("destinations are what others can reach of what is listened on, each once")
    func destinations() {
        func all(_ listening: String, configured: [String]? = nil) -> [String] {
            UpdateDestination.all(
                configured: configured, listening: listening, port: 5, isSecure: false,
                addresses: [
                    "127.0.0.1", "192.168.1.10", "192.168.1.10", "100.101.102.103", "169.254.1.1",
                    "0.0.0.0", "224.0.0.5", "::1", "fe80::1", "fd00::10", "ff02::1", "::",
                ], name: "My-Mac"
            ).map(\.base)
        }
        #expect(
            all("0.0.0.0") == [
                "http://my-mac.local:5", "http://192.168.1.10:5", "http://100.101.102.103:5",
            ])
        #expect(all("::") == ["http://my-mac.local:5", "http://[fd00::10]:5"])
        #expect(all("192.168.1.10") == ["http://192.168.1.10:5"])
        #expect(all("0.0.0.0", configured: ["mac.ts.net"]) == ["http://mac.ts.net:5"])
    }
}

@Suite("Shared downloads") struct DownloadBoardTests {
    @Test("a download is begun once for all, and ended when the last one leaves")
    func sharing() {
        var board = DownloadBoard<Int>()
        #expect(board.join(1, "a") && !board.join(2, "a") && board.join(3, "b"))
        #expect(board.leave(1, "a") == .goesOn)
        #expect(board.jobs("a") == [2])
        #expect(board.leave(2, "a") == .cancel && board.leave(2, "a") == .goesOn)
        // Whoever comes while it is being ended gets one of their own.
        #expect(!board.join(4, "a") && board.jobs("a").isEmpty)
        let ended = board.ended("a")
        #expect(ended.jobs.isEmpty && ended.beginsAnew && board.jobs("a") == [4])
        #expect(board.ended("a").jobs == [4] && board.ended("b").jobs == [3])
        #expect(board.count == 0 && !board.ended("c").beginsAnew)
    }

    @Test("who leaves before the new one begins is not waited for")
    func leavingTwice() {
        var board = DownloadBoard<Int>()
        _ = board.join(1, "a")
        #expect(board.leave(1, "a") == .cancel)
        _ = board.join(2, "a")
        #expect(board.leave(2, "a") == .goesOn)
        let ended = board.ended("a")
        #expect(!ended.beginsAnew && board.count == 0)
    }
}
