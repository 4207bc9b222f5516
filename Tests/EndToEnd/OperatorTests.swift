import Bytes
import Foundation
import Schemas
import System
import TestSupport
import Testing

@Suite("Operators' commands, on a running instance", .serialized, .realTime) struct OperatorTests {
    private func connect(_ url: String) throws -> RawClient {
        let place = try #require(URL(string: url))
        return try RawClient(
            host: try #require(place.host()), port: UInt16(try #require(place.port)))
    }

    @Test("Every command changes what it says, tells it, and leaves a row in the audit log")
    func commands() async throws {
        let heartline = try await RunningHeartline()
        func done(_ words: String...) async throws -> String {
            let outcome = try await heartline.run(words)
            try #require(outcome.status == 0, "\(words): \(outcome.errors)")
            return outcome.output
        }
        let device = try #require(try await heartline.addDevices(1).first)
        #expect(try heartline.heartbeat(device).status == 200)
        func answers(_ status: Int) async throws -> Bool {
            try await holds(within: 30) { try heartline.heartbeat(device).status == status }
        }

        #expect(
            try await done("device", "suspend", "\(device)".uppercased(), "--as", "ada")
                == "\(device) suspended (version 2)\n")
        #expect(try await answers(403))
        #expect(
            try await done("device", "suspend", "\(device)")
                == "\(device) was suspended already (version 2)\n")
        #expect(try await done("device", "resume", "\(device)").contains("resumed (version 3)"))
        #expect(try await answers(200))

