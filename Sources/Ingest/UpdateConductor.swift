internal import Bytes
internal import Crypto
internal import EventLog
internal import HTTP
internal import JSON
internal import Schemas
internal import System
internal import Updates

/// Decides, on one thread, what is done for whom: holds every job, hands their effects to the threads
/// that block, and what comes of them back to the jobs.
///
/// Used on its own thread only.
final class UpdateConductor {
    /// A request on its way to being a job.
    struct Asked: Sendable {
        var request: UpdateRequest
        var responder: UpdateResponder
    }

    /// What one answer of a source is good for.
    struct CheckKey: Hashable, Sendable {
        var source: UpdateSource
        var channel: UpdateChannel
        var credential: SourceCredential?
    }

    private struct Check {
        var jobs: [UInt64]
        var token: StopToken
    }

    let settings: UpdateSettings
    let mailbox: UpdateMailbox
    let records: UpdateRecordThread
    let cache: DownloadCache
    let events: UpdateEvents
    let listening: @Sendable () -> UpdateListening

    private let checkers: WorkPool<SourceChecker>
    private let downloaders: WorkPool<Downloader>
    let commands: WorkPool<Void>

    var jobs: [UInt64: RunningUpdate] = [:]
    private var lastNumber: UInt64 = 0
    private var checks: [CheckKey: Check] = [:]
    private var board = DownloadBoard<UInt64>()
    private var downloadTokens: [String: StopToken] = [:]
    private var tasks: [String: DownloadTask] = [:]
    /// Installations that are being installed, by the job that does it.
    private var installing: [DeviceID: UInt64] = [:]
    /// Installations that are downloaded in the background.
    private var prefetching: Set<DeviceID> = []
    private var asked: [Asked] = []
    /// Events of this round, and whose they are.
    var batch = RecordBatch(.updates)
    var batchJobs: [UInt64] = []
    private var lastToken: UInt64 = 0
    private var unacked: [UInt64: [UInt64]] = [:]
    private var hostAddresses: Set<ClientAddress> = []
    private var nextLook: Int64 = 0
    private var nextClock: Int64 = 0
    private var clockUntil: Int64
    /// Monotonic milliseconds at which what runs is cut.
    private var stopAt: Int64?
    let isCut = StopToken()
    /// Downloads that end from now on are kept for the next start.
    private let isEnding = StopToken()

    init(
        _ settings: UpdateSettings, mailbox: UpdateMailbox, records: UpdateRecordThread,
        cache: DownloadCache, events: UpdateEvents,
        listening: @escaping @Sendable () -> UpdateListening
    ) {
        self.settings = settings
        self.mailbox = mailbox
        self.records = records
        self.cache = cache
        self.events = events
        self.listening = listening
        let configuration = settings.configuration
        let shared = SourceChecker.Shared(configuration)
        checkers = WorkPool("update-checks", threads: configuration.sources.checks) {
            try SourceChecker(shared)
        }
        downloaders = WorkPool("downloads", threads: configuration.sources.downloads) {
            try Downloader(configuration, cache)
        }
        commands = WorkPool("installer", threads: configuration.installer?.concurrency ?? 1) {}
        // Attempts of the process before may wait to be told of the time.
        clockUntil = SystemClock.monotonicMilliseconds() + settings.clockLasts
    }

    // MARK: - The thread

    func run() {
        var isStopped = false
        while !isStopped {
            let messages = mailbox.take(waiting: jobs.isEmpty ? 1_000 : 100)
            for message in messages {
                if case .stop = message { isStopped = true }
                handle(message)
            }
            lookUp()
            tick()
            submitEvents()
        }
        for message in mailbox.close() { handle(message) }
        isCut.stop()
        isEnding.stop()
        for (_, check) in checks { check.token.stop() }
        for (_, token) in downloadTokens { token.stop() }
        commands.stop()
        checkers.stop()
        downloaders.stop()
        // Streams that have no end yet are cut, so that nobody takes them for complete.
        jobs = [:]
    }

