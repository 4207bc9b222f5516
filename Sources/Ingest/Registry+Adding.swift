internal import Bytes
internal import Crypto
internal import Foundation
internal import Postgres
public import Schemas
internal import Synchronization
internal import System

extension Registry {
    /// Devices that are added at once.
    public static let maximumAddition = 1_000_000

    /// Adds devices with keys of their own and the next free addresses, in one transaction that
    /// also tells of them.
    ///
    /// Key pairs cost about 70 µs each and are made on all cores: a million takes the better part of
    /// a minute on two.
    /// - Parameters:
    ///   - count: from 1 to `maximumAddition`.
    ///   - expectedInterval: the devices' own heartbeat interval, 1 s to 7 d; `nil`: the fleet's.
    ///   - request: who adds them.
    /// - Returns: their ids.
    /// - Throws: `RegistryError` of kind `.poolFull` if there are too few free addresses; then
    ///   nothing was added.
    public func addDevices(
        count: Int, expectedInterval: Duration? = nil, by request: OperatorRequest = .heartline
    ) throws -> [DeviceID] {
        guard count >= 1, count <= Self.maximumAddition else {
            throw RegistryError(
                "adding devices", .badSetting,
                "\(count) devices are not 1 to \(Self.maximumAddition)")
        }
        let interval = try expectedInterval.map { try Self.milliseconds($0, "adding devices") }
        let details = AddingDetails(count: count, expected_interval_ms: interval)
        let action = "device.add"
        // A repeated request must not make keys, of which a million take a minute.
        if let known: DevicesAdded = try earlierAnswer(action, of: "", details, by: request) {
            return known.ids
        }
        // Before the transaction: nobody has to wait for the keys.
        let shares = try NewDevices.make(count: count, secretKey: secretKey)
        var added: [DeviceID] = []
        let answer = try audited(action, of: "", details, by: request) { locked in
            let (pool, network) = locked
            let addresses = try allocate(count, in: pool)
            let sequence = try reserveOutbox(3 * count)
            try copyDevices(shares, addresses, interval)
            try copyOutbox(shares, addresses, interval, network, request, firstSequence: sequence)
            try connection.run("NOTIFY heartline_outbox")
            added = shares.flatMap { $0.devices.map(\.device) }
            // The ids are there for a repeat of the request; a million of them nobody reads.
            return DevicesAdded(
                count: count, device_ids: request.id == nil ? nil : added.map(\.description))
        }
        return added.isEmpty ? answer.ids : added
    }

    private struct AddingDetails: Encodable {
        var count: Int
        var expected_interval_ms: Int64?
    }

    private struct DevicesAdded: Codable {
        var count: Int
        var device_ids: [String]?

        var ids: [DeviceID] { (device_ids ?? []).compactMap { DeviceID($0) } }
    }

    /// Free addresses.
    private func allocate(_ count: Int, in pool: AddressPool) throws -> [UInt32] {
        let highest = try connection.execute(Self.highestAddress)
        let last = try highest.first.flatMap { AddressPool.parse(try $0.text(0)) }
        let addresses = try freeAddresses(atMost: count, above: last, in: pool)
        if addresses.count == count { return addresses }
        throw RegistryError(
            "adding devices", .poolFull(free: Int64(addresses.count)),
            "\(count) addresses are needed and \(addresses.count) of "
                + "\(AddressPool.text(pool.network))/\(pool.bits) are free; use a larger prefix")
    }

    /// Sequences of the registry's outbox, in one piece; the network's lock keeps others out.
    private func reserveOutbox(_ count: Int) throws -> Int64 {
        let first = try connection.execute(
            "SELECT nextval('heartline.registry_outbox_sequence')"
        ).only().int8(0)
        if count > 1 {
            try connection.execute(
                "SELECT setval('heartline.registry_outbox_sequence', $1)",
                .int8(first + Int64(count) - 1))
        }
        return first
    }

    private static var pieceBytes: Int { 1 << 20 }

    private func copyDevices(
        _ shares: [NewDevices], _ addresses: [UInt32], _ interval: Int64?
    ) throws {
        try connection.copyIn(
            """
            COPY heartline.devices (device_id, internal_address, public_key, sealed_secrets, \
            expected_interval) FROM STDIN (FORMAT binary)
            """
        ) { (writer) throws(PostgresError) in
            var tuples = ByteBuffer()
            var address = addresses.makeIterator()
            for share in shares {
                for (index, device) in share.devices.enumerated() {
                    tuples.appendBigEndian(Int16(5))
                    tuples.appendBigEndian(Int32(16))
                    tuples.appendBigEndian(device.device.high)
                    tuples.appendBigEndian(device.device.low)
                    // inet: family (IPv4), bits, not a cidr, size, address.
                    tuples.appendBigEndian(Int32(8))
                    tuples.append([2, 32, 0, 4])
                    tuples.appendBigEndian(address.next()!)
                    tuples.appendBigEndian(Int32(64))
                    tuples.append(hex: device.publicKey)
                    let start = index * NewDevices.sealedBytes
                    tuples.append(
                        field: share.sealed.span.extracting(
                            start..<(start + NewDevices.sealedBytes)))
                    if let interval {
                        tuples.appendBigEndian(Int32(16))
                        tuples.appendBigEndian(interval * 1_000)
                        tuples.appendBigEndian(Int64(0))
                    } else {
                        tuples.appendBigEndian(Int32(-1))
                    }
                    if tuples.count >= Self.pieceBytes {
                        try writer.write(tuples.span)
                        tuples.removeAll()
                    }
                }
            }
            if !tuples.isEmpty { try writer.write(tuples.span) }
        }
    }

