internal import Postgres
public import Schemas

extension Registry {
    /// The forwards of a device, by protocol and port.
    /// - Throws: `RegistryError` of kind `.unknownDevice`.
    public func forwards(of id: DeviceID) throws -> [PortForward] {
        let forwards = try storedForwards(of: id)
        if forwards.isEmpty, try device(id) == nil {
            throw Self.unknown(id, "listing the forwards of a device")
        }
        return forwards
    }

    private func storedForwards(of id: DeviceID) throws -> [PortForward] {
        let rows = try connection.execute(
            """
            SELECT protocol, listen_port, target_host, target_port FROM heartline.forwards \
            WHERE device_id = $1 ORDER BY protocol, listen_port
            """, .uuid(id.high, id.low))
        return try rows.map { row in
            PortForward(
                transport: try row.text(0), listenPort: UInt16(clamping: try row.int4(1)),
                targetHost: try row.text(2), targetPort: UInt16(clamping: try row.int4(3)))
        }
    }

    private struct ForwardsDetails: Encodable {
        var forwards: [PortForward]
    }

    /// Makes `forwards` the forwards of the device; those that it had are gone.
    ///
    /// - Throws: `.badSetting` for a forward that cannot be, or two that contradict each other.
    @discardableResult
    public func setForwards(
        of id: DeviceID, _ forwards: [PortForward], by request: OperatorRequest = .heartline
    ) throws -> DeviceChange {
        let operation = "setting the forwards of a device"
        let wanted = try Self.checked(forwards, operation)
        let change = PlannedChange(
            action: "forward.set", operation: operation, kind: .forwards)
        return try make(change, of: id, ForwardsDetails(forwards: wanted), by: request) { _ in
            try replaceForwards(of: id, try storedForwards(of: id), wanted)
        }
    }

    /// Adds a forward. One that is there already changes nothing.
    ///
    /// - Throws: `.forwardConflict` if its port leads somewhere else.
    @discardableResult
    public func addForward(
        to id: DeviceID, _ forward: PortForward, by request: OperatorRequest = .heartline
    ) throws -> DeviceChange {
        let operation = "adding a forward"
        let wanted = try Self.checked([forward], operation)
        let change = PlannedChange(
            action: "forward.add", operation: operation, kind: .forwards)
        return try make(change, of: id, ForwardsDetails(forwards: wanted), by: request) { _ in
            let stored = try storedForwards(of: id)
            let other = stored.first {
                $0.transport == wanted[0].transport && $0.listenPort == wanted[0].listenPort
            }
            if let other, other != wanted[0] {
                throw RegistryError(
                    operation, .forwardConflict,
                    "\(other.text) is there already; remove it first, or set the whole list")
            }
            return try replaceForwards(
                of: id, stored, try Self.checked(stored + wanted, operation))
        }
    }

    private struct ForwardDetails: Encodable {
        var `protocol`: String
        var listen_port: UInt16
    }

    /// Removes the forward of a port.
    ///
    /// - Parameter transport: `tcp` or `udp`.
    /// - Throws: `.unknownForward` if there is none.
    @discardableResult
    public func removeForward(
        from id: DeviceID, transport: String, listenPort: UInt16,
        by request: OperatorRequest = .heartline
    ) throws -> DeviceChange {
        let operation = "removing a forward"
        let transport = transport.lowercased()
        guard transport == "tcp" || transport == "udp" else {
            throw RegistryError(
                operation, .badSetting, "the protocol of a forward is tcp or udp")
        }
        let change = PlannedChange(
            action: "forward.remove", operation: operation, kind: .forwards)
        let details = ForwardDetails(protocol: transport, listen_port: listenPort)
        return try make(change, of: id, details, by: request) { _ in
            let deleted = try connection.execute(
                """
                DELETE FROM heartline.forwards \
                WHERE device_id = $1 AND protocol = $2 AND listen_port = $3
                """, .uuid(id.high, id.low), .text(transport), .int4(Int32(listenPort)))
            guard deleted.affectedRows == 1 else {
                throw RegistryError(
                    operation, .unknownForward,
                    "the device has no forward \(transport)/\(listenPort)")
            }
            return true
        }
    }

    private static func checked(
        _ forwards: [PortForward], _ operation: String
    ) throws(RegistryError) -> [PortForward] {
        do throws(ForwardFault) {
            return try PortForward.checked(forwards)
        } catch {
            throw RegistryError(operation, .badSetting, error.description)
        }
    }

    /// - Parameter wanted: checked.
    /// - Returns: whether anything differs.
    private func replaceForwards(
        of id: DeviceID, _ stored: [PortForward], _ wanted: [PortForward]
    ) throws -> Bool {
        // Compared by what they mean: rows of another spelling are the same forwards.
        if let known = try? PortForward.checked(stored), known == wanted { return false }
        try connection.execute(
            "DELETE FROM heartline.forwards WHERE device_id = $1", .uuid(id.high, id.low))
        try connection.execute(
            """
            INSERT INTO heartline.forwards \
            (device_id, protocol, listen_port, target_host, target_port) \
            SELECT $1, protocol, listen_port::int4, target_host, target_port::int4 \
            FROM unnest($2::text[], $3::int8[], $4::text[], $5::int8[]) \
            AS wanted (protocol, listen_port, target_host, target_port)
            """,
            .uuid(id.high, id.low), .textArray(wanted.map(\.transport)),
            .int8Array(wanted.map { Int64($0.listenPort) }),
            .textArray(wanted.map(\.targetHost)),
            .int8Array(wanted.map { Int64($0.targetPort) }))
        return true
    }
}
