import Bytes
import Schemas
import Testing

struct PartitionerTests {
    /// From Apache Kafka, `UtilsTest.testMurmur2`.
    static let vectors: [(String, Int32)] = [
        ("21", -973_932_308),
        ("foobar", -790_332_482),
        ("a-little-bit-long-string", -985_981_536),
        ("a-little-bit-longer-string", -1_486_304_829),
        ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971),
        ("abc", 479_470_107),
    ]

    @Test(arguments: vectors)
    func hashesAsKafkasJavaClientDoes(_ key: String, _ hash: Int32) {
        let bytes = ByteBuffer(key.utf8)
        #expect(Int32(bitPattern: Partitioner.murmur2(bytes.span)) == hash)
    }

    @Test func partitionsAreNeverNegative() {
        for (key, hash) in Self.vectors {
            let bytes = ByteBuffer(key.utf8)
            let partition = Partitioner.partition(of: bytes.span, count: 7)
            #expect(partition == (hash & 0x7FFF_FFFF) % 7)
        }
    }
}
