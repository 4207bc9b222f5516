import Bytes
import Processors
import Schemas
import Testing

@Suite("Silence on watched time")
struct WatchedTimeTests {
    @Test func silenceIsOfflineAfterThreeIntervalsAsOfTheDeadline() {
        var p = Partition()
        p.beacon(0)
        p.beat(d1, 0.001)
        p.beacons(5, 90)
        #expect(p.state(d1) == .healthy, "exactly at the threshold is not silence yet")
        p.beacon(95)
        #expect(p.state(d1) == .offline)
        #expect(p.since(d1) == 90.001)
        #expect(p.alerts == ["opened offline"])
    }

    @Test func offlineComesWithinTheThresholdAndOneTick() {
        for phase in stride(from: 0.0, through: 4.9, by: 0.7) {
            var p = Partition()
            p.beacon(0)
            p.beat(d1, 0.5 + phase)
            var seconds = 5.0
            while p.state(d1) != .offline {
                p.beacon(seconds)
                seconds += 5
            }
            let silence = seconds - 5 - (0.5 + phase)
            #expect(silence >= 90, "never early")
            #expect(silence <= 90 + 1 + 5, "threshold, jitter and one beacon")
        }
    }

    @Test func aSecondOfJitterAtTheThresholdIsNoTransition() {
        var p = Partition()
        p.beacon(0)
        p.beat(d1, 1)
        p.beacons(5, 90)
        p.beat(d1, 92)
        p.beacons(95, 180)
        p.beat(d1, 182.9)
        p.beacon(185)
        #expect(p.state(d1) == .healthy)
        #expect(p.rows("device_state_ended") == 0)
    }

    @Test func noBeaconsNoJudgement() {
        var p = Partition()
        p.beacon(0)
        p.beat(d1, 1)
        p.beacon(3_600)
        #expect(p.state(d1) == .healthy)
        p.beacons(3_605, 3_685)
        #expect(p.state(d1) == .healthy, "everyone gets the full threshold again")
        p.beacons(3_690, 3_700)
        #expect(p.state(d1) == .offline)
    }

    @Test func aHeartbeatEndsOfflineAtOnceAndTheAlertResolves() {
        var p = Partition()
        p.beacon(0)
        p.beat(d1, 1)
        p.beacons(5, 200)
        p.beat(d1, 201)
        #expect(p.state(d1) == .healthy)
        #expect(p.alerts == ["opened offline", "resolved offline"])
        #expect(Set(p.alertIDs).count == 1)
        p.beacons(205, 400)
        #expect(p.alerts.count == 3)
        #expect(Set(p.alertIDs).count == 2, "a new episode is a new alert")
    }

    @Test func aDeviceThatWakesEveryHalfHourHasItsOwnThreshold() {
        var p = Partition()
        p.lifecycle(.provisioned, d1, 0, version: 1, interval: 1_800_000)
        p.beacon(1)
        p.beat(d1, 2)
        p.beacons(6, 5_396)
        #expect(p.state(d1) == .healthy)
        p.beacons(5_401, 5_411)
        #expect(p.state(d1) == .offline)
    }

    @Test func aThresholdThatShrinksFiresOnTime() {
        var p = Partition()
        p.lifecycle(.provisioned, d1, 0, version: 1, interval: 1_800_000)
        p.beacon(1)
        p.beat(d1, 2)
        p.lifecycle(.provisioned, d1, 3, version: 2)
        p.beacons(6, 91)
        #expect(p.state(d1) == .healthy)
        p.beacon(96)
        #expect(p.state(d1) == .offline)
    }

    @Test func timersFireInTheOrderOfDeadlineAndDevice() {
        var p = Partition()
        p.beacon(0)
        p.beat(d3, 1)
        p.beat(d1, 2)
        p.beat(d2, 2)
        p.beacons(5, 100)
        let keys = p.effects.outbox.entries.map {
            p.effects.outbox.bytes.span.extracting($0.key).text
        }
        #expect(keys == [d3.description, d1.description, d2.description])
    }

    // MARK: - Several front-ends

    @Test func aFrontEndThatIsCutOffHoldsAndNobodyIsOffline() {
        var p = Partition()
        p.beacons(0, 30, from: 1, 2)
        p.beat(d1, 31, from: 2)
        p.beacons(35, 45, from: 1)
        // Front-end 2 cannot reach the log for 20 s; its queue keeps everything and comes late.
        p.beacons(50, 55, from: 1)
        p.beat(d1, 36, from: 2)
        p.beacons(35, 55, from: 2)
        p.beacons(60, 120, from: 1, 2)
        #expect(p.state(d1) == .healthy)
        p.beacons(125, 160, from: 1, 2)
        #expect(p.state(d1) == .offline)
    }

