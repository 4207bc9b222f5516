import Testing
import Updates

/// What a job does with everything that can happen to it, told as its effects in words.
@Suite("A job of an app update") struct UpdateJobTests {
    typealias Kind = UpdateJob.Kind
    typealias Input = UpdateJob.Input

    static let asset = ReleaseAsset(
        id: "1", name: "Example.ipa", url: "https://example.com/e.ipa", fingerprint: "f")
    static let available = CheckOutcome.checked(
        UpdateCheck(isAvailable: true, current: "v1", latest: "v2", asset: asset))
    static let newest = CheckOutcome.checked(
        UpdateCheck(isAvailable: false, current: "v2", latest: "v2", asset: asset))
    static let selection = UpdateSelection(
        key: "asset", message: "Select an IPA", choices: [.init(id: "1", label: "a")])

    static func words(_ effect: UpdateJob.Effect) -> String {
        switch effect {
        case .beginStream: "stream"
        case .say(let message): "say " + words(message)
        case .answer(let check, let extras, let isAccepted):
            "answer \(isAccepted ? 202 : 200) \(check.isAvailable ? "available" : "newest")"
                + (extras.prefetch.map { " prefetch=\($0.rawValue)" } ?? "")
                + (extras.installing.map { " installing=\($0)" } ?? "")
                + (extras.job == nil ? "" : " job")
        case .answerFailure(let message): "answer 502 \(message)"
        case .answerSelection: "answer 422"
        case .check: "check"
        case .cancelCheck: "cancel check"
        case .download: "download"
        case .leaveDownload: "leave download"
        case .prefetchInBackground: "prefetch in background"
        case .saveRefinement(let shape): "save \(shape)"
        case .run(let command): "run \(command.rawValue)"
        case .save: "save"
        case .record(let record): "record " + words(record)
        case .end: "end"
        }
    }

    private static func words(_ message: UpdateMessage) -> String {
        switch message {
        case .progress(let progress):
            progress.step.rawValue
                + (progress.completed.map { " \($0)/\(progress.total ?? -1)" } ?? "")
        case .check(let check, let extras):
            "result \(check.isAvailable ? "available" : "newest")"
                + " prefetch=\(extras.prefetch?.rawValue ?? "-")"
                + (extras.prefetched == true ? " prefetched" : "")
        case .installed(let result):
            "installed\(result.reopened ? " reopened" : "") \(result.warnings)"
        case .selection: "selection"
        case .error(let message): "error \(message)"
        }
    }

    private static func words(_ record: UpdateJob.Record) -> String {
        switch record {
        case .checked(let check): check.isAvailable ? "available" : "newest"
        case .step(let step, _): step.rawValue
        case .selection: "selection"
        case .result(_, let warnings): "result \(warnings)"
        case .error: "error"
        case .lost: "lost"
        case .disconnected: "disconnected"
        }
    }

    /// The effects of a row of inputs, those of each input in one text.
    static func run(
        _ kind: Kind, installer: Bool = true, probe: Bool = true, _ inputs: [Input]
    ) -> [String] {
        var job = UpdateJob(
            kind, id: "j", app: "Example", device: "d", source: "gh:o/r", hasInstaller: installer,
            hasProbe: probe)
        return inputs.map { input in
            var effects: [UpdateJob.Effect] = []
            job.handle(input, into: &effects)
            return effects.map(words).joined(separator: ", ")
        }
    }