    private func handle(_ message: UpdateMailbox.Message) {
        switch message {
        case .request(let request, let responder):
            guard stopAt == nil else {
                return responder.respondError(.serviceUnavailable, "stopping")
            }
            guard jobs.count + asked.count < settings.maximumJobs else {
                return responder.respondError(.serviceUnavailable, "overloaded")
            }
            asked.append(Asked(request: request, responder: responder))
        case .lookedUp(let asked, let found):
            for (index, item) in asked.enumerated() { admit(item, found?[index]) }
        case .confirmed(let asked, let record, let attempt):
            begin(asked, record, confirmed: attempt)
        case .locked(let number, let id, let isLocked): locked(number, id, isLocked)
        case .checkEnded(let key, let result):
            guard let check = checks.removeValue(forKey: key) else { return }
            for number in check.jobs {
                guard let running = jobs[number] else { continue }
                let outcome =
                    switch result {
                    case .success(let state): CheckOutcome.make(running.record.tracked, state)
                    case .failure(let fault): CheckOutcome.failed(fault.description)
                    }
                drive(number, .checked(outcome))
            }
        case .downloading(let key, let completed, let total):
            for number in board.jobs(key) {
                drive(number, .downloading(completed: completed, total: total))
            }
        case .downloadEnded(let key, let end): downloadEnded(key, end)
        case .issued(let number, let id): runSigning(number, id)
        case .input(let number, let input): drive(number, input)
        case .acked(let token, let isStored): acked(token, isStored)
        case .beginStopping(let until): beginStopping(until)
        case .stop: break
        }
    }

    private func tick() {
        let now = SystemClock.monotonicMilliseconds()
        for (number, running) in jobs where running.hasLostClient {
            running.isClientGone = true
            drive(number, .clientGone)
        }
        if let stopAt, now >= stopAt { isCut.stop() }
        if now >= nextClock, stopAt == nil {
            if nextClock > 0, now < clockUntil { events.appendClock(to: &batch) }
            nextClock = now + settings.clockMilliseconds
        }
    }

    private func beginStopping(_ until: Int64) {
        stopAt = until
        isEnding.stop()
        for item in asked { item.responder.respondError(.serviceUnavailable, "stopping") }
        asked = []
        for number in jobs.keys.sorted() { drive(number, .stopping) }
    }

    // MARK: - Requests

    /// Looks up who asked in this round, all of them together.
    private func lookUp() {
        if asked.isEmpty { return }
        let (asked, mailbox) = (self.asked, self.mailbox)
        self.asked = []
        let questions = asked.map {
            Registry.LookupQuestion(target: $0.request.target, address: $0.request.address)
        }
        records.submit {
            try $0.lookUp(questions)
        } then: {
            mailbox.post(.lookedUp(asked, $0))
        }
    }

    private func admit(_ asked: Asked, _ lookup: UpdateLookup?) {
        let isLink = if case .link = asked.request.target { true } else { false }
        switch lookup {
        case nil: asked.responder.respondError(.serviceUnavailable, "overloaded")
        case .unknown:
            if isLink {
                asked.responder.respondError(.forbidden, "unknown link")
            } else {
                asked.responder.respondError(.badRequest, "unknown installation")
            }
        case .retired(let record):
            events.append(
                .cloned, of: record.id, source: record.tracked.source.description, to: &batch)
            asked.responder.respondError(.badRequest, "unknown installation")
        case .found(let record, let access, let isFirst):
            guard isAllowed(asked.request, access) else {
                return asked.responder.respondError(
                    .forbidden, "this address may not update the app")
            }
            guard isFirst, case .installation(let digest) = asked.request.target else {
                return begin(asked, record, confirmed: nil)
            }
            let mailbox = mailbox
            records.submit {
                try $0.confirm(digest)
            } then: { confirmed in
                let known = confirmed.flatMap { $0 }
                mailbox.post(
                    .confirmed(asked, known?.record ?? record, attempt: known?.attempt))
            }
        }
    }

    /// Whether it comes from this host, from a device that may, or with a link that is good anywhere.
    private func isAllowed(_ request: UpdateRequest, _ access: UpdateLookup.Access) -> Bool {
        if access.isAnywhere || access.isPaired { return true }
        guard let address = request.address else { return false }
        if address.isLoopback { return true }
        let now = SystemClock.monotonicMilliseconds()
        if now >= nextLook {
            nextLook = now + 30_000
            hostAddresses = Set(NetworkInterfaces.addresses().compactMap { ClientAddress($0) })
        }
        return hostAddresses.contains(address)
    }

    private func begin(_ asked: Asked, _ record: InstallationRecord, confirmed: DeviceID?) {
        guard stopAt == nil else {
            return asked.responder.respondError(.serviceUnavailable, "stopping")
        }
        let attempt: DeviceID
        do throws(CryptoError) {
            attempt = try DeviceID.random()
        } catch {
            return asked.responder.respondError(.internalServerError, "update failed")
        }
        let kind = asked.request.kind
        if kind.installs, installing[record.id] != nil {
            return asked.responder.respondError(
                .conflict, "this app is being installed already")
        }
        let number = add(
            kind, record, attempt: attempt, responder: asked.responder, confirmed: confirmed)
        guard kind.installs else { return drive(number, .start) }
        installing[record.id] = number
        let (mailbox, id) = (mailbox, record.id)
        records.submit {
            try $0.lockInstallation(id)
        } then: {
            mailbox.post(.locked(number, id, $0))
        }
    }