    @Test func aFrontEndThatDiedIsExpelledAndTheOthersGoOn() {
        var p = Partition()
        p.beacons(0, 30, from: 1, 2)
        p.beat(d1, 31, from: 2)
        p.beacons(35, 70, from: 1)
        #expect(p.health.watchedTime.isHeld)
        #expect(p.state(d1) == .healthy)
        p.beacon(75)
        #expect(!p.health.watchedTime.isHeld)
        #expect(p.alerts == ["opened front-end-lost"])
        p.beacons(80, 160, from: 1)
        #expect(p.state(d1) == .healthy, "the full threshold counts from the reopening")
        p.beacons(165, 180, from: 1)
        #expect(p.state(d1) == .offline)
        p.beacon(185, from: 2)
        #expect(p.alerts.last == "resolved front-end-lost")
    }

    @Test func aLossyFrontEndHoldsWhileItIsLossy() {
        var p = Partition()
        p.beacon(0)
        p.beat(d1, 1)
        for seconds in stride(from: 5.0, through: 600, by: 5) { p.beacon(seconds, lossy: true) }
        #expect(p.state(d1) == .healthy, "a single front-end that is lossy stops the clock")
        p.beacons(605, 690)
        #expect(p.state(d1) == .healthy)
        p.beacons(695, 705)
        #expect(p.state(d1) == .offline)
    }

    @Test func aLossyFrontEndBesideAWellOneIsExpelled() {
        var p = Partition()
        p.beacons(0, 20, from: 1, 2)
        for seconds in stride(from: 25.0, through: 70, by: 5) {
            p.beacon(seconds)
            p.beacon(seconds, from: 2, lossy: true)
        }
        #expect(p.alerts == ["opened front-end-lost"])
        #expect(!p.health.watchedTime.isHeld)
    }

    @Test func anOrderlyShutdownHoldsNothing() {
        var p = Partition()
        p.beacons(0, 20, from: 1, 2)
        p.beacon(22, from: 2, leaving: true)
        p.beacons(25, 60, from: 1)
        #expect(!p.health.watchedTime.isHeld)
        #expect(p.alerts.isEmpty)
    }

    @Test func aRestartedFrontEndReplacesItsOldBootAtOnce() {
        var p = Partition()
        for seconds in stride(from: 0.0, through: 20, by: 5) {
            p.beacon(seconds, from: 1, name: "a")
        }
        p.beat(d1, 21, from: 1)
        for seconds in stride(from: 25.0, through: 105, by: 5) {
            p.beacon(seconds, from: 7, name: "a", monotonic: seconds - 20)
        }
        #expect(!p.health.watchedTime.isHeld)
        #expect(p.state(d1) == .healthy, "what the old process still held may be lost")
        p.beacon(200, from: 1, name: "a")
        #expect(p.health.watchedTime.milliseconds == 101_000, "the old boot has no say any more")
        for seconds in stride(from: 110.0, through: 125, by: 5) {
            p.beacon(seconds, from: 7, name: "a", monotonic: seconds - 20)
        }
        #expect(p.state(d1) == .offline)
    }

    @Test func whatADeviceSaysRightAfterARestartIsNoRepeat() {
        var p = Partition()
        for seconds in stride(from: 0.0, through: 20, by: 5) {
            p.beacon(seconds, from: 1, name: "a")
        }
        p.beat(d1, 24, from: 1)
        p.beat(d2, 24.5, from: 1)
        // Killed before its next beacon, and started anew at once, twice.
        p.beacon(26, from: 7, name: "a", monotonic: 26)
        p.beat(d1, 27, status: .stopped, from: 7)
        p.beacon(28, from: 8, name: "a", monotonic: 28)
        p.beat(d2, 28.5, status: .recovering, from: 8)
        #expect(p.state(d1) == .stopped)
        #expect(p.state(d2) == .recovering)
        #expect(p.health.repeats == 0)
    }

    @Test func whatADeviceSaysRightAfterItsFrontEndHungIsNoRepeat() {
        var p = Partition()
        p.beacons(0, 20)
        p.beat(d1, 24)
        // It hung for a minute. The clock of what it took in first is still that of before.
        p.beat(d2, 85)
        p.beacon(86)
        p.beat(d1, 87, status: .stopped)
        p.beat(d2, 88, status: .recovering)
        #expect(p.state(d1) == .stopped)
        #expect(p.state(d2) == .recovering)
        #expect(p.health.repeats == 0)
    }

