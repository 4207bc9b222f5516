import Foundation

/// What a soak found; what `--json` writes.
struct SoakReport: Codable {
    struct Settings: Codable {
        var seconds: Int
        var kill_every_seconds: Int
        var devices: Int
        var people: Int
        var apps: Int
        var share_percent: Int
    }

    struct Heartbeats: Codable {
        /// A second, of the load and the pipelines together, on this machine.
        var capacity: Int
        var wanted_per_second: Int
        var sent: Int
        var accepted: Int
        var answers: [String: Int]
        var unanswered: Int
        var p50_ms: Double
        var p99_ms: Double
        var worst_ms: Double
        /// How late the load itself was, at most.
        var behind_ms: Double
    }

    struct Kill: Codable {
        var at_second: Int
        var process: String
        /// From the kill until its pipelines have committed again; absent: it ended before that.
        var recovered_ms: Int?
        /// Before it was killed.
        var memory_mib: Double
    }

    struct Memory: Codable {
        var process: String
        var first_third_mib: Double
        var last_third_mib: Double
        var most_mib: Double
        var isFlat: Bool
    }

    struct Check: Codable {
        var what: String
        var expected: String
        var found: String
        var holds: Bool
    }

    var version: String
    var started: String
    var machine: MachineFacts
    var settings: Settings
    var heartbeats: Heartbeats
    var kills: [Kill]
    /// Records of topic heartbeats that were not committed yet, at most.
    var worst_lag: Int
    var log_records: Int
    var memory: [Memory]
    var checks: [Check]
    var passed: Bool

    // MARK: - For people

    var markdown: String {
        var text = """
            # Soak

            `make soak` writes this page: a front-end and two processes with the pipelines on one data directory and
            one PostgreSQL, under mixed traffic at \(settings.share_percent) % of what this machine can do, load
            included, while one of the two is killed (`kill -9`) every \(settings.kill_every_seconds) s and started again. Afterwards
            every table is compared, row by row, with that of a second database into which the pipelines read the same
            log once, without a crash; and what was answered 200 is counted in the log and in the tables.

            **\(passed ? "Everything held." : "Something did not hold: see the checks.")**

            | | |
            |---|---|
            | run | \(started), \(Self.length(settings.seconds)), heartline \(version) |
            | machine | \(machine.summary); load before: \(machine.load) |
            | fleet | \(settings.devices) devices, \(settings.people) people, \(settings.apps) apps |
            | capacity | \(heartbeats.capacity) heartbeats a second, from the load to committed rows |
            | heartbeats | \(heartbeats.wanted_per_second) a second wanted; \(heartbeats.accepted) answered 200 of \(heartbeats.sent) |
            | their answers | p50 \(Self.short(heartbeats.p50_ms)) ms, p99 \(Self.short(heartbeats.p99_ms)) ms, worst \(Self.short(heartbeats.worst_ms)) ms; the load was behind by \(Self.short(heartbeats.behind_ms)) ms at most |
            | records read by the clean pass | \(log_records) |
            | largest lag | \(worst_lag) heartbeats, \(Self.short(Double(worst_lag) / Double(max(1, heartbeats.wanted_per_second)))) s of them |
            | kills | \(kills.count)\(recovery) |

            ## Memory

            Anonymous memory, without what the log's map shows; of a process that is killed the most of each life. It is
            flat if the last third is at most a tenth and 8 MiB above the first; a tenth of the time at the beginning, in
            which everything is heard of for the first time, does not count.

            | process | first third | last third | most | |
            |---|---|---|---|---|

            """
        for one in memory {
            text += """
                | \(one.process) | \(Self.short(one.first_third_mib)) MiB | \(Self.short(one.last_third_mib)) MiB \
                | \(Self.short(one.most_mib)) MiB | \(one.isFlat ? "flat" : "**grows**") |

                """
        }
        text += """

            ## Checks

            | what | expected | found | |
            |---|---|---|---|

            """
        for check in checks {
            text += """
                | \(check.what) | \(check.expected) | \(check.found) \
                | \(check.holds ? "holds" : "**does not hold**") |

                """
        }
        return text
    }

    private var recovery: String {
        let times = kills.compactMap(\.recovered_ms).sorted()
        guard let worst = times.last else { return "" }
        return "; committing again after \(times[times.count / 2]) ms in the middle, \(worst) ms"
            + " at most, the start of a process included"
    }

    private static func length(_ seconds: Int) -> String {
        seconds % 60 == 0 ? "\(seconds / 60) min" : "\(seconds) s"
    }

    static func short(_ value: Double) -> String {
        let tenths = Int((value * 10).rounded())
        return "\(tenths / 10).\(abs(tenths % 10))"
    }
}
