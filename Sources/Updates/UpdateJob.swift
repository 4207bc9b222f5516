/// One request for a check, a prefetch or an installation, from its start to its end: what is done
/// next, what the client is told, and what is recorded.
///
/// A pure value. The shell asks sources, downloads, runs commands and writes, and hands in what came
/// of it; time, files and sockets are its own.
public struct UpdateJob: Sendable {
    public enum Kind: Sendable, Hashable {
        /// Answered with JSON; with `prefetches` a download follows in the background.
        case check(prefetches: Bool)
        /// Streams a check and a download.
        case prefetch
        /// A download that nobody watches.
        case backgroundPrefetch
        /// Streams an installation of what the channel holds, whether it is newer or not.
        case install(opens: Bool)
        /// A global link's check.
        case linkCheck
        /// A global link's installation of an update, if there is one.
        case linkInstall(isForeground: Bool, opens: Bool)

        /// Whether it can end with another app on the device.
        public var installs: Bool {
            switch self {
            case .install, .linkInstall: true
            case .check, .prefetch, .backgroundPrefetch, .linkCheck: false
            }
        }

        /// Whether it ends with its client, as long as nothing has been begun on the device.
        var endsWithClient: Bool {
            switch self {
            case .prefetch, .linkInstall(isForeground: true, _): true
            default: false
            }
        }
    }

    public enum Phase: Sendable, Hashable {
        case waiting, checking, downloading, signing, probing, installing, saving, opening, ended

        /// Whether extraction, signing or installing has begun.
        public var isOnDevice: Bool {
            switch self {
            case .signing, .probing, .installing, .saving, .opening: true
            case .waiting, .checking, .downloading, .ended: false
            }
        }
    }

    /// A command that is run for an installation.
    public enum Command: String, Sendable, Hashable, CaseIterable {
        case sign, running, install, open
    }

    /// How a command ended.
    public enum CommandOutcome: Sendable, Hashable {
        case done
        /// An exit status other than 0, a signal, or what kept it from running.
        case failed(status: Int32, message: String)
        case timedOut(message: String)
        /// The process is being stopped.
        case cancelled
    }

    public enum DownloadOutcome: Sendable, Hashable {
        case done
        case failed(String)
    }

    public enum Input: Sendable {
        case start
        case checked(CheckOutcome)
        case downloading(completed: Int64, total: Int64?)
        case downloaded(DownloadOutcome)
        case line(InstallerLine)
        case ended(Command, CommandOutcome)
        /// The installation is noted in the registry, or could not be.
        case saved(Bool)
        case clientGone
        /// The server ends; what has begun on the device goes on for a while.
        case stopping
    }

    /// What the log is told.
    public enum Record: Sendable, Hashable {
        case checked(UpdateCheck)
        case step(UpdateProgress.Step, version: String?)
        case selection(key: String)
        case result(version: String?, warnings: Int)
        case error(String)
        /// It is not known what became of it.
        case lost(String)
        case disconnected
    }

    public enum Effect: Sendable, Hashable {
        case beginStream
        case say(UpdateMessage)
        case answer(UpdateCheck, CheckExtras, isAccepted: Bool)
        /// 502.
        case answerFailure(String)
        /// 422.
        case answerSelection(UpdateSelection)
        case check
        case cancelCheck
        case download(UpdateCheck)
        case leaveDownload
        case prefetchInBackground(UpdateCheck)
        case saveRefinement(String)
        case run(Command)
        /// Note that the new version is installed.
        case save
        case record(Record)
        case end
    }

    public let kind: Kind
    /// For messages.
    public let app: String
    public let device: String
    public let source: String
    /// Names it to people and in the log.
    public let id: String
    private let hasInstaller: Bool
    private let hasProbe: Bool
    public private(set) var phase = Phase.waiting
    public private(set) var check: UpdateCheck?
    private var isStreaming = false
    private var isAnswered = false
    private var wasRunning = false
    private var warnings: [String] = []
    private var lastError: String?
    private var selection: UpdateSelection?
    private var isStopping = false

