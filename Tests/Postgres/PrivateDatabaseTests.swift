import Foundation
import Glibc
import Pipeline
import Postgres
import System
import Testing

/// A directory that user `postgres` can pass, removed with its end.
private final class Place {
    let path: String

    init(mode: UInt32 = 0o711) throws {
        path = try FileSystem.makeTemporaryDirectory("/tmp/heartline-private-")
        try FileSystem.setMode(path, mode)
    }

    deinit { try? FileManager.default.removeItem(atPath: path) }
}

private var small: PrivateDatabase.Settings {
    var settings = PrivateDatabase.Settings()
    settings.sharedBuffersMegabytes = 16
    settings.maximumConnections = 10
    settings.isDurable = false
    return settings
}

@Suite(.serialized) struct PrivateDatabaseTests {
    private func eventually(_ what: String, _ condition: () throws -> Bool) throws {
        let pause = Waker()
        let start = ContinuousClock.now
        while try !condition() {
            if ContinuousClock.now - start > .seconds(120) {
                Issue.record("never came: \(what)")
                return
            }
            pause.wait(milliseconds: 20)
        }
    }

    /// A server on the private database's files that is nobody's child in the eyes of the next start.
    private func orphan(in place: Place) throws -> (ChildProcess, url: String) {
        let first = try PrivateDatabase.start(directory: place.path, settings: small)
        let process = try #require(first.processID)
        let words = try FileSystem.read("/proc/\(process)/cmdline").split(
            separator: "\0", omittingEmptySubsequences: false
        ).dropLast().map(String.init)
        first.stop()
        var command = ChildProcess.Settings(words[0], Array(words.dropFirst()))
        command.account = UnixAccount.isRoot ? UnixAccount(named: "postgres") : nil
        command.deathSignal = SIGQUIT
        command.output = try FileSystem.openForWriting(place.path + "/output", mode: 0o600)
        defer { FileSystem.close(command.output) }
        return (try ChildProcess.start(command), first.url)
    }

    @Test func itStartsStopsAndKeepsItsData() throws {
        let place = try Place()
        // The directory itself need not be there.
        let directory = place.path + "/data"
        let first = try PrivateDatabase.start(directory: directory, settings: small)
        let process = try #require(first.processID)
        do {
            let connection = try PostgresConnection(first.url)
            for (name, value) in [
                ("listen_addresses", ""), ("data_checksums", "on"), ("server_encoding", "UTF8"),
                ("lc_collate", "C.UTF-8"), ("TimeZone", "UTC"), ("jit", "off"),
                ("shared_buffers", "16MB"), ("max_connections", "10"),
            ] {
                let row = try connection.execute("SHOW \(name)").only()
                #expect(try row.text(0) == value, "\(name)")
            }
            try connection.run("CREATE TABLE t AS SELECT 7::int8 AS x")
            let owner = try #require(FileSystem.status("/proc/\(process)")).ownerID
            #expect(owner != 0, "PostgreSQL refuses root")
            let socket = try #require(FileSystem.status(directory + "/postgres/socket"))
            #expect(socket.mode == 0o700)
            #expect(socket.ownerID == owner)
        }
        let refused = #expect(throws: PrivateDatabase.StartError.self) {
            try PrivateDatabase.start(directory: directory, settings: small)
        }
        #expect(refused?.kind == .inUse)
        first.stop()
        first.stop()
        #expect(!ChildProcess.exists(process))

