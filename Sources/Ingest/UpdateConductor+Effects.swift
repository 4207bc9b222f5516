internal import Bytes
internal import Crypto
internal import EventLog
internal import HTTP
internal import Schemas
internal import System
internal import Updates

extension UpdateConductor {
    // MARK: - Commands

    func run(_ command: UpdateJob.Command, of number: UInt64, _ running: RunningUpdate) {
        guard command == .sign else { return start(command, of: number, running, metadata: nil) }
        // The app that is signed gets an id of its own.
        let (id, attempt, mailbox) = (running.record.id, running.attempt, mailbox)
        let check = running.job.check
        let old = running.record.tracked
        // Where there are no releases, another file is of a version that nobody has told.
        let isSame = old.fingerprint == check?.asset?.fingerprint
        let version = old.source.hasReleases || !isSame ? check?.latest : old.version
        records.submit {
            try $0.issueID(
                id, attempt: attempt, version: version,
                assetName: check?.asset?.name, fingerprint: check?.asset?.fingerprint)
        } then: {
            mailbox.post(.issued(number, id: $0))
        }
    }

    func runSigning(_ number: UInt64, _ id: String?) {
        guard let running = jobs[number] else { return }
        guard let id else {
            return drive(
                number,
                .ended(
                    .sign,
                    .failed(status: -1, message: "no id could be issued for the new app")))
        }
        let place = listening()
        let destinations = UpdateDestination.all(
            configured: settings.configuration.destinations, listening: place.host,
            port: place.port, isSecure: place.isSecure,
            addresses: NetworkInterfaces.addresses(), name: NetworkInterfaces.hostName())
        let metadata = AppMetadata(
            destinations: destinations, installationID: id, app: running.record.tracked,
            team: running.record.team)
        start(.sign, of: number, running, metadata: metadata)
    }

    private func start(
        _ command: UpdateJob.Command, of number: UInt64, _ running: RunningUpdate,
        metadata: AppMetadata?
    ) {
        guard let installer = settings.configuration.installer else { return }
        let directory = "\(settings.directory)/work/\(running.attempt)"
        running.workDirectory = directory
        let record = running.record
        let values = [
            "ipa": running.file ?? "", "signed": "\(directory)/signed.ipa",
            "metadata": "\(directory)/metadata.plist", "work": directory,
            "device": record.device, "app": record.app, "team": record.team ?? "",
            "version": Self.argument(running.job.check?.latest),
            "source": record.tracked.source.description,
        ]
        let (mailbox, isCut) = (mailbox, isCut)
        commands.submit { _ in
            do {
                try FileSystem.makeDirectory(directory, mode: 0o700)
                if let metadata {
                    try FileSystem.write(
                        metadata.propertyList, to: "\(directory)/metadata.plist", mode: 0o600)
                }
            } catch {
                Log.error("preparing an installation", ["error": "\(error)"])
                mailbox.post(
                    .input(
                        number,
                        .ended(
                            command,
                            .failed(status: -1, message: "its files could not be written"))))
                return
            }
            let outcome = InstallerRun.run(
                command, installer, values, in: directory, goesOn: { isCut.goesOn },
                line: { mailbox.post(.input(number, .line($0))) })
            mailbox.post(.input(number, .ended(command, outcome)))
        }
    }

    /// A release's name is its publisher's: it must not be taken for an option.
    private static func argument(_ text: String?) -> String {
        guard let text, !text.hasPrefix("-") else { return "" }
        return text
    }

    // MARK: - Events

    /// Adds what a job records to this round's events. What a check came to is recorded for every kind
    /// of request, the rest for attempts to download or install.
    func write(_ record: UpdateJob.Record, _ number: UInt64, _ running: RunningUpdate) {
        let kind: UpdatesEvent.Kind
        switch record {
        case .checked(let check):
            let app = running.record.tracked
            kind = .checked(
                UpdatesEvent.Check(
                    channel: app.source.hasReleases ? app.channel.rawValue : nil,
                    current: Self.release(app.version, app.fingerprint),
                    latest: Self.release(check.latest, check.asset?.fingerprint),
                    isAvailable: check.isAvailable, confirmed: running.confirmed))
            running.confirmed = nil
        case .step(let step, _):
            guard let step = Self.step(step) else { return }
            guard let attempt = attempt(.step(step), running) else { return }
            kind = attempt
        case .selection(let key):
            guard let attempt = attempt(.selection(key: Self.shown(key)), running) else { return }
            kind = attempt
        case .result(_, let warnings):
            guard let attempt = attempt(.result(warnings: Int64(warnings)), running) else { return }
            kind = attempt
        case .error(let message):
            guard let attempt = attempt(.error(Self.shown(message)), running) else { return }
            kind = attempt
        case .lost(let message):
            guard let attempt = attempt(.lost(Self.shown(message)), running) else { return }
            kind = attempt
        case .disconnected:
            guard let attempt = attempt(.disconnected, running) else { return }
            kind = attempt
        }
        events.append(
            kind, of: running.record.id, source: running.record.tracked.source.description,
            to: &batch)
        batchJobs.append(number)
        running.unacked += 1
    }

