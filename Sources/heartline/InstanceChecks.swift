import HTTP
import Ingest
import System

/// What can be found wrong before anything is started that takes seconds.
enum InstanceChecks {
    /// - Throws: `UsageError` for a malformed prefix.
    static func network(_ arguments: Arguments) throws {
        do throws(RegistryError) {
            try NetworkSettings.check(prefix: arguments.text("network"))
        } catch {
            throw UsageError("--network: \(error.reason)")
        }
    }

    /// - Throws: `HTTPError` if an address cannot be listened on.
    static func addresses(_ settings: Instance.Settings, _ frontEnd: FrontEndSettings?) throws {
        guard !settings.frontEndTakesAnyPort else { return }
        if let frontEnd { try Server.checkFree(frontEnd.server.address) }
        if let updates = frontEnd?.updates?.listener { try Server.checkFree(updates.address) }
        if let admin = frontEnd?.admin ?? settings.admin { try Server.checkFree(admin.address) }
    }
}

/// A data directory as the first start finds it; where there is none yet, a start that fails takes away
/// what it has made.
struct DataFolder {
    private let path: String
    private let isNew: Bool
    private static let lock = "lock"
    private static let ours: Set<String> = [
        lock, "postgres", "log", "spool", "updates", "server-salt", "secret-key", "admin-token",
        "run.json",
    ]

    init(_ path: String) {
        self.path = path
        isNew = !FileSystem.exists(path)
    }

    /// - Parameter isInUse: whether a database that stays may hold what the secrets here have sealed.
    func removeIfNew(isInUse: Bool) {
        guard isNew, let names = try? FileSystem.names(in: path),
            Set(names).isSubset(of: isInUse ? [Self.lock] : Self.ours)
        else { return }
        FileSystem.removeTree(path)
    }
}
