import Bytes
import Schemas
import Testing

@Suite("Records of topic updates") struct UpdatesEventTests {
    private static let id = DeviceID(high: 0x1234_5678_9ABC_4DEF, low: 0x8FED_CBA9_8765_4321)

    static let kinds: [UpdatesEvent.Kind] = {
        let stages: [UpdatesEvent.Stage] =
            UpdatesEvent.Step.allCases.map { .step($0) } + [
                .selection(key: "asset"), .result(warnings: 2), .error("a \"quoted\"\nreason"),
                .lost("stopped"), .disconnected,
            ]
        var kinds: [UpdatesEvent.Kind] = [
            .cloned, .checked(UpdatesEvent.Check(isAvailable: false)),
            .checked(
                UpdatesEvent.Check(
                    channel: "pre-release", current: "v1", latest: "v2", isAvailable: true,
                    confirmed: DeviceID(high: 7, low: 8))),
        ]
        for stage in stages {
            for action in UpdatesEvent.Action.allCases {
                for release in [nil, "v2"] {
                    kinds.append(
                        .attempt(
                            UpdatesEvent.Attempt(
                                id: DeviceID(high: 5, low: 6), action: action, release: release,
                                stage: stage)))
                }
            }
        }
        return kinds
    }()

    private static func encoded(_ kind: UpdatesEvent.Kind) -> (UpdatesEvent, ByteBuffer) {
        let event = UpdatesEvent(
            origin: EventOrigin(boot: 0xABCD, counter: 42),
            installation: kind == .clock ? DeviceID(high: 0, low: 0) : id,
            source: kind == .clock ? "" : "gh:owner/repo", kind: kind)
        var value = ByteBuffer()
        value.append(event)
        return (event, value)
    }

    @Test("what is written is read again", arguments: kinds + [.clock])
    func roundTrip(_ kind: UpdatesEvent.Kind) {
        let (event, value) = Self.encoded(kind)
        guard case .event(let read) = UpdatesDecoder().decode(value.span) else {
            Issue.record("\(value.span.text)")
            return
        }
        #expect(read == event)
    }

    @Test("what is not known is left out, what is wrong is told")
    func malformed() {
        let decoder = UpdatesDecoder()
        let (_, value) = Self.encoded(Self.kinds[3])
        let good = value.span.text
        func outcome(_ old: String, _ new: String) -> String {
            let changed = ByteBuffer(good.replacing(old, with: new).utf8)
            return switch decoder.decode(changed.span) {
            case .event: "event"
            case .skipped: "skipped"
            case .malformed(let reason): reason
            }
        }
        #expect(outcome("\"v\":1", "\"v\":1,\"later\":[1]") == "event")
        #expect(outcome("\"progress\"", "\"tomorrow\"") == "skipped")
        #expect(outcome("\"step\":\"check\"", "\"step\":\"polish\"") == "skipped")
        #expect(outcome("\"v\":1", "\"v\":2") == "version \"v\" 2 is not known")
        #expect(outcome("\"id\"", "\"no\"") == "\"id\" is not an event id")
        #expect(outcome("installation_id", "no") == "\"installation_id\" is not a UUID")
        #expect(outcome("attempt_id", "no") == "\"attempt_id\" is not a UUID")
        #expect(outcome("prefetch", "x") == "\"action\" is neither prefetch nor install")
        #expect(outcome("{", "[") == "not JSON")
    }
}
