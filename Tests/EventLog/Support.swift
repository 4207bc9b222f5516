import EventLog
import Foundation
import Schemas
import System
import TestSupport

/// Lends a directory of its own, and removes it.
func withDirectory<Result>(_ body: (String) throws -> Result) throws -> Result {
    let directory = try makeDirectory()
    defer { removeDirectory(directory) }
    return try body(directory)
}

func makeDirectory() throws -> String {
    var template = Array("/tmp/heartline-log-XXXXXX".utf8CString)
    guard unsafe mkdtemp(&template) != nil else { throw BrokenPromise("making a directory") }
    return String(decoding: template.dropLast().map { UInt8(bitPattern: $0) }, as: UTF8.self)
}

func removeDirectory(_ directory: String) { try? FileManager.default.removeItem(atPath: directory) }

/// Lends an empty embedded log in a directory of its own.
func withLog<Result>(
    _ settings: EmbeddedLogSettings = EmbeddedLogSettings(),
    _ body: (EmbeddedLog) throws -> Result
) throws -> Result {
    try withDirectory { directory in
        let log = try EmbeddedLog(directory: "\(directory)/log", settings: settings)
        defer { log.close() }
        return try body(log)
    }
}

/// Waits until `condition` holds.
func eventually(
    _ what: String, seconds: Int64 = 60, _ condition: () throws -> Bool
) throws {
    let end = SystemClock.monotonicMilliseconds() + seconds * 1_000
    let pause = Waker()
    while try !condition() {
        guard SystemClock.monotonicMilliseconds() < end else {
            throw BrokenPromise("\(what) did not come about in time")
        }
        pause.wait(milliseconds: 5)
    }
}

extension EmbeddedLog {
    /// Stores records of one partition, in batches of `size`, each with its number as value.
    func storeNumbers(
        _ numbers: Range<Int>, in topic: Topic, partition: Int32 = 0, at milliseconds: Int64? = nil,
        size: Int = 1_000, padding: Int = 0
    ) throws {
        let time = milliseconds ?? SystemClock.wallMilliseconds()
        let padding = String(repeating: ".", count: padding)
        for start in stride(from: numbers.lowerBound, to: numbers.upperBound, by: size) {
            var batch = RecordBatch(topic)
            for number in start..<min(start + size, numbers.upperBound) {
                batch.append(partition, "k\(number)", "\(number)\(padding)", at: time)
            }
            try store(batch)
        }
    }
}