        // What a dead process left, whose id is another's by now, and a start that was cut off.
        let leftover = directory + "/postgres/cluster/postmaster.pid"
        let us = "\(getpid())\n\(directory)/postgres/cluster\n0\n5432\n/tmp\n\n  1 1\nready\n"
        try FileSystem.write(us, to: leftover, mode: 0o600)
        if let postgres = UnixAccount(named: "postgres"), UnixAccount.isRoot {
            try FileSystem.setOwner(leftover, postgres)
        }
        let second = try PrivateDatabase.start(directory: directory, settings: small)
        #expect(!second.isAdopted)
        #expect(try PostgresConnection(second.url).execute("SELECT x FROM t").only().int8(0) == 7)
    }

    @Test func itIsStartedAgainAfterACrash() throws {
        let place = try Place()
        let database = try PrivateDatabase.start(directory: place.path, settings: small)
        let process = try #require(database.processID)
        ChildProcess.send(signal: SIGKILL, to: process)
        try eventually("an answer of another process") {
            guard let now = database.processID, now != process else { return false }
            return (try? PostgresConnection(database.url)) != nil
        }
    }

    @Test func aServerThatOutlivedUsIsTakenOver() throws {
        let place = try Place()
        let (started, url) = try orphan(in: place)
        let reaper = SystemThread.start("reaper") { _ = started.wait() }
        defer { reaper.join() }
        try eventually("an answer") { (try? PostgresConnection(url)) != nil }
        let second = try PrivateDatabase.start(directory: place.path, settings: small)
        #expect(second.isAdopted)
        #expect(second.processID == started.processID)
        #expect(try PostgresConnection(second.url).execute("SELECT 1").count == 1)
        // Once it ends by itself, another takes its place at the same address.
        started.send(signal: SIGINT)
        try eventually("an answer of another process") {
            guard let now = second.processID, now != started.processID else { return false }
            return (try? PostgresConnection(second.url)) != nil
        }
        second.stop()
        #expect(second.processID == nil)
    }

    @Test func aServerThatWasTakenOverEndsWithUs() throws {
        let place = try Place()
        let (started, url) = try orphan(in: place)
        let reaper = SystemThread.start("reaper") { _ = started.wait() }
        defer { reaper.join() }
        try eventually("an answer") { (try? PostgresConnection(url)) != nil }
        let database = try PrivateDatabase.start(directory: place.path, settings: small)
        #expect(database.isAdopted)
        database.stop()
        // It has ended; until its parent has taken note it is still in the list.
        try eventually("an end") { !ChildProcess.exists(started.processID) }
    }

    @Test func afterAKillOfOursItStartsAgainOnTheSameData() async throws {
        let place = try Place()
        let directory = place.path
        await #expect(processExitsWith: .signal(SIGKILL)) { [directory = directory as String] in
            var settings = PrivateDatabase.Settings()
            settings.sharedBuffersMegabytes = 16
            settings.isDurable = false
            let database = try PrivateDatabase.start(directory: directory, settings: settings)
            try PostgresConnection(database.url).run("CREATE TABLE t AS SELECT 7::int8 AS x")
            let process = try #require(database.processID)
            try FileSystem.write("\(process)", to: directory + "/process", mode: 0o600)
            kill(getpid(), SIGKILL)
        }
        let process = try #require(Int32(try FileSystem.read(directory + "/process")))
        try eventually("the end of the server") { !ChildProcess.exists(process) }
        let database = try PrivateDatabase.start(directory: directory, settings: small)
        #expect(try PostgresConnection(database.url).execute("SELECT x FROM t").only().int8(0) == 7)
    }

    @Test(.enabled(if: UnixAccount.isRoot, "only root's directories keep user postgres out"))
    func aDirectoryThatUserPostgresCannotPassIsRefusedWithTheRemedy() throws {
        let place = try Place(mode: 0o700)
        let inner = place.path + "/it's/data"
        let error = #expect(throws: PrivateDatabase.StartError.self) {
            try PrivateDatabase.start(directory: inner, settings: small)
        }
        #expect(error?.kind == .unreachable)
        #expect(error?.reason.contains("Run chmod o+x \(place.path), or") == true)
        try FileSystem.setMode(place.path, 0o711)
        try FileSystem.setMode(place.path + "/it's", 0o700)
        let next = #expect(throws: PrivateDatabase.StartError.self) {
            try PrivateDatabase.start(directory: inner, settings: small)
        }
        #expect(next?.reason.contains("chmod o+x '\(place.path)/it'\\''s'") == true)
    }

    @Test func aLongPathPutsTheSocketUnderTmp() throws {
        let place = try Place()
        let directory = place.path + "/" + String(repeating: "long path & ", count: 10)
        let database = try PrivateDatabase.start(directory: directory, settings: small)
        #expect(database.url.contains("%2Ftmp%2Fheartline-socket-"))
        let note = directory + "/postgres/socket-directory"
        let socket = try FileSystem.read(note)
        #expect(FileSystem.status(socket)?.mode == 0o700)
        #expect(try PostgresConnection(database.url).execute("SELECT 1").count == 1)
        database.stop()
        #expect(FileSystem.status(socket) == nil)
        #expect(FileSystem.status(note) == nil)
    }
}
