import Alerts
import Schemas
import Simulation
import TestSupport
import Testing

@Suite struct AlertDispatchTests {
    struct Story: CustomTestStringConvertible, Sendable {
        var testDescription: String
        var act: @Sendable (inout DispatchBench) -> Void
        var messages: [String]
    }

    static let stories = [
        Story(
            testDescription: "an offline alert is sent after ten seconds, and its resolve",
            act: {
                $0.open(1)
                $0.run(seconds: 10)
                #expect($0.messages.isEmpty && $0.state(1) == .held)
                $0.run(seconds: 1)
                $0.run(seconds: 100)
                $0.resolve(1)
                $0.run(seconds: 1)
            }, messages: ["firing 1", "resolved 1"]),
        Story(
            testDescription: "one that is resolved while it waits is never sent",
            act: {
                $0.open(1)
                $0.run(seconds: 9)
                $0.resolve(1)
                $0.run(seconds: 60)
                #expect($0.state(1) == .ended)
            }, messages: []),
        Story(
            testDescription: "one that is opened and resolved between two rounds is never sent",
            act: {
                $0.open(1, kind: .down)
                $0.resolve(1)
                $0.run(seconds: 60)
                #expect($0.state(1) == nil)
            }, messages: []),
        Story(
            testDescription: "other kinds are sent at once",
            act: {
                $0.open(1, kind: .stale)
                $0.open(2, kind: .ingestSilent)
                $0.open(3, kind: .frontEndLost)
                $0.run(seconds: 1)
            }, messages: ["firing 1", "firing 2", "firing 3"]),
        Story(
            testDescription: "a silence of the device ends while the cause persists",
            act: {
                $0.silence(device: 1, seconds: 100)
                $0.open(1)
                $0.open(2, kind: .stale)
                $0.run(seconds: 99)
                #expect($0.state(1) == .silenced)
                $0.run(seconds: 1)
            }, messages: ["firing 2", "firing 1"]),
        Story(
            testDescription: "one that is resolved while silenced is never sent",
            act: {
                $0.silence(.stale, seconds: 100)
                $0.open(1, kind: .stale)
                $0.run(seconds: 50)
                $0.resolve(1)
                $0.run(seconds: 100)
            }, messages: []),
        Story(
            testDescription: "a silence that begins later takes what waits, not what was sent",
            act: {
                $0.open(1, kind: .stale)
                $0.run(seconds: 1)
                $0.open(2)
                $0.run(seconds: 5)
                $0.silence(seconds: 1_000)
                $0.run(seconds: 60)
                $0.resolve(1)
                $0.run(seconds: 60)
                #expect($0.state(2) == .silenced)
            }, messages: ["firing 1", "resolved 1"]),
        Story(
            testDescription: "a short silence does not cut the wait short",
            act: {
                $0.silence(.offline, seconds: 3)
                $0.open(1)
                $0.run(seconds: 12)
                #expect($0.messages.isEmpty)
                $0.run(seconds: 1)
            }, messages: ["firing 1"]),
        Story(
            testDescription: "a fifth of the devices is no mass event",
            act: {
                for number in 0..<20 { $0.open(number) }
                $0.run(seconds: 70)
                #expect($0.massCount == 0)
            }, messages: (0..<20).map { "firing \($0)" }),
        Story(
            testDescription: "more than a fifth are one alert that names the count",
            act: {
                for number in 0..<21 { $0.open(number) }
                $0.run(seconds: 100)
                $0.open(50)
                $0.run(seconds: 100)
                #expect($0.state(50) == .grouped)
                for number in 0..<18 { $0.resolve(number) }
                $0.run(seconds: 1)
                #expect($0.massCount == 1)
            }, messages: ["firing mass-offline (21)"]),
        Story(
            testDescription: "it ends when nine of ten are back; the others are sent after a wait",
            act: {
                for number in 0..<30 { $0.open(number) }
                $0.run(seconds: 100)
                for number in 0..<27 { $0.resolve(number) }
                $0.run(seconds: 5)
                $0.resolve(27)
                $0.run(seconds: 6)
                $0.resolve(28)
                $0.run(seconds: 1)
            },
            messages: [
                "firing mass-offline (30)", "resolved mass-offline", "firing 28", "firing 29",
                "resolved 28",
            ]),
        Story(
            testDescription: "few devices are never a mass event",
            act: {
                $0.fleet = 19
                for number in 0..<19 { $0.open(number) }
                $0.run(seconds: 100)
            }, messages: (0..<19).map { "firing \($0)" }),
        Story(
            testDescription: "a mass event that comes slowly is still one alert",
            act: {
                $0.fleet = 1_000
                for number in 0..<300 {
                    $0.open(number)
                    if number % 5 == 0 { $0.run(seconds: 1) }
                }
                $0.run(seconds: 100)
            }, messages: ["firing mass-offline (201)"]),
        Story(
            testDescription: "those that were sent within the minute count, and stay sent",
            act: {
                for number in 0..<15 { $0.open(number) }
                $0.run(seconds: 20)
                for number in 15..<25 { $0.open(number) }
                $0.run(seconds: 1)
                for number in 0..<5 { $0.resolve(number) }
                $0.run(seconds: 1)
                for number in 15..<25 { $0.resolve(number) }
                $0.run(seconds: 1)
            },
            messages: (0..<15).map { "firing \($0)" } + ["firing mass-offline (25)"]
                + (0..<5).map { "resolved \($0)" } + ["resolved mass-offline"]),
        Story(
            testDescription: "those that were sent longer ago do not count",
            act: {
                for number in 0..<15 { $0.open(number) }
                $0.run(seconds: 61)
                for number in 15..<25 { $0.open(number) }
                $0.run(seconds: 11)
            }, messages: (0..<25).map { "firing \($0)" }),
        Story(
            testDescription: "a silence of its kind holds back the mass event, not its grouping",
            act: {
                $0.silence(.massOffline, seconds: 1_000)
                for number in 0..<30 { $0.open(number) }
                $0.run(seconds: 100)
                $0.unsilence()
                $0.run(seconds: 1)
                for number in 0..<30 { $0.resolve(number) }
                $0.run(seconds: 1)
            }, messages: ["firing mass-offline", "resolved mass-offline"]),
        Story(
            testDescription: "a silence of many that ends is one alert, not many",
            act: {
                $0.silence(.offline, seconds: 100)
                for number in 0..<30 { $0.open(number) }
                $0.run(seconds: 101)
            }, messages: ["firing mass-offline (30)"]),
        Story(
            testDescription: "a second event is another alert",
            act: {
                for round in 0..<2 {
                    for number in 0..<30 { $0.open(round * 100_000 + number) }
                    $0.run(seconds: 10)
                    for number in 0..<30 { $0.resolve(round * 100_000 + number) }
                    $0.run(seconds: 10)
                }
                #expect($0.massCount == 2)
                #expect(Set($0.sent.map(\.id)).count == 2)
            },
            messages: [
                "firing mass-offline (30)", "resolved mass-offline", "firing mass-offline (30)",
                "resolved mass-offline",
            ]),
        Story(
            testDescription: "a database's clock that is set back holds nobody back",
            act: {
                $0.open(1)
                $0.run(seconds: 5)
                $0.now -= 3_600_000
                $0.run(seconds: 1)
            }, messages: ["firing 1"]),
    ]

