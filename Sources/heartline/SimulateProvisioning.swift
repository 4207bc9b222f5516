import Fleet
import Foundation
import Ingest
import Schemas
import System

/// What the agents of `heartline simulate --provision` provision themselves with.
enum SimulateProvisioning {
    /// Tokens that are made at once, in one transaction.
    private static let batch = 10_000
    private static let tokenLife: Duration = .seconds(86_400)

    static func read(_ arguments: Arguments) throws -> FleetProvisioning {
        // First what can be wrong, then what is made.
        let salt = try salt(arguments)
        let count = arguments.optionalInteger("agents")
        var tokens: [DeviceID]
        if let path = arguments.optionalText("tokens") {
            tokens = try self.tokens(in: path)
            if let count {
                guard tokens.count >= count else {
                    throw Failure(
                        "choosing \(count) agents: \(path) has \(tokens.count) registration tokens")
                }
                tokens.removeLast(tokens.count - count)
            }
        } else {
            guard let count else {
                throw UsageError("--provision needs --tokens, or --agents to know how many to make")
            }
            tokens = try make(count, arguments)
        }
        var provisioning = FleetProvisioning(tokens: tokens, salt: salt)
        provisioning.rampMilliseconds = arguments.duration("ramp")
        return provisioning
    }

    private static func salt(_ arguments: Arguments) throws -> [UInt8] {
        let salt: String
        if let path = arguments.optionalText("salt-file") {
            salt = try FileSystem.read(path)
        } else if let value = ProcessInfo.processInfo.environment["SERVER_SALT"] {
            salt = value
        } else {
            let path = "\(arguments.text("data"))/server-salt"
            guard FileSystem.exists(path) else {
                throw Failure(
                    "reading SERVER_SALT: it is neither in the environment nor in \(path); name a file with --salt-file"
                )
            }
            salt = try FileSystem.read(path)
        }
        let trimmed = salt.trimmingCharacters(in: .whitespacesAndNewlines)
        guard !trimmed.isEmpty else { throw Failure("reading SERVER_SALT: it is empty") }
        return Array(trimmed.utf8)
    }

    /// A line that is no token is told by its number: what stands in it may be another's secret.
    private static func tokens(in path: String) throws -> [DeviceID] {
        var tokens: [DeviceID] = []
        var number = 0
        func add(_ line: some StringProtocol) throws {
            number += 1
            let text = line.trimmingCharacters(in: .whitespaces)
            guard !text.isEmpty else { return }
            guard let token = DeviceID(text) else {
                throw Failure("reading registration tokens: line \(number) of \(path) is no UUID")
            }
            tokens.append(token)
        }
        if path == "-" {
            while let line = readLine() { try add(line) }
        } else {
            let bytes = try FileSystem.bytes(of: path, limit: 1 << 30)
            let text = String(decoding: bytes, as: UTF8.self)
            for line in text.split(separator: "\n", omittingEmptySubsequences: false) {
                try add(line)
            }
        }
        guard !tokens.isEmpty else {
            throw Failure("reading registration tokens: \(path) has none")
        }
        return tokens
    }

    private static func make(_ count: Int, _ arguments: Arguments) throws -> [DeviceID] {
        let registry = try RegistryAccess.open(arguments, as: "simulate")
        let request = try OperatorRequest(actor: UnixAccount.currentName)
        var tokens: [DeviceID] = []
        tokens.reserveCapacity(count)
        while tokens.count < count {
            let made = try registry.createTokens(
                count: min(batch, count - tokens.count), ttl: tokenLife,
                note: "heartline simulate", by: request)
            tokens += made.compactMap { DeviceID($0.token) }
        }
        return tokens
    }
}