    /// Warnings that are kept.
    private static let maximumWarnings = 100

    /// - Parameters:
    ///   - hasInstaller: whether there are commands for signing and installing.
    ///   - hasProbe: whether there is one that tells whether an app runs.
    ///   - check: of a background prefetch, what is to be downloaded.
    public init(
        _ kind: Kind, id: String, app: String, device: String, source: String,
        hasInstaller: Bool, hasProbe: Bool, check: UpdateCheck? = nil
    ) {
        self.kind = kind
        self.id = id
        self.app = app
        self.device = device
        self.source = source
        self.hasInstaller = hasInstaller
        self.hasProbe = hasProbe
        self.check = check
    }

    public static let noDevice = "No available device matches this installation."
    static let stoppingText = "The server is stopping; try again later."

    // MARK: - Inputs

    public mutating func handle(_ input: Input, into effects: inout [Effect]) {
        if phase == .ended { return }
        switch input {
        case .start: start(&effects)
        case .checked(let outcome):
            guard phase == .checking else { return }
            checked(outcome, &effects)
        case .downloading(let completed, let total):
            guard phase == .downloading else { return }
            effects.append(.say(.progress(downloadProgress(completed, total))))
        case .downloaded(let outcome):
            guard phase == .downloading else { return }
            downloaded(outcome, &effects)
        case .line(let line): read(line, &effects)
        case .ended(let command, let outcome): ended(command, outcome, &effects)
        case .saved(let isNoted):
            guard phase == .saving else { return }
            saved(isNoted, &effects)
        case .clientGone: clientGone(&effects)
        case .stopping: stop(&effects)
        }
    }

    private mutating func start(_ effects: inout [Effect]) {
        guard phase == .waiting else { return }
        if kind == .backgroundPrefetch {
            guard let check else { return end(&effects) }
            return download(check, &effects)
        }
        phase = .checking
        switch kind {
        case .install:
            effects.append(.record(.step(.check, version: nil)))
            beginStream(&effects)
            sayCheck(&effects)
        case .prefetch:
            beginStream(&effects)
            sayCheck(&effects)
        default: break
        }
        effects.append(.check)
    }

    private mutating func beginStream(_ effects: inout [Effect]) {
        isStreaming = true
        effects.append(.beginStream)
    }

    private func sayCheck(_ effects: inout [Effect]) {
        effects.append(
            .say(.progress(UpdateProgress(.check, "Checking for updates to \(app)"))))
    }

    // MARK: - Checked

    private mutating func checked(_ outcome: CheckOutcome, _ effects: inout [Effect]) {
        switch outcome {
        case .failed(let message): fail(message, &effects)
        case .selection(let selection): choose(selection, &effects)
        case .checked(let check):
            self.check = check
            if let refinement = check.refinement { effects.append(.saveRefinement(refinement)) }
            effects.append(.record(.checked(check)))
            decide(check, &effects)
        }
    }

    private mutating func decide(_ check: UpdateCheck, _ effects: inout [Effect]) {
        switch kind {
        case .check(let prefetches):
            let follows = prefetches && check.isAvailable
            answer(
                check, CheckExtras(prefetch: follows ? .background : .disabled), &effects)
            if follows { effects.append(.prefetchInBackground(check)) }
            end(&effects)
        case .linkCheck:
            answer(check, CheckExtras(installing: false), &effects)
            end(&effects)
        case .prefetch:
            guard check.isAvailable else {
                effects.append(.say(.check(check, extras: CheckExtras(prefetch: .disabled))))
                return end(&effects)
            }
            download(check, &effects)
        case .install: beginInstall(check, &effects)
        case .linkInstall(let isForeground, _):
            guard check.isAvailable else {
                answer(check, CheckExtras(installing: false), &effects)
                return end(&effects)
            }
            if isForeground {
                beginStream(&effects)
                sayCheck(&effects)
            } else {
                isAnswered = true
                effects.append(
                    .answer(
                        check, CheckExtras(installing: true, job: id), isAccepted: true))
            }
            beginInstall(check, &effects)
        case .backgroundPrefetch: end(&effects)
        }
    }

