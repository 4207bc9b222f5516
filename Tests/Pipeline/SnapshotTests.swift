import Bytes
import Pipeline
import Testing

@Suite struct SnapshotTests {
    private func sealed() -> ByteBuffer {
        var bytes = ByteBuffer()
        Snapshot.seal(
            pipeline: "tunnel-health", offset: 77, sequence: 5, settings: "stale_after: 180s",
            into: &bytes
        ) { $0.append(text: "state") }
        return bytes
    }

    @Test func whatIsSealedIsOpened() throws {
        let bytes = sealed()
        let snapshot = try Snapshot.open(bytes.span, pipeline: "tunnel-health")
        #expect(snapshot.offset == 77)
        #expect(snapshot.sequence == 5)
        #expect(snapshot.settings == "stale_after: 180s")
        #expect(bytes.span.extracting(snapshot.state).text == "state")
    }

    @Test func everyFlippedBitIsFound() {
        let bytes = sealed()
        for index in 0..<bytes.count {
            for bit in 0..<8 {
                var damaged = bytes
                damaged[index] ^= 1 << bit
                #expect(throws: SnapshotFault.self) {
                    _ = try Snapshot.open(damaged.span, pipeline: "tunnel-health")
                }
            }
        }
    }

    @Test func everyTruncationIsFound() {
        let bytes = sealed()
        for size in 0..<bytes.count {
            #expect(throws: SnapshotFault.self) {
                _ = try Snapshot.open(
                    bytes.span.extracting(0..<size), pipeline: "tunnel-health")
            }
        }
    }

    @Test func anotherPipelinesSnapshotIsRefused() {
        #expect(throws: SnapshotFault.otherPipeline) {
            _ = try Snapshot.open(sealed().span, pipeline: "waves")
        }
    }

    @Test func anotherVersionIsNamed() {
        var bytes = sealed()
        bytes[11] = 9
        #expect(throws: SnapshotFault.unknownVersion(9)) {
            _ = try Snapshot.open(bytes.span, pipeline: "tunnel-health")
        }
    }
}
