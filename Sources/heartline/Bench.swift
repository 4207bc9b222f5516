import Glibc
import System

/// `heartline bench`: measurements, each printed beside its yardstick. `make bench` runs it.
enum Bench {
    static let command = Command(
        name: "bench", summary: "measure this build on this machine",
        details: """
            Without a name all measurements are made; with names only those: processor.
            Times are CPU time where nothing else is said. The machine should be idle.
            """,
        operands: Operands(
            placeholder: "[NAME…]", count: 0...16, help: "measurements to make"),
        options: [
            .integer(
                "devices", 1_000...10_000_000, default: 1_000_000, "devices of the largest runs")
        ]
    ) { arguments in
        let names = arguments.operands.isEmpty ? ["processor"] : arguments.operands
        let devices = arguments.integer("devices")
        for name in names {
            switch name {
            case "processor": processor(devices)
            default: throw UsageError("unknown measurement \"\(name)\"")
            }
        }
        return .done
    }

    private static func processor(_ devices: Int) {
        print("Tunnel health in memory: decode, apply, drain; one core")
        for count in [devices / 100, devices / 10, devices] where count >= 1_000 {
            let result = BenchProcessor.measure(devices: count, rounds: 4, changing: 10)
            print(
                "  \(count) devices: \(rounded(result.nanosecondsPerRecord)) ns a record,"
                    + " \(rounded(result.bytesPerDevice)) bytes a device")
        }
    }

    static func rounded(_ value: Double) -> String { String(Int(value.rounded())) }

    /// Memory of this process that is in RAM, from /proc/self/statm.
    static func residentBytes() -> Int {
        guard let file = unsafe fopen("/proc/self/statm", "r") else { return 0 }
        defer { unsafe _ = fclose(file) }
        var line = [CChar](repeating: 0, count: 128)
        guard unsafe fgets(&line, 128, file) != nil else { return 0 }
        let text = String(
            decoding: line.prefix { $0 != 0 }.map { UInt8(bitPattern: $0) }, as: UTF8.self)
        let fields = text.split(separator: " ")
        return fields.count > 1 ? (Int(fields[1]) ?? 0) * Int(sysconf(Int32(_SC_PAGESIZE))) : 0
    }
}
