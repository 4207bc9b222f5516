import EventLog
import Foundation
import Kafka
import Schemas
import System

/// A cluster to measure on, and a process that fills it: the CPU time of ours is then the workers'.
final class BenchCluster {
    static let partitions: Int32 = 4

    let brokers: String
    let sessionMilliseconds: Int64
    private let settings: KafkaLogSettings
    private let isMock: Bool
    private let feeder = Process()
    private let input = Pipe()
    private let output = Pipe()

    init(_ arguments: Arguments, devices: Int) throws {
        let given = try LogAccess.kafkaSettings(arguments)
        isMock = given == nil
        var properties = given?.properties ?? []
        // The mock holds an answer without records for all of its time.
        if isMock { properties.append(try .init("fetch.wait.max.ms=20")) }
        let session = properties.first { $0.name == "session.timeout.ms" }
        // The least that brokers allow. The mock also waits for nearly that long at each rebalance.
        let shortest = isMock ? 3_000 : 6_000
        if session == nil {
            properties.append(try .init("session.timeout.ms=\(shortest)"))
            properties.append(try .init("heartbeat.interval.ms=500"))
        }
        sessionMilliseconds = session.flatMap { Int64($0.value) } ?? Int64(shortest)

        feeder.executableURL = URL(fileURLWithPath: "/proc/self/exe").resolvingSymlinksInPath()
        feeder.arguments =
            ["bench", Bench.feeder, "--kafka-devices", String(devices)]
            + (given.map { ["--brokers", $0.brokers] } ?? [])
            + (given?.properties ?? []).flatMap { ["--kafka-config", "\($0.name)=\($0.value)"] }
        feeder.standardOutput = output
        feeder.standardInput = input
        try feeder.run()
        brokers = try Self.line(output)
        settings = try KafkaLogSettings(brokers: brokers, properties: properties)
    }

    private static func line(_ pipe: Pipe) throws -> String {
        let data = pipe.fileHandleForReading.availableData
        guard let text = String(data: data, encoding: .utf8), text.hasSuffix("\n") else {
            throw Failure("filling the log: the process that does it has ended")
        }
        return text.trimmingCharacters(in: .whitespacesAndNewlines)
    }

    func stop() {
        input.fileHandleForWriting.closeFile()
        feeder.waitUntilExit()
    }

    var properties: [String] { settings.properties.map { "\($0.name)=\($0.value)" } }

    /// A round of heartbeats, stored when this returns.
    func append(changing: Int) throws {
        input.fileHandleForWriting.write(Data("\(changing)\n".utf8))
        _ = try Self.line(output)
    }

    private func openLog() throws -> KafkaLog {
        // The mock's topics are made with it.
        isMock ? try KafkaLog(settings) { _ in } : try KafkaLog(settings)
    }

    func makeLog() throws -> KafkaLog {
        let log = try openLog()
        try Self.wait(for: log)
        // What others wrote would be counted, and their devices judged.
        if !isMock, try log.partitionCount(of: .heartbeats) != nil {
            throw Failure(
                "measuring on \(brokers): topic heartbeats is there already; take a cluster that nobody uses, or delete its topics"
            )
        }
        return log
    }

    private static func wait(for log: KafkaLog) throws {
        let pause = Waker()
        let deadline = SystemClock.monotonicMilliseconds() + 10_000
        while let fault = log.fault {
            guard SystemClock.monotonicMilliseconds() < deadline else { throw Failure(fault) }
            pause.wait(milliseconds: 20)
        }
    }

    /// Records a CPU-second of taking the last `records` of the topic from librdkafka one by one.
    func drain(records: Int) throws -> Double {
        let log = try openLog()
        defer { log.close() }
        try Self.wait(for: log)
        var cpu: UInt64 = 0
        let count = try log.drain(.heartbeats, last: Int64(records)) {
            cpu = SystemClock.processCPUNanoseconds()
        }
        return Double(count) / (Double(SystemClock.processCPUNanoseconds() - cpu) / 1e9)
    }

    /// The other process: tells where the brokers are, then appends a round of heartbeats for each line
    /// and says so, until its input ends.
    static func feed(_ arguments: Arguments) throws {
        let mock = try arguments.optionalText("brokers") == nil ? KafkaMock() : nil
        if let mock {
            for topic in Topic.allCases {
                try mock.createTopic(topic.rawValue, partitions: partitions)
            }
        }
        func tell(_ text: String) {
            print(text)
            fflush(nil)
        }
        let settings =
            if let mock { try KafkaLogSettings(brokers: mock.brokers) } else {
                try LogAccess.kafkaSettings(arguments)!
            }
        tell(settings.brokers)
        var log: KafkaLog?
        var feed: BenchFeed?
        while let line = readLine() {
            guard let changing = Int(line) else { continue }
            if feed == nil {
                let opened = try KafkaLog(settings)
                log = opened
                try wait(for: opened)
                feed = BenchFeed(
                    try opened.makeProducer(ProducerSettings()),
                    devices: arguments.integer("kafka-devices"), partitions: partitions)
            }
            try feed?.append(changing: changing)
            tell("stored")
        }
        log?.close()
    }
}