    private func add(
        _ kind: UpdateJob.Kind, _ record: InstallationRecord, attempt: DeviceID,
        responder: UpdateResponder?, confirmed: DeviceID?, check: UpdateCheck? = nil
    ) -> UInt64 {
        lastNumber += 1
        let installer = settings.configuration.installer
        let job = UpdateJob(
            kind, id: "\(attempt)", app: record.app, device: record.device,
            source: record.tracked.source.description, hasInstaller: installer != nil,
            hasProbe: installer?.running != nil && installer?.open != nil, check: check)
        jobs[lastNumber] = RunningUpdate(
            job, record, attempt: attempt, responder: responder, confirmed: confirmed)
        return lastNumber
    }

    private func locked(_ number: UInt64, _ id: DeviceID, _ isLocked: Bool?) {
        guard let running = jobs[number] else {
            if isLocked == true { unlock(id) }
            return
        }
        guard isLocked == true else {
            jobs[number] = nil
            installing[running.record.id] = nil
            if isLocked == false {
                running.responder?.respondError(
                    .conflict, "this app is being installed already")
            } else {
                running.responder?.respondError(.serviceUnavailable, "overloaded")
            }
            return
        }
        running.isLocked = true
        guard stopAt == nil else {
            running.responder?.respondError(.serviceUnavailable, "stopping")
            return remove(number)
        }
        drive(number, .start)
    }

    // MARK: - Jobs

    /// Hands an input to a job and does what it asks for.
    func drive(_ number: UInt64, _ input: UpdateJob.Input) {
        guard let running = jobs[number] else { return }
        var effects: [UpdateJob.Effect] = []
        running.job.handle(input, into: &effects)
        for effect in effects { carryOut(effect, of: number, running) }
    }

    private func carryOut(
        _ effect: UpdateJob.Effect, of number: UInt64, _ running: RunningUpdate
    ) {
        switch effect {
        case .beginStream: running.say(.begin)
        case .say(let message): running.say(.message(message))
        case .answer(let check, let extras, let isAccepted):
            var body = ByteBuffer()
            body.append(check, extras)
            running.say(.answer(isAccepted ? .accepted : .ok, body))
        case .answerFailure(let message):
            let status = stopAt == nil ? Status.badGateway : .serviceUnavailable
            running.say(.answer(status, Self.error(message)))
        case .answerSelection(let selection):
            var body = ByteBuffer()
            body.append("{\"error\":")
            body.append(jsonString: selection.message)
            body.append(",\"selection\":")
            selection.append(to: &body)
            body.append("}")
            running.say(.answer(.unprocessableContent, body))
        case .check: beginCheck(number, running)
        case .cancelCheck: cancelCheck(number, running)
        case .download(let check): beginDownload(check, number, running)
        case .leaveDownload: leaveDownload(number, running)
        case .prefetchInBackground(let check): prefetch(check, running.record)
        case .saveRefinement(let refinement):
            let id = running.record.id
            records.submit {
                try $0.saveRefinement(refinement, of: id)
            } then: { _ in
            }
        case .run(let command): run(command, of: number, running)
        case .save:
            let (id, attempt, mailbox) = (running.record.id, running.attempt, mailbox)
            records.submit {
                try $0.noteInstalled(id, attempt: attempt)
            } then: {
                mailbox.post(.input(number, .saved($0 != nil)))
            }
        case .record(let record): write(record, number, running)
        case .end:
            running.hasEnded = true
            if running.unacked == 0 { remove(number) }
        }
    }

    /// Forgets a job whose last word was said.
    private func remove(_ number: UInt64) {
        guard let running = jobs.removeValue(forKey: number) else { return }
        running.close()
        if let key = running.heldFile { cache.release(key) }
        if let directory = running.workDirectory {
            // Large files are removed where it may take its time.
            commands.submit { _ in FileSystem.removeTree(directory) }
        }
        if running.job.kind == .backgroundPrefetch { prefetching.remove(running.record.id) }
        guard running.job.kind.installs else { return }
        installing[running.record.id] = nil
        if running.isLocked { unlock(running.record.id) }
    }

    private func unlock(_ installation: DeviceID) {
        records.submit {
            try $0.unlockInstallation(installation)
        } then: { _ in
        }
    }

    private static func error(_ message: String) -> ByteBuffer {
        var body = ByteBuffer()
        body.append("{\"error\":")
        body.append(jsonString: message)
        body.append("}")
        return body
    }

    // MARK: - Checks

