import Bytes
import Foundation
import HTTP
import System
import TLS
import Testing

@Suite struct WebSocketTests {
    private typealias Frame = WebSocketClient.Frame

    // MARK: Handshake

    @Test("The handshake answers the key as RFC 6455 says, and names the subprotocol")
    func handshake() throws {
        let server = try SocketServer()
        let client = try RawClient(port: server.port)
        let answer = try client.request(
            WebSocketClient.handshake(
                "/echo?chat.v2",
                changing: ["Connection": "keep-alive, Upgrade", "Upgrade": "h2c, WebSocket"]))
        #expect(answer.status == 101)
        #expect(answer.headers["sec-websocket-accept"] == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=")
        #expect(answer.headers["upgrade"] == "websocket")
        #expect(answer.headers["connection"] == "Upgrade")
        #expect(answer.headers["sec-websocket-protocol"] == "chat.v2")
    }

    @Test(
        "A handshake that asks for something else is refused",
        arguments: [
            ("Upgrade", nil, 426), ("Upgrade", "h2c", 426), ("Connection", nil, 426),
            ("Connection", "keep-alive", 426), ("Sec-WebSocket-Version", nil, 426),
            ("Sec-WebSocket-Version", "8", 426), ("Sec-WebSocket-Key", nil, 400),
            ("Sec-WebSocket-Key", "c2hvcnQ=", 400),
            ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ!!", 400),
        ] as [(String, String?, Int)])
    func refusedHandshake(name: String, value: String?, status: Int) throws {
        let server = try SocketServer()
        let client = try RawClient(port: server.port)
        let answer = try client.request(WebSocketClient.handshake(changing: [name: value]))
        #expect(answer.status == status)
        if status == 426 {
            #expect(answer.headers["sec-websocket-version"] == "13")
            #expect(answer.headers["upgrade"] == "websocket")
        }
        // The connection stays good for a next try.
        #expect(try client.request(WebSocketClient.handshake()).status == 101)
        #expect(eventually { server.counters.webSocketsOpened == 1 })
    }

    @Test("A POST and HTTP/1.0 open no WebSocket")
    func refusedMethod() throws {
        let server = try SocketServer()
        let handshake = WebSocketClient.handshake()
        for (from, to) in [("GET", "POST"), ("HTTP/1.1", "HTTP/1.0")] {
            let client = try RawClient(port: server.port)
            let answer = try client.request(
                handshake.replacingOccurrences(of: from, with: to))
            #expect(answer.status == 426)
        }
    }

    // MARK: Messages

    @Test(
        "Text and binary of every length of head come back whole, and unmasked",
        arguments: [0, 1, 125, 126, 127, 4095, 4096, 4097, 65_535, 65_536, 300_000])
    func echo(size: Int) throws {
        let server = try SocketServer(sockets: { $0.messageBytes = 300_000 })
        let client = try WebSocketClient(server)
        let binary = (0..<size).map { UInt8(truncatingIfNeeded: $0 &* 7) }
        client.send(2, binary)
        #expect(try client.read() == Frame(opcode: 2, payload: binary))
        let text = [UInt8](repeating: 0x78, count: size)
        client.send(1, text)
        #expect(try client.read() == Frame(opcode: 1, payload: text))
        #expect(eventually { server.counters.webSocketMessagesSent == 2 })
        #expect(server.counters.webSocketMessagesReceived == 2)
        #expect(server.counters.webSocketBytesReceived == 2 * size)
        #expect(server.counters.webSocketBytesSent == 2 * size)
        #expect(server.counters.webSocketsOpen == 1)
    }

    @Test("Frames that come with the handshake are served")
    func pipelined() throws {
        let server = try SocketServer()
        let raw = try RawClient(port: server.port)
        raw.send(
            Array(WebSocketClient.handshake().utf8)
                + WebSocketClient.bytes(9, [1, 2]) + WebSocketClient.bytes(1, [0x61]))
        #expect(try raw.readHead().status == 101)
        #expect(try raw.read(4) == [0x8A, 2, 1, 2])
        #expect(try raw.read(3) == [0x81, 1, 0x61])
    }

