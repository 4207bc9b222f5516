internal import CSystem
internal import Glibc
internal import TLS

extension EventLoop {
    private static let acceptsPerRound = 64

    /// Connections above the limit that are answered 503; more are closed without an answer.
    private var rejectedRoom: Int { limits.connections / 8 + 16 }

    func acceptSome() {
        isAcceptBehind = false
        for _ in 0..<Self.acceptsPerRound {
            guard listener >= 0 else { return }
            var storage = sockaddr_storage()
            var length = socklen_t(MemoryLayout<sockaddr_storage>.size)
            let descriptor = unsafe withUnsafeMutablePointer(to: &storage) {
                unsafe $0.withMemoryRebound(to: sockaddr.self, capacity: 1) {
                    unsafe heartline_accept(listener, $0, &length)
                }
            }
            guard descriptor >= 0 else {
                switch errno {
                case EAGAIN, EINTR: return
                case ECONNABORTED, EPROTO, EPERM, ENETDOWN, ENOPROTOOPT, EHOSTDOWN, ENONET,
                    EHOSTUNREACH, EOPNOTSUPP, ENETUNREACH:
                    // An error of that one connection (accept(2)).
                    continue
                default:
                    // Out of descriptors or memory: the listener stays readable, so watching on
                    // would spin. The clients wait in its queue.
                    pauseAccepting(errno)
                    return
                }
            }
            open(descriptor, ClientAddress(storage))
        }
        isAcceptBehind = true
    }

    private func open(_ descriptor: Int32, _ address: ClientAddress) {
        tally.accepted += 1
        let isRejected = tally.open >= limits.connections
        if isRejected {
            tally.rejected += 1
            if tally.open >= limits.connections + rejectedRoom {
                close(descriptor)
                return
            }
        }
        var session: TLSSession?
        if let tls {
            do throws(TLSError) {
                session = try tls.makeSession(descriptor: descriptor)
            } catch {
                logOnce("accepting a TLS connection", ["error": error.description])
                close(descriptor)
                return
            }
        }
        let slot: UInt32
        if let free = freeSlots.popLast() {
            slot = free
        } else {
            slot = UInt32(connections.count)
            connections.append(nil)
            generations.append(0)
        }
        let patience = isRejected ? limits.lingerMilliseconds : limits.requestMilliseconds
        let connection = Connection(
            descriptor: descriptor, slot: slot, generation: generations[Int(slot)],
            address: address, session: session, deadline: now + patience)
        connection.isRejected = isRejected
        connections[Int(slot)] = connection
        tally.open += 1
        connection.interest = EPOLLIN.rawValue | EPOLLRDHUP.rawValue
        control(EPOLL_CTL_ADD, connection)
        wheel.add(
            TimerWheel.Entry(slot: slot, generation: connection.generation),
            deadline: connection.deadline)
    }

    /// Closes the connection and forgets it; whatever still names it finds nothing.
    func destroy(_ connection: Connection) {
        guard connection.state != .closed else { return }
        connection.state = .closed
        // What it was to be sent must not reach the next one.
        roundCount = 0
        tally.open -= 1
        tally.bytesInFlight -= connection.countedBytes
        let index = Int(connection.slot)
        connections[index] = nil
        generations[index] &+= 1
        freeSlots.append(connection.slot)
        // Closing takes it out of epoll as well: nobody else holds the descriptor.
        close(connection.descriptor)
        connection.input.free()
        connection.held.free()
        connection.output.free()
        let stream = connection.stream
        let upgraded = connection.upgraded
        connection.stream = nil
        connection.upgraded = nil
        connection.webSocket = nil
        stream?.close()
        upgraded?.closed()
    }

    func control(_ operation: Int32, _ connection: Connection) {
        var event = unsafe epoll_event()
        unsafe event.events = connection.interest
        unsafe event.data.u64 = UInt64(connection.generation) << 32 | UInt64(connection.slot)
        let result = unsafe epoll_ctl(poll, operation, connection.descriptor, &event)
        // The kernel has no memory to watch it with; unwatched it would hang until its deadline.
        if result != 0 { connection.deadline = now }
    }

    private func pauseAccepting(_ code: Int32) {
        isAcceptPaused = true
        tally.acceptPauses += 1
        watchListener(0)
        if tally.acceptPauses & 63 == 1 {
            logOnce(
                "accepting connections paused: raise the limit of open files",
                ["error": unsafe String(cString: strerror(code))])
        }
    }

    func resumeAccepting() {
        guard isAcceptPaused, listener >= 0 else { return }
        isAcceptPaused = false
        watchListener(EPOLLIN.rawValue)
    }

    private func watchListener(_ events: UInt32) {
        var event = unsafe epoll_event()
        unsafe event.events = events
        unsafe event.data.u64 = Mark.listener
        unsafe _ = epoll_ctl(poll, EPOLL_CTL_MOD, listener, &event)
    }
}