    private func copyOutbox(
        _ shares: [NewDevices], _ addresses: [UInt32], _ interval: Int64?,
        _ network: NetworkConfiguration, _ request: OperatorRequest, firstSequence: Int64
    ) throws {
        let time = EventTime(milliseconds: SystemClock.wallMilliseconds()).postgresMicroseconds
        try connection.copyIn(
            """
            COPY heartline.outbox (source, partition, sequence, topic, key, value, record_time) \
            FROM STDIN (FORMAT binary)
            """
        ) { (writer) throws(PostgresError) in
            var tuples = ByteBuffer()
            var key = ByteBuffer()
            var value = ByteBuffer()
            var sequence = firstSequence
            func append(_ topic: StaticString) {
                tuples.appendBigEndian(Int16(7))
                tuples.append(field: "registry")
                tuples.appendBigEndian(Int32(4))
                tuples.appendBigEndian(Int32(0))
                tuples.appendBigEndian(Int32(8))
                tuples.appendBigEndian(sequence)
                tuples.append(field: topic)
                tuples.append(field: key.span)
                tuples.append(field: value.span)
                tuples.appendBigEndian(Int32(8))
                tuples.appendBigEndian(time)
                sequence += 1
            }
            var address = addresses.makeIterator()
            for device in shares.lazy.flatMap({ $0.devices }) {
                key.removeAll()
                key.append(device.device)
                value.removeAll()
                value.append(
                    Lifecycle(
                        device: device.device, kind: .provisioned, version: 1,
                        expectedIntervalMilliseconds: interval))
                append("heartbeats")
                let change = ConfigChange(
                    device: device.device, kind: .provisioned, version: 1, isSuspended: false,
                    actor: request.actor, requestID: request.id,
                    tunnel: device.tunnel(address: address.next()!, network),
                    forwards: [])
                value.removeAll()
                value.append(change)
                append("config-changes")
                value.removeAll()
                value.append(
                    bellOf: device.device, version: 1, change.hashes, isSuspended: false)
                append("device-configs")
                if tuples.count >= Self.pieceBytes {
                    try writer.write(tuples.span)
                    tuples.removeAll()
                }
            }
            if !tuples.isEmpty { try writer.write(tuples.span) }
        }
    }
}

extension ByteBuffer {
    /// A field of a binary COPY.
    fileprivate mutating func append(field bytes: Span<UInt8>) {
        appendBigEndian(Int32(bytes.count))
        append(bytes)
    }

    fileprivate mutating func append(field text: StaticString) {
        appendBigEndian(Int32(text.utf8CodeUnitCount))
        append(text)
    }
}

/// A device that is about to be added.
private struct NewDevice: Sendable {
    var device: DeviceID
    /// 32 bytes, public.
    var publicKey: Digest
    var privateKeyFingerprint: Digest
    var presharedKeyFingerprint: Digest

    /// Appends the sealed secrets to `sealed`.
    init(box: SecretBox, sealed: inout ByteBuffer) throws(CryptoError) {
        device = try DeviceID.random()
        let pair = try X25519KeyPair.generate()
        let presharedKey = try Random.bytes(32)
        publicKey = Digest(bytes: pair.publicKey.span)
        try box.seal(
            DeviceSecrets(privateKey: pair.privateKey, presharedKey: presharedKey), of: device,
            into: &sealed)
        privateKeyFingerprint = SHA256.hash(pair.privateKey.span)
        presharedKeyFingerprint = SHA256.hash(presharedKey.span)
    }

    func tunnel(address: UInt32, _ network: NetworkConfiguration) -> TunnelConfiguration {
        TunnelConfiguration(
            internalAddress: AddressPool.text(address),
            privateKeyFingerprint: privateKeyFingerprint,
            presharedKeyFingerprint: presharedKeyFingerprint, network: network)
    }
}

/// Devices that are about to be added, without an allocation for each: a million take 0.2 GB.
private struct NewDevices: Sendable {
    private(set) var devices: [NewDevice] = []
    /// Their sealed secrets, one after another, all of the same size.
    private(set) var sealed = ByteBuffer()

    static let sealedBytes = 64 + AESGCM.overheadBytes

    init(count: Int, box: SecretBox) throws(CryptoError) {
        devices.reserveCapacity(count)
        sealed.reserveCapacity(count * Self.sealedBytes)
        for _ in 0..<count { devices.append(try NewDevice(box: box, sealed: &sealed)) }
    }

    /// Makes them on as many threads as there are cores, a share on each.
    static func make(count: Int, secretKey: [UInt8]) throws -> [NewDevices] {
        let shares = max(1, min(ProcessInfo.processInfo.activeProcessorCount, count / 64))
        let made = Mutex<[NewDevices]>([])
        let failure = Mutex<(any Error)?>(nil)
        let makeShare = { @Sendable (_ share: Int) in
            do {
                let size = count / shares + (share < count % shares ? 1 : 0)
                let devices = try NewDevices(count: size, box: try SecretBox(key: secretKey))
                made.withLock { $0.append(devices) }
            } catch {
                failure.withLock { $0 = error }
            }
        }
        if shares == 1 {
            makeShare(0)
        } else {
            let threads = (0..<shares).map { share in
                SystemThread.start("device-keys") { makeShare(share) }
            }
            for thread in threads { thread.join() }
        }
        if let error = failure.withLock({ $0 }) { throw error }
        return made.withLock { $0 }
    }
}
