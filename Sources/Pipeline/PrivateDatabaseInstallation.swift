internal import Glibc
internal import Foundation
internal import System

/// The PostgreSQL programs of this machine.
struct PostgresInstallation: Hashable {
    var directory: String
    var majorVersion: Int

    func program(_ name: String) -> String { "\(directory)/\(name)" }

    /// The newest installation of at least version 13; of exactly `majorVersion`, if one is given.
    ///
    /// Looks where `pg_config` says, where Debian and the PostgreSQL project's RPMs install it, and
    /// in `PATH`.
    static func find(
        majorVersion wanted: Int? = nil
    ) throws(PrivateDatabase.StartError)
        -> PostgresInstallation
    {
        var seen: Set<String> = []
        let found = candidates.filter { seen.insert($0).inserted }.compactMap(inspect)
            .filter { $0.majorVersion >= 13 && (wanted == nil || $0.majorVersion == wanted) }
        if let newest = found.max(by: { $0.majorVersion < $1.majorVersion }) { return newest }
        if let wanted {
            throw .init(
                .notInstalled,
                """
                its files are of PostgreSQL \(wanted), which is not installed. Run apt-get install \
                postgresql-\(wanted), or name a server with --database
                """)
        }
        throw .init(
            .notInstalled,
            """
            PostgreSQL 13 or newer is not installed. Run apt-get install postgresql, or name a \
            server with --database
            """)
    }

    private static var candidates: [String] {
        let path = ProcessInfo.processInfo.environment["PATH"] ?? "/usr/local/bin:/usr/bin:/bin"
        let directories = path.split(separator: ":").map(String.init)
        var candidates: [String] = []
        if let tool = directories.map({ "\($0)/pg_config" }).first(where: FileSystem.isExecutable),
            let answer = try? ChildProcess.run(ChildProcess.Settings(tool, ["--bindir"]))
        {
            candidates.append(answer.output.trimmingCharacters(in: .whitespacesAndNewlines))
        }
        for (root, tail) in [("/usr/lib/postgresql", "/bin"), ("/usr", "/bin")] {
            let names = (try? FileManager.default.contentsOfDirectory(atPath: root)) ?? []
            for name in names where root != "/usr" || name.hasPrefix("pgsql-") {
                candidates.append("\(root)/\(name)\(tail)")
            }
        }
        return candidates + directories
    }

    /// `postgres (PostgreSQL) 15.20 (Debian …)`; `nil` if it is not a whole server.
    private static func inspect(_ directory: String) -> PostgresInstallation? {
        let programs = ["postgres", "initdb"].map { "\(directory)/\($0)" }
        guard programs.allSatisfy(FileSystem.isExecutable),
            let answer = try? ChildProcess.run(ChildProcess.Settings(programs[0], ["--version"])),
            answer.status == .exited(0)
        else { return nil }
        let words = answer.output.split(whereSeparator: \.isWhitespace)
        guard words.count >= 3, let major = Int(words[2].prefix { $0.isNumber }) else { return nil }
        return PostgresInstallation(directory: directory, majorVersion: major)
    }
}

/// What a running server says of itself in its data directory.
///
/// - SeeAlso: PostgreSQL source, `src/include/utils/pidfile.h`.
struct PostmasterFile: Hashable {
    var processID: Int32
    var port: Int
    var socketDirectory: String

    /// `nil` if no server has left one, or it is not complete yet.
    static func read(_ cluster: String) -> PostmasterFile? {
        guard let text = try? FileSystem.read("\(cluster)/postmaster.pid") else { return nil }
        let lines = text.split(separator: "\n", omittingEmptySubsequences: false)
        guard lines.count >= 5, let process = Int32(lines[0]), let port = Int(lines[3]) else {
            return nil
        }
        return PostmasterFile(
            processID: process, port: port, socketDirectory: String(lines[4]))
    }

    /// Whether the process is a server on `cluster`, and not one that got the id of a dead server.
    func isServer(of cluster: String) -> Bool {
        guard ChildProcess.exists(processID) else { return false }
        return ChildProcess.arguments(of: processID).contains(cluster)
    }

    /// Marks the file as left behind by a dead server when its process id is now another process's,
    /// which PostgreSQL could not tell from a running server.
    ///
    /// The rest of the file stays: PostgreSQL looks in it for shared memory that is still in use.
    static func disown(_ cluster: String, account: UnixAccount?) throws(SystemError) {
        let path = "\(cluster)/postmaster.pid"
        let text = try FileSystem.read(path)
        let rest = text.drop { $0 != "\n" }
        // Beyond the largest process id of Linux, 4,194,304.
        try FileSystem.write("2147483646" + rest, to: path, mode: 0o600)
        if let account { try FileSystem.setOwner(path, account) }
    }
}
