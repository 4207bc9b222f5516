package import Bytes
internal import Crypto

/// A partition's state as it is stored: the processor's bytes between a head that says what they are
/// and a checksum over everything.
///
/// Layout, big endian: magic (8 bytes), format version (4), digest of the pipeline's name (8), offset
/// (8), outbox sequence (8), size of the settings (4), size of the state (8), settings, state,
/// SHA-256 of all before it (32). Version 2, which is written only where it has to be, has the replays
/// of dead letters (`ReplayedRecords`) behind the state.
package struct Snapshot {
    package static let magic: UInt64 = 0x4845_4152_544C_4E53  // "HEARTLNS"
    package static let version: UInt32 = 1
    package static let versionWithReplays: UInt32 = 2
    private static let headBytes = 48
    private static let checksumBytes = 32

    /// The first offset that the state does not include.
    package var offset: Int64
    /// The sequence of the next outbox event at `offset`.
    package var sequence: Int64
    /// The settings in force, as the pipeline file had them.
    package var settings: String
    /// Where the processor's bytes stand in the sealed bytes.
    package var state: Range<Int>
    /// Dead letters that were applied again, those between `offset` and the stored offset included.
    package var replays: ReplayedRecords

    /// Appends a sealed snapshot; `write` appends the state.
    package static func seal(
        pipeline: String, offset: Int64, sequence: Int64, settings: String,
        replays: ReplayedRecords = ReplayedRecords(), into bytes: inout ByteBuffer,
        _ write: (inout ByteBuffer) -> Void
    ) {
        let start = bytes.count
        bytes.appendBigEndian(magic)
        bytes.appendBigEndian(replays.isEmpty ? version : versionWithReplays)
        bytes.appendBigEndian(digest(of: pipeline))
        bytes.appendBigEndian(offset)
        bytes.appendBigEndian(sequence)
        bytes.appendBigEndian(UInt32(settings.utf8.count))
        bytes.appendBigEndian(UInt64(0))
        bytes.append(text: settings)
        let stateStart = bytes.count
        write(&bytes)
        bytes.setBigEndian(UInt64(bytes.count - stateStart), at: start + headBytes - 8)
        replays.append(to: &bytes)
        bytes.append(SHA256.hash(bytes.span.extracting(start..<bytes.count)))
    }

    /// Reads the head and proves the checksum.
    package static func open(
        _ bytes: Span<UInt8>, pipeline: String
    ) throws(SnapshotFault) -> Snapshot {
        guard bytes.count >= headBytes + checksumBytes else { throw .truncated(bytes.count) }
        var reader = ByteReader(bytes)
        guard reader.bigEndian(UInt64.self) == magic else { throw .notASnapshot }
        let version = reader.bigEndian(UInt32.self) ?? 0
        guard version == Self.version || version == versionWithReplays else {
            throw .unknownVersion(version)
        }
        let content = bytes.count - checksumBytes
        var checksum = ByteBuffer()
        checksum.append(SHA256.hash(bytes.extracting(0..<content)))
        for index in 0..<checksumBytes where checksum[index] != bytes[content + index] {
            throw .checksum
        }
        guard reader.bigEndian(UInt64.self) == digest(of: pipeline) else { throw .otherPipeline }
        guard let offset = reader.bigEndian(Int64.self),
            let sequence = reader.bigEndian(Int64.self),
            let settingsSize = reader.bigEndian(UInt32.self),
            let stateSize = reader.bigEndian(UInt64.self),
            let settings = reader.take(Int(settingsSize)),
            stateSize <= UInt64(content - reader.offset)
        else { throw .truncated(bytes.count) }
        let state = reader.offset..<(reader.offset + Int(stateSize))
        guard version == versionWithReplays || state.upperBound == content else {
            throw .truncated(bytes.count)
        }
        let rest = bytes.extracting(state.upperBound..<content)
        guard let replays = ReplayedRecords(decoding: rest) else { throw .state("its replays") }
        return Snapshot(
            offset: offset, sequence: sequence, settings: bytes.extracting(settings).text,
            state: state, replays: replays)
    }

    private static func digest(of pipeline: String) -> UInt64 {
        var digest = ByteBuffer()
        digest.append(SHA256.hash(ByteBuffer(pipeline.utf8).span))
        var value: UInt64 = 0
        for index in 0..<8 { value = value << 8 | UInt64(digest[index]) }
        return value
    }
}

/// Why a stored snapshot cannot be used. It is never rebuilt silently.
package enum SnapshotFault: Error, Hashable, CustomStringConvertible {
    case truncated(Int)
    case notASnapshot
    case unknownVersion(UInt32)
    case checksum
    case otherPipeline
    case state(String)

    package var description: String {
        switch self {
        case .truncated(let size): "it is cut off after \(size) bytes"
        case .notASnapshot: "it does not begin as a snapshot does"
        case .unknownVersion(let version):
            "its format version \(version) is not known to this release"
        case .checksum: "its checksum does not match"
        case .otherPipeline: "it belongs to another pipeline"
        case .state(let reason): "its state cannot be read (\(reason))"
        }
    }
}
