import Foundation
import TestSupport
import Testing

@Suite("heartline status") struct StatusTests {
    /// Runs the command on a terminal of `rows` lines, waits for `count` pictures, ends it as Ctrl-C does,
    /// and prints its exit code behind all that it drew.
    private static let terminal = """
        import fcntl, os, pty, signal, struct, sys, termios
        rows, count, command = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
        pid, master = pty.fork()
        if pid == 0:
            os.execv(command[0], command)
        fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, 100, 0, 0))
        seen, isEnding = b"", False
        while True:
            try:
                piece = os.read(master, 65536)
            except OSError:
                break
            if not piece:
                break
            seen += piece
            if not isEnding and seen.count(b"\\x1b[H") >= count:
                isEnding = True
                os.write(master, b"\\x03")
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        sys.stdout.buffer.write(seen + b"\\nexit %d\\n" % status)
        """

    private func watch(
        _ heartline: RunningHeartline, rows: Int, pictures: Int
    ) async throws -> (pictures: [String], end: String) {
        let process = try HeartlineProcess(
            [
                "-c", Self.terminal, "\(rows)", "\(pictures)", Executable.url.path, "status",
                "--watch", "--data", heartline.data,
            ], executable: "/usr/bin/python3")
        let code = await process.waitForEnd()
        let text = process.output().replacing("\r\n", with: "\n")
        #expect(code == 0, "\(process.errors())")
        // Up to where the cursor is shown again.
        let drawn = text.firstRange(of: "\u{1B}[?25h").map { text[..<$0.lowerBound] } ?? text[...]
        let parts = drawn.split(separator: "\u{1B}[H").map(String.init)
        return (Array(parts.dropFirst()), text)
    }

    @Test("--watch draws rates, states, lag and the front-end each second, and ends by Ctrl-C")
    func watched() async throws {
        let heartline = try await RunningHeartline()
        let devices = try await heartline.addDevices(3)
        let load = HeartbeatLoad(.init(devices, connections: 2, perSecond: 50))
        load.send(to: heartline.places.listen)
        try #require(await holds(within: 60) { load.accepted > 20 })
        let (pictures, text) = try await watch(heartline, rows: 60, pictures: 3)
        _ = load.stop()
        let last = try #require(pictures.dropLast().last)
        #expect(last.contains("devices  3 in the registry"))
        #expect(last.contains("healthy"))
        #expect(last.contains("tunnel-health"))
        #expect(last.contains("in, "))
        #expect(last.contains("/s stored"))
        #expect(last.contains("front-end  http://127.0.0.1:"))
        #expect(last.contains("ready"))
        #expect(last.firstMatch(of: /[1-9][0-9.]*\/s heartbeats, half within/) != nil, "\(last)")
        #expect(last.contains("of memory"))
        // The cursor is there again.
        #expect(text.contains("\u{1B}[?25l"))
        #expect(text.hasSuffix("\u{1B}[?25h\nexit 0\n"), "\(text.suffix(80))")
        #expect(await heartline.stop() == 0)
    }

    @Test("a picture has no more lines than the terminal; partitions become a line a pipeline")
    func small() async throws {
        let heartline = try await RunningHeartline()
        let (pictures, _) = try await watch(heartline, rows: 8, pictures: 3)
        for picture in pictures.dropFirst() {
            #expect(picture.split(separator: "\n", omittingEmptySubsequences: false).count <= 8)
        }
        #expect(pictures.contains { $0.contains("partitions") })
        #expect(await heartline.stop() == 0)
    }

    @Test("without a terminal it is plain, and a database that goes away is waited for")
    func plain() async throws {
        let server = try TestServer()
        defer { server.remove() }
        let database = try server.makeDatabase(isMigrated: false)
        let heartline = try await RunningHeartline(["--database", database.url])
        let process = try HeartlineProcess(["status", "--watch", "--data", heartline.data])
        #expect(await holds(within: 60) { process.output().contains("/s stored") })
        server.stop()
        #expect(
            await holds(within: 60) {
                process.errors().contains("The database does not answer")
            })
        let before = process.output().count
        try server.start()
        #expect(await holds(within: 120) { process.output().count > before })
        process.send(SIGINT)
        #expect(await process.waitForEnd() == 0)
        #expect(!process.output().contains("\u{1B}"))
        #expect(await heartline.stop() == 0)
    }
}
