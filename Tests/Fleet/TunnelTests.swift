import Fleet
import Schemas
import Testing

@Suite struct TunnelTests {
    static let rekey: Int64 = 120_000

    static func time(_ seconds: Int64) -> EventTime { EventTime(milliseconds: seconds * 1_000) }

    static func handshake(_ tunnel: Tunnel, at seconds: Int64) -> Int64? {
        tunnel.lastHandshake(at: time(seconds), rekeyAfterMilliseconds: rekey)
            .map { $0.milliseconds / 1_000 }
    }

    @Test func aTunnelThatNeverStoodHasNoHandshake() {
        #expect(Self.handshake(Tunnel(), at: 1_000) == nil)
    }

    @Test(arguments: [(100, 100), (219, 100), (220, 220), (339, 220), (340, 340), (1_000, 940)])
    func handshakesAdvanceEvery120Seconds(_ now: Int64, _ last: Int64) {
        var tunnel = Tunnel()
        tunnel.start(at: Self.time(100))
        #expect(Self.handshake(tunnel, at: now) == last)
    }

    @Test func aTunnelThatLosesHandshakesKeepsItsLast() {
        var tunnel = Tunnel()
        tunnel.start(at: Self.time(0))
        tunnel.loseHandshakes(at: Self.time(250), rekeyAfterMilliseconds: Self.rekey)
        #expect(tunnel.isUp)
        #expect(Self.handshake(tunnel, at: 10_000) == 240)
        // Losing them again moves nothing.
        tunnel.loseHandshakes(at: Self.time(900), rekeyAfterMilliseconds: Self.rekey)
        #expect(Self.handshake(tunnel, at: 10_000) == 240)
        tunnel.start(at: Self.time(10_000))
        #expect(Self.handshake(tunnel, at: 10_000) == 10_000)
    }

    @Test func aTunnelThatIsStoppedKeepsItsLast() {
        var tunnel = Tunnel()
        tunnel.start(at: Self.time(0))
        tunnel.stop(at: Self.time(130), rekeyAfterMilliseconds: Self.rekey)
        #expect(!tunnel.isUp)
        #expect(Self.handshake(tunnel, at: 5_000) == 120)
    }

    @Test func aClockThatGoesBackDoesNotMoveTheHandshakeBack() {
        var tunnel = Tunnel()
        tunnel.start(at: Self.time(100))
        #expect(Self.handshake(tunnel, at: 50) == 100)
    }
}
