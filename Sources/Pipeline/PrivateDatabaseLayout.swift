internal import Foundation
internal import Glibc
internal import System

extension PrivateDatabase {
    /// Where the parts of a private database lie, and whose they are.
    struct Layout {
        /// `DIRECTORY/postgres`, ours.
        let base: String
        /// The user that the server runs as; `nil` is ours.
        let account: UnixAccount?

        var cluster: String { "\(base)/cluster" }
        var lock: String { "\(base)/lock" }
        var startLog: String { "\(base)/start.log" }
        /// Names the socket's directory where it is not `base/socket`.
        private var socketNote: String { "\(base)/socket-directory" }

        /// Makes the directories, and sees whether the server's user can enter them.
        init(_ directory: String) throws {
            if UnixAccount.isRoot {
                guard let postgres = UnixAccount(named: "postgres") else {
                    throw StartError(
                        .notInstalled,
                        "there is no user postgres for it to run as. Run apt-get install postgresql, or name a server with --database"
                    )
                }
                account = postgres
            } else {
                account = nil
            }
            let mode: UInt32 = account == nil ? 0o700 : 0o711
            try FileSystem.makeDirectory(directory, mode: mode)
            base = try FileSystem.realPath(directory) + "/postgres"
            try FileSystem.makeDirectory(base, mode: mode)
            try checkReach()
        }

        /// The version that made the cluster.
        func majorVersion() throws -> Int {
            let text = try FileSystem.read("\(cluster)/PG_VERSION")
            guard let version = Int(text.trimmingCharacters(in: .whitespacesAndNewlines)) else {
                throw StartError(.failed, "\(cluster)/PG_VERSION is damaged")
            }
            return version
        }

        /// Lets the server's user try to enter, as access lists can allow what modes do not.
        private func checkReach() throws {
            guard let account else { return }
            func canEnter(_ path: String) throws(SystemError) -> Bool {
                var command = ChildProcess.Settings("/bin/true")
                command.account = account
                command.workingDirectory = path
                do throws(SystemError) {
                    return try ChildProcess.start(command).wait() == .exited(0)
                } catch {
                    if error.isPermissionDenied { return false }
                    throw error
                }
            }
            if try canEnter(base) { return }
            var path = ""
            for part in base.split(separator: "/") {
                path += "/\(part)"
                if try canEnter(path) { continue }
                throw StartError(
                    .unreachable,
                    "user \(account.name), as whom it runs, cannot enter \(path). Run chmod o+x \(PrivateDatabase.quoted(path)), or choose another --data"
                )
            }
        }

        /// The directory of the socket, whose path has room for 107 bytes only (unix(7)): in the
        /// data directory if that is short enough, else under /tmp.
        func makeSocketDirectory() throws -> String {
            let usual = "\(base)/socket"
            if "\(usual)/.s.PGSQL.5432".utf8.count <= 107 {
                try FileSystem.makeDirectory(usual, mode: 0o700, owner: account)
                return usual
            }
            let owner = account?.userID ?? geteuid()
            if let known = try? FileSystem.read(socketNote),
                let status = FileSystem.status(known), status.isDirectory,
                status.ownerID == owner, status.mode == 0o700
            {
                return known
            }
            let made = try FileSystem.makeTemporaryDirectory("/tmp/heartline-socket-")
            if let account { try FileSystem.setOwner(made, account) }
            try FileSystem.write(made, to: socketNote, mode: 0o600)
            return made
        }

        func removeSocketDirectory(_ directory: String) {
            guard !directory.hasPrefix(base), (try? FileSystem.read(socketNote)) == directory else {
                return
            }
            try? FileManager.default.removeItem(atPath: directory)
            try? FileManager.default.removeItem(atPath: socketNote)
        }
    }

    /// For a shell.
    static func quoted(_ path: String) -> String {
        let isPlain = path.utf8.allSatisfy {
            0x61...0x7A ~= $0 || 0x41...0x5A ~= $0 || 0x2D...0x39 ~= $0 || $0 == 0x5F
        }
        return isPlain
            ? path
            : "'"
                + path.split(separator: "'", omittingEmptySubsequences: false)
                .joined(separator: "'\\''") + "'"
    }
}
