internal import Glibc
public import TLS

/// The head of a request, lent to a handler; nothing of it outlives the call.
@safe public struct RequestHead: ~Copyable {
    private let bytes: UnsafeRawBufferPointer
    private let facts: HeadFacts

    /// `bytes` must stay where they are for as long as this exists.
    init(_ bytes: UnsafeRawBufferPointer, _ facts: HeadFacts) {
        unsafe self.bytes = bytes
        self.facts = facts
    }

    public var method: Method { facts.method }

    var isHTTP11: Bool { facts.minorVersion > 0 }

    private var pathBytes: UnsafeRawBufferPointer {
        unsafe UnsafeRawBufferPointer(
            rebasing: bytes[facts.pathStart..<(facts.pathStart + facts.pathCount)])
    }

    /// Whether the path, without its query, is exactly this one. Allocates nothing.
    public func pathIs(_ path: StaticString) -> Bool {
        facts.pathCount == path.utf8CodeUnitCount && pathHasPrefix(path)
    }

    /// Whether the path starts with this text. Allocates nothing.
    public func pathHasPrefix(_ prefix: StaticString) -> Bool {
        let count = prefix.utf8CodeUnitCount
        return unsafe facts.pathCount >= count
            && memcmp(pathBytes.baseAddress!, prefix.utf8Start, count) == 0
    }

    /// The path as it came, percent-encoded, without the query. Copies.
    public var path: String { unsafe String(decoding: pathBytes, as: UTF8.self) }

    /// The query as it came, percent-encoded, without the question mark; `nil` without one. Copies.
    public var query: String? {
        let start = facts.pathStart + facts.pathCount
        let end = facts.targetStart + facts.targetCount
        guard start < end else { return nil }
        return unsafe String(decoding: bytes[(start + 1)..<end], as: UTF8.self)
    }

    /// The value of the first header of this name, in whatever case it came. Copies.
    ///
    /// - Parameter name: in lower case.
    public func header(_ name: StaticString) -> String? {
        var found: String?
        forEachHeader(name) {
            found = $0
            return false
        }
        return found
    }

    /// The values of all headers of this name, in order. Copies.
    ///
    /// - Parameter name: in lower case.
    public func headers(_ name: StaticString) -> [String] {
        var found: [String] = []
        forEachHeader(name) {
            found.append($0)
            return true
        }
        return found
    }

    /// - Parameter body: says whether to go on.
    private func forEachHeader(_ name: StaticString, _ body: (String) -> Bool) {
        var position = facts.headersStart
        while unsafe position < bytes.count {
            var end = position
            while unsafe bytes[end] != 0x0D { end += 1 }
            if end == position { return }
            let count = name.utf8CodeUnitCount
            if end - position > count, unsafe bytes[position + count] == 0x3A,
                unsafe equals(
                    UnsafeRawBufferPointer(rebasing: bytes[position..<(position + count)]), name)
            {
                let value = unsafe trimmed(bytes, position + count + 1, end)
                guard unsafe body(String(decoding: value, as: UTF8.self)) else { return }
            }
            position = end + 2
        }
    }
}

/// One request, lent to a handler; nothing of it outlives `handle`.
@safe public struct Request: ~Copyable {
    /// What came before the body.
    public let head: RequestHead
    private let body: UnsafeRawBufferPointer
    private let connection: Connection

    /// The bytes must stay where they are for as long as this exists.
    init(_ head: consuming RequestHead, body: UnsafeRawBufferPointer, _ connection: Connection) {
        self.head = head
        unsafe self.body = body
        self.connection = connection
    }

    public var method: Method { head.method }

    /// Whether the path, without its query, is exactly this one. Allocates nothing.
    public func pathIs(_ path: StaticString) -> Bool { head.pathIs(path) }

    /// Whether the path starts with this text. Allocates nothing.
    public func pathHasPrefix(_ prefix: StaticString) -> Bool { head.pathHasPrefix(prefix) }

    /// The path as it came, percent-encoded, without the query. Copies.
    public var path: String { head.path }

    /// The query as it came, percent-encoded, without the question mark; `nil` without one. Copies.
    public var query: String? { head.query }

    /// The value of the first header of this name, in whatever case it came. Copies.
    ///
    /// - Parameter name: in lower case.
    public func header(_ name: StaticString) -> String? { head.header(name) }

    /// The values of all headers of this name, in order. Copies.
    ///
    /// - Parameter name: in lower case.
    public func headers(_ name: StaticString) -> [String] { head.headers(name) }

    /// Lends the whole body, free of its chunked coding.
    public func withBody<Result>(_ body: (Span<UInt8>) -> Result) -> Result {
        unsafe body(self.body.assumingMemoryBound(to: UInt8.self).span)
    }

    /// The size of the body in bytes.
    public var bodyBytes: Int { unsafe body.count }

    public var clientAddress: ClientAddress { connection.address }

    /// Whether the request came over TLS.
    public var isSecure: Bool { connection.session != nil }

    /// Lends the name that the client's verified certificate gives it (the subject's common name, in
    /// UTF-8, empty where it has none); `nil` without a certificate.
    ///
    /// Allocates nothing after the first time on a connection, and on plain connections never.
    public func withPeerName<Result>(_ body: (Span<UInt8>?) -> Result) -> Result {
        guard connection.session != nil, let name = connection.peerName else { return body(nil) }
        return body(name.span)
    }

    /// Who the client is by its verified certificate; `nil` without one. Copies.
    public var clientCertificate: ClientCertificate? { connection.session?.clientCertificate }
}
