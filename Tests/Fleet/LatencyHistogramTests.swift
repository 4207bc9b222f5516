import Fleet
import Testing

@Suite struct LatencyHistogramTests {
    @Test func percentilesAreNeverTooSmallAndNeverASixteenthTooLarge() {
        var random = SeededRandom(seed: 4)
        for spread in [10, 1_000, 50_000, 30_000_000] as [UInt64] {
            var histogram = LatencyHistogram()
            var times: [UInt64] = []
            for _ in 0..<2_000 {
                let time = UInt64.random(in: 0...spread, using: &random)
                times.append(time)
                histogram.record(microseconds: time)
            }
            times.sort()
            for share in [0.01, 0.5, 0.9, 0.99, 0.999, 1] {
                let exact = times[Int((2_000 * share).rounded(.up)) - 1]
                let found = histogram.percentileMicroseconds(share)
                #expect(found >= exact && found <= exact + exact / 16)
            }
            #expect(histogram.percentileMicroseconds(1) == times.last)
            #expect(histogram.maximumMicroseconds == times.last)
        }
    }

    @Test func extremesHaveTheirBuckets() {
        var histogram = LatencyHistogram()
        #expect(histogram.percentileMicroseconds(0.5) == 0)
        histogram.record(microseconds: .max)
        histogram.record(microseconds: 0)
        #expect(histogram.count == 2)
        #expect(histogram.percentileMicroseconds(0) == 0)
        #expect(histogram.percentileMicroseconds(1) == .max)
    }
}