    @Test("A message in fragments comes whole, with pings answered in between")
    func fragments() throws {
        let server = try SocketServer()
        let client = try WebSocketClient(server)
        client.send(1, Array("he".utf8), isFinal: false)
        client.send(9, [9, 9])
        client.send(0, [], isFinal: false)
        client.send(10, [7])
        client.send(0, Array("llo".utf8))
        #expect(try client.read() == Frame(opcode: 10, payload: [9, 9]))
        #expect(try client.read() == .text("hello"))
    }

    @Test("Frames cut anywhere, also in their heads and in control frames, come whole")
    func cuts() throws {
        let server = try SocketServer()
        let other = try WebSocketClient(server)
        let client = try WebSocketClient(server)
        let bytes =
            WebSocketClient.bytes(1, Array("hel€".utf8), isFinal: false)
            + WebSocketClient.bytes(9, [1, 2, 3, 4]) + WebSocketClient.bytes(9, [5, 6, 7])
            + WebSocketClient.bytes(0, Array("lo".utf8)) + WebSocketClient.bytes(9, [8, 9])
        // Two pieces, then one piece for each byte.
        for cut in 1...bytes.count {
            let size = cut == bytes.count ? 1 : cut
            for start in stride(from: 0, to: bytes.count, by: size) {
                let rest = cut == bytes.count ? start + size : bytes.count
                let end = start == 0 ? size : rest
                client.raw.send(Array(bytes[start..<end]))
                // Once the loop has answered another client, it has read what this one sent before.
                other.send(text: "")
                _ = try other.read()
                if end == bytes.count { break }
            }
            let frames = try (0..<4).map { _ in try client.read() }
            #expect(
                frames.filter { $0.opcode == 10 }.map(\.payload) == [
                    [1, 2, 3, 4], [5, 6, 7], [8, 9],
                ])
            #expect(frames.filter { $0.opcode == 1 } == [.text("hel€lo")])
        }
    }

    @Test(
        "Any messages, fragmented, split and interleaved at random, come whole and in order",
        arguments: 0..<UInt64(12))
    func property(seed: UInt64) throws {
        var random = SeededRandom(seed: seed)
        let server = try SocketServer(sockets: { $0.queueBytes = 64 << 20 })
        let client = try WebSocketClient(server)
        let letters = Array("aé€𐍈 ÿ\u{7FF}\u{800}\u{FFFD}\u{10FFFF}".unicodeScalars)
        var bytes: [UInt8] = []
        var expected: [Frame] = []
        var pongs: [[UInt8]] = []
        for _ in 0..<40 {
            let isText = Bool.random(using: &random)
            let size = [3, 200, 5000, 20_000].randomElement(using: &random)!
            let count = Int.random(in: 0...size, using: &random)
            var payload: [UInt8] = []
            if isText {
                var text = String.UnicodeScalarView()
                for _ in 0..<(count / 3) { text.append(letters.randomElement(using: &random)!) }
                payload = Array(String(text).utf8)
            } else {
                payload = (0..<count).map { _ in UInt8.random(in: 0...255, using: &random) }
            }
            expected.append(Frame(opcode: isText ? 1 : 2, payload: payload))
            var start = 0
            var isFirst = true
            while true {
                let rest = payload.count - start
                let isLast = Int.random(in: 0..<3, using: &random) == 0
                let length = isLast ? rest : Int.random(in: 0...rest, using: &random)
                let mask = (0..<4).map { _ in UInt8.random(in: 0...255, using: &random) }
                bytes += WebSocketClient.bytes(
                    isFirst ? (isText ? 1 : 2) : 0, Array(payload[start..<(start + length)]),
                    isFinal: isLast, mask: mask)
                start += length
                isFirst = false
                if isLast { break }
                if Int.random(in: 0..<4, using: &random) == 0 {
                    let ping = (0..<Int.random(in: 0...125, using: &random)).map { UInt8($0) }
                    bytes += WebSocketClient.bytes(9, ping)
                    pongs.append(ping)
                }
            }
        }
        // Whoever reads is another, or both sides would wait for each other's buffers.
        let pieces = SeededRandom(seed: seed &+ 1000)
        let descriptor = client.raw.descriptor
        let sending = SystemThread.start("sender") { [bytes] in
            var random = pieces
            var start = 0
            while start < bytes.count {
                let limit = [1, 7, 3000, 100_000].randomElement(using: &random)!
                let count = min(bytes.count - start, Int.random(in: 1...limit, using: &random))
                guard RawClient.send(Array(bytes[start..<(start + count)]), to: descriptor)
                else { return }
                start += count
            }
        }
        var messages: [Frame] = []
        var answers: [[UInt8]] = []
        while messages.count < expected.count || answers.count < pongs.count {
            let frame = try client.read()
            if frame.opcode == 10 { answers.append(frame.payload) } else { messages.append(frame) }
        }
        sending.join()
        #expect(messages == expected, "seed \(seed)")
        #expect(answers == pongs, "seed \(seed)")
    }

    // MARK: Rules

    struct Broken: CustomTestStringConvertible {
        var testDescription: String
        var bytes: [UInt8]
        var code: UInt16
    }

    static let broken: [Broken] = [
        Broken(
            testDescription: "an unmasked frame",
            bytes: WebSocketClient.bytes(1, [0x61], isMasked: false), code: 1002),
        Broken(
            testDescription: "an unmasked empty frame",
            bytes: WebSocketClient.bytes(1, [], isMasked: false), code: 1002),
        Broken(
            testDescription: "reserved bit 1", bytes: WebSocketClient.bytes(1, [], reserved: 4),
            code: 1002),
        Broken(
            testDescription: "reserved bit 3", bytes: WebSocketClient.bytes(9, [], reserved: 1),
            code: 1002),
        Broken(
            testDescription: "an unknown data opcode", bytes: WebSocketClient.bytes(3, [1]),
            code: 1002),
        Broken(
            testDescription: "an unknown control opcode", bytes: WebSocketClient.bytes(11, []),
            code: 1002),
        Broken(
            testDescription: "a control frame of 126 bytes",
            bytes: WebSocketClient.bytes(9, [UInt8](repeating: 0, count: 126)), code: 1002),
        Broken(
            testDescription: "a ping in fragments",
            bytes: WebSocketClient.bytes(9, [1], isFinal: false), code: 1002),
        Broken(
            testDescription: "a continuation of nothing", bytes: WebSocketClient.bytes(0, [1]),
            code: 1002),
        Broken(
            testDescription: "a message in a message",
            bytes: WebSocketClient.bytes(1, [0x61], isFinal: false)
                + WebSocketClient.bytes(1, [0x61]), code: 1002),
        Broken(
            testDescription: "a length not as short as it could be",
            bytes: [0x82, 0xFE, 0, 5, 0, 0, 0, 0, 1, 2, 3, 4, 5], code: 1002),
        Broken(
            testDescription: "a length with its highest bit set",
            bytes: [0x82, 0xFF, 0x80, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1], code: 1002),
        Broken(
            testDescription: "bytes that are not UTF-8",
            bytes: WebSocketClient.bytes(1, [0x61, 0xFF]), code: 1007),
        Broken(
            testDescription: "a surrogate across fragments",
            bytes: WebSocketClient.bytes(1, [0xED], isFinal: false)
                + WebSocketClient.bytes(0, [0xA0], isFinal: false), code: 1007),
        Broken(
            testDescription: "a character cut by the end of its message",
            bytes: WebSocketClient.bytes(1, [0xE2, 0x82], isFinal: false)
                + WebSocketClient.bytes(0, []), code: 1007),
        Broken(
            testDescription: "an overlong character",
            bytes: WebSocketClient.bytes(1, [0xC0, 0xAF]),
            code: 1007),
        Broken(
            testDescription: "a character above U+10FFFF",
            bytes: WebSocketClient.bytes(1, [0xF4, 0x90, 0x80, 0x80]), code: 1007),
        Broken(
            testDescription: "a frame too big",
            bytes: Array(WebSocketClient.bytes(2, [UInt8](repeating: 0, count: 70_000))[..<20]),
            code: 1009),
        Broken(
            testDescription: "fragments too big together",
            bytes: WebSocketClient.bytes(2, [UInt8](repeating: 0, count: 60_000), isFinal: false)
                + WebSocketClient.bytes(0, [UInt8](repeating: 0, count: 6000)), code: 1009),
        Broken(
            testDescription: "a close with half a code", bytes: WebSocketClient.bytes(8, [3]),
            code: 1002),
        Broken(
            testDescription: "a close whose reason is not UTF-8",
            bytes: WebSocketClient.bytes(8, [3, 232, 0xC3]), code: 1007),
    ]

    @Test(
        "A client that breaks a rule is told so and closed, the others are served",
        arguments: broken)
    func breaks(_ broken: Broken) throws {
        let server = try SocketServer()
        let other = try WebSocketClient(server)
        // Whole, and byte by byte.
        for piece in [broken.bytes.count, 1] {
            let client = try WebSocketClient(server)
            for start in stride(from: 0, to: broken.bytes.count, by: piece) {
                let end = min(start + piece, broken.bytes.count)
                guard client.raw.send(Array(broken.bytes[start..<end])) else { break }
            }
            #expect(try client.readClose().closeCode == broken.code)
            #expect(client.raw.isEnded())
            if broken.bytes.count > 1000 { break }
        }
        other.send(text: "still here")
        #expect(try other.read() == .text("still here"))
        #expect(server.state.closeCodes.allSatisfy { $0 == broken.code })
    }

    @Test(
        "Close codes that must not be sent are refused",
        arguments: [0, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65535] as [UInt16]
    )
    func invalidCloseCode(code: UInt16) throws {
        let server = try SocketServer()
        let client = try WebSocketClient(server)
        client.sendClose(code)
        #expect(try client.read().closeCode == 1002)
        #expect(client.raw.isEnded())
    }

    // MARK: Closing

    @Test(
        "A client's close is answered with its code, and the connection ends",
        arguments: [1000, 1001, 1003, 1007, 1011, 1012, 1014, 3000, 4999] as [UInt16])
    func clientCloses(code: UInt16) throws {
        let server = try SocketServer()
        let client = try WebSocketClient(server)
        client.sendClose(code, "bye é")
        // What comes behind a close is not looked at.
        client.send(text: "late")
        #expect(try client.read().closeCode == code)
        #expect(client.raw.isEnded())
        client.raw.disconnect()
        #expect(eventually { server.counters.connectionsOpen == 0 })
        #expect(server.state.closeCodes == [code])
        #expect(server.counters.webSocketsOpen == 0)
    }

    @Test("A close without a code is answered without one")
    func clientClosesWithoutCode() throws {
        let server = try SocketServer()
        let client = try WebSocketClient(server)
        client.send(8, [])
        #expect(try client.read() == Frame(opcode: 8, payload: []))
        #expect(client.raw.isEnded())
        #expect(eventually { server.state.closeCodes == [1005] })
    }

    @Test("The server's close follows what was sent before, and takes no more after")
    func serverCloses() throws {
        let server = try SocketServer()
        let client = try WebSocketClient(server, path: "/quiet")
        let socket = try #require(server.takeSocket())
        #expect(socket.send(.text, buffer("last words")))
        socket.close(WebSocket.CloseCode(rawValue: 4001), reason: "moved")
        #expect(!socket.isOpen)
        #expect(!socket.send(.text, buffer("too late")))
        #expect(try client.read() == .text("last words"))
        let close = try client.read()
        #expect(close.closeCode == 4001)
        #expect(String(decoding: close.payload[2...], as: UTF8.self) == "moved")
        // A message that was under way is dropped, a ping not answered, the close awaited.
        client.send(text: "crossing")
        client.send(9, [1])
        client.sendClose(4001)
        #expect(client.raw.isEnded())
        client.raw.disconnect()
        #expect(eventually { server.counters.connectionsOpen == 0 })
        #expect(server.state.closeCodes == [4001])
        #expect(server.state.messages.isEmpty)
    }

    @Test("A client that does not answer the server's close is cut in time")
    func closeTimeout() throws {
        let server = try SocketServer(sockets: { $0.closeMilliseconds = 200 })
        let client = try WebSocketClient(server, path: "/quiet")
        try #require(server.takeSocket()).close()
        #expect(try client.read().closeCode == 1000)
        #expect(client.raw.isEnded())
        #expect(eventually { server.counters.connectionsOpen == 0 })
    }

    @Test("A client that ends its half, or resets, without closing is gone at once")
    func halfClosed() throws {
        let server = try SocketServer()
        let half = try WebSocketClient(server)
        half.send(2, [1, 2, 3], isFinal: false)
        half.raw.endOutput()
        #expect(half.raw.isEnded())
        let reset = try WebSocketClient(server)
        reset.raw.reset()
        #expect(eventually { server.state.closeCodes == [1006, 1006] })
        #expect(eventually { server.counters.connectionsOpen == 0 })
        #expect(server.counters.webSocketsOpen == 0)
    }

    @Test("A drain closes with 1001 and waits for the answers")
    func drain() throws {
        let server = try SocketServer(loops: 2)
        let clients = try (0..<10).map { _ in try WebSocketClient(server) }
        #expect(eventually { server.counters.webSocketsOpen == 10 })
        let drain = Drain(server.server)
        for client in clients {
            #expect(try client.readClose().closeCode == 1001)
            client.sendClose(1001)
            #expect(client.raw.isEnded())
            client.raw.disconnect()
        }
        #expect(drain.wait() == Server.DrainReport(openBefore: 10, cut: 0))
        #expect(server.state.closeCodes == [UInt16](repeating: 1001, count: 10))
    }

    // MARK: Liveness

    @Test("A silent client that answers pings stays, beyond every timeout of HTTP")
    func silent() throws {
        let server = try SocketServer(
            loops: 1,
            {
                $0.idleMilliseconds = 100
                $0.requestMilliseconds = 100
                $0.writeMilliseconds = 100
            }, sockets: { $0.pingMilliseconds = 2000 })
        let client = try WebSocketClient(server)
        // Without the pongs, the third would be a close.
        for _ in 0..<3 {
            let ping = try client.read()
            #expect(ping.opcode == 9)
            client.send(10, ping.payload)
        }
        client.send(text: "here")
        while true {
            let frame = try client.read()
            if frame.opcode == 9 { continue }
            #expect(frame == .text("here"))
            break
        }
    }

    @Test("A client that answers two pings with nothing is closed")
    func missedPongs() throws {
        let server = try SocketServer(sockets: {
            $0.pingMilliseconds = 100
            $0.closeMilliseconds = 100
        })
        let client = try WebSocketClient(server)
        #expect(try client.read().opcode == 9)
        #expect(try client.read().opcode == 9)
        #expect(try client.read().closeCode == 1011)
        #expect(client.raw.isEnded())
        #expect(eventually { server.state.closeCodes == [1011] })
    }

    @Test("A client that is behind with reading is not taken for one that answers no pings")
    func behind() throws {
        let server = try SocketServer(sockets: {
            $0.pingMilliseconds = 2000
            $0.queueBytes = 64 << 20
        })
        let client = try WebSocketClient(server, path: "/quiet", receiveBuffer: 4096)
        let socket = try #require(server.takeSocket())
        let message = ByteBuffer([UInt8](repeating: 0x61, count: 50_000))
        for _ in 0..<400 { socket.send(.binary, message) }
        // Meanwhile another one, which has nothing to read but pings, is closed for its silence.
        let silent = try WebSocketClient(server)
        #expect(try silent.readClose().closeCode == 1011)
        var messages = 0
        while messages < 400 {
            let frame = try client.read()
            if frame.opcode == 2 { messages += 1 } else { client.send(10, frame.payload) }
            #expect(frame.opcode == 2 || frame.opcode == 9)
        }
        client.sendClose(1000)
        #expect(try client.readClose().closeCode == 1000)
    }

    // MARK: Queues

    @Test(
        "A reader too slow for its messages is closed with 1013, and the process keeps its memory")
    func slowReader() throws {
        let server = try SocketServer(sockets: { $0.closeMilliseconds = 3_600_000 })
        let client = try WebSocketClient(server, path: "/quiet", receiveBuffer: 4096)
        let socket = try #require(server.takeSocket())
        let message = ByteBuffer([UInt8](repeating: 0x61, count: 50_000))
        var taken = 0
        while taken < 1000, socket.send(.binary, message) {
            taken += 1
            #expect(socket.waitingBytes <= 1 << 20)
        }
        #expect(!socket.isOpen)
        // Whoever reads on gets all that was taken, then learns why.
        for _ in 0..<taken { #expect(try client.read().payload.count == 50_000) }
        #expect(try client.read().closeCode == 1013)
        client.sendClose(1013)
        #expect(client.raw.isEnded())
        #expect(eventually { server.state.closeCodes == [1013] })
    }

    @Test("A reader that takes nothing is cut, and the others are served")
    func stuckReader() throws {
        let server = try SocketServer(
            loops: 1, { $0.writeMilliseconds = 200 }, sockets: { $0.queueBytes = 64 << 20 })
        let client = try WebSocketClient(server, path: "/quiet", receiveBuffer: 4096)
        let socket = try #require(server.takeSocket())
        let other = try WebSocketClient(server)
        // More than the system keeps for a connection.
        let message = ByteBuffer([UInt8](repeating: 0x61, count: 50_000))
        for _ in 0..<800 { socket.send(.binary, message) }
        other.send(text: "unharmed")
        #expect(try other.read() == .text("unharmed"))
        #expect(eventually { server.counters.webSocketsOpen == 1 })
        _ = client
    }

    @Test("A client that sends and never reads is not read from, and loses nothing")
    func backpressure() throws {
        let server = try SocketServer()
        let client = try WebSocketClient(server, receiveBuffer: 4096)
        let message = [UInt8](repeating: 0x62, count: 30_000)
        let frame = WebSocketClient.bytes(2, message)
        let descriptor = client.raw.descriptor
        let sending = SystemThread.start("sender") {
            for _ in 0..<1000 where !RawClient.send(frame, to: descriptor) { return }
        }
        for _ in 0..<1000 { #expect(try client.read().payload.count == 30_000) }
        sending.join()
    }

    @Test("Many threads send to one socket; each one's messages keep their order")
    func threads() throws {
        let server = try SocketServer(sockets: { $0.queueBytes = 64 << 20 })
        let client = try WebSocketClient(server, path: "/quiet")
        let socket = try #require(server.takeSocket())
        let threads = (0..<4).map { thread in
            SystemThread.start("sender") {
                for number in 0..<2000 {
                    socket.send(.text, ByteBuffer("\(thread) \(number)".utf8))
                }
            }
        }
        var next = [Int](repeating: 0, count: 4)
        for _ in 0..<8000 {
            let parts = String(decoding: try client.read().payload, as: UTF8.self).split(
                separator: " ")
            let thread = try #require(Int(parts[0]))
            #expect(Int(parts[1]) == next[thread])
            next[thread] += 1
        }
        threads.forEach { $0.join() }
    }

    @Test("A thousand sockets are served on two loops, each with its own messages")
    func thousand() throws {
        let server = try SocketServer(loops: 2)
        let clients = try (0..<1000).map { _ in try WebSocketClient(server) }
        #expect(eventually { server.counters.webSocketsOpen == 1000 })
        for round in 0..<3 {
            for (index, client) in clients.enumerated() { client.send(text: "\(round) \(index)") }
            for (index, client) in clients.enumerated() {
                #expect(try client.read() == .text("\(round) \(index)"))
            }
        }
        for client in clients { client.raw.disconnect() }
        #expect(eventually { server.counters.webSocketsOpen == 0 })
        #expect(eventually { server.state.closeCodes.count == 1000 })
    }

    // MARK: TLS

    @Test("WebSockets go over TLS")
    func tls() throws {
        let certificates = try Certificates()
        let server = try SocketServer(tls: TLSContext(certificates.make("server")))
        let process = Process()
        process.executableURL = URL(fileURLWithPath: "/usr/bin/openssl")
        process.arguments = ["s_client", "-connect", "127.0.0.1:\(server.port)", "-quiet"]
        let (input, output) = (Pipe(), Pipe())
        process.standardInput = input
        process.standardOutput = output
        process.standardError = FileHandle.nullDevice
        try process.run()
        let message = [UInt8](repeating: 0x7A, count: 40_000)
        try input.fileHandleForWriting.write(
            contentsOf: Data(
                Array(WebSocketClient.handshake().utf8) + WebSocketClient.bytes(1, message)
                    + WebSocketClient.bytes(9, [5])))
        let expected =
            [UInt8]([0x8A, 1, 5]) + [0x81, 126, UInt8(40_000 >> 8), UInt8(40_000 & 0xFF)] + message
        var received = Data()
        // The echo goes by the mailbox, so it comes after the pong.
        while received.range(of: Data(expected)) == nil {
            let more = output.fileHandleForReading.availableData
            guard !more.isEmpty else { break }
            received += more
        }
        #expect(received.range(of: Data(expected)) != nil)
        #expect(received.starts(with: Data("HTTP/1.1 101 ".utf8)))
        try input.fileHandleForWriting.write(
            contentsOf: Data(WebSocketClient.bytes(8, [3, 232])))
        let rest = try output.fileHandleForReading.readToEnd() ?? Data()
        #expect(rest == Data([0x88, 2, 3, 232]))
        process.waitUntilExit()
        #expect(eventually { server.state.closeCodes == [1000] })
    }

    // MARK: Independent client

    private static let root = URL(filePath: #filePath).deletingLastPathComponent()
        .deletingLastPathComponent().deletingLastPathComponent().path(percentEncoded: false)
    private static let python = root + ".build/agent-python/bin/python3"

    private static func run(_ arguments: [String]) throws -> (status: Int32, output: String) {
        let process = Process()
        process.executableURL = URL(fileURLWithPath: python)
        process.arguments = arguments
        let output = Pipe()
        process.standardOutput = output
        process.standardError = output
        try process.run()
        let bytes = try output.fileHandleForReading.readToEnd() ?? Data()
        process.waitUntilExit()
        return (process.terminationStatus, String(decoding: bytes, as: UTF8.self))
    }

    @Test(
        "A client of another library is served, with and without TLS",
        .enabled(
            if: (try? run(["-c", "import websockets"]))?.status == 0,
            "scripts/bootstrap test installs the library"),
        arguments: [false, true])
    func independent(isSecure: Bool) throws {
        let certificates = try Certificates()
        let files = isSecure ? try certificates.make("server") : nil
        let server = try SocketServer(tls: files.map { try TLSContext($0) })
        let (status, output) = try Self.run(
            [
                Self.root + "Tests/HTTP/websocket_client.py",
                "\(isSecure ? "wss" : "ws")://127.0.0.1:\(server.port)/echo",
            ] + (files.map { [$0.certificateChain] } ?? []))
        #expect(status == 0)
        #expect(output == "done\n")
        #expect(eventually { server.state.closeCodes == [4000, 1009] })
    }

    // MARK: Memory

    /// Other tests allocate at the same time, so the best of several tries counts.
    @Test("An idle socket takes less than 12 KiB, its connection included")
    func memory() throws {
        let count = 500
        var best = Int.max
        for _ in 0..<20 {
            let server = try SocketServer()
            // Frames in two pieces, so that whatever reading needs has been there.
            let frame = WebSocketClient.bytes(2, [UInt8](repeating: 0, count: 3000))
            let before = SystemMemory.allocatedBytes
            let clients = try (0..<count).map { _ in try WebSocketClient(server) }
            for client in clients {
                client.raw.send(Array(frame[..<7]))
                client.raw.send(Array(frame[7...]))
                _ = try client.read()
            }
            #expect(eventually { server.counters.bytesInFlight == 0 })
            // The clients of this process are in it as well, with what they have read.
            let size = (SystemMemory.allocatedBytes - before) / count - frame.count
            if size > 0 { best = min(best, size) }
            for client in clients { client.raw.disconnect() }
            if best < 12 << 10 { break }
        }
        print("an idle WebSocket: \(best) bytes")
        #expect(best < 12 << 10)
    }
}
