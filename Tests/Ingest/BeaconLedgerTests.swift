import Ingest
import Testing

@Suite("Beacons: what they claim") struct BeaconLedgerTests {
    @Test("a loss is declared once by a beacon that the log took")
    func declaredOnce() {
        var ledger = BeaconLedger()
        ledger.sent(ledger.claim(readings: [10, 12], losses: 0), token: 1)
        let lossy = ledger.claim(readings: [20, 25], losses: 3)
        #expect(lossy.isLossy)
        #expect(lossy.monotonicMilliseconds == 20)
        ledger.sent(lossy, token: 2)
        #expect(!ledger.claim(readings: [30], losses: 3).isLossy)
        #expect(ledger.claim(readings: [30], losses: 4).isLossy)
    }

    @Test("a beacon that could not be queued keeps the mark")
    func notQueued() {
        var ledger = BeaconLedger()
        let claim = ledger.claim(readings: [1], losses: 1)
        #expect(claim.isLossy)
        ledger.sent(claim, token: 1)
        ledger.settled(token: 1, isStored: false)
        #expect(ledger.claim(readings: [2], losses: 1).isLossy)
    }

    @Test("a beacon whose delivery failed gives its mark back, whatever was accepted since")
    func failedDelivery() {
        var ledger = BeaconLedger()
        ledger.sent(ledger.claim(readings: [1], losses: 1), token: 1)
        ledger.sent(ledger.claim(readings: [2], losses: 1), token: 2)
        ledger.settled(token: 1, isStored: false)
        #expect(ledger.claim(readings: [3], losses: 1).isLossy)
        ledger.sent(ledger.claim(readings: [3], losses: 1), token: 3)
        ledger.settled(token: 2, isStored: true)
        ledger.settled(token: 3, isStored: true)
        #expect(!ledger.claim(readings: [4], losses: 1).isLossy)
        // A beacon without a loss to declare fails: nothing to declare again.
        ledger.sent(ledger.claim(readings: [4], losses: 1), token: 4)
        ledger.settled(token: 4, isStored: false)
        #expect(!ledger.claim(readings: [5], losses: 1).isLossy)
    }

    @Test(
        "a beacon behind one that is not in the log declares a loss, and the next after it does not"
    )
    func behind() {
        var ledger = BeaconLedger()
        ledger.sent(ledger.claim(readings: [5_000], losses: 0), token: 1)
        // An orderly end writes its last beacon a moment after another.
        #expect(!ledger.claim(readings: [5_400], losses: 0).isLossy)
        let behind = ledger.claim(readings: [10_000], losses: 0)
        #expect(behind.isLossy)
        ledger.sent(behind, token: 2)
        ledger.settled(token: 1, isStored: true)
        ledger.settled(token: 2, isStored: true)
        #expect(!ledger.claim(readings: [15_000], losses: 0).isLossy)
    }

    @Test("the slowest loop holds the progress, which never goes back")
    func progress() {
        var ledger = BeaconLedger()
        let first = ledger.claim(readings: [50, 7, 60], losses: 0)
        #expect(first.monotonicMilliseconds == 7)
        ledger.sent(first, token: 1)
        #expect(ledger.claim(readings: [90, 3], losses: 0).monotonicMilliseconds == 7)
        #expect(ledger.claim(readings: [Int64](), losses: 0).monotonicMilliseconds == 7)
    }
}
