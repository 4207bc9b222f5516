import Alerts
import EventLog
import Foundation
import Ingest
import Pipeline
import Postgres
import Schemas
import System
import TLS

/// `heartline doctor`.
enum Doctor {
    static let command = Command(
        name: "doctor", summary: "check everything that an installation needs, and say what to do",
        details: """
            Looks at the data directory and its secrets, the database, the log, clocks, the disk, certificates,
            the files of pipelines, alerts and updates, and at the instance that runs on --data. Give it the
            options that the instance is started with. It changes nothing. Exit code 1 if a check failed;
            warnings alone do not fail.
            """,
        options: DatabaseAccess.options + LogAccess.options + [
            InstanceOptions.pipelines, InstanceOptions.alerts, UpdateOptions.file,
            InstanceOptions.certificate, InstanceOptions.key, InstanceOptions.clientAuthority,
            InstanceOptions.adminToken, InstanceOptions.metricsToken,
            InstanceOptions.retention,
            .flag("json", "print a JSON object"),
        ]
    ) { arguments in
        var report = DoctorReport()
        let data = arguments.text("data")
        checkData(data, arguments, &report)
        checkSecrets(data, arguments, &report)
        let running = RunningInstance(data, &report)
        checkDatabase(arguments, running, &report)
        checkCertificate(arguments, &report)
        checkFiles(arguments, &report)
        running?.checkReadiness(&report)
        Terminal.write(
            arguments.wantsJSON
                ? try report.json() : report.text(colors: Terminal.isTerminal()))
        return report.hasFailed ? .failed : .done
    }

    // MARK: - The machine

    private static let mebibyte = 1 << 20

    private static func checkData(
        _ data: String, _ arguments: Arguments, _ report: inout DoctorReport
    ) {
        let name = "data directory"
        guard FileSystem.exists(data) else {
            if arguments.optionalText("database") == nil {
                report.fail(
                    name, "\(data) is not there",
                    do: "name it with --data, or make it with heartline up --data \(data)")
            } else {
                report.ok(name, "none here: \(data) is not there")
            }
            return
        }
        guard FileSystem.isDirectory(data) else {
            report.fail(
                name, "\(data) is no directory", do: "name the data directory with --data")
            return
        }
        if FileSystem.isWritable(data) {
            report.ok(name, data)
        } else {
            report.fail(
                name, "\(data) cannot be written by this user (\(UnixAccount.currentName))",
                do:
                    "run this as the user that runs heartline, or give the directory to it with chown -R"
            )
        }
        checkDisk(data, &report)
    }

    private static func checkDisk(_ data: String, _ report: inout DoctorReport) {
        guard let space = DiskSpace(of: data), space.totalBytes > 0 else { return }
        let free = space.freeBytes / mebibyte
        let share = space.freeBytes / max(1, space.totalBytes / 100)
        let finding = "\(free) MiB free, \(share) %"
        let remedy =
            "make room, or let the log keep less (--retention-gib), or prune history (heartline prune)"
        if free < 256 {
            report.fail("disk", finding, do: remedy)
        } else if free < 2_048 || share < 5 {
            report.warn("disk", finding, do: remedy)
        } else {
            report.ok("disk", finding)
        }
    }

    private static func checkSecrets(
        _ data: String, _ arguments: Arguments, _ report: inout DoctorReport
    ) {
        var files = ["secret-key", "server-salt", "admin-token", "run.json"].map { "\(data)/\($0)" }
        files += ["admin-token-file", "metrics-token-file", "kafka-config-file"].compactMap {
            arguments.optionalText($0)
        }
        var good = 0
        for path in files {
            guard let status = FileSystem.status(path) else {
                if arguments.all("admin-token-file").contains(path)
                    || arguments.all("metrics-token-file").contains(path)
                {
                    report.fail(
                        "secrets", "\(path) is not there",
                        do: "make one with: (umask 077; openssl rand -hex 32 > \(path))")
                }
                continue
            }
            if status.mode & 0o077 != 0 {
                report.fail(
                    "secrets",
                    "\(path) can be read by others than its owner (mode \(String(status.mode, radix: 8)))",
                    do: "chmod 600 \(path)")
            } else {
                good += 1
            }
        }
        if let key = arguments.optionalText("tls-key"), let status = FileSystem.status(key),
            status.mode & 0o007 != 0
        {
            report.fail(
                "secrets", "\(key) can be read by everybody", do: "chmod 640 \(key)")
        }
        let environment = ProcessInfo.processInfo.environment
        // Where there is a log or a database there was an instance, and it had secrets.
        if FileSystem.isDirectory("\(data)/postgres"),
            environment["HEARTLINE_SECRET_KEY"] == nil, !FileSystem.exists("\(data)/secret-key")
        {
            report.fail(
                "secrets", "\(data)/secret-key is gone, and HEARTLINE_SECRET_KEY is not set",
                do:
                    "restore the file from its copy: what it sealed cannot be opened without it, and another key is refused"
            )
        } else if good > 0 {
            report.ok("secrets", "\(good) files, readable by their owner only")
        }
    }

