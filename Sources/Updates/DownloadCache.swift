internal import Bytes
internal import Crypto
internal import Synchronization
internal import System

/// Apps that were downloaded, by what they are: complete ones, and those that broke off.
///
/// - Thread safety: any thread; two downloads of one key must not run at once.
public final class DownloadCache: Sendable {
    public let directory: String
    private let sizeBytes: Int64
    /// How many use a key's file now.
    private let uses = Mutex<[String: Int]>([:])

    /// - Parameter directory: made if it is missing, for its owner only.
    public init(_ directory: String, sizeBytes: Int64) throws {
        try FileSystem.makeDirectory(directory, mode: 0o700)
        self.directory = directory
        self.sizeBytes = sizeBytes
    }

    /// What a file is kept under: the same for everyone who would be sent the same bytes.
    ///
    /// Whoever has a credential of their own shares with nobody who has none.
    public static func key(
        source: UpdateSource, asset: ReleaseAsset, credential: SourceCredential?
    ) -> String {
        var text = ByteBuffer()
        for part in [
            source.description, asset.id, asset.url, asset.fingerprint, credential?.header ?? "",
        ] {
            text.append(decimal: Int64(part.utf8.count))
            text.append(":")
            text.append(text: part)
        }
        return SHA256.hash(text.span).hex
    }

    func path(_ key: String) -> String { "\(directory)/\(key).ipa" }
    func partialPath(_ key: String) -> String { "\(directory)/\(key).part" }
    /// What the server said by which the rest can be asked for.
    func validatorPath(_ key: String) -> String { "\(directory)/\(key).validator" }

    /// The complete file, if it is there; keeps it until `release`.
    public func take(_ key: String) -> String? {
        uses.withLock { uses in
            guard FileSystem.exists(path(key)) else { return nil }
            uses[key, default: 0] += 1
            FileSystem.touch(path(key))
            return path(key)
        }
    }

    public func release(_ key: String) {
        uses.withLock { uses in
            let count = (uses[key] ?? 0) - 1
            uses[key] = count > 0 ? count : nil
        }
    }

    /// Whether the complete file is there.
    public func has(_ key: String) -> Bool { FileSystem.exists(path(key)) }

    func removePartial(_ key: String) {
        FileSystem.remove(partialPath(key))
        FileSystem.remove(validatorPath(key))
    }

    /// Makes a whole partial file the complete one, and makes room.
    func complete(_ key: String) throws(SystemError) {
        try FileSystem.rename(partialPath(key), to: path(key))
        FileSystem.remove(validatorPath(key))
        makeRoom(besides: key)
    }

    /// Removes the oldest complete files, and what broke off longest ago, until the rest is small enough.
    func makeRoom(besides kept: String) {
        struct Entry {
            var name: String
            var size: Int64
            var time: Int64
        }
        let names = (try? FileSystem.names(in: directory)) ?? []
        var entries: [Entry] = []
        for name in names where name.hasSuffix(".ipa") || name.hasSuffix(".part") {
            let path = "\(directory)/\(name)"
            guard let size = FileSystem.fileBytes(path), let time = FileSystem.modified(path)
            else { continue }
            entries.append(Entry(name: name, size: size, time: time))
        }
        var total = entries.reduce(0) { $0 + $1.size }
        for entry in entries.sorted(by: { $0.time < $1.time }) where total > sizeBytes {
            let key = String(entry.name.prefix { $0 != "." })
            guard key != kept else { continue }
            let isRemoved = uses.withLock { uses in
                guard uses[key] == nil else { return false }
                FileSystem.remove("\(directory)/\(entry.name)")
                return true
            }
            if isRemoved { total -= entry.size }
        }
    }

    /// Says that a download of the key runs or ended, so that nobody removes its file.
    func beginUse(_ key: String) { uses.withLock { $0[key, default: 0] += 1 } }
}
