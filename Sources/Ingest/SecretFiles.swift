internal import Bytes
internal import Crypto
internal import Foundation

/// The two secrets of an installation.
public struct ServerSecrets: Sendable, CustomStringConvertible {
    /// `SERVER_SALT` of the agent contract: UTF-8 bytes behind the hardware id in key derivation.
    public let salt: [UInt8]
    /// `HEARTLINE_SECRET_KEY`: 32 bytes under which devices' keys are sealed in PostgreSQL.
    public let secretKey: [UInt8]

    public init(salt: [UInt8], secretKey: [UInt8]) {
        self.salt = salt
        self.secretKey = secretKey
    }

    public var description: String { "ServerSecrets(hidden)" }
}

/// A secret that is missing or malformed; never holds the secret itself.
public struct SecretError: Error, Hashable, Sendable, CustomStringConvertible {
    public var name: String
    public var reason: String
    /// What makes a good one.
    public var remedy: String

    public var description: String { "reading \(name): \(reason); \(remedy)" }
}

/// Where the secrets come from: the environment, or 0600 files of a data directory.
public enum SecretFiles {
    static let saltName = "SERVER_SALT"
    static let keyName = "HEARTLINE_SECRET_KEY"
    static let saltRemedy = "make one with: openssl rand -hex 32"
    static let keyRemedy = "64 hexadecimal digits are needed; make them with: openssl rand -hex 32"
    /// A shorter salt can be guessed.
    static let minimumSaltBytes = 16

    /// Reads both from `environment`, and what is missing there from `directory`.
    ///
    /// - Parameters:
    ///   - directory: must exist if given. What stands nowhere is made there, in files `server-salt`
    ///     and `secret-key` that only their owner can read. `nil`: both must be in the environment.
    public static func load(
        environment: [String: String], directory: String?
    ) throws -> ServerSecrets {
        let salt = try value(
            saltName, environment, directory.map { $0 + "/server-salt" }, saltRemedy)
        guard salt.utf8.count >= minimumSaltBytes else {
            throw SecretError(
                name: saltName,
                reason: "it has \(salt.utf8.count) bytes, fewer than \(minimumSaltBytes)",
                remedy: saltRemedy)
        }
        let keyText = try value(
            keyName, environment, directory.map { $0 + "/secret-key" }, keyRemedy)
        let digits = ByteBuffer(keyText.utf8)
        guard digits.count == 64, let key = Hex.decode(digits.span) else {
            throw SecretError(
                name: keyName, reason: "it is not 64 hexadecimal digits", remedy: keyRemedy)
        }
        return ServerSecrets(salt: Array(salt.utf8), secretKey: key)
    }

    static let adminTokenName = "HEARTLINE_ADMIN_TOKEN"
    static let adminTokenRemedy = "make one with: openssl rand -hex 32"

    /// Reads the operators' token from `environment`, or else from `file`.
    ///
    /// - Parameter makesFile: a file that is missing is made, readable by its owner only.
    /// - Returns: `nil` if there is neither.
    public static func adminToken(
        environment: [String: String], file: String?, makesFile: Bool
    ) throws -> AdminToken? {
        if let text = environment[adminTokenName] { return try AdminToken(text) }
        guard let file else { return nil }
        if let text = try read(file, adminTokenName, adminTokenRemedy) {
            return try AdminToken(text)
        }
        guard makesFile else {
            throw SecretError(
                name: adminTokenName, reason: "\(file) is not there", remedy: adminTokenRemedy)
        }
        let random = try Random.bytes(32)
        let made = Hex.encode(random.span)
        return try AdminToken(try keep(made, file, adminTokenName, adminTokenRemedy))
    }

    static let metricsTokenName = "HEARTLINE_METRICS_TOKEN"

    /// Reads the token that lets in to `/metrics` and nothing else, from `environment`, or else from
    /// `file`.
    /// - Returns: `nil` if there is neither.
    public static func metricsToken(
        environment: [String: String], file: String?
    ) throws -> AdminToken? {
        if let text = environment[metricsTokenName] {
            return try AdminToken(text, named: metricsTokenName)
        }
        guard let file else { return nil }
        guard let text = try read(file, metricsTokenName, adminTokenRemedy) else {
            throw SecretError(
                name: metricsTokenName, reason: "\(file) is not there", remedy: adminTokenRemedy)
        }
        return try AdminToken(text, named: metricsTokenName)
    }

    private static func value(
        _ name: String, _ environment: [String: String], _ path: String?, _ remedy: String
    ) throws -> String {
        if let value = environment[name] { return value }
        guard let path else {
            throw SecretError(
                name: name, reason: "it is not in the environment", remedy: remedy)
        }
        if let text = try read(path, name, remedy) { return text }
        let random = try Random.bytes(32)
        let made = Hex.encode(random.span)
        return try keep(made, path, name, remedy)
    }

    private static func read(_ path: String, _ name: String, _ remedy: String) throws -> String? {
        let attributes: [FileAttributeKey: Any]
        do {
            attributes = try FileManager.default.attributesOfItem(atPath: path)
        } catch CocoaError.fileReadNoSuchFile { return nil }
        let mode = (attributes[.posixPermissions] as? Int) ?? 0
        guard mode & 0o077 == 0 else {
            throw SecretError(
                name: name, reason: "\(path) can be read by others than its owner",
                remedy: "mend it with: chmod 600 \(path)")
        }
        guard let text = String(data: try Data(contentsOf: URL(filePath: path)), encoding: .utf8)
        else {
            throw SecretError(name: name, reason: "\(path) is not text", remedy: remedy)
        }
        return text.trimmingCharacters(in: .whitespacesAndNewlines)
    }

    /// Writes a new file whole and under its name at once, so that two processes that start
    /// together agree on one secret and a crash leaves none by half.
    private static func keep(
        _ text: String, _ path: String, _ name: String, _ remedy: String
    ) throws -> String {
        let draft = "\(path).\(ProcessInfo.processInfo.processIdentifier)"
        let manager = FileManager.default
        defer { try? manager.removeItem(atPath: draft) }
        guard
            manager.createFile(
                atPath: draft, contents: nil, attributes: [.posixPermissions: 0o600]),
            let handle = FileHandle(forWritingAtPath: draft)
        else {
            throw SecretError(
                name: name, reason: "\(draft) cannot be written",
                remedy: "check that the data directory exists and is yours")
        }
        try handle.write(contentsOf: Data((text + "\n").utf8))
        try handle.synchronize()
        try handle.close()
        do {
            try manager.linkItem(atPath: draft, toPath: path)
        } catch {
            // Another process was first.
            if let theirs = try read(path, name, remedy) { return theirs }
            throw error
        }
        return text
    }
}