        // Keys and hashes change in the next answers; the device goes on beating.
        func answer() throws -> [String: String] {
            let response = try heartline.heartbeat(device)
            try #require(response.status == 200, "\(response.text)")
            return try JSONDecoder().decode(
                [String: String].self, from: Data(response.body.bytes))
        }
        let before = try answer()
        let rotated = try await done(
            "device", "rotate", "\(device)", "--request-id", "r-1", "--json")
        #expect(rotated == "{\"changed\":true,\"device_id\":\"\(device)\",\"version\":4}\n")
        #expect(
            try await done("device", "rotate", "\(device)", "--request-id", "r-1", "--json")
                == rotated)
        #expect(
            try await holds(within: 30) { try answer()["private_key"] != before["private_key"] })
        let after = try answer()
        #expect(after["internal_ip"] == before["internal_ip"])
        #expect(after["preshared_key"] != before["preshared_key"])
        #expect(after["forwards_hash"] != before["forwards_hash"])
        #expect(
            try await done(
                "forward", "add", "\(device)", "--proto", "tcp", "--listen", "8080", "--to",
                "10.0.0.5:80"
            ).contains("forwards tcp/8080=10.0.0.5:80 (version 5)"))
        #expect(
            try await holds(within: 30) {
                try answer()["forwards_hash"] != after["forwards_hash"]
            })
        #expect(
            try await done(
                "forward", "set", "\(device)", "udp/53=[FD00::5]:53", "tcp/8080=10.0.0.5:80"
            )
            .contains("has 2 forwards (version 6)"))
        #expect(
            try await done("forward", "list", "\(device)") == """
                protocol  listen  target
                tcp       8080    10.0.0.5:80
                udp       53      [fd00::5]:53

                """)
        #expect(
            try await done("forward", "remove", "\(device)", "--proto", "udp", "--listen", "53")
                .contains("forwards udp/53 no more (version 7)"))
        #expect(
            try await done("device", "interval", "\(device)", "10m").contains(
                "has interval 10m (version 8)"))
        let shown = try await done("device", "show", "\(device)")
        #expect(shown.contains("interval   10m\n"))
        #expect(shown.contains("forward    tcp/8080=10.0.0.5:80\n"))
        #expect(try await done("device", "interval", "\(device)", "none").contains("version 9"))

        let tokens = try await done("token", "create", "--count", "2", "--ttl", "1h")
        let lines = tokens.split(separator: "\n").map(String.init)
        #expect(lines.count == 2)
        #expect(lines.allSatisfy { DeviceID($0) != nil })
        let list = try await done("token", "list")
        for line in lines { #expect(!list.contains(line)) }
        #expect(list.split(separator: "\n").count == 3)
        #expect(try await done("token", "revoke", lines[0]).hasSuffix(" revoked\n"))
        #expect(try await done("token", "list", "--json").contains("\"state\":\"revoked\""))
        let made = try await done("token", "create", "--request-id", "t-1", "--note", "roof")
        #expect(
            try await done("token", "create", "--request-id", "t-1", "--note", "roof") == made)

        #expect(try await done("device", "remove", "\(device)").contains("removed (version 10)"))
        #expect(
            try await holds(within: 30) { try heartline.heartbeat(device).status == 400 })
        #expect(try await heartline.waitFor("removed", of: device))

        let audit = try await done("audit", "list", "--json", "--limit", "100")
        let actions = audit.split(separator: "\n").reversed().compactMap { line in
            line.firstMatch(of: #/"action":"([a-z.]+)"/#).map { String($0.1) }
        }
        #expect(
            actions == [
                "device.add", "device.suspend", "device.suspend", "device.resume",
                "device.rotate", "forward.add", "forward.set", "forward.remove",
                "device.interval", "device.interval", "token.create", "token.revoke",
                "token.create", "device.remove",
            ])
        #expect(audit.contains("\"actor\":\"ada\""))
        #expect(audit.contains("\"actor\":\"\(UnixAccount.currentName)\""))
        let table = try await done("audit", "list", "--entity", "\(device)", "--limit", "2")
        #expect(table.split(separator: "\n").count == 3)
        #expect(table.contains("device.remove"))

        for (words, status, message) in [
            (["device", "suspend", "\(device)"], 1, "no device has the id \(device)"),
            (["device", "suspend", "x"], 2, "a device's id is a UUID"),
            (["device", "suspend"], 2, "missing ID"),
            (
                ["device", "suspend", "\(device)", "\(device)", "--request-id", "r-2"], 2,
                "goes with one device"
            ),
            (
                ["device", "resume", "\(device)", "--request-id", "r-1"], 1,
                "used for another request"
            ),
            (["device", "interval", "\(device)", "10"], 2, "a time with its unit"),
            (["forward", "add", "\(device)", "--listen", "80"], 2, "--to is needed"),
            (["forward", "add", "\(device)", "--to", "a:80"], 2, "--listen is needed"),
            (["forward", "set", "\(device)", "tcp/80"], 2, "a forward is written as"),
            (
                ["forward", "set", "\(device)", "tcp/80=a:1", "tcp/80=b:1"], 2,
                "two forwards listen on tcp/80"
            ),
            (["token", "revoke", lines[0].uppercased(), "--as", ""], 2, "--as is empty"),
            (["token", "revoke", "x"], 2, "are UUIDs"),
            (["token", "create", "--ttl", "400d"], 2, "--ttl is a time with its unit"),
        ] as [([String], Int32, String)] {
            let outcome = try await heartline.run(words)
            #expect(outcome.status == status, "\(words)")
            #expect(outcome.errors.contains(message), "\(words): \(outcome.errors)")
            #expect(outcome.output == "")
        }

        // Over HTTP, with the token that `up` made.
        let path = "\(heartline.data)/admin-token"
        #expect(FileSystem.status(path)?.mode == 0o600)
        let token = try String(contentsOfFile: path, encoding: .utf8)
            .trimmingCharacters(in: .whitespacesAndNewlines)
        let client = try connect(heartline.places.admin)
        #expect(try client.request("GET", "/admin/v1/audit", body: []).status == 401)
        let entries = try client.request(
            "GET", "/admin/v1/audit?limit=1", body: [],
            headers: ["Authorization: Bearer \(token)"])
        #expect(entries.status == 200)
        #expect(entries.text.contains("device.remove"))

        // Nothing secret was logged or printed.
        let said = heartline.process.output() + heartline.process.errors()
        for secret in lines + [made, token, after["private_key"] ?? "?"] {
            #expect(!said.contains(secret.trimmingCharacters(in: .newlines)))
        }
        #expect(await heartline.stop() == 0)
    }

    @Test("A group's name alone prints what it has") func groups() async throws {
        for (group, command) in [
            ("device", "device suspend"), ("forward", "forward add"), ("token", "token create"),
            ("audit", "audit list"),
        ] {
            let outcome = try await Executable.run([group])
            #expect(outcome.status == 2)
            #expect(outcome.output == "")
            #expect(outcome.errors.hasPrefix("usage: heartline \(group) COMMAND"))
            #expect(outcome.errors.contains("\n  \(command) "))
            let help = try await Executable.run([group, "--help"])
            #expect(help.status == 0)
            #expect(help.output == outcome.errors)
        }
        let help = try await Executable.run(["device", "suspend", "--help"])
        #expect(help.output.contains("[HEARTLINE_ACTOR]"))
    }

    @Test("Suspending and resuming hold on every front-end soon")
    func twoFrontEnds() async throws {
        let installation = try await SplitInstallation(settings: "refresh: 0s")
        let device = try #require(try await installation.addDevices(1).first)
        let token = String(repeating: "operator", count: 5)
        let file = try installation.folder.write(token, to: "token")
        try FileSystem.setMode(file, 0o600)
        let first = try await installation.startFrontEnd("a", ["--admin-token-file", file])
        let second = try await installation.startFrontEnd("b")
        func statuses() throws -> [Int] {
            try [first, second].map {
                try connect($0.url).request(
                    "POST", "/api/v1/heartbeat", body: "{\"device_id\":\"\(device)\"}".utf8
                ).status
            }
        }
        #expect(try await holds(within: 30) { try statuses() == [200, 200] })
        for (word, status) in [("suspend", 403), ("resume", 200), ("suspend", 403)] {
            let outcome = try await installation.run(["device", word, "\(device)"])
            #expect(outcome.status == 0, "\(outcome.errors)")
            let start = ContinuousClock.now
            #expect(
                try await holds(within: 30) { try statuses() == [status, status] }, "\(word)")
            print("\(word) held on two front-ends \(ContinuousClock.now - start) after the command")
            // Once it holds it stays: nothing older comes back.
            for _ in 0..<20 { #expect(try statuses() == [status, status]) }
        }
        // A process without a token tells the health only.
        for (frontEnd, status) in [(first, 200), (second, 404)] {
            let words = frontEnd.process.output().split(whereSeparator: \.isWhitespace)
            let admin = try #require(words.last { $0.hasSuffix("/readyz") }).dropLast(7)
            let response = try connect(String(admin)).request(
                "GET", "/admin/v1/devices", body: [], headers: ["Authorization: Bearer \(token)"])
            #expect(response.status == status)
        }
        #expect(await first.stop() == 0)
        #expect(await second.stop() == 0)
    }

    @Test("SIGHUP takes a new certificate over; a faulty one keeps the old and says so")
    func certificates() async throws {
        let folder = try TemporaryFolder()
        func make(_ name: String) async throws {
            try await openssl([
                "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
                "-nodes", "-days", "2", "-subj", "/CN=\(name)", "-keyout",
                "\(folder.path)/\(name).key", "-out", "\(folder.path)/\(name).pem",
            ])
        }
        for name in ["old", "new", "other"] { try await make(name) }
        func install(_ certificate: String, _ key: String) throws {
            for (from, to) in [("\(certificate).pem", "live.pem"), ("\(key).key", "live.key")] {
                let text = try String(contentsOfFile: "\(folder.path)/\(from)", encoding: .utf8)
                _ = try folder.write(text, to: to)
            }
        }
        try install("old", "old")
        let heartline = try await RunningHeartline(
            in: folder,
            [
                "--tls-certificate", "\(folder.path)/live.pem", "--tls-key",
                "\(folder.path)/live.key", "--tls-client-ca", "\(folder.path)/other.pem",
            ])
        let port = try #require(URL(string: heartline.places.listen)?.port)
        #expect(heartline.places.listen.hasPrefix("https://"))
        func subject() async throws -> String {
            try await openssl(["s_client", "-connect", "127.0.0.1:\(port)"])
        }
        #expect(try await subject().contains("CN = old"))
        #expect(
            try await subject().contains("Acceptable client certificate CA names\nCN = other"))

        try install("new", "other")
        heartline.process.send(SIGHUP)
        #expect(
            await holds(within: 30) {
                heartline.process.errors().contains("The old certificate stays in use")
            })
        #expect(heartline.process.errors().contains("live.key: it is not the key of"))
        #expect(try await subject().contains("CN = old"))

        try install("new", "new")
        heartline.process.send(SIGHUP)
        #expect(try await holds(within: 30) { try await subject().contains("CN = new") })
        #expect(heartline.process.errors().contains("live.pem was read again"))
        #expect(await heartline.stop() == 0)
    }

    @discardableResult
    private func openssl(_ arguments: [String]) async throws -> String {
        let process = Process()
        process.executableURL = URL(fileURLWithPath: "/usr/bin/openssl")
        process.arguments = arguments
        process.standardInput = FileHandle.nullDevice
        let output = Pipe()
        process.standardOutput = output
        process.standardError = FileHandle.nullDevice
        try process.run()
        let bytes = try output.fileHandleForReading.readToEnd() ?? Data()
        process.waitUntilExit()
        return String(decoding: bytes, as: UTF8.self)
    }

    @Test(
        "Options of TLS that do not fit together are refused",
        arguments: [
            (["--tls-client-ca", "/tmp/x"], "--tls-client-ca needs --tls-certificate"),
            (["--tls-client-required"], "--tls-client-required needs --tls-client-ca"),
        ])
    func refused(_ options: [String], _ message: String) async throws {
        let outcome = try await Executable.run(["up", "--data", "/tmp/heartline-none"] + options)
        #expect(outcome.status == 2)
        #expect(outcome.errors.contains(message), "\(outcome.errors)")
    }
}