    @Test(arguments: [8.0, -8, 3_600, -3_600, 86_400])
    func aFrontEndsWrongClockMovesNobody(_ skew: Double) {
        var p = Partition()
        p.skew[2] = skew
        for seconds in stride(from: 0.0, through: 400, by: 5) {
            p.beacon(seconds, from: 1)
            p.beacon(seconds, from: 3)
            p.beacon(seconds, from: 2)
            if Int(seconds) % 30 == 0 {
                p.beat(d1, seconds + 1, from: Int(seconds) % 60 == 0 ? 1 : 2)
                p.beat(d2, seconds + 2, from: 2)
                p.beat(d3, seconds + 3, from: 1)
            }
        }
        for device in [d1, d2, d3] { #expect(p.state(device) == .healthy) }
        #expect(p.rows("device_state_ended") == 0)
        let seen = p.health.report(on: d2)!.lastSeen!
        #expect(abs(seen - Partition.time(392)) <= 10_000, "large differences are corrected")
    }

    @Test func aFrontEndWhoseClockRanAheadAndThatDiesTakesNobodyOffline() {
        var p = Partition()
        p.skew[2] = 3_600
        p.beacons(0, 30, from: 1, 2)
        p.beat(d1, 31, from: 1)
        p.beacons(35, 60, from: 1)
        p.beat(d1, 61, from: 1)
        p.beacons(65, 90, from: 1)
        p.beat(d1, 91, from: 1)
        p.beacons(95, 180, from: 1)
        #expect(p.state(d1) == .healthy)
    }

    @Test func aClockSetBackAnHourDoesNotMakeHeartbeatsOld() {
        var p = Partition()
        p.skew[1] = 3_600
        for seconds in stride(from: 0.0, through: 600, by: 5) {
            if seconds == 300 { p.skew[1] = 0 }
            p.beacon(seconds)
            if Int(seconds) % 30 == 0 { p.beat(d1, seconds + 1) }
        }
        #expect(p.state(d1) == .healthy)
        #expect(p.health.repeats == 0)
        #expect(!p.alerts.contains("opened offline"))
    }

    @Test func monotonicClocksThatDriftNeverHoldForGood() {
        var p = Partition()
        // 200 ppm for a week: two minutes apart.
        var seconds = 0.0
        while seconds < 7 * 86_400 {
            p.beacon(seconds, from: 1)
            p.beacon(seconds, from: 2, monotonic: seconds * 1.000_2 + 1)
            seconds += 5
        }
        #expect(!p.health.watchedTime.isHeld)
        #expect(p.alerts.isEmpty)
        p.beat(d1, seconds, from: 2)
        p.beacons(seconds + 5, seconds + 110, from: 1)
        #expect(p.alerts.contains("opened front-end-lost"))
    }

    @Test func repeatedBeaconsMoveNothing() {
        var p = Partition()
        p.beacon(0)
        p.beat(d1, 1)
        for _ in 0..<100 { p.beacon(5) }
        #expect(p.health.watchedTime.milliseconds == 5_000)
    }

    // MARK: - The log alone decides

    @Test(arguments: 0..<40 as Range<UInt64>)
    func aSnapshotAnywhereContinuesAsIfNothingHadHappened(seed: UInt64) throws {
        var random = SplitMix(seed)
        var steady = Partition()
        var restored = Partition()
        var seconds = 0.0
        for _ in 0..<600 {
            seconds += Double(random.next() % 3)
            let device = [d1, d2, d3][Int(random.next() % 3)]
            let choice = random.next() % 20
            let boot = UInt64(1 + random.next() % 2)
            let up = random.next() % 3 != 0
            let age = Double(random.next() % 300)
            func step(_ p: inout Partition) {
                switch choice {
                case 0..<11: p.beacon(seconds, from: boot, lossy: random.peek % 40 == 0)
                case 11..<18: p.beat(device, seconds, up: up, handshake: age, from: boot)
                case 18: p.lifecycle(.suspended, device, seconds, version: Int64(seconds) + 1)
                default: p.lifecycle(.resumed, device, seconds, version: Int64(seconds) + 1)
                }
            }
            step(&steady)
            step(&restored)
            if random.next() % 20 == 0 {
                let bytes = restored.snapshot
                restored.health = try TunnelHealth(
                    restoring: bytes.span, partition: 0, settings: TunnelHealthSettings())
            }
        }
        #expect(steady.snapshot == restored.snapshot, "seed \(seed)")
        #expect(steady.alertIDs == restored.alertIDs, "seed \(seed)")
        #expect(steady.alerts == restored.alerts, "seed \(seed)")
    }

    @Test func aSnapshotOfTheFirstVersionIsRead() throws {
        var p = Partition()
        p.beacons(0, 20)
        p.beat(d1, 21)
        // The first version had no front-end's count, which comes last.
        var bytes = p.snapshot
        #expect(Array(bytes[0..<4]) == [2, 0, 0, 0])
        bytes[0] = 1
        bytes.removeLast(8)
        p.health = try TunnelHealth(
            restoring: bytes.span, partition: 0, settings: TunnelHealthSettings())
        #expect(p.state(d1) == .healthy)
        p.repeatLast()
        #expect(p.health.repeats == 1)
    }

    @Test func aDamagedSnapshotIsRefusedAtEveryLength() {
        var p = Partition()
        p.beacons(0, 20, from: 1, 2)
        p.beat(d1, 21)
        let bytes = p.snapshot
        for length in 0..<bytes.count {
            #expect(throws: SnapshotError.self) {
                try TunnelHealth(
                    restoring: bytes.span.extracting(0..<length), partition: 0,
                    settings: TunnelHealthSettings())
            }
        }
    }
}

struct SplitMix {
    var state: UInt64
    init(_ seed: UInt64) { state = seed }
    var peek: UInt64 { state >> 17 }
    mutating func next() -> UInt64 {
        state &+= 0x9E37_79B9_7F4A_7C15
        var z = state
        z = (z ^ (z >> 30)) &* 0xBF58_476D_1CE4_E5B9
        z = (z ^ (z >> 27)) &* 0x94D0_49BB_1331_11EB
        return z ^ (z >> 31)
    }
}
