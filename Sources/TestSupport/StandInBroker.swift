internal import Foundation
internal import System

/// `Tests/Broker/broker.py`: a broker that knows topics, users and TLS, and shares nothing with
/// librdkafka. It keeps no records.
///
/// Its folder is removed and its process ended at the end of its life.
public final class StandInBroker: Sendable {
    /// A request for a topic as the broker has understood it.
    public struct NewTopic: Decodable, Sendable {
        public var name: String
        public var partitions: Int
        public var replication: Int
        public var settings: [String: String]
    }

    private struct Request: Decodable {
        var api: String
        var name: String?
        var partitions: Int?
        var replication: Int?
        var settings: [String: String]?
        var may_create: Bool?
    }

    public let port: Int
    private let folder: String
    private let process: ChildProcess

    /// - Parameter options: those of `broker.py`.
    public init(_ options: [String] = []) throws {
        folder = try FileSystem.makeTemporaryDirectory("/tmp/heartline-broker-")
        let script = URL(filePath: #filePath).deletingLastPathComponent()
            .appending(path: "../../Tests/Broker/broker.py").standardized.path(
                percentEncoded: false)
        process = try ChildProcess.start(
            ChildProcess.Settings("/usr/bin/env", ["python3", script, folder] + options))
        let pause = Waker()
        let end = SystemClock.monotonicMilliseconds() + 120_000
        var found: Int?
        while found == nil, SystemClock.monotonicMilliseconds() < end {
            found = (try? String(contentsOfFile: "\(folder)/port", encoding: .utf8)).flatMap {
                Int($0)
            }
            if found == nil { pause.wait(milliseconds: 20) }
        }
        port = found ?? 0
        guard found != nil else { throw BrokenPromise("the broker did not start") }
    }

    deinit {
        process.send(signal: 9)
        _ = process.wait()
        FileSystem.removeTree(folder)
    }

    /// What clients take as `bootstrap.servers`.
    public var brokers: String { "localhost:\(port)" }

    /// A certificate for `localhost` and 127.0.0.1 that nobody has signed but itself, and its key, as PEM files.
    public static func makeCertificate(
        in folder: String, _ name: String = "broker"
    ) throws -> (certificate: String, key: String) {
        let files = (certificate: "\(folder)/\(name).pem", key: "\(folder)/\(name).key")
        let (status, output) = try ChildProcess.run(
            ChildProcess.Settings(
                "/usr/bin/openssl",
                [
                    "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
                    "-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext",
                    "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", files.key, "-out",
                    files.certificate,
                ]))
        guard case .exited(0) = status else { throw BrokenPromise("openssl: \(output)") }
        return files
    }

    private func requests() throws -> [Request] {
        let text = try String(contentsOfFile: "\(folder)/requests", encoding: .utf8)
        return try text.split(separator: "\n").map {
            try JSONDecoder().decode(Request.self, from: Data($0.utf8))
        }
    }

    /// The topics that were asked for, in the order of their names.
    public func newTopics() throws -> [NewTopic] {
        try requests().compactMap { request in
            guard request.api == "create", let name = request.name else { return nil }
            return NewTopic(
                name: name, partitions: request.partitions ?? 0,
                replication: request.replication ?? 0, settings: request.settings ?? [:])
        }.sorted { $0.name < $1.name }
    }

    /// Whether any request would have made a broker that makes topics by itself make one.
    public func wasAskedToCreateByTheWay() throws -> Bool {
        try requests().contains { $0.may_create == true }
    }
}
