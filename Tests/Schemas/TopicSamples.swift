import Bytes
import Crypto
import Schemas

/// Events of every kind, with everything that they can hold and with the least, as the code writes
/// them.
enum TopicSamples {
    private static let device = DeviceID(high: 0xF47A_C10B_58CC_4372, low: 0xA567_0E02_B2C3_D479)
    private static let origin = EventOrigin(boot: 0xAB, counter: 12)
    private static let time = EventTime(milliseconds: 1_782_464_400_123)
    private static let alice = AccountID(high: 0xA11C_E000_0000_4000, low: 1 << 63 | 1)
    private static let bob = AccountID(high: 0xB0B0_0000_0000_4000, low: 1 << 63 | 2)
    private static let pair = AccountPair(alice, bob)!

    /// Values of records.
    static func values(of topic: Topic) -> [String] {
        switch topic {
        case .heartbeats: heartbeats.map { event in text { $0.append(event) } }
        case .configChanges: configChanges.map { event in text { $0.append(event) } }
        case .deviceConfigs:
            [true, false].map { isSuspended in
                text {
                    $0.append(
                        bellOf: device, version: 3, configChanges[0].hashes,
                        isSuspended: isSuspended)
                }
            }
        case .encounters: encounters.map { event in text { $0.append(event) } }
        case .waves: waves.map { event in text { $0.append(event) } }
        case .messages: [text { $0.append(message) }]
        case .pushes: [text { $0.append(PushesEvent(account: alice)) }]
        case .updates: updates.map { event in text { $0.append(event) } }
        case .telemetry: telemetry
        case .alerts: alerts
        case .deadLetters: deadLetters
        }
    }

    /// What the decoder of `topic` makes of a value: `nil` if it has none here, otherwise the event as
    /// its own code writes it, `skipped`, or `malformed: …`.
    static func reading(_ value: String, of topic: Topic) -> String? {
        let bytes = ByteBuffer(value.utf8)
        switch topic {
        case .heartbeats: return told(HeartbeatsDecoder().decode(bytes.span)) { $1.append($0) }
        case .configChanges:
            return told(ConfigChangesDecoder().decode(bytes.span)) { $1.append($0) }
        case .encounters: return told(EncountersDecoder().decode(bytes.span)) { $1.append($0) }
        case .waves: return told(WavesDecoder().decode(bytes.span)) { $1.append($0) }
        case .messages: return told(MessagesDecoder().decode(bytes.span)) { $1.append($0) }
        case .pushes: return told(PushesDecoder().decode(bytes.span)) { $1.append($0) }
        case .updates: return told(UpdatesDecoder().decode(bytes.span)) { $1.append($0) }
        case .telemetry: return told(TelemetryDecoder().decode(bytes.span)) { $1.append($0) }
        case .deviceConfigs, .alerts, .deadLetters: return nil
        }
    }

    private static func told<Event>(
        _ decoded: Decoded<Event>, _ write: (Event, inout ByteBuffer) -> Void
    ) -> String {
        switch decoded {
        case .event(let event): text { write(event, &$0) }
        case .skipped: "skipped"
        case .malformed(let reason): "malformed: \(reason)"
        }
    }

    private static func text(_ write: (inout ByteBuffer) -> Void) -> String {
        var bytes = ByteBuffer()
        write(&bytes)
        return bytes.span.text
    }

    // MARK: - Events

    private static var heartbeats: [HeartbeatsEvent] {
        var full = Heartbeat(device: device, origin: origin)
        full.status = .recovering
        full.tunnelUp = false
        full.lastHandshake = time
        full.flags = [.badStatus, .badState, .badTunnelUp, .badLastHandshake, .clockSkew]
        full.configVersion = 7
        full.agentState = InlineText("HEARTBEAT \"quoted\" \\ \u{1F680}\n")
        let statuses = AgentStatus.allCases.map { status in
            var heartbeat = Heartbeat(device: device, origin: origin)
            heartbeat.status = status
            heartbeat.tunnelUp = true
            return HeartbeatsEvent.heartbeat(heartbeat)
        }
        let kinds = Lifecycle.Kind.allCases.map {
            HeartbeatsEvent.lifecycle(Lifecycle(device: device, kind: $0, version: 4))
        }
        return [
            .heartbeat(Heartbeat(device: device, origin: origin)), .heartbeat(full),
            .beacon(
                Beacon(
                    frontEnd: InlineText("fe-1"), origin: origin, monotonicMilliseconds: 5_000)),
            .beacon(
                Beacon(
                    frontEnd: InlineText("fe-1"), origin: origin, monotonicMilliseconds: 5_000,
                    isLossy: true, isLeaving: true, isBehind: true)),
            .lifecycle(
                Lifecycle(
                    device: device, kind: .provisioned, version: 3,
                    expectedIntervalMilliseconds: 1_800_000)),
        ] + statuses + kinds
    }