    // MARK: - The database and the log

    private static func checkDatabase(
        _ arguments: Arguments, _ running: RunningInstance?, _ report: inout DoctorReport
    ) {
        guard let address = arguments.optionalText("database") ?? running?.file.database else {
            report.ok(
                "database",
                "not looked at: a private one runs with its instance only, and none runs")
            checkLog(arguments, nil, &report)
            return
        }
        var options = PostgresOptions(applicationName: "heartline doctor")
        options.connectTimeout = .seconds(5)
        options.statementTimeout = .seconds(15)
        options.responseTimeout = .seconds(20)
        let connection: PostgresConnection
        let start = SystemClock.monotonicMilliseconds()
        do {
            connection = try PostgresConnection(address, options: options)
        } catch {
            report.fail(
                "database", "\(error)",
                do:
                    "check that PostgreSQL runs and that \(DatabaseAccess.shown(address)) leads to it; heartline goes on by itself when it is back"
            )
            checkLog(arguments, nil, &report)
            return
        }
        defer { connection.close() }
        report.run("database", do: "look at PostgreSQL's own log") { report in
            let version = try connection.execute("SHOW server_version").only().text(0)
            let taken = SystemClock.monotonicMilliseconds() - start
            report.ok("database", "PostgreSQL \(version) answers in \(taken) ms")
        }
        checkSchema(connection, &report)
        checkClock(connection, &report)
        checkKey(connection, arguments, &report)
        checkLog(arguments, connection, &report)
    }

    private static func checkSchema(
        _ connection: PostgresConnection, _ report: inout DoctorReport
    ) {
        do {
            let migrations = try Migrations.load()
            try Migrator.check(connection, migrations)
            report.ok("schema", "version \(migrations.last?.number ?? 0), as this program has it")
        } catch let error as Migrator.MigrationError {
            let remedy =
                switch error.kind {
                case .pending:
                    "heartline migrate --database '…'; heartline up does it by itself at its start"
                case .databaseIsNewer: "run the heartline that migrated it, or a newer one"
                case .changed: "use the release that made this database, and tell its makers"
                case .locked: "wait for the other process, or end it"
                }
            report.fail("schema", "\(error)", do: remedy)
        } catch {
            report.fail(
                "schema", "\(error)",
                do: "check that the role may read schema heartline; heartline migrate makes it")
        }
    }

    private static func checkClock(
        _ connection: PostgresConnection, _ report: inout DoctorReport
    ) {
        report.run("clock", do: "look at PostgreSQL's own log") { report in
            let before = SystemClock.wallMilliseconds()
            let theirs = try connection.execute(
                "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::int8"
            ).only().int8(0)
            let after = SystemClock.wallMilliseconds()
            judgeClock("clock", theirs - (before + after) / 2, of: "the database's", &report)
        }
    }

    /// - Parameter difference: theirs less ours, in milliseconds.
    static func judgeClock(
        _ check: String, _ difference: Int64, of whom: String, _ report: inout DoctorReport
    ) {
        let size = Double(abs(difference)) / 1_000
        let finding =
            "\(size < 1 ? "less than 1 s" : "\(Int(size.rounded())) s") \(difference < 0 ? "ahead of" : "behind") \(whom)"
        let remedy = "keep the clocks of all machines in step: timedatectl set-ntp true"
        if size > 10 {
            report.fail(check, finding, do: remedy)
        } else if size > 2 {
            report.warn(check, finding, do: remedy)
        } else {
            report.ok(check, "within \(size < 1 ? 1 : 2) s of \(whom)")
        }
    }

