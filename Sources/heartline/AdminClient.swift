import Curl
import Foundation
import System

/// Asks the operators' listener of a running instance, for commands that look at one.
struct AdminClient {
    struct Answer {
        var status: Int
        var body: String
        /// The instance's clock, in milliseconds, to the second; `nil` if it did not tell.
        var date: Int64?
    }

    /// As `run.json` names it, without a slash at its end.
    var url: String
    /// `nil`: what needs one is not asked.
    var token: String?
    /// For the connection, and again for the answer.
    var timeout: Duration = .seconds(3)

    init(url: String, token: String?) {
        self.url = url
        self.token = token
    }

    /// The instance that runs on `data`, with its operators' token where this user may read it.
    /// - Throws: `Failure` if none runs there.
    init(data: String) throws {
        self.init(
            url: try RunFile.read(in: data).admin,
            token: ProcessInfo.processInfo.environment["HEARTLINE_ADMIN_TOKEN"]
                ?? (try? FileSystem.read("\(data)/admin-token"))?
                .trimmingCharacters(in: .whitespacesAndNewlines))
    }

    func get(_ path: String) throws -> Answer {
        let collector = Collector()
        var limits = CurlFetch.Limits()
        limits.connectTimeout = timeout
        limits.timeout = timeout
        var headers: [(name: String, value: String)] = []
        if let token { headers.append(("Authorization", "Bearer \(token)")) }
        let ending = try CurlFetch().run(
            .get, url + path, headers: headers, limits: limits, into: collector)
        guard ending == .complete else {
            throw Failure("asking \(url)\(path): the answer is too large to be one of heartline's")
        }
        return Answer(
            status: collector.status, body: String(decoding: collector.body, as: UTF8.self),
            date: collector.date)
    }

    private final class Collector: CurlFetchReceiver {
        private static let limit = 8 << 20
        var status = 0
        var date: Int64?
        var body: [UInt8] = []
        let goesOn = true

        func allows(address: [UInt8]) -> Bool { true }

        func began(status: Int, headers: [(name: String, value: String)]) -> Bool {
            self.status = status
            if let text = headers.first(where: { $0.name == "date" })?.value {
                let format = DateFormatter()
                format.locale = Locale(identifier: "en_US_POSIX")
                format.timeZone = TimeZone(secondsFromGMT: 0)
                format.dateFormat = "EEE, dd MMM yyyy HH:mm:ss 'GMT'"
                date = format.date(from: text).map { Int64($0.timeIntervalSince1970 * 1_000) }
            }
            return true
        }

        func received(_ bytes: Span<UInt8>) -> Bool {
            for index in bytes.indices { body.append(bytes[index]) }
            return body.count <= Self.limit
        }
    }
}