    private static var configChanges: [ConfigChange] {
        let network = NetworkConfiguration(
            serverPublicKey: String(repeating: "3c", count: 32), endpoint: "vpn.example:51820",
            serverAddress: "10.64.0.1", dns: "1.1.1.1", allowedIPs: "0.0.0.0/0, ::/0")
        let tunnel = TunnelConfiguration(
            internalAddress: "10.64.0.2",
            privateKeyFingerprint: SHA256.hash(ByteBuffer("private".utf8).span),
            presharedKeyFingerprint: SHA256.hash(ByteBuffer("preshared".utf8).span),
            network: network)
        return ConfigChange.Kind.allCases.map { kind in
            ConfigChange(
                device: device, kind: kind, version: 3, isSuspended: kind == .suspended,
                actor: "ops", requestID: kind == .rotated ? "r-1" : nil, tunnel: tunnel,
                forwards: kind == .forwards
                    ? [
                        PortForward(
                            transport: "tcp", listenPort: 8_080, targetHost: "10.0.0.5",
                            targetPort: 80)
                    ] : [])
        }
    }

    private static var encounters: [Encounter] {
        let least = Encounter(
            origin: origin, id: EncounterID(high: 1, low: 2), pair: pair, reporter: bob,
            ownToken: InlineText("b1"), remoteToken: InlineText("a1"), tier: .bluetooth)
        var full = least
        full.engine = InlineText("ble")
        full.cell = Geohash("u2fk9")
        return [least, full]
    }

    private static var waves: [WavesEvent] {
        [
            .wave(Wave(origin: origin, pair: pair, sender: bob, token: InlineText("a1"))),
            .block(Block(origin: origin, pair: pair, sender: alice)),
        ]
    }

    private static var message: MessageEvent {
        MessageEvent(
            origin: origin, id: MessageID(high: 3, low: 4), pair: pair, sender: alice,
            body: ByteBuffer("{\"ciphertext\":\"QUJD\"}".utf8))
    }

    private static var updates: [UpdatesEvent] {
        let stages: [UpdatesEvent.Stage] =
            UpdatesEvent.Step.allCases.map { .step($0) } + [
                .selection(key: "asset"), .result(warnings: 2), .error("no signature"),
                .lost("stopped"), .disconnected,
            ]
        let kinds: [UpdatesEvent.Kind] =
            [
                .cloned, .clock, .checked(UpdatesEvent.Check(isAvailable: false)),
                .checked(
                    UpdatesEvent.Check(
                        channel: "pre-release", current: "v1", latest: "v2", isAvailable: true,
                        confirmed: DeviceID(high: 7, low: 8))),
            ]
            + stages.map {
                .attempt(
                    UpdatesEvent.Attempt(
                        id: DeviceID(high: 5, low: 6), action: .install, release: "v2", stage: $0))
            } + [
                .attempt(
                    UpdatesEvent.Attempt(
                        id: DeviceID(high: 5, low: 6), action: .prefetch, stage: .step(.check)))
            ]
        return kinds.map { kind in
            UpdatesEvent(
                origin: origin, installation: kind == .clock ? DeviceID(high: 0, low: 0) : device,
                source: kind == .clock ? "" : "gh:owner/repo", kind: kind)
        }
    }

    private static var telemetry: [String] {
        func bytes(_ text: String) -> ByteBuffer { ByteBuffer(text.utf8) }
        let (name, attributes, none) = (bytes("rx_bytes"), bytes("{\"if\":\"wg0\"}"), bytes(""))
        let (level, tag, line) = (bytes("info"), bytes("wireguard"), bytes("handshake completed"))
        var both = TelemetryWriter()
        both.addSample(name.span, 1.5, at: time, attributes: attributes.span)
        both.addSample(name.span, -3, at: time, attributes: none.span)
        both.addLogLine(level: level.span, tag: tag.span, line.span, at: time)
        var logs = TelemetryWriter()
        logs.addLogLine(level: level.span, tag: none.span, none.span, at: time)
        return [
            text { both.finish(device, origin, into: &$0) },
            text { logs.finish(device, origin, into: &$0) },
        ]
    }

    private static var alerts: [String] {
        AlertKind.allCases.flatMap { kind in
            [true, false].map { isOpen in
                let entity = ByteBuffer(
                    (kind == .massOffline || kind == .ingestSilent ? "fleet" : "\(device)").utf8)
                return text {
                    $0.append(
                        alert: AlertID.make(kind: kind, entity: entity.span, episode: 1),
                        kind: kind,
                        isOpen: isOpen, entity: entity.span, reason: "silent",
                        count: kind == .massOffline ? 40 : nil, at: time)
                }
            }
        }
    }

    private static var deadLetters: [String] {
        let letter = DeadLetter(
            topic: .heartbeats, partition: 1, offset: 7, reason: "no version \"v\"")
        let (key, value) = (ByteBuffer("\(device)".utf8), ByteBuffer("{}".utf8))
        let noText = ByteBuffer([0xFF, 0xFE])
        return [
            text { letter.append(to: &$0, key: key.span, value: value.span) },
            text { letter.append(to: &$0, key: noText.span, value: nil) },
            text { letter.append(to: &$0, table: "device_status", row: value.span) },
        ]
    }
}
