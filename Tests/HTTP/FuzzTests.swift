import Bytes
import HTTP
import Testing

@Suite struct FuzzTests {
    private static let pieces: [String] = [
        "GET /hello HTTP/1.1\r\n", "POST /echo HTTP/1.1\r\n", "HEAD ", "/", " ", "HTTP/1.1",
        "Host: a\r\n", "Host:", "Content-Length: 3\r\n", "Content-Length: 99999\r\n",
        "Transfer-Encoding: chunked\r\n", "Expect: 100-continue\r\n", "Connection: close\r\n",
        "Connection: Upgrade\r\nUpgrade: x\r\n", "\r\n", "\r\n\r\n", "\r", "\n", ":", "\t",
        "3\r\nabc\r\n", "0\r\n\r\n", "ffffffff\r\n", ";x=y", "abc", "\0", "é", "?q=1",
    ]

    /// Bytes that look somewhat like HTTP.
    private func garbage(_ random: inout SeededRandom) -> [UInt8] {
        var bytes: [UInt8] = []
        for _ in 0..<Int.random(in: 1...14, using: &random) {
            if Int.random(in: 0..<10, using: &random) == 0 {
                for _ in 0..<Int.random(in: 1...20, using: &random) {
                    bytes.append(UInt8.random(in: 0...255, using: &random))
                }
            } else {
                bytes += Array(Self.pieces.randomElement(using: &random)!.utf8)
            }
        }
        return bytes
    }

    @Test(
        "Heads and chunks of any bytes are judged alike however they are split",
        arguments: 0..<UInt64(8))
    func pureParts(seed: UInt64) {
        var random = SeededRandom(seed: seed)
        for _ in 0..<3000 {
            let bytes = garbage(&random)
            let split = Int.random(in: 0...bytes.count, using: &random)
            unsafe bytes.withUnsafeBytes { bytes in
                let first = unsafe UnsafeRawBufferPointer(rebasing: bytes[..<split])
                var whole = HeadSearch()
                var parts = HeadSearch()
                let expected = unsafe whole.advance(over: bytes)
                var found = unsafe parts.advance(over: first)
                if found == .incomplete { found = unsafe parts.advance(over: bytes) }
                #expect(found == expected, "seed \(seed)")
                if case .complete(let start, let end) = expected {
                    let head = unsafe UnsafeRawBufferPointer(rebasing: bytes[start..<end])
                    if let facts = unsafe try? HeadFacts.parse(head) {
                        #expect(facts.pathStart >= facts.targetStart)
                        #expect(
                            facts.pathStart + facts.pathCount
                                <= facts.targetStart + facts.targetCount)
                        #expect(!(facts.isChunked && facts.contentLength >= 0))
                    }
                }
                let all = unsafe decode([bytes])
                let rest = unsafe UnsafeRawBufferPointer(rebasing: bytes[split...])
                #expect(unsafe decode([first, rest]) == all, "seed \(seed)")
            }
        }
    }

    private struct Decoded: Equatable {
        var outcome = ChunkedDecoder.Outcome.incomplete
        var taken = 0
        var data: [UInt8] = []
    }

    private func decode(_ parts: [UnsafeRawBufferPointer]) -> Decoded {
        var decoder = ChunkedDecoder()
        var result = Decoded()
        for index in unsafe parts.indices where result.outcome == .incomplete {
            let part = unsafe parts[index]
            var data: [UInt8] = []
            let (outcome, taken) = unsafe decoder.advance(over: part, limit: 1000) {
                unsafe data.append(contentsOf: $0)
            }
            result.outcome = outcome
            result.taken += taken
            result.data += data
        }
        return result
    }

    @Test("Pipelined requests are answered alike however they are split", arguments: 0..<UInt64(20))
    func randomSplits(seed: UInt64) throws {
        let server = try TestServer()
        let client = try server.connect()
        var random = SeededRandom(seed: seed)
        var bytes: [UInt8] = []
        var bodies: [[UInt8]] = []
        for _ in 0..<60 {
            let size = [0, 1, 10, 1000, 40_000].randomElement(using: &random)!
            let body = (0..<size).map { _ in UInt8.random(in: 0...255, using: &random) }
            bodies.append(body)
            var head = "POST /echo HTTP/1.1\r\nHost: a\r\n"
            if Bool.random(using: &random) {
                bytes += Array((head + "Content-Length: \(size)\r\n\r\n").utf8) + body
                continue
            }
            head += "Transfer-Encoding: chunked\r\n\r\n"
            bytes += Array(head.utf8)
            var rest = body[...]
            while !rest.isEmpty {
                let chunk = rest.prefix(Int.random(in: 1...20_000, using: &random))
                bytes += Array("\(String(chunk.count, radix: 16))\r\n".utf8) + chunk
                bytes += [0x0D, 0x0A]
                rest = rest.dropFirst(chunk.count)
            }
            bytes += Array("0\r\n\r\n".utf8)
        }
        var sent = 0
        var answered = 0
        while sent < bytes.count {
            let longest = [1, 10, 100, 100_000].randomElement(using: &random)!
            let count = min(bytes.count - sent, Int.random(in: 1...longest, using: &random))
            client.send(Array(bytes[sent..<(sent + count)]))
            sent += count
            // Reads on the way, so that neither side waits for the other for ever.
            while answered < bodies.count, sent > answered * 300_000 + 200_000 {
                #expect(try client.readAnswer().body == bodies[answered], "seed \(seed)")
                answered += 1
            }
        }
        while answered < bodies.count {
            #expect(try client.readAnswer().body == bodies[answered], "seed \(seed)")
            answered += 1
        }
    }

    @Test("Thousands of connections of garbage leave nothing behind", arguments: 0..<UInt64(4))
    func garbageConnections(seed: UInt64) throws {
        let server = try TestServer(loops: 2) {
            $0.requestMilliseconds = 1000
            $0.lingerMilliseconds = 1000
            $0.idleMilliseconds = 1000
        }
        var random = SeededRandom(seed: seed)
        for _ in 0..<800 {
            let client = try server.connect()
            for _ in 0..<Int.random(in: 1...3, using: &random) {
                client.send(garbage(&random))
            }
            switch Int.random(in: 0..<3, using: &random) {
            case 0: client.reset()
            case 1: client.endOutput()
            default: break
            }
        }
        #expect(server.isAlive())
        #expect(eventually { server.server.counters.connectionsOpen == 0 })
        #expect(server.server.counters.bytesInFlight == 0)
    }
}