    private func beginCheck(_ number: UInt64, _ running: RunningUpdate) {
        let app = running.record.tracked
        let key = CheckKey(
            source: app.source, channel: app.channel, credential: app.credential)
        running.check = key
        guard checks[key] == nil else {
            checks[key]?.jobs.append(number)
            return
        }
        let (token, mailbox) = (StopToken(), mailbox)
        checks[key] = Check(jobs: [number], token: token)
        checkers.submit { checker in
            guard let checker else {
                mailbox.post(.checkEnded(key, .failure(.unprepared)))
                return
            }
            mailbox.post(.checkEnded(key, checker.ask(app) { token.goesOn }))
        }
    }

    private func cancelCheck(_ number: UInt64, _ running: RunningUpdate) {
        guard let key = running.check, var check = checks[key] else { return }
        check.jobs.removeAll { $0 == number }
        if check.jobs.isEmpty {
            check.token.stop()
            checks[key] = nil
        } else {
            checks[key] = check
        }
    }

    // MARK: - Downloads

    private func prefetch(_ check: UpdateCheck, _ record: InstallationRecord) {
        guard stopAt == nil, jobs.count < settings.maximumJobs,
            prefetching.insert(record.id).inserted
        else { return }
        guard let attempt = try? DeviceID.random() else { return }
        let number = add(
            .backgroundPrefetch, record, attempt: attempt, responder: nil, confirmed: nil,
            check: check)
        drive(number, .start)
    }

    private func beginDownload(
        _ check: UpdateCheck, _ number: UInt64, _ running: RunningUpdate
    ) {
        guard let asset = check.asset else {
            return post(number, .downloaded(.failed("There is nothing to download.")))
        }
        let app = running.record.tracked
        if case .file(let path) = app.source {
            running.file = path
            return post(number, .downloaded(.done))
        }
        let task = DownloadTask(source: app.source, asset: asset, credential: app.credential)
        running.download = task.key
        if let path = cache.take(task.key) {
            running.file = path
            running.heldFile = task.key
            return post(number, .downloaded(.done))
        }
        tasks[task.key] = task
        if board.join(number, task.key) { download(task) }
    }

    /// Never within the job's own turn.
    private func post(_ number: UInt64, _ input: UpdateJob.Input) {
        mailbox.post(.input(number, input))
    }

    private func download(_ task: DownloadTask) {
        let (token, mailbox, key) = (StopToken(), mailbox, task.key)
        downloadTokens[key] = token
        let isEnding = isEnding
        downloaders.submit { downloader in
            guard let downloader else {
                mailbox.post(
                    .downloadEnded(key, .failed("No download can be begun on this server.")))
                return
            }
            let end = downloader.download(
                task,
                progress: { completed, total in
                    mailbox.post(.downloading(key, completed: completed, total: total))
                }, goesOn: { token.goesOn }, keepsPartial: { !isEnding.goesOn })
            mailbox.post(.downloadEnded(key, end))
        }
    }

    private func leaveDownload(_ number: UInt64, _ running: RunningUpdate) {
        guard let key = running.download else { return }
        if board.leave(number, key) == .cancel { downloadTokens[key]?.stop() }
    }

    private func downloadEnded(_ key: String, _ end: DownloadEnd) {
        downloadTokens[key] = nil
        let (waiting, beginsAnew) = board.ended(key)
        if beginsAnew, let task = tasks[key] { return download(task) }
        tasks[key] = nil
        for number in waiting {
            guard let running = jobs[number] else { continue }
            switch end {
            case .done:
                guard let path = cache.take(key) else {
                    drive(number, .downloaded(.failed("The download was removed again.")))
                    continue
                }
                running.file = path
                running.heldFile = key
                drive(number, .downloaded(.done))
            case .failed(let message): drive(number, .downloaded(.failed(message)))
            case .cancelled:
                drive(number, .downloaded(.failed("The download was ended.")))
            }
        }
    }

    // MARK: - The log

    private func submitEvents() {
        if batch.isEmpty { return }
        lastToken += 1
        unacked[lastToken] = batchJobs
        if !batchJobs.isEmpty {
            clockUntil = SystemClock.monotonicMilliseconds() + settings.clockLasts
        }
        events.send(batch, token: lastToken)
        batch.removeAll()
        batchJobs = []
    }

    private func acked(_ token: UInt64, _ isStored: Bool) {
        for number in unacked.removeValue(forKey: token) ?? [] {
            guard let running = jobs[number] else { continue }
            running.unacked -= 1
            if !isStored, !running.hasBegun {
                // Nothing was promised yet: who asked is to ask again.
                running.refuse()
                drive(number, .stopping)
            }
            if running.unacked == 0 {
                running.flush()
                if running.hasEnded { remove(number) }
            }
        }
    }
}
