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

    /// The deadline with its jitter falls on the millisecond of a heartbeat, and of the beacon that
    /// tells of it. Whichever is read first, the device is well in the end and no alarm stays.
    @Test(arguments: [false, true])
    func aTimerAndAHeartbeatInTheSameMillisecondConverge(_ heartbeatIsFirst: Bool) {
        var p = Partition()
        p.beacon(0)
        p.beat(d1, 4)
        p.beacons(5, 90)
        if heartbeatIsFirst { p.beat(d1, 95) }
        p.beacon(95)
        if !heartbeatIsFirst { p.beat(d1, 95) }
        p.beacons(100, 120)
        #expect(p.state(d1) == .healthy)
        #expect(p.alerts == (heartbeatIsFirst ? [] : ["opened offline", "resolved offline"]))
        #expect(Set(p.alertIDs).count <= 1)
    }

    /// It spoke to a front-end that was cut off, then said to another one that it stops. The first word
    /// comes later, and is the older one.
    @Test func anOlderSessionsReportNeverOverridesANewerOne() {
        var p = Partition()
        p.beacons(0, 20, from: 1, 2)
        p.beacons(25, 45, from: 2)
        p.beat(d1, 48, status: .stopped, from: 2)
        p.beacon(50, from: 2)
        p.beat(d1, 24, status: .connected, from: 1)
        p.beacon(25, from: 1)
        p.beat(d1, 29, status: .recovering, from: 1)
        p.beacons(30, 50, from: 1)
        #expect(p.state(d1) == .stopped)
        #expect(p.health.repeats >= 1)
        p.beacons(55, 200, from: 1, 2)
        #expect(p.state(d1) == .stopped)
        #expect(p.alerts == [])
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
        p.beacons(35, 75, from: 1)
        #expect(p.health.watchedTime.isHeld)
        #expect(p.state(d1) == .healthy)
        p.beacon(80)
        #expect(!p.health.watchedTime.isHeld)
        #expect(p.alerts == ["opened front-end-lost"])
        p.beacons(85, 165, from: 1)
        #expect(p.state(d1) == .healthy, "the full threshold counts from the reopening")
        p.beacons(170, 180, from: 1)
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

    /// In phase, one's beacon comes now before and now after the other's: what the first tells of the
    /// time before the second's last sign is no silence of the second.
    @Test func beaconsThatChangeTheirOrderHoldNothing() {
        var p = Partition()
        p.beat(d1, 0)
        for tick in 0..<40 {
            let seconds = Double(tick) * 5
            // Fast by 100 parts in a million, so two steps are more than ten seconds.
            let fast = { p.beacon(seconds, from: 1, monotonic: seconds * 1.0001 + 1_000) }
            if tick % 2 == 0 { fast() }
            p.beacon(seconds, from: 2)
            if tick % 2 == 1 { p.beacon(seconds, from: 1, monotonic: seconds * 1.0001 + 1_000) }
            #expect(!p.health.watchedTime.isHeld)
        }
        #expect(p.state(d1) == .offline)
        #expect(p.since(d1) == 90)
    }

    /// After an outage of the log each front-end's beacons come in one burst, one front-end after the
    /// other. They were written behind others that were on their way, and say so.
    @Test func burstsAfterAnOutageOfTheLogTakeNobodyOffline() {
        var p = Partition()
        p.beacons(0, 20, from: 1, 2)
        p.beat(d1, 18, from: 1)
        p.beat(d2, 18, from: 2)
        for (boot, device) in [(UInt64(1), d1), (2, d2)] {
            p.beacon(25, from: boot)
            for tick in 6...124 {
                if tick % 6 == 0 { p.beat(device, Double(tick) * 5 - 1, from: boot) }
                p.beacon(Double(tick) * 5, from: boot, behind: true)
            }
        }
        var seconds = 625.0
        while seconds <= 700 {
            p.beacon(seconds, from: 1)
            p.beacon(seconds, from: 2)
            seconds += 5
        }
        #expect(p.alerts == [])
        p.beacons(705, 730, from: 1, 2)
        #expect(p.alerts == ["opened offline", "opened offline"])
    }

    /// Its loop hung, so its beacons repeated themselves, and then told of a minute at once: that is no
    /// minute of the others' silence.
    @Test func whoWasAwayMeasuresNobodysSilence() {
        var p = Partition()
        p.beacons(0, 20, from: 1, 2, 3)
        for seconds in stride(from: 25.0, through: 80, by: 5) {
            p.beacon(seconds, from: 2)
            p.beacon(seconds, from: 3)
            p.beacon(seconds, from: 1, monotonic: 1_020)
        }
        #expect(p.alerts == ["opened front-end-lost"], "repeating itself is not being back")
        // The others' beacons come in between, a moment after one another.
        p.beacon(85, from: 2)
        p.beacon(85.1, from: 1)
        p.beacon(85.2, from: 3)
        #expect(p.alerts == ["opened front-end-lost", "resolved front-end-lost"])
        #expect(!p.health.watchedTime.isHeld)
    }

    /// Two were cut off. One comes back with all that waited, and while that is read the other has not
    /// come back yet: it is not silent by that.
    @Test func aBacklogMeasuresNobodysSilence() {
        var p = Partition()
        p.beacons(0, 20, from: 1, 2)
        p.beacons(25, 30, from: 1)
        for seconds in stride(from: 35.0, through: 600, by: 5) {
            p.beacon(seconds, from: 1, behind: true)
        }
        p.beacon(605, from: 1)
        #expect(p.alerts == [])
        // A second one that is gone for good is found out about all the same.
        p.beacons(610, 650, from: 1)
        #expect(p.alerts == ["opened front-end-lost"])
    }

    /// Places in a backlog are those of the time that it is of, however far watched time is behind.
    @Test func whatIsSaidInABacklogKeepsItsPlaces() {
        var p = Partition()
        p.beacons(0, 20, from: 1, 2)
        for (boot, device) in [(UInt64(1), d1), (2, d2)] {
            for tick in 5...60 {
                let seconds = Double(tick) * 5
                // The first one falls silent two minutes before the end.
                if tick % 6 == 0, boot == 2 || seconds <= 180 {
                    p.beat(device, seconds - 1, from: boot)
                }
                p.beacon(seconds, from: boot, behind: tick > 6)
            }
        }
        #expect(p.state(d1) == .offline)
        #expect(p.since(d1) == 269)
        #expect(p.state(d2) == .healthy)
        #expect(p.alerts == ["opened offline"])
    }

    /// It was cut off, expelled, and comes back with its backlog just when the other one has left: the
    /// backlog is of a time in which the other one was there.
    @Test func aBacklogOfTheOnlyOneThatIsLeftIsNoTimeOfSilence() {
        var p = Partition()
        p.beacons(0, 20, from: 1, 2)
        p.beacons(25, 120, from: 2)
        p.beat(d1, 121, from: 2)
        p.beacon(122, from: 2, leaving: true)
        p.beacons(25, 30, from: 1)
        for seconds in stride(from: 35.0, through: 125, by: 5) {
            p.beacon(seconds, from: 1, behind: true)
        }
        p.beacons(130, 200, from: 1)
        #expect(p.state(d1) == .healthy)
        p.beacons(205, 240, from: 1)
        #expect(p.state(d1) == .offline)
    }

    /// After an outage of the log a new front-end's first beacon is read before the backlog of the one
    /// that was there all the while.
    @Test func whoJoinsBeforeABacklogIsReadPutsNothingOffForLong() {
        var p = Partition()
        p.beacons(0, 20, from: 1)
        p.beacon(320, from: 2)
        p.beacons(25, 30, from: 1)
        for seconds in stride(from: 35.0, through: 320, by: 5) {
            p.beacon(seconds, from: 1, behind: true)
        }
        p.beat(d1, 321, from: 1)
        p.beacons(325, 420, from: 1, 2)
        #expect(p.state(d1) == .healthy)
        p.beacons(425, 440, from: 1, 2)
        #expect(p.state(d1) == .offline)
    }

    @Test func whenTheSlowestLeavesWatchedTimeDoesNotJump() {
        var p = Partition()
        // Its monotonic clock is behind: it starts later, and beats slower.
        for tick in 0..<400 {
            p.beacon(Double(tick) * 5, from: 1)
            p.beacon(Double(tick) * 5, from: 2, monotonic: Double(tick) * 4.99 + 1_000)
        }
        let before = p.health.watchedTime.milliseconds
        p.beacon(1_996, from: 2, monotonic: 399 * 4.99 + 1_001, leaving: true)
        #expect(p.health.watchedTime.milliseconds - before <= 1_000)
        p.beacon(2_000, from: 1)
        #expect(p.health.watchedTime.milliseconds - before <= 6_000)
    }

    /// The clock is set back an hour between two beacons: what is said in between was said after the
    /// first of them.
    @Test func aClockThatIsSetBetweenBeaconsMovesNobodyFarBack() {
        var p = Partition()
        p.beacon(0)
        p.beat(d1, 1)
        p.beacons(5, 60)
        p.skew[1] = -3_600
        p.beat(d1, 62)
        p.beacons(65, 145)
        #expect(p.state(d1) == .healthy)
        p.beacons(150, 160)
        #expect(p.state(d1) == .offline)
    }

    // MARK: - Settings

    @Test func aLongerThresholdResolvesOnceWhatItNoLongerHolds() {
        var p = Partition()
        p.beacon(0)
        p.beat(d1, 1)
        p.beacons(5, 60)
        p.beat(d2, 62)
        p.beacons(65, 170)
        #expect(p.alerts == ["opened offline", "opened offline"])
        let ids = p.alertIDs
        var settings = TunnelHealthSettings()
        settings.offlineAfter = 150_000
        p.health.reconfigure(settings)
        p.beacons(175, 205)
        // The first has been silent for longer than that as well.
        #expect(p.state(d1) == .offline)
        #expect(p.state(d2) == .healthy)
        #expect(p.alerts == ["opened offline", "opened offline", "resolved offline"])
        #expect(p.alertIDs[2] == ids[1])
        p.beacons(210, 225)
        #expect(p.state(d2) == .offline)
        #expect(p.alerts.last == "opened offline")
        #expect(!ids.contains(p.alertIDs[3]))
        p.beat(d1, 226)
        #expect(p.alerts.last == "resolved offline")
        #expect(p.alertIDs.last == ids[0])
    }

    @Test func aReloadThatChangesNothingForADeviceLeavesItsAlert() {
        var p = Partition()
        p.beacon(0)
        p.beat(d1, 1)
        p.beacons(5, 120)
        let alerts = p.alertIDs
        for offlineAfter in [60, 100, 90] as [Int64] {
            var settings = TunnelHealthSettings()
            settings.offlineAfter = offlineAfter * 1_000
            p.health.reconfigure(settings)
            p.beacons(125, 130)
        }
        #expect(p.alertIDs == alerts)
        #expect(p.state(d1) == .offline)
    }

    @Test func anIntervalOfItsOwnThatAllowsTheSilenceEndsOffline() {
        var p = Partition()
        p.beacon(0)
        p.beat(d1, 1)
        p.beacons(5, 120)
        p.lifecycle(.provisioned, d1, 121, version: 2)
        #expect(p.state(d1) == .offline)
        p.lifecycle(.provisioned, d1, 122, version: 3, interval: 1_800_000)
        #expect(p.state(d1) == .healthy)
        #expect(p.alerts == ["opened offline", "resolved offline"])
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
        // The first version had no front-end's count of a device's heartbeat, which comes last, and
        // neither probation nor count of the front-end fe1, which come after 95 bytes.
        var bytes = p.snapshot
        #expect(Array(bytes[0..<4]) == [2, 0, 0, 0])
        bytes[0] = 1
        bytes.removeLast(8)
        bytes.removeSubrange(95..<104)
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
