import EventLog
import Ingest
import Metrics

/// A front-end, on whichever log.
protocol RunningFrontEnd: Sendable {
    func start(interrupt: () throws -> Void) throws
    @discardableResult func stop() -> Bool
    func url(isSecure: Bool) -> String
    var adminURL: String { get }
    var updateURL: String? { get }
    func write(to page: inout MetricsPage)
}

extension FrontEnd: RunningFrontEnd {
    /// Where devices send to.
    func url(isSecure: Bool) -> String { Self.url(boundAddress, isSecure: isSecure) }
    /// Where operators look.
    var adminURL: String { adminAddress.map { Self.url($0, isSecure: false) } ?? "" }

    /// Where apps ask for updates, if that is a listener of its own.
    var updateURL: String? { updateAddress.map { Self.url($0, isSecure: false) } }

    private static func url(_ address: (host: String, port: UInt16), isSecure: Bool) -> String {
        listenerURL(address, isSecure: isSecure)
    }
}

extension AdminListener {
    var url: String { listenerURL(boundAddress, isSecure: false) }
}

private func listenerURL(_ address: (host: String, port: UInt16), isSecure: Bool) -> String {
    let host = address.host.contains(":") ? "[\(address.host)]" : address.host
    return "\(isSecure ? "https" : "http")://\(host):\(address.port)"
}
