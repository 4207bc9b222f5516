import Bytes
import Schemas
import Testing

private func parse(_ text: String) -> Int64? {
    EventTime(parsing: ByteBuffer(text.utf8).span)?.milliseconds
}

@Suite("Times as devices write them")
struct EventTimeTests {
    @Test(arguments: [
        ("1970-01-01T00:00:00Z", 0),
        ("2026-06-26T09:00:00Z", 1_782_464_400_000),
        ("2026-06-26T09:00:00.5Z", 1_782_464_400_500),
        ("2026-06-26T09:00:00.123456789Z", 1_782_464_400_123),
        ("2026-06-26T11:00:00+02:00", 1_782_464_400_000),
        ("2026-06-26T04:30:00-04:30", 1_782_464_400_000),
        ("2026-06-26T11:00:00+0200", 1_782_464_400_000),
        ("2026-06-26t09:00:00z", 1_782_464_400_000),
        ("2026-06-26 09:00:00Z", 1_782_464_400_000),
        ("2000-02-29T00:00:00Z", 951_782_400_000),
        ("1969-12-31T23:59:59Z", -1_000),
        ("0001-01-01T00:00:00Z", -62_135_596_800_000),
        ("9999-12-31T23:59:59Z", 253_402_300_799_000),
        ("2016-12-31T23:59:60Z", 1_483_228_800_000),
    ])
    func reads(_ text: String, _ milliseconds: Int64) {
        #expect(parse(text) == milliseconds)
    }

    @Test(arguments: [
        "", "0", "PT5S", "now", "2026-06-26", "2026-06-26T09:00:00", "2026-13-01T00:00:00Z",
        "2026-02-29T00:00:00Z", "2026-06-31T00:00:00Z", "2026-06-26T24:00:00Z",
        "2026-06-26T09:60:00Z", "2026-06-26T09:00:61Z", "2026-06-26T09:00:00.Z",
        "2026-06-26T09:00:00ZZ", "2026-06-26T09:00:00+2:00", "20260626T090000Z",
        "2026-06-26T09:00:00+25:00", "１026-06-26T09:00:00Z", "2026-00-01T00:00:00Z",
    ])
    func refuses(_ text: String) {
        #expect(parse(text) == nil)
    }

    @Test func writesWhatItReads() {
        var random = UInt64(7)
        for _ in 0..<20_000 {
            random = random &* 6_364_136_223_846_793_005 &+ 1_442_695_040_888_963_407
            let range = EventTime.latest.milliseconds - EventTime.earliest.milliseconds
            let time = EventTime(
                milliseconds: EventTime.earliest.milliseconds
                    + Int64(random % UInt64(range)))
            #expect(parse(time.description) == time.milliseconds)
        }
    }

    @Test func timesOutsideTheCalendarAreCut() {
        #expect(EventTime(milliseconds: .max).description == "9999-12-31T23:59:59.999Z")
        #expect(EventTime(milliseconds: .min).description == "0000-01-01T00:00:00.000Z")
        #expect(EventTime(milliseconds: .max).postgresMicroseconds > 0)
    }
}

@Suite("Device ids")
struct DeviceIDTests {
    @Test func upperAndLowerCaseAreOneDevice() {
        let lower = DeviceID("f47ac10b-58cc-4372-a567-0e02b2c3d479")
        #expect(lower != nil)
        #expect(lower == DeviceID("F47AC10B-58CC-4372-A567-0E02B2C3D479"))
        #expect(lower?.description == "f47ac10b-58cc-4372-a567-0e02b2c3d479")
    }

    @Test(arguments: [
        "", "f47ac10b58cc4372a5670e02b2c3d479", "f47ac10b-58cc-4372-a567-0e02b2c3d47",
        "f47ac10b-58cc-4372-a567-0e02b2c3d4790", "g47ac10b-58cc-4372-a567-0e02b2c3d479",
        "{f47ac10b-58cc-4372-a567-0e02b2c3d479}", "f47ac10b-58cc-4372-a567_0e02b2c3d479",
        "f47ac10b-58cc-4372-a5670-e02b2c3d479",
    ])
    func otherFormsAreRefused(_ text: String) {
        #expect(DeviceID(text) == nil)
    }
}

@Suite("Partitions by key")
struct PartitionerTests {
    // From Apache Kafka's own UtilsTest.testMurmur2.
    @Test(arguments: [
        ("21", -973_932_308), ("foobar", -790_332_482),
        ("a-little-bit-long-string", -985_981_536), ("a-little-bit-longer-string", -1_486_304_829),
        ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971), ("abc", 479_470_107),
    ])
    func murmur2IsThatOfTheJavaClient(_ key: String, _ hash: Int32) {
        #expect(Int32(bitPattern: Partitioner.murmur2(ByteBuffer(key.utf8).span)) == hash)
    }

    @Test func partitionsAreSpreadEvenly() {
        var counts = [Int](repeating: 0, count: 8)
        for index in 0..<8_000 {
            var key = ByteBuffer()
            key.append(DeviceID(high: UInt64(index) &* 0x9E37_79B9, low: UInt64(index)))
            counts[Int(Partitioner.partition(of: key.span, count: 8))] += 1
        }
        #expect(counts.allSatisfy { $0 > 800 && $0 < 1_200 })
    }
}