    private mutating func beginInstall(_ check: UpdateCheck, _ effects: inout [Effect]) {
        guard hasInstaller else { return fail(Self.noDevice, &effects) }
        guard check.asset != nil else {
            return fail(check.reason ?? "\(source) holds nothing to install.", &effects)
        }
        download(check, &effects)
    }

    private mutating func answer(
        _ check: UpdateCheck, _ extras: CheckExtras, _ effects: inout [Effect]
    ) {
        isAnswered = true
        effects.append(.answer(check, extras, isAccepted: false))
    }

    // MARK: - Downloaded

    private mutating func download(_ check: UpdateCheck, _ effects: inout [Effect]) {
        phase = .downloading
        effects.append(.record(.step(.download, version: check.latest)))
        effects.append(.say(.progress(downloadProgress(nil, check.asset?.sizeBytes))))
        effects.append(.download(check))
    }

    private func downloadProgress(_ completed: Int64?, _ total: Int64?) -> UpdateProgress {
        UpdateProgress(
            .download, "Downloading \(check?.asset?.name ?? app)", completed: completed,
            total: total)
    }

    private mutating func downloaded(_ outcome: DownloadOutcome, _ effects: inout [Effect]) {
        guard let check else { return end(&effects) }
        if case .failed(let message) = outcome { return fail(message, &effects) }
        switch kind {
        case .prefetch, .backgroundPrefetch:
            effects.append(.record(.result(version: check.latest, warnings: 0)))
            effects.append(
                .say(.check(check, extras: CheckExtras(prefetched: true, prefetch: .complete))))
            end(&effects)
        default:
            phase = .signing
            effects.append(.record(.step(.sign, version: check.latest)))
            effects.append(.say(.progress(UpdateProgress(.sign, "Signing application"))))
            effects.append(.run(.sign))
        }
    }

    // MARK: - Commands

    private mutating func read(_ line: InstallerLine, _ effects: inout [Effect]) {
        let step: UpdateProgress.Step
        switch phase {
        case .signing: step = .sign
        case .installing: step = .install
        case .opening: step = .open
        default: return
        }
        switch line {
        case .progress(let message, let completed, let total):
            effects.append(
                .say(
                    .progress(
                        UpdateProgress(step, message, completed: completed, total: total))))
        case .warning(let message): warn(message)
        case .error(let message): lastError = message
        case .selection(let selection): self.selection = selection
        }
    }

    private mutating func warn(_ message: String) {
        if warnings.count < Self.maximumWarnings { warnings.append(message) }
    }

    private mutating func ended(
        _ command: Command, _ outcome: CommandOutcome, _ effects: inout [Effect]
    ) {
        switch (command, phase) {
        case (.sign, .signing): signed(outcome, &effects)
        case (.running, .probing): probed(outcome, &effects)
        case (.install, .installing): installed(outcome, &effects)
        case (.open, .opening):
            if outcome != .done { warn("The app could not be opened: \(text(outcome)).") }
            succeed(reopened: outcome == .done, &effects)
        default: break
        }
    }

    private mutating func signed(_ outcome: CommandOutcome, _ effects: inout [Effect]) {
        switch outcome {
        case .done:
            lastError = nil
            selection = nil
            guard hasProbe else {
                warn("Whether the app was running is not known, so it stays closed.")
                return install(&effects)
            }
            phase = .probing
            effects.append(.run(.running))
        case .failed, .timedOut: failCommand("Signing", outcome, &effects)
        case .cancelled: fail(Self.stoppingText, &effects)
        }
    }

    private mutating func probed(_ outcome: CommandOutcome, _ effects: inout [Effect]) {
        switch outcome {
        case .done: wasRunning = true
        case .failed(status: 1, _): break
        case .cancelled: return fail(Self.stoppingText, &effects)
        case .failed, .timedOut:
            warn("Whether the app was running could not be found out, so it stays closed.")
        }
        install(&effects)
    }