    /// Whether the secret key is the one that this database's secrets were sealed with.
    private static func checkKey(
        _ connection: PostgresConnection, _ arguments: Arguments, _ report: inout DoctorReport
    ) {
        let data = arguments.text("data")
        let environment = ProcessInfo.processInfo.environment
        let isInFiles =
            FileSystem.exists("\(data)/secret-key") && FileSystem.exists("\(data)/server-salt")
        let isInEnvironment =
            environment["HEARTLINE_SECRET_KEY"] != nil && environment["SERVER_SALT"] != nil
        // Where neither has both, loading them would make new ones.
        guard isInFiles || isInEnvironment else { return }
        do {
            let secrets = try SecretFiles.load(
                environment: environment, directory: isInFiles ? data : nil)
            try Registry(connection, secretKey: secrets.secretKey).checkKey()
            report.ok("secret key", "it is this database's")
        } catch let error as SecretError {
            report.fail("secret key", "reading \(error.name): \(error.reason)", do: error.remedy)
        } catch let error as RegistryError where error.kind == .noNetwork {
            report.warn(
                "secret key", "\(error)",
                do:
                    "heartline migrate, with SERVER_SALT and HEARTLINE_SECRET_KEY in the environment"
            )
        } catch let error as RegistryError {
            report.fail(
                "secret key", "\(error)",
                do:
                    "give the key that this database was made with, or the database that belongs to this key"
            )
        } catch {
            report.fail("secret key", "\(error)", do: "see what the check of the schema says")
        }
    }

    private static func checkLog(
        _ arguments: Arguments, _ connection: PostgresConnection?, _ report: inout DoctorReport
    ) {
        let isKafka = arguments.optionalText("brokers") != nil
        let remedy =
            isKafka
            ? "check --brokers and --kafka-config, and that the brokers run and can be reached from here"
            : "run this as the user that runs heartline; a damaged log is restored with its data directory"
        report.run("log", do: remedy) { report in
            guard let opened = try LogAccess.openIfThere(arguments) else {
                report.ok("log", "none here yet")
                return
            }
            defer { opened.close() }
            guard let connection else {
                // Any topic tells whether it can be read.
                _ = try opened.log.partitionCount(of: .heartbeats)
                report.ok("log", "it can be read")
                return
            }
            var plan: [Topic: Int32] = [:]
            for row in try connection.execute("SELECT topic, partitions FROM heartline.topics") {
                if let topic = Topic(rawValue: try row.text(0)) { plan[topic] = try row.int4(1) }
            }
            guard !plan.isEmpty else {
                report.warn(
                    "log", "no topics were made yet",
                    do: "heartline topics create; heartline up does it by itself")
                return
            }
            var isGood = true
            if case .kafka(let log) = opened {
                let wanted = plan.sorted { $0.key.rawValue < $1.key.rawValue }.map {
                    TopicSettings(
                        $0.key, partitions: $0.value,
                        retentionBytes: InstanceOptions.retentionBytes(arguments))
                }
                for difference in try log.differences(from: wanted) {
                    isGood = false
                    if difference.hasSuffix("does not exist") || difference.contains(" partitions")
                    {
                        report.fail(
                            "log", difference, do: "heartline topics create --brokers LIST")
                    } else {
                        report.warn(
                            "log", difference,
                            do: "kafka-configs.sh --alter, or leave it so knowingly"
                        )
                    }
                }
            } else {
                for (topic, count) in plan.sorted(by: { $0.key.rawValue < $1.key.rawValue }) {
                    let found = try opened.log.partitionCount(of: topic)
                    guard found != count else { continue }
                    isGood = false
                    report.fail(
                        "log",
                        "topic \(topic.rawValue) has \(found.map(String.init) ?? "no") partitions, the database says \(count)",
                        do:
                            "use the data directory and the database that belong together; heartline topics create makes topics that are missing"
                    )
                }
            }
            if isGood { report.ok("log", "\(plan.count) topics, as the database has them") }
            try checkPlaces(opened.log, connection, &report)
        }
    }

    /// Whether the log still holds what pipelines have to read next.
    private static func checkPlaces(
        _ log: any EventLog, _ connection: PostgresConnection, _ report: inout DoctorReport
    ) throws {
        var lag: Int64 = 0
        var isGood = true
        for row in try connection.execute(
            "SELECT pipeline, partition, next_offset, topic FROM heartline.stream_partitions")
        {
            let (pipeline, partition, next) = (
                try row.text(0), try row.int4(1), try row.int8(2)
            )
            guard let topic = Topic(rawValue: try row.text(3)),
                let range = try? log.offsets(of: TopicPartition(topic, partition))
            else { continue }
            let place = "pipeline \(pipeline), partition \(partition)"
            if next < range.earliest {
                isGood = false
                report.fail(
                    "pipelines' places",
                    "\(place): \(range.earliest - next) records that it has not read are gone",
                    do:
                        "heartline pipeline resume \(pipeline) --partition \(partition) goes on without them"
                )
            } else if next > range.next {
                isGood = false
                report.fail(
                    "pipelines' places",
                    "\(place): the log ends at \(range.next), before its place \(next)",
                    do: "use the log that belongs to this database")
            }
            lag += max(0, range.next - next)
        }
        if isGood { report.ok("pipelines' places", "in the log; \(lag) records to be stored") }
    }

