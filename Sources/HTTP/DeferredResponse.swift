public import Bytes
internal import Synchronization

/// An answer that comes later, from any thread.
///
/// If the last copy goes away without an answer, the client gets 500. If the client has gone, the
/// answer is dropped.
public struct DeferredResponse: Sendable {
    private let ticket: Ticket

    init(_ mailbox: LoopMailbox, _ request: RequestID) { ticket = Ticket(mailbox, request) }

    /// Answers; only the first answer counts.
    /// - Returns: whether this was the first.
    @discardableResult
    public func respond(
        _ status: Status, contentType: StaticString, headers: [Header] = [], _ body: ByteBuffer
    ) -> Bool {
        ticket.answer(
            LoopMailbox.Answer(
                status: status, contentType: contentType, headers: headers, body: body))
    }

    /// Opens the WebSocket that was asked for; only the first answer counts.
    func open(_ opening: WebSocketOpening) { ticket.open(opening) }

    private final class Ticket: Sendable {
        private let mailbox: LoopMailbox
        private let request: RequestID
        private let isAnswered = Atomic(false)

        init(_ mailbox: LoopMailbox, _ request: RequestID) {
            self.mailbox = mailbox
            self.request = request
        }

        deinit {
            answer(
                LoopMailbox.Answer(
                    status: .internalServerError, contentType: ErrorBody.contentType, headers: [],
                    body: ErrorBody.internalError))
        }

        @discardableResult
        func answer(_ answer: LoopMailbox.Answer) -> Bool {
            post(.answer(request, answer))
        }

        func open(_ opening: WebSocketOpening) { post(.socketOpened(request, opening)) }

        @discardableResult
        private func post(_ entry: LoopMailbox.Entry) -> Bool {
            guard !isAnswered.exchange(true, ordering: .acquiringAndReleasing) else {
                return false
            }
            mailbox.post(entry)
            return true
        }
    }
}

/// The bodies of answers that the server itself gives.
enum ErrorBody {
    static let contentType: StaticString = "application/json"

    static var internalError: ByteBuffer {
        var body = ByteBuffer()
        body.append("{\"error\":\"internal error\"}")
        return body
    }
}
