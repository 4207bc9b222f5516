import Bytes
import Curl
import Foundation
import HTTP
import Ingest
import Synchronization
import System
import Updates

/// A source whose one app never comes to its end.
private final class EndlessSource: RequestHandler {
    private let streams: StreamList

    final class StreamList: Sendable {
        let all = Mutex<[ResponseStream]>([])
    }

    init(_ streams: StreamList) { self.streams = streams }

    func handle(_ request: borrowing Request, _ exchange: borrowing Exchange) {
        let headers = [Header("ETag", "\"one\"")]
        if request.method == .head {
            var body = ByteBuffer()
            body.append("PK")
            exchange.respond(
                .ok, contentType: "application/octet-stream", headers: headers, body.span)
        } else {
            let stream = exchange.stream(
                .ok, contentType: "application/octet-stream", headers: headers)
            stream.write(ByteBuffer([0x50, 0x4B, 0x03, 0x04]))
            streams.all.withLock { $0.append(stream) }
        }
    }
}

extension Bench {
    /// Not for people: the process that reads the streams, whose addresses come on its standard input.
    static let streamReader = "stream-reader"

    /// Streams of updates side by side: memory of one, and how long its first event takes.
    static func updates(_ count: Int) throws {
        say("App updates: \(count) streams at once")
        let streams = EndlessSource.StreamList()
        let source = try Server(
            configuration: ServerConfiguration(host: "127.0.0.1", port: 0, name: "source")
        ) { _ in EndlessSource(streams) }
        try source.start()
        defer { source.stop() }
        let bench = try BenchAgents()
        defer { bench.remove() }
        try bench.startFrontEnd { directory in
            var settings = UpdateSettings(directory: directory)
            settings.configuration.allowedHosts = ["127.0.0.1"]
            settings.configuration.sources.silence = 600_000
            settings.configuration.installer = .init(sign: ["/bin/true"], install: ["/bin/true"])
            settings.maximumJobs = count + 1
            return settings
        }
        guard let address = bench.frontEnd?.boundAddress else { return }
        let url = "http://127.0.0.1:\(source.boundAddress.port)/app.ipa"
        let request = try OperatorRequest(actor: "bench")
        var lines = ""
        for number in 0..<count {
            let made = try bench.registry.addInstallation(
                .init(device: "device-\(number)", app: "Example", source: url), by: request)
            lines += "http://\(address.host):\(address.port)/api/app/\(made.token ?? "")/update\n"
        }
        let reader = Process()
        reader.executableURL = URL(fileURLWithPath: "/proc/self/exe").resolvingSymlinksInPath()
        reader.arguments = ["bench", streamReader, "--streams", "\(count)"]
        let (input, output) = (Pipe(), Pipe())
        reader.standardInput = input
        reader.standardOutput = output
        let before = anonymousBytes()
        try reader.run()
        try input.fileHandleForWriting.write(contentsOf: Data(lines.utf8))
        try input.fileHandleForWriting.close()
        let said = output.fileHandleForReading.availableData
        let memory = anonymousBytes() - before
        say("  memory: \(memory / count) bytes a stream, everything counted")
        note("memory of a stream of updates", Double(memory / count), "bytes")
        say(String(decoding: said, as: UTF8.self).trimmingCharacters(in: .newlines))
        reader.terminate()
        reader.waitUntilExit()
    }

    /// Opens all streams, one after another, and tells how long their first events took.
    static func readStreams(_ count: Int) throws {
        let urls = String(decoding: FileHandle.standardInput.readDataToEndOfFile(), as: UTF8.self)
            .split(separator: "\n").map(String.init)
        let board = FirstEvents()
        let pause = Waker()
        for url in urls.prefix(count) {
            SystemThread.start("stream") {
                guard let fetch = try? CurlFetch() else { return }
                var limits = CurlFetch.Limits()
                limits.silence = .seconds(3_600)
                _ = try? fetch.run(.get, url, limits: limits, into: FirstEvent(board))
            }.detach()
            // A few hundred a second: what is measured is the server and not this process's start.
            pause.wait(milliseconds: 3)
        }
        let deadline = SystemClock.monotonicMilliseconds() + 120_000
        while board.times.withLock({ $0.count }) < count,
            SystemClock.monotonicMilliseconds() < deadline
        {
            pause.wait(milliseconds: 10)
        }
        let times = board.times.withLock { $0.sorted() }
        guard !times.isEmpty else { throw Failure("measuring streams: none had an event") }
        func shown(_ share: Double) -> String {
            let value = times[min(times.count - 1, Int(Double(times.count) * share))]
            return String(format: "%.1f ms", Double(value) / 1e6)
        }
        print(
            "  first event: p50 \(shown(0.5)), p99 \(shown(0.99)), of \(times.count) streams; wanted: under 50 ms"
        )
        fflush(nil)
        pause.wait(milliseconds: 600_000)
    }
}

private final class FirstEvents: Sendable {
    let times = Mutex<[UInt64]>([])
}

/// Notes when the first bytes of a stream came.
private final class FirstEvent: CurlFetchReceiver {
    private let board: FirstEvents
    private let start = SystemClock.monotonicNanoseconds()
    private var isNoted = false

    init(_ board: FirstEvents) { self.board = board }

    func allows(address: [UInt8]) -> Bool { true }
    func began(status: Int, headers: [(name: String, value: String)]) -> Bool { status == 200 }

    func received(_ bytes: Span<UInt8>) -> Bool {
        if !isNoted {
            isNoted = true
            let time = SystemClock.monotonicNanoseconds() - start
            board.times.withLock { $0.append(time) }
        }
        return true
    }

    var goesOn: Bool { true }
}
