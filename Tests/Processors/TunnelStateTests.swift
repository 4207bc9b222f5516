import Processors
import Schemas
import Testing

@Suite("The state table of a tunnel")
struct TunnelStateTests {
    @Test func aFreshHandshakeOnATunnelThatIsUpIsHealthy() {
        var p = Partition()
        p.beacon(0)
        p.beat(d1, 1)
        #expect(p.state(d1) == .healthy)
        #expect(p.since(d1) == 1)
        #expect(p.rows("device_state_ended") == 0, "the first judgement ends no interval")
    }

    @Test func provisionedAndNeverHeardOfIsUnknownHoweverLong() {
        var p = Partition()
        p.lifecycle(.provisioned, d1, 0, version: 1)
        p.beacons(0, 600)
        #expect(p.state(d1) == .unknown)
        #expect(p.health.report(on: d1)?.reason == .provisioned)
        #expect(p.alerts.isEmpty)
    }

    @Test func aDeviceThatIsProvisionedAgainStaysWhatItWas() {
        var p = Partition()
        p.beacons(0, 30)
        p.lifecycle(.provisioned, d1, 0, version: 1)
        p.beat(d1, 31)
        p.lifecycle(.provisioned, d1, 32, version: 2)
        #expect(p.state(d1) == .healthy)
        #expect(p.since(d1) == 31)
        p.lifecycle(.suspended, d1, 40, version: 3)
        p.lifecycle(.provisioned, d1, 41, version: 4)
        #expect(p.state(d1) == .suspended, "a new token does not undo an operator")
        #expect(p.alerts.isEmpty)
    }

    @Test func aTunnelThatWasNeverSpokenOfIsUnknown() {
        var p = Partition()
        p.beacon(0)
        p.beat(d1, 1, up: nil, handshake: nil)
        #expect(p.state(d1) == .unknown)
        #expect(p.health.report(on: d1)?.reason == .tunnelNotSaid)
    }

    @Test func oneWordThatTheTunnelIsDownIsNotYetDown() {
        var p = Partition()
        p.beacons(0, 30)
        p.beat(d1, 31)
        p.beat(d1, 61, up: false)
        #expect(p.state(d1) == .healthy)
        p.beat(d1, 91, up: false)
        #expect(p.state(d1) == .down)
        #expect(p.alerts == ["opened down"])
    }

    @Test func aRepeatedRecordIsNotTheSecondWord() {
        var p = Partition()
        p.beacons(0, 30)
        p.beat(d1, 31)
        p.beat(d1, 61, up: false)
        p.repeatLast()
        #expect(p.state(d1) == .healthy)
        #expect(p.health.repeats == 1)
    }

    @Test func twoWordsWithinAMillisecondAreTwo() {
        var p = Partition()
        p.beacons(0, 30)
        p.beat(d1, 31, up: false)
        p.beat(d1, 31, up: false)
        #expect(p.state(d1) == .down)
        p.beat(d1, 31, status: .stopped)
        #expect(p.state(d1) == .stopped)
        p.repeatLast()
        #expect(p.health.repeats == 1)
    }

    @Test func aBeaconWrittenLateTakesNoWordAway() {
        var p = Partition()
        p.beacons(0, 30)
        p.beat(d1, 34.9)
        // Read at 35 s, stamped 400 ms later: what comes next has an earlier place.
        p.beacon(35.4, monotonic: 1_035)
        p.beat(d1, 35.1, status: .stopped)
        #expect(p.state(d1) == .stopped)
        #expect(p.health.repeats == 0)
    }

    @Test func amongTwoFrontEndsTheLaterPlaceDecides() {
        var p = Partition()
        for second in stride(from: 0.0, through: 30, by: 5) {
            p.beacon(second, from: 1)
            p.beacon(second, from: 2)
        }
        p.beat(d1, 32, status: .stopped, from: 1)
        p.beat(d1, 31, from: 2)
        #expect(p.state(d1) == .stopped)
        #expect(p.health.repeats == 1)
    }

    @Test func aCountThatCameRoundSilencesNobody() {
        var p = Partition()
        p.counter = 1 << 31
        p.beacons(0, 30)
        p.beat(d1, 31)
        p.counter = 5
        p.beacons(35, 45)
        p.beat(d1, 46)
        #expect(p.health.repeats == 1, "a lower count of about the same time is a repeat")
        p.beacons(50, 60)
        p.beat(d1, 61, status: .stopped)
        #expect(p.state(d1) == .stopped)
    }

    @Test func leavingDownTakesTwoGoodHeartbeats() {
        var p = Partition()
        p.beacons(0, 200)
        p.beat(d1, 201, up: false)
        p.beat(d1, 202, up: false)
        p.beat(d1, 203)
        #expect(p.state(d1) == .down)
        p.beat(d1, 204)
        #expect(p.state(d1) == .healthy)
        #expect(p.alerts == ["opened down", "resolved down"])
        #expect(Set(p.alertIDs).count == 1)
    }