    // MARK: - Files

    private static func checkCertificate(_ arguments: Arguments, _ report: inout DoctorReport) {
        let name = "certificate"
        guard let certificate = arguments.optionalText("tls-certificate"),
            let key = arguments.optionalText("tls-key")
        else {
            if arguments.given.contains("tls-certificate") || arguments.given.contains("tls-key") {
                report.fail(
                    name, "--tls-certificate and --tls-key go together", do: "give both")
            }
            return
        }
        do throws(TLSError) {
            let context = try TLSContext(
                TLSContext.Files(
                    certificateChain: certificate, privateKey: key,
                    clientAuthority: arguments.optionalText("tls-client-ca")))
            let left = context.expirySeconds - SystemClock.wallMilliseconds() / 1_000
            let remedy = "get a new one and send heartline SIGHUP: it reads the files again"
            if left <= 0 {
                report.fail(
                    name, "the certificate in \(certificate) expired \(days(-left)) ago", do: remedy
                )
            } else if !context.warnings.isEmpty {
                report.fail(
                    name, context.warnings.joined(separator: "; "),
                    do: "check the clock, or " + remedy)
            } else if left < 14 * 86_400 {
                report.warn(
                    name, "the certificate in \(certificate) expires in \(days(left))", do: remedy)
            } else {
                report.ok(name, "valid for \(days(left)), and the key is its own")
            }
        } catch {
            report.fail(
                name, "\(error)", do: "give the PEM files of one certificate and its key")
        }
    }

    private static func days(_ seconds: Int64) -> String {
        let days = seconds / 86_400
        return days == 0
            ? "\(seconds / 3_600) hours" : days == 1 ? "1 day" : "\(days) days"
    }

    private static func checkFiles(_ arguments: Arguments, _ report: inout DoctorReport) {
        report.run("pipeline files", do: "heartline pipeline lint tells line and column") {
            report in
            let files = try Service.pipelineFiles(arguments)
            report.ok("pipeline files", files.map(\.name).sorted().joined(separator: ", "))
        }
        report.run("alerts file", do: "mend \(arguments.text("alerts"))") { report in
            let alerts = try InstanceOptions.alerts(arguments)
            guard FileSystem.exists(arguments.text("alerts")) else {
                report.ok("alerts file", "none: nobody is told of alerts")
                return
            }
            report.ok(
                "alerts file", "tells \(alerts.receivers.map(\.name).joined(separator: ", "))")
        }
        if FileSystem.exists(arguments.text("updates")) || arguments.given.contains("updates") {
            report.run("updates file", do: "mend \(arguments.text("updates"))") { report in
                _ = try UpdatesFile.load(arguments.text("updates"))
                report.ok("updates file", arguments.text("updates"))
            }
        }
    }
}

/// The instance that `run.json` of a data directory names.
private struct RunningInstance {
    let file: RunFile
    private let client: AdminClient

    /// `nil` if none runs.
    init?(_ data: String, _ report: inout DoctorReport) {
        guard FileSystem.exists(RunFile.path(in: data)) else {
            report.ok("instance", "none runs on \(data)")
            return nil
        }
        do {
            file = try RunFile.read(in: data)
        } catch {
            report.warn(
                "instance", "\(error)",
                do: "start it again: heartline up --data \(data) goes on where it stood")
            return nil
        }
        client = AdminClient(url: file.admin, token: nil)
    }

    func checkReadiness(_ report: inout DoctorReport) {
        let answer: AdminClient.Answer
        do {
            answer = try client.get("/readyz")
        } catch {
            report.fail(
                "instance", "process \(file.pid): \(error)",
                do: "look at its log; if it hangs, end it with kill \(file.pid) and start it again")
            return
        }
        if answer.status == 200 {
            report.ok("instance", "process \(file.pid) is ready at \(file.listen)")
        } else {
            struct Document: Decodable {
                struct Reason: Decodable {
                    var part: String
                    var reason: String
                }
                var reasons: [Reason]
            }
            let reasons =
                (try? JSONDecoder().decode(Document.self, from: Data(answer.body.utf8)))?.reasons
            for reason in reasons ?? [.init(part: "/readyz", reason: "status \(answer.status)")] {
                report.fail(
                    "instance", "\(reason.part): \(reason.reason)",
                    do: "docs/operations.md, \"Health\", has what each reason means")
            }
        }
        if let date = answer.date {
            // The header has whole seconds.
            let difference = date + 500 - SystemClock.wallMilliseconds()
            Doctor.judgeClock(
                "instance's clock", difference, of: "the running instance's", &report)
        }
    }
}