    private func attempt(
        _ stage: UpdatesEvent.Stage, _ running: RunningUpdate
    ) -> UpdatesEvent.Kind? {
        let action: UpdatesEvent.Action
        switch running.job.kind {
        case .check, .linkCheck: return nil
        case .prefetch, .backgroundPrefetch: action = .prefetch
        case .install, .linkInstall: action = .install
        }
        let check = running.job.check
        return .attempt(
            UpdatesEvent.Attempt(
                id: running.attempt, action: action,
                release: check.flatMap { Self.release($0.latest, $0.asset?.fingerprint) },
                stage: stage))
    }

    /// What a release is called: its tag, or where there are no tags a name made from the file's
    /// fingerprint.
    private static func release(_ version: String?, _ fingerprint: String?) -> String? {
        if let version { return version }
        guard let fingerprint, !fingerprint.isEmpty else { return nil }
        let text = ByteBuffer(fingerprint.utf8)
        return "file-\(SHA256.hash(text.span).hex.prefix(12))"
    }

    private static func step(_ step: UpdateProgress.Step) -> UpdatesEvent.Step? {
        switch step {
        case .check: .check
        case .download: .download
        case .sign: .sign
        case .install: .install
        case .open: nil
        }
    }

    /// A message as the log may have it: commands can say anything, also what is an id.
    private static func shown(_ message: String) -> String {
        String(message.prefix(1_000)).replacing(#/[0-9A-Fa-f]{32,}/#, with: "…")
    }
}

/// A job with its client and what it holds.
final class RunningUpdate {
    /// What a client is told, in order.
    enum Saying {
        case begin
        case message(UpdateMessage)
        case answer(Status, ByteBuffer)
    }

    var job: UpdateJob
    let record: InstallationRecord
    let attempt: DeviceID
    let responder: UpdateResponder?
    private var stream: ResponseStream?
    /// What the client is told when the log has what came before.
    private var waiting: [Saying] = []
    /// Events that the log has not acknowledged.
    var unacked = 0
    var hasEnded = false
    var isClientGone = false
    var isLocked = false
    /// Whether the client was told anything.
    private(set) var hasBegun = false
    /// The attempt that this request has proved to have succeeded; told once.
    var confirmed: DeviceID?
    var check: UpdateConductor.CheckKey?
    /// The cache's key of its download.
    var download: String?
    var file: String?
    /// The cache's key of a file that must stay.
    var heldFile: String?
    var workDirectory: String?

    init(
        _ job: UpdateJob, _ record: InstallationRecord, attempt: DeviceID,
        responder: UpdateResponder?, confirmed: DeviceID?
    ) {
        self.job = job
        self.record = record
        self.attempt = attempt
        self.responder = responder
        self.confirmed = confirmed
    }

    /// Whether a client that was there is there no more, and nobody was told yet.
    var hasLostClient: Bool {
        guard !isClientGone, !hasEnded else { return false }
        if let stream { return !stream.isOpen }
        guard !hasBegun, case .pending(let response)? = responder else { return false }
        return !response.isOpen
    }

    func say(_ saying: Saying) {
        waiting.append(saying)
        if unacked == 0 { flush() }
    }

    /// Tells the client all that waits.
    func flush() {
        if waiting.isEmpty { return }
        var bytes = ByteBuffer()
        var isLast = false
        for saying in waiting {
            switch saying {
            case .begin:
                guard case .pending(let response)? = responder else { continue }
                hasBegun = true
                stream = response.stream(
                    .ok, contentType: "application/x-ndjson",
                    headers: [
                        Header("Cache-Control", "no-store"), Header("X-Accel-Buffering", "no"),
                    ])
            case .answer(let status, let body):
                hasBegun = true
                responder?.respond(status, headers: [Header("Cache-Control", "no-store")], body)
            case .message(let message):
                message.append(to: &bytes)
                isLast = message.isLast
            }
        }
        waiting.removeAll(keepingCapacity: true)
        guard let stream else { return }
        // Who reads nothing loses what is only of the moment.
        if isLast || stream.waitingBytes < 64 << 10 { stream.write(bytes) }
        if isLast {
            stream.finish()
            self.stream = nil
        }
    }

    /// Answers 503; what would have been said is not.
    func refuse() {
        waiting = []
        hasBegun = true
        responder?.respondError(.serviceUnavailable, "the log takes nothing now")
    }

    /// A stream that has had no last word is cut: its client sees that the end is missing.
    func close() {
        stream = nil
        waiting = []
    }
}
