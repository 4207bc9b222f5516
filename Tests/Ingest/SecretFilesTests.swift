import Foundation
import Ingest
import Testing

@Suite("Secrets of a server") struct SecretFilesTests {
    struct Directory: ~Copyable {
        let path: String

        init() throws {
            path = NSTemporaryDirectory() + "/heartline-secrets-\(UUID().uuidString)"
            try FileManager.default.createDirectory(
                atPath: path, withIntermediateDirectories: true)
        }

        deinit { try? FileManager.default.removeItem(atPath: path) }
    }

    static let salt = "0123456789abcdef"
    static let key = String(repeating: "ab", count: 32)

    @Test("missing ones are made once, in files that only the owner reads")
    func made() throws {
        let directory = try Directory()
        let first = try SecretFiles.load(environment: [:], directory: directory.path)
        let second = try SecretFiles.load(environment: [:], directory: directory.path)
        #expect(first.salt == second.salt)
        #expect(first.secretKey == second.secretKey)
        #expect(first.secretKey.count == 32)
        #expect(first.salt.count == 64)
        let names = try FileManager.default.contentsOfDirectory(atPath: directory.path).sorted()
        #expect(names == ["secret-key", "server-salt"])
        for name in names {
            let attributes = try FileManager.default.attributesOfItem(
                atPath: directory.path + "/" + name)
            #expect(attributes[.posixPermissions] as? Int == 0o600)
        }
    }

    @Test("the environment comes first, and no file is made for it")
    func environment() throws {
        let directory = try Directory()
        let secrets = try SecretFiles.load(
            environment: ["SERVER_SALT": Self.salt, "HEARTLINE_SECRET_KEY": Self.key],
            directory: directory.path)
        #expect(secrets.salt == Array(Self.salt.utf8))
        #expect(secrets.secretKey == [UInt8](repeating: 0xAB, count: 32))
        #expect(try FileManager.default.contentsOfDirectory(atPath: directory.path).isEmpty)
    }

    @Test(
        "what is missing, too short or malformed is an error of one line that says how to make one",
        arguments: [
            [:], ["SERVER_SALT": salt], ["HEARTLINE_SECRET_KEY": key],
            ["SERVER_SALT": "short", "HEARTLINE_SECRET_KEY": key],
            ["SERVER_SALT": salt, "HEARTLINE_SECRET_KEY": "abc"],
            ["SERVER_SALT": salt, "HEARTLINE_SECRET_KEY": String(repeating: "x", count: 64)],
        ] as [[String: String]])
    func refused(environment: [String: String]) throws {
        do {
            _ = try SecretFiles.load(environment: environment, directory: nil)
            Issue.record("accepted")
        } catch let error as SecretError {
            #expect(error.description.contains("openssl rand"))
            #expect(!error.description.contains("\n"))
            for value in environment.values { #expect(!error.description.contains(value)) }
        }
    }

    @Test("a file that others can read is refused")
    func openFile() throws {
        let directory = try Directory()
        _ = try SecretFiles.load(environment: [:], directory: directory.path)
        try FileManager.default.setAttributes(
            [.posixPermissions: 0o644], ofItemAtPath: directory.path + "/secret-key")
        do {
            _ = try SecretFiles.load(environment: [:], directory: directory.path)
            Issue.record("accepted")
        } catch let error as SecretError {
            #expect(error.description.contains("chmod 600"))
        }
    }
}