    @Test func leavingStaleTakesTwoFreshOnesInARow() {
        var p = Partition()
        p.beacons(0, 300)
        p.beat(d1, 301, handshake: 200)
        #expect(p.state(d1) == .stale)
        p.beat(d1, 302, handshake: 1)
        p.beat(d1, 303, up: false)
        p.beat(d1, 304, handshake: 1)
        #expect(p.state(d1) == .stale, "a bad one in between begins the count anew")
        p.beat(d1, 305, handshake: 1)
        #expect(p.state(d1) == .healthy)
    }

    @Test func aHandshakeOf180SecondsIsStaleAndOneBelowIsNot() {
        var p = Partition()
        p.beacon(0)
        p.beat(d1, 1, handshake: 179.999)
        #expect(p.state(d1) == .healthy)
        p.beat(d2, 1, handshake: 180)
        #expect(p.state(d2) == .stale)
        #expect(p.health.report(on: d2)?.reason == .handshakeOld)
    }

    @Test(arguments: ["1970-01-01T00:00:00Z", "0001-01-01T00:00:00Z", nil])
    func aZeroHandshakeIsUnknownAndAfter180SecondsStale(_ claimed: String?) {
        var p = Partition()
        let claim = claimed.flatMap { text in
            EventTime(parsing: InlineText(text).span)
        }
        p.beacon(0)
        var seconds = 1.0
        while seconds < 181 {
            p.beat(d1, seconds, handshake: nil, claim: claim)
            #expect(p.state(d1) == .unknown)
            #expect(p.health.report(on: d1)?.lastHandshake == nil)
            for beacon in 1...6 { p.beacon(seconds + Double(beacon) * 5 - 1) }
            seconds += 30
        }
        p.beat(d1, seconds, handshake: nil, claim: claim)
        #expect(p.state(d1) == .stale)
        #expect(p.health.report(on: d1)?.reason == .neverHandshaken)
    }

    @Test func aSlowDeviceClockIsFreshWhileTheHandshakeAdvances() {
        var p = Partition()
        p.beacons(0, 100)
        p.beat(d1, 101, handshake: 86_400)
        #expect(p.state(d1) == .stale)
        p.beacons(105, 130)
        p.beat(d1, 131, handshake: 86_400)
        p.beacons(135, 160)
        p.beat(d1, 161, handshake: 86_400)
        #expect(p.state(d1) == .healthy, "it advanced twice")
        var seconds = 165.0
        let frozen = Partition.time(161 - 86_400)
        while seconds < 345 {
            p.beacon(seconds)
            if Int(seconds) % 30 == 11 { p.beat(d1, seconds + 1, claim: frozen) }
            seconds += 5
        }
        p.beat(d1, 346, claim: frozen)
        #expect(p.state(d1) == .stale, "180 s without an advance")
    }

    @Test func aHandshakeInTheFutureIsFlaggedAndFreshOnlyWhileItAdvances() {
        var p = Partition()
        p.beacon(0)
        p.beat(d1, 1, handshake: -86_400)
        #expect(p.health.report(on: d1)?.flags == .clockSkew)
        #expect(p.state(d1) == .stale)
        p.beat(d1, 2, handshake: -86_400)
        p.beat(d1, 3, handshake: -86_400)
        #expect(p.state(d1) == .healthy)
        p.beat(d2, 4, handshake: -60)
        #expect(p.health.report(on: d2)?.flags == [])
        #expect(p.state(d2) == .healthy)
    }

    @Test func aDeviceWhoseClockIsResetIsNotStaleForEver() {
        var p = Partition()
        p.beacon(0)
        p.beat(d1, 1, handshake: -86_400)
        p.beat(d1, 2, handshake: 5)
        p.beat(d1, 3, handshake: 5)
        #expect(p.state(d1) == .healthy)
        #expect(p.health.report(on: d1)?.flags == [])
        #expect(p.health.report(on: d1)?.lastHandshake == Partition.time(-2))
    }

    @Test func anOlderHandshakeNeverReplacesANewerOne() {
        var p = Partition()
        p.beacon(0)
        p.beat(d1, 1, handshake: 5)
        p.beat(d1, 2, handshake: 500)
        #expect(p.health.report(on: d1)?.lastHandshake == Partition.time(-4))
        #expect(p.state(d1) == .healthy)
    }

    @Test func aHeartbeatWithoutATunnelLeavesTheJudgementAsItWas() {
        var p = Partition()
        p.beacons(0, 300)
        p.beat(d1, 301, handshake: 200)
        p.beat(d1, 302, up: nil, handshake: nil)
        #expect(p.state(d1) == .stale)
        #expect(p.health.report(on: d1)?.lastSeen == Partition.time(302))
    }

