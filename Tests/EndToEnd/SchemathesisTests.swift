import Foundation
import Postgres
import Schemas
import System
import TestSupport
import Testing

/// docs/openapi.yaml against the running server, by requests that Schemathesis makes from it.
@Suite("heartline up: Schemathesis", .realTime)
struct SchemathesisTests {
    private static let root = URL(filePath: #filePath).deletingLastPathComponent()
        .deletingLastPathComponent().deletingLastPathComponent().path(percentEncoded: false)
    private static let program = root + ".build/agent-python/bin/schemathesis"
    private static var isInstalled: Bool { FileSystem.exists(program) }

    /// What an answer may not be. Not asked for: that every request which the file allows is answered
    /// with success, since devices and people that the requests name do not exist.
    private static let checks =
        "not_a_server_error,status_code_conformance,content_type_conformance,"
        + "response_schema_conformance,unsupported_method"

    private static func check(
        _ url: String, _ running: RunningHeartline, _ selection: [String], token: String?
    ) async throws {
        let process = try HeartlineProcess(
            [
                "--config-file", root + "Tests/Contract/schemathesis.toml", "run",
                root + "docs/openapi.yaml", "--url", url, "--checks", checks, "--seed", "7",
                "--max-examples", "8", "--phases", "examples,coverage,fuzzing", "--no-color",
                "--workers", "1", "--max-failures", "10", "--no-shrink", "--generation-database",
                "none", "--report-dir", running.folder.path, "--warnings", "off",
                "--suppress-health-check", "all",
            ] + selection + (token.map { ["-H", "Authorization: Bearer \($0)"] } ?? []),
            executable: program)
        let hasEnded = await holds(within: 900) { process.hasEnded }
        if !hasEnded { process.send(SIGKILL) }
        let status = await process.waitForEnd()
        #expect(status == 0, "\(process.output().suffix(6_000))\(process.errors())")
    }

    @Test(
        "no answer to people's devices contradicts docs/openapi.yaml, and none is a fault of ours",
        .enabled(if: isInstalled, "scripts/bootstrap test installs what it needs"))
    func people() async throws {
        let folder = try TemporaryFolder()
        let key = SigningKey.p256.jwk(more: #","kid":"e1""#)
        let keys = try folder.write("{\"keys\":[\(key)]}", to: "keys.json")
        let running = try await RunningHeartline([
            "--apple-audience", "app.example", "--apple-jwks", keys, "--google-audience",
            "app.example", "--google-jwks", keys, "--exchange-limit", "0",
        ])
        // Two sessions, so that the one which the requests themselves end or erase is not the only one.
        for operations in [
            ["registerToken", "nearby", "reportEncounter", "wave", "block", "storePeerKey"],
            ["fetchPeerKey", "sendMessage", "openSocket", "exchangeToken"], ["revokeSession"],
            ["eraseAccount"],
        ] {
            try await Self.check(
                running.places.listen, running,
                operations.flatMap { ["--include-operation-id", $0] },
                token: try Self.addSession(running))
        }
    }

    @Test(
        "no answer to agents and operators contradicts docs/openapi.yaml, and none is a fault of ours",
        .enabled(if: isInstalled, "scripts/bootstrap test installs what it needs"))
    func others() async throws {
        let running = try await RunningHeartline(["--provision-limit", "0"])
        try await Self.check(
            running.places.listen, running, ["--include-tag", "agents"], token: nil)
        let token = try String(contentsOfFile: "\(running.data)/admin-token", encoding: .utf8)
        try await Self.check(
            running.places.admin, running, ["--include-tag", "health", "--include-tag", "admin"],
            token: token.trimmingCharacters(in: .whitespacesAndNewlines))
    }

    /// A session as an exchange makes it.
    private static func addSession(_ running: RunningHeartline) throws -> String {
        let connection = try running.connect()
        defer { connection.close() }
        return try connection.execute(
            """
            WITH a AS (INSERT INTO heartline.accounts (account_id, provider, provider_subject) \
            SELECT id, 'apple', id::text FROM (SELECT gen_random_uuid() id) i RETURNING account_id), \
            made AS (SELECT replace(gen_random_uuid()::text || '-abcdef', '-', '_') AS token), \
            s AS (INSERT INTO heartline.sessions (token_hash, account_id, expires_at) \
            SELECT sha256(token::bytea), account_id, now() + interval '1 h' FROM a, made) \
            SELECT token FROM made
            """
        ).only().text(0)
    }
}