    private mutating func install(_ effects: inout [Effect]) {
        // Nothing has changed on the device yet.
        if isStopping { return fail(Self.stoppingText, &effects) }
        phase = .installing
        effects.append(.record(.step(.install, version: check?.latest)))
        effects.append(.say(.progress(UpdateProgress(.install, "Installing \(app)"))))
        effects.append(.run(.install))
    }

    private mutating func installed(_ outcome: CommandOutcome, _ effects: inout [Effect]) {
        switch outcome {
        case .done:
            phase = .saving
            effects.append(.save)
        case .failed: failCommand("Installing", outcome, &effects)
        case .timedOut(let message):
            lose(
                "Installing took too long: \(message). It is not known whether it succeeded.",
                &effects)
        case .cancelled:
            // The stream ends without a result, which is what is true.
            effects.append(.record(.lost("the server stopped while the app was being installed")))
            end(&effects)
        }
    }

    private mutating func saved(_ isNoted: Bool, _ effects: inout [Effect]) {
        if !isNoted {
            warn("The new version could not be noted; the app's next check will tell it.")
        }
        guard wasRunning, opens else { return succeed(reopened: false, &effects) }
        phase = .opening
        effects.append(.say(.progress(UpdateProgress(.open, "Opening \(app)"))))
        effects.append(.run(.open))
    }

    private var opens: Bool {
        switch kind {
        case .install(let opens), .linkInstall(_, let opens): opens
        default: false
        }
    }

    private mutating func succeed(reopened: Bool, _ effects: inout [Effect]) {
        effects.append(.record(.result(version: check?.latest, warnings: warnings.count)))
        effects.append(
            .say(
                .installed(
                    InstallResult(
                        device: device, app: app, version: check?.latest, source: source,
                        assetName: check?.asset?.name, reopened: reopened, warnings: warnings))))
        end(&effects)
    }

    private func text(_ outcome: CommandOutcome) -> String {
        switch outcome {
        case .done: "it ended in order"
        case .failed(_, let message), .timedOut(let message): message
        case .cancelled: "the server is stopping"
        }
    }

    // MARK: - Ends

    private mutating func failCommand(
        _ what: String, _ outcome: CommandOutcome, _ effects: inout [Effect]
    ) {
        if let selection { return choose(selection, &effects) }
        fail("\(what) the app failed: \(lastError ?? text(outcome))", &effects)
    }

    private mutating func fail(_ message: String, _ effects: inout [Effect]) {
        effects.append(.record(.error(message)))
        if isStreaming {
            effects.append(.say(.error(message)))
        } else if !isAnswered, kind != .backgroundPrefetch {
            effects.append(.answerFailure(message))
        }
        end(&effects)
    }

    private mutating func lose(_ message: String, _ effects: inout [Effect]) {
        effects.append(.record(.lost(message)))
        if isStreaming { effects.append(.say(.error(message))) }
        end(&effects)
    }

    private mutating func choose(_ selection: UpdateSelection, _ effects: inout [Effect]) {
        effects.append(.record(.selection(key: selection.key)))
        if isStreaming {
            effects.append(.say(.selection(selection)))
        } else if !isAnswered, kind != .backgroundPrefetch {
            effects.append(.answerSelection(selection))
        }
        end(&effects)
    }

    private mutating func clientGone(_ effects: inout [Effect]) {
        effects.append(.record(.disconnected))
        guard kind.endsWithClient, !phase.isOnDevice else { return }
        giveUp("The client went away.", &effects)
    }

    private mutating func stop(_ effects: inout [Effect]) {
        isStopping = true
        if !phase.isOnDevice { giveUp(Self.stoppingText, &effects) }
    }

    /// Ends what nothing has been begun of on the device.
    private mutating func giveUp(_ message: String, _ effects: inout [Effect]) {
        switch phase {
        case .checking: effects.append(.cancelCheck)
        case .downloading: effects.append(.leaveDownload)
        default: break
        }
        fail(message, &effects)
    }

    private mutating func end(_ effects: inout [Effect]) {
        phase = .ended
        effects.append(.end)
    }
}