    @Test(arguments: stories)
    func tells(_ story: Story) {
        var bench = DispatchBench()
        story.act(&bench)
        #expect(bench.messages == story.messages)
    }

    /// Devices come and go, silences too; sometimes many at once.
    private func live(
        _ seed: UInt64, restarts: Int, look: (inout DispatchBench) -> Void = { _ in }
    ) -> DispatchBench {
        var random = SplitMix64(seed: seed)
        var chance = SplitMix64(seed: seed &+ 1)
        var bench = DispatchBench()
        var open: Set<Int> = []
        var numbers = [Int](repeating: 0, count: 100)
        var episode = 0
        for _ in 0..<400 {
            let isStorm = random.chance(8)
            for device in 0..<100 {
                let isOpen = open.contains(device)
                if !isOpen, random.chance(isStorm ? 600 : 3) {
                    episode += 1
                    open.insert(device)
                    bench.open(
                        episode * 100_000 + device, kind: random.chance(700) ? .offline : .stale)
                    numbers[device] = episode * 100_000 + device
                } else if isOpen, random.chance(isStorm ? 10 : 30) {
                    open.remove(device)
                    bench.resolve(numbers[device])
                }
            }
            if random.chance(20) {
                bench.silence(
                    random.chance(500) ? .offline : nil,
                    device: random.chance(700) ? random.below(100) : nil,
                    seconds: Int64(1 + random.below(60)))
            }
            if random.chance(800) {
                bench.run(seconds: 1)
                look(&bench)
            } else {
                // A round that comes late finds more.
                bench.now += 1_000
            }
            if chance.chance(restarts) { bench.restart() }
        }
        return bench
    }

    @Test(arguments: 0..<60 as Range<UInt64>)
    func aRestartAtAnyPointChangesNothing(seed: UInt64) {
        let calm = live(seed, restarts: 0)
        let stormy = live(seed, restarts: 300)
        #expect(calm.messages == stormy.messages)
        #expect(calm.decisions == stormy.decisions)
        #expect(!calm.messages.isEmpty)
    }

    @Test(arguments: 0..<60 as Range<UInt64>)
    func whatFiresIsResolvedOnceAndNothingIsToldTwice(seed: UInt64) {
        var bench = live(seed, restarts: 100) { bench in
            let firing = Set(bench.sent.filter { $0.event == .firing }.map(\.id))
            let resolved = Set(bench.sent.filter { $0.event == .resolved }.map(\.id))
            for (id, row) in bench.alerts where firing.contains(id) && !row.isOpen {
                // Resolved in the tables is resolved to receivers, a round later at most.
                #expect(resolved.contains(id) || row.kind == "mass-offline")
            }
            for (id, row) in bench.alerts where row.isOpen && row.kind != "mass-offline" {
                guard let decision = bench.decisions[id] else {
                    Issue.record("an open alert was not decided")
                    continue
                }
                // Whoever is grouped is told of by an event that is open.
                #expect((decision.state == .grouped) == (decision.group != nil))
                #expect(decision.group == nil || decision.group == bench.dispatch.mass?.id)
                #expect((decision.state == .sent) == firing.contains(id))
                if decision.state == .held { #expect(bench.now - decision.decidedAt < 62_000) }
            }
        }
        for (id, row) in bench.alerts where row.isOpen && row.kind != "mass-offline" {
            bench.resolve(Int(id.low))
        }
        bench.run(seconds: 2)
        #expect(Set(bench.sent).count == bench.sent.count)
        let firing = Set(bench.sent.filter { $0.event == .firing }.map(\.id))
        let resolved = Set(bench.sent.filter { $0.event == .resolved }.map(\.id))
        #expect(firing == resolved)
        #expect(bench.dispatch.entries.isEmpty && bench.dispatch.mass == nil)
        for id in resolved {
            let place = bench.sent.firstIndex(of: .init(id: id, event: .firing))
            let end = bench.sent.firstIndex(of: .init(id: id, event: .resolved))
            #expect(place ?? .max < end ?? 0)
        }
    }
}
