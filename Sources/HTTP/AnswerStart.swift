internal import Bytes

/// An answer's bytes from its status through `Content-Length: `.
///
/// Handlers give the same status and type over and over, so the bytes of the last answer are kept
/// until the second of its date is over.
final class AnswerStart {
    private(set) var bytes = ByteBuffer()
    private var status: Status?
    /// Where the type's text lies: literals of one place in the code share it.
    private var contentType = 0

    func forget() { status = nil }

    func isFor(_ status: Status, _ contentType: StaticString) -> Bool {
        self.status == status && self.contentType == Self.place(contentType)
    }

    func make(_ status: Status, _ contentType: StaticString, _ dateLine: ByteBuffer) {
        self.status = status
        self.contentType = Self.place(contentType)
        bytes.removeAll()
        bytes.appendStatus(status)
        bytes.append(dateLine)
        bytes.append("Content-Type: ")
        bytes.append(contentType)
        bytes.append("\r\nContent-Length: ")
    }

    // Two literals may start at one place only if one of them is the other's end, and a literal's
    // end is the end of both; so the place alone tells them apart.
    private static func place(_ text: StaticString) -> Int {
        unsafe Int(bitPattern: text.utf8Start)
    }
}

extension ByteBuffer {
    /// `HTTP/1.1 200 OK` with its line end.
    mutating func appendStatus(_ status: Status) {
        append("HTTP/1.1 ")
        append(decimal: Int64(status.rawValue))
        append(" ")
        append(status.reason)
        append("\r\n")
    }
}
