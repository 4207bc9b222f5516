import EventLog
import Ingest

extension FrontEnd {
    /// Where devices send to.
    func url(isSecure: Bool) -> String { Self.url(boundAddress, isSecure: isSecure) }
    /// Where operators look.
    var adminURL: String { adminAddress.map { Self.url($0, isSecure: false) } ?? "" }

    private static func url(_ address: (host: String, port: UInt16), isSecure: Bool) -> String {
        let host = address.host.contains(":") ? "[\(address.host)]" : address.host
        return "\(isSecure ? "https" : "http")://\(host):\(address.port)"
    }
}
