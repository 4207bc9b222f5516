import Ingest
import Testing

@Suite("Beacons: what they claim") struct BeaconLedgerTests {
    @Test("a loss is declared once by a beacon that the log took")
    func declaredOnce() {
        var ledger = BeaconLedger()
        ledger.write(1, at: 12)
        let lossy = ledger.write(2, readings: [20, 25], losses: 3)
        #expect(lossy.isLossy)
        #expect(lossy.monotonicMilliseconds == 20)
        let next = ledger.claim(readings: [30], losses: 3)
        #expect(!next.isLossy)
        let another = ledger.claim(readings: [30], losses: 4)
        #expect(another.isLossy)
    }

    @Test("a beacon that could not be queued keeps the mark")
    func notQueued() {
        var ledger = BeaconLedger()
        let claim = ledger.write(1, at: 1, losses: 1)
        #expect(claim.isLossy)
        ledger.settled(token: 1, isStored: false)
        let next = ledger.claim(readings: [2], losses: 1)
        #expect(next.isLossy)
    }

    @Test("a beacon whose delivery failed gives its mark back, whatever was accepted since")
    func failedDelivery() {
        var ledger = BeaconLedger()
        ledger.write(1, at: 1, losses: 1)
        ledger.write(2, at: 2, losses: 1)
        ledger.settled(token: 1, isStored: false)
        let again = ledger.write(3, at: 3, losses: 1)
        #expect(again.isLossy)
        ledger.settled(token: 2, isStored: true)
        ledger.settled(token: 3, isStored: true)
        // A beacon without a loss to declare fails: nothing to declare again.
        let well = ledger.write(4, at: 4, losses: 1)
        #expect(!well.isLossy)
        ledger.settled(token: 4, isStored: false)
        let next = ledger.claim(readings: [5], losses: 1)
        #expect(!next.isLossy)
    }

    @Test("beacons of an outage of the log are behind, and the first after it is not")
    func behind() {
        var ledger = BeaconLedger()
        var behind: [Bool] = []
        for second in stride(from: 5, through: 40, by: 5) as StrideThrough<Int64> {
            // From the second beacon on nothing is acknowledged for a while.
            let claim = ledger.write(UInt64(second), at: second * 1_000)
            behind.append(claim.isBehind)
            #expect(!claim.isLossy, "what waits is not lost")
            if second == 5 { ledger.settled(token: 5, isStored: true) }
            if second == 30 {
                for token in [10, 15, 20, 25, 30] as [UInt64] {
                    ledger.settled(token: token, isStored: true)
                }
            }
            if second > 30 { ledger.settled(token: UInt64(second), isStored: true) }
        }
        #expect(behind == [false, false, false, true, true, true, false, false])
    }

    @Test("a log that takes 22 s for each beacon makes none behind: it goes on answering")
    func slow() {
        var ledger = BeaconLedger()
        for beacon in 1...200 as ClosedRange<UInt64> {
            let claim = ledger.write(beacon, at: Int64(beacon) * 5_000)
            #expect(!claim.isLossy)
            if beacon > 7 { #expect(!claim.isBehind) }
            if beacon > 4 { ledger.settled(token: beacon - 4, isStored: true) }
        }
    }

    @Test("the slowest loop holds the progress, which never goes back")
    func progress() {
        var ledger = BeaconLedger()
        let first = ledger.write(1, readings: [50, 7, 60])
        #expect(first.monotonicMilliseconds == 7)
        let second = ledger.claim(readings: [90, 3], losses: 0)
        #expect(second.monotonicMilliseconds == 7)
        let none = ledger.claim(readings: [Int64](), losses: 0)
        #expect(none.monotonicMilliseconds == 7)
    }
}

extension BeaconLedger {
    @discardableResult
    fileprivate mutating func write(
        _ token: UInt64, readings: [Int64], losses: UInt64 = 0
    ) -> Claim {
        let claim = claim(readings: readings, losses: losses)
        sent(claim, token: token)
        return claim
    }

    @discardableResult
    fileprivate mutating func write(
        _ token: UInt64, at reading: Int64, losses: UInt64 = 0
    ) -> Claim {
        write(token, readings: [reading], losses: losses)
    }
}
