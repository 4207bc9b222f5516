public import Bytes
internal import Synchronization

/// An answer that comes later, from any thread: whole, or in pieces.
///
/// Unlike a deferred answer it tells when the client has gone, so that work which only that client
/// wanted can be ended. If the last copy goes away without an answer, the client gets 500.
public struct PendingResponse: Sendable {
    private let ticket: Ticket

    init(_ core: StreamCore) { ticket = Ticket(core) }

    /// False once the client is gone, or the request was answered.
    public var isOpen: Bool { ticket.core.isOpen }

    /// Answers as a whole; only the first answer counts.
    /// - Returns: whether this was the first.
    @discardableResult
    public func respond(
        _ status: Status, contentType: StaticString, headers: [Header] = [], _ body: ByteBuffer
    ) -> Bool {
        guard ticket.take() else { return false }
        return ticket.core.answer(
            LoopMailbox.Answer(
                status: status, contentType: contentType, headers: headers, body: body))
    }

    /// Begins an answer in pieces; `nil` if the request was answered already.
    public func stream(
        _ status: Status, contentType: StaticString, headers: [Header] = []
    ) -> ResponseStream? {
        guard ticket.take() else { return nil }
        ticket.core.begin(
            LoopMailbox.Answer(
                status: status, contentType: contentType, headers: headers, body: ByteBuffer()))
        return ResponseStream(ticket.core)
    }

    private final class Ticket: Sendable {
        let core: StreamCore
        private let isTaken = Atomic(false)

        init(_ core: StreamCore) { self.core = core }

        func take() -> Bool { !isTaken.exchange(true, ordering: .acquiringAndReleasing) }

        deinit {
            guard take() else { return }
            _ = core.answer(
                LoopMailbox.Answer(
                    status: .internalServerError, contentType: ErrorBody.contentType, headers: [],
                    body: ErrorBody.internalError))
        }
    }
}