    @Test func stoppedSilenceIsExpectedAndAnyHeartbeatEndsIt() {
        var p = Partition()
        p.beacon(0)
        p.beat(d1, 1)
        p.beat(d1, 2, status: .stopped)
        #expect(p.state(d1) == .stopped)
        p.beacons(5, 600)
        #expect(p.state(d1) == .stopped)
        #expect(p.alerts.isEmpty)
        p.beat(d1, 601)
        #expect(p.state(d1) == .healthy)
    }

    @Test func precedenceIsThatOfTheTable() {
        var p = Partition()
        p.beacons(0, 100)
        p.beat(d1, 101, up: false, status: .recovering)
        p.beat(d1, 102, up: false, status: .recovering)
        #expect(p.state(d1) == .recovering, "recovering stands above down")
        p.beat(d1, 103, up: false, status: .connected)
        #expect(p.state(d1) == .down)
        p.lifecycle(.suspended, d1, 104, version: 2)
        #expect(p.state(d1) == .suspended)
        p.beat(d1, 105, status: .stopped)
        #expect(p.state(d1) == .suspended, "suspended stands above everything")
        p.beacons(105, 400)
        #expect(p.state(d1) == .suspended)
        p.lifecycle(.resumed, d1, 401, version: 3)
        #expect(p.state(d1) == .stopped)
    }

    @Test func anOlderVersionOfALifecycleUndoesNothing() {
        var p = Partition()
        p.lifecycle(.provisioned, d1, 0, version: 1)
        p.lifecycle(.resumed, d1, 2, version: 3)
        p.lifecycle(.suspended, d1, 3, version: 2)
        #expect(p.state(d1) == .unknown)
    }

    @Test func aRemovedDeviceIsNotBroughtBackByALateHeartbeat() {
        var p = Partition()
        p.beacon(0)
        p.beat(d1, 1)
        p.lifecycle(.removed, d1, 2, version: 2)
        p.beat(d1, 3)
        p.beacons(5, 300)
        #expect(p.state(d1) == .removed)
        #expect(p.alerts.isEmpty)
        p.lifecycle(.provisioned, d1, 301, version: 3)
        p.beat(d1, 302)
        #expect(p.state(d1) == .healthy)
    }

    @Test func sixTransitionsInTenMinutesAreOneAlertAndNoneForEachFlip() {
        var p = Partition()
        p.beacons(0, 50)
        p.beat(d1, 51)
        for round in 0..<6 {
            let second = 52.0 + Double(round) * 4
            p.beat(d1, second, up: false)
            p.beat(d1, second + 1, up: false)
            p.beat(d1, second + 2)
            p.beat(d1, second + 3)
        }
        #expect(p.health.report(on: d1)?.isFlapping == true)
        let before = p.alerts
        #expect(before.filter { $0 == "opened flapping" }.count == 1)
        #expect(before.filter { $0 == "opened down" }.count == 3, "the flips before the sixth")
        #expect(before.filter { $0 == "resolved down" }.count == 3)
        var seconds = 80.0
        while seconds <= 700 {
            p.beacon(seconds)
            if Int(seconds) % 30 == 20 { p.beat(d1, seconds + 1) }
            seconds += 5
        }
        #expect(p.health.report(on: d1)?.isFlapping == false)
        #expect(p.alerts.last == "resolved flapping")
    }

    @Test func aBadStateThatHoldsWhenFlappingEndsAlertsThen() {
        var p = Partition()
        p.beacons(0, 50)
        p.beat(d1, 51)
        for round in 0..<4 {
            let second = 52.0 + Double(round) * 4
            p.beat(d1, second, up: false)
            p.beat(d1, second + 1, up: false)
            p.beat(d1, second + 2)
            p.beat(d1, second + 3)
        }
        p.beat(d1, 70, up: false)
        p.beat(d1, 71, up: false)
        #expect(p.state(d1) == .down)
        #expect(p.alerts.last == "opened flapping")
        var seconds = 75.0
        while seconds <= 700 {
            p.beacon(seconds)
            if Int(seconds) % 30 == 15 { p.beat(d1, seconds + 1, up: false) }
            seconds += 5
        }
        #expect(Array(p.alerts.suffix(2)) == ["resolved flapping", "opened down"])
    }

    @Test func intervalsTileTheTimeAxis() {
        var p = Partition()
        p.beacons(0, 10)
        p.beat(d1, 11)
        p.beat(d1, 12, up: false)
        p.beat(d1, 13, up: false)
        p.beacons(15, 120)
        p.beat(d1, 121)
        #expect(p.rows("device_state_ended") == 3 - 0)
        #expect(p.health.report(on: d1)?.transitions == 3)
    }
}
