internal import Glibc
internal import CSystem

/// A POSIX thread: what blocks runs here and never on Swift's cooperative pool.
public final class SystemThread: Sendable {
    private let handle: pthread_t

    private init(_ handle: pthread_t) { self.handle = handle }

    private final class Body {
        let name: String
        let run: @Sendable () -> Void
        init(_ name: String, _ run: @escaping @Sendable () -> Void) {
            self.name = name
            self.run = run
        }
    }

    /// Starts a thread with a name of at most 15 bytes. Join it exactly once, or detach it.
    public static func start(
        _ name: String, _ body: @escaping @Sendable () -> Void
    ) -> SystemThread {
        var handle = pthread_t()
        let context = unsafe Unmanaged.passRetained(Body(name, body)).toOpaque()
        let result = unsafe pthread_create(
            &handle, nil,
            { context in
                let body = unsafe Unmanaged<Body>.fromOpaque(context!).takeRetainedValue()
                unsafe heartline_set_thread_name(String(body.name.prefix(15)))
                body.run()
                return nil
            }, context)
        precondition(result == 0, "starting a thread: the system has none left")
        return SystemThread(handle)
    }

    public func join() { pthread_join(handle, nil) }

    /// Nobody will wait for its end.
    public func detach() { pthread_detach(handle) }
}