    @Test(
        "a check answers, and downloads in the background only where there is something and it may")
    func check() {
        #expect(
            Self.run(.check(prefetches: true), [.start, .checked(Self.available)]) == [
                "check",
                "record available, answer 200 available prefetch=background, prefetch in background, end",
            ])
        #expect(
            Self.run(.check(prefetches: false), [.start, .checked(Self.available)])[1]
                == "record available, answer 200 available prefetch=disabled, end")
        #expect(
            Self.run(.check(prefetches: true), [.start, .checked(Self.newest)])[1]
                == "record newest, answer 200 newest prefetch=disabled, end")
        #expect(
            Self.run(.check(prefetches: true), [.start, .checked(.failed("away"))])[1]
                == "record error, answer 502 away, end")
        #expect(
            Self.run(.check(prefetches: true), [.start, .checked(.selection(Self.selection))])[1]
                == "record selection, answer 422, end")
    }

    @Test("a foreground prefetch streams its check and download, and never signs")
    func prefetch() {
        #expect(
            Self.run(
                .prefetch,
                [
                    .start, .checked(Self.available), .downloading(completed: 5, total: 10),
                    .downloaded(.done), .downloaded(.done),
                ]) == [
                    "stream, say check, check",
                    "record available, record download, say download, download",
                    "say download 5/10",
                    "record result 0, say result available prefetch=complete prefetched, end", "",
                ])
        #expect(
            Self.run(.prefetch, [.start, .checked(Self.newest)])[1]
                == "record newest, say result newest prefetch=disabled, end")
        #expect(
            Self.run(.prefetch, [.start, .checked(.selection(Self.selection))])[1]
                == "record selection, say selection, end")
        #expect(
            Self.run(.prefetch, [.start, .checked(Self.available), .downloaded(.failed("short"))])[
                2]
                == "record error, say error short, end")
    }

    @Test("a foreground prefetch ends with its client, whatever it is at")
    func prefetchAlone() {
        #expect(
            Self.run(.prefetch, [.start, .clientGone])[1]
                == "record disconnected, cancel check, record error, say error The client went away., end"
        )
        #expect(
            Self.run(.prefetch, [.start, .checked(Self.available), .clientGone])[2]
                == "record disconnected, leave download, record error, say error The client went away., end"
        )
    }

    static let whole: [Input] = [
        .start, .checked(available), .downloaded(.done),
        .line(.progress("half", completed: 1, total: 2)), .line(.warning("old profile")),
        .ended(.sign, .done), .ended(.running, .done), .ended(.install, .done), .saved(true),
        .ended(.open, .done),
    ]

    @Test("an installation goes its whole way, and opens what ran before")
    func install() {
        #expect(
            Self.run(.install(opens: true), Self.whole) == [
                "record check, stream, say check, check",
                "record available, record download, say download, download",
                "record sign, say sign, run sign", "say sign 1/2", "", "run running",
                "record install, say install, run install", "save", "say open, run open",
                "record result 1, say installed reopened [\"old profile\"], end",
            ])
    }

    @Test("an installation of what is installed already is carried out: the user asked for it")
    func again() {
        #expect(
            Self.run(.install(opens: true), [.start, .checked(Self.newest)])[1]
                == "record newest, record download, say download, download")
    }

    @Test("an app that did not run, or is not to be opened, stays closed")
    func stayingClosed() {
        let start: [Input] = [
            .start, .checked(Self.available), .downloaded(.done), .ended(.sign, .done),
        ]
        let rest: [Input] = [.ended(.install, .done), .saved(true)]
        let notRunning = Input.ended(.running, .failed(status: 1, message: "m"))
        #expect(
            Self.run(.install(opens: true), start + [notRunning] + rest).last
                == "record result 0, say installed [], end")
        #expect(
            Self.run(.install(opens: false), start + [.ended(.running, .done)] + rest).last
                == "record result 0, say installed [], end")
        // open=true does not override a check that failed.
        let failed = Input.ended(.running, .failed(status: 70, message: "m"))
        #expect(
            Self.run(.install(opens: true), start + [failed] + rest).last
                == "record result 1, say installed [\"Whether the app was running could not be found out, so it stays closed.\"], end"
        )
        #expect(
            Self.run(.install(opens: true), probe: false, start + rest).last
                == "record result 1, say installed [\"Whether the app was running is not known, so it stays closed.\"], end"
        )
    }

    @Test("an app that cannot be opened is installed all the same")
    func openingFails() {
        var inputs = Self.whole
        inputs[inputs.count - 1] = .ended(.open, .failed(status: 2, message: "it ended with 2"))
        #expect(
            Self.run(.install(opens: true), inputs).last
                == "record result 2, say installed [\"old profile\", \"The app could not be opened: it ended with 2.\"], end"
        )
    }

    @Test("without an installer every installation says that there is no device")
    func noInstaller() {
        #expect(
            Self.run(.install(opens: true), installer: false, [.start, .checked(Self.available)])[1]
                == "record available, record error, say error No available device matches this installation., end"
        )
    }

    @Test("what a command said of its failure is told; a selection goes before it")
    func failures() {
        let start: [Input] = [.start, .checked(Self.available), .downloaded(.done)]
        let failed = Input.ended(.sign, .failed(status: 3, message: "status 3"))
        #expect(
            Self.run(.install(opens: true), start + [.line(.error("no profile")), failed]).last
                == "record error, say error Signing the app failed: no profile, end")
        #expect(
            Self.run(.install(opens: true), start + [failed]).last
                == "record error, say error Signing the app failed: status 3, end")
        #expect(
            Self.run(
                .install(opens: true), start + [.line(.selection(Self.selection)), failed]
            ).last == "record selection, say selection, end")
        // What signing said is no reason why installing fails.
        #expect(
            Self.run(
                .install(opens: true),
                start + [
                    .line(.error("only a remark")), .ended(.sign, .done), .ended(.running, .done),
                    .ended(.install, .failed(status: 1, message: "status 1")),
                ]
            ).last == "record error, say error Installing the app failed: status 1, end")
        #expect(
            Self.run(
                .install(opens: true),
                start + [
                    .ended(.sign, .done), .ended(.running, .done),
                    .ended(.install, .timedOut(message: "60 s")),
                ]
            ).last
                == "record lost, say error Installing took too long: 60 s. It is not known whether it succeeded., end"
        )
    }

    @Test("a native installation goes on without its client", arguments: 1..<Self.whole.count)
    func disconnect(at place: Int) {
        var inputs = Self.whole
        inputs.insert(.clientGone, at: place)
        let effects = Self.run(.install(opens: true), inputs)
        #expect(effects[place] == "record disconnected")
        #expect(effects.last?.hasPrefix("record result 1") == true)
    }

    @Test("a global foreground one ends with its client until something begins on the device")
    func globalDisconnect() {
        let kind = Kind.linkInstall(isForeground: true, opens: true)
        #expect(
            Self.run(kind, [.start, .clientGone])[1]
                == "record disconnected, cancel check, record error, answer 502 The client went away., end"
        )
        #expect(
            Self.run(kind, [.start, .checked(Self.available), .clientGone])[2]
                == "record disconnected, leave download, record error, say error The client went away., end"
        )
        var inputs = Self.whole
        inputs.insert(.clientGone, at: 3)
        let effects = Self.run(kind, inputs)
        #expect(effects[3] == "record disconnected")
        #expect(effects.last?.contains("installed reopened") == true)
    }

    @Test(
        "a global link answers JSON where there is nothing, 202 in the background, a stream otherwise"
    )
    func links() {
        #expect(
            Self.run(.linkCheck, [.start, .checked(Self.available)])
                == ["check", "record available, answer 200 available installing=false, end"])
        for isForeground in [true, false] {
            #expect(
                Self.run(
                    .linkInstall(isForeground: isForeground, opens: true),
                    [.start, .checked(Self.newest)])
                    == ["check", "record newest, answer 200 newest installing=false, end"])
        }
        #expect(
            Self.run(
                .linkInstall(isForeground: false, opens: true),
                [.start, .checked(Self.available), .downloaded(.failed("no"))]) == [
                    "check",
                    "record available, answer 202 available installing=true job, record download, say download, download",
                    "record error, end",
                ])
        #expect(
            Self.run(
                .linkInstall(isForeground: true, opens: true), [.start, .checked(Self.available)])[
                    1]
                == "record available, stream, say check, record download, say download, download")
    }

    @Test("a server that stops ends what has not begun, and never claims what it does not know")
    func stopping() {
        #expect(
            Self.run(.install(opens: true), [.start, .checked(Self.available), .stopping])[2]
                == "leave download, record error, say error The server is stopping; try again later., end"
        )
        let signing: [Input] = [.start, .checked(Self.available), .downloaded(.done), .stopping]
        // Nothing has changed on the device, so nothing more is done to it.
        #expect(
            Self.run(
                .install(opens: true),
                signing + [.ended(.sign, .done), .ended(.running, .done)]
            ).last
                == "record error, say error The server is stopping; try again later., end")
        let installing: [Input] = [
            .start, .checked(Self.available), .downloaded(.done), .ended(.sign, .done),
            .ended(.running, .done), .stopping,
        ]
        #expect(
            Self.run(.install(opens: false), installing + [.ended(.install, .done), .saved(true)])
                .last == "record result 0, say installed [], end")
        // Without a last word: the stream is cut, which is what "unconfirmed" is.
        #expect(
            Self.run(.install(opens: false), installing + [.ended(.install, .cancelled)]).last
                == "record lost, end")
    }

    @Test("inputs that come late or twice change nothing")
    func strays() {
        let effects = Self.run(
            .install(opens: true),
            [
                .downloaded(.done), .checked(Self.available), .ended(.install, .done), .start,
                .start, .ended(.sign, .done), .saved(true), .checked(Self.available),
                .checked(Self.available), .downloading(completed: 1, total: nil),
            ])
        #expect(effects[..<3] == ["", "", ""])
        #expect(effects[4...6] == ["", "", ""] && effects[8] == "")
        #expect(effects[9] == "say download 1/-1")
    }

    @Test("a refinement that helped is kept")
    func refinement() {
        let check = CheckOutcome.checked(
            UpdateCheck(
                isAvailable: false, asset: Self.asset, refinement: "example-#.ipa"))
        #expect(
            Self.run(.check(prefetches: false), [.start, .checked(check)])[1]
                .hasPrefix("save example-#.ipa, record newest"))
    }
}
