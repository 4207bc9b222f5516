import Alerts
import Bytes
import Pipeline
import System
import Testing

@Suite struct AlertsFileTests {
    private func errors(_ text: String, path: String = "alerts.yaml") -> [String] {
        do throws(PipelineFileErrors) {
            _ = try AlertsFile.parse(Array(text.utf8), path: path)
            return []
        } catch {
            return error.errors.map(\.description)
        }
    }

    @Test func everythingThatCanBeSaidIsUnderstood() throws {
        let folder = try FileSystem.makeTemporaryDirectory("/tmp/heartline-alerts-")
        defer { FileSystem.removeTree(folder) }
        try FileSystem.write("hush\n", to: "\(folder)/secret", mode: 0o600)
        try FileSystem.write("https://x.example/T0/B0\n", to: "\(folder)/address", mode: 0o600)
        let text = """
            group_wait: 20s
            mass_offline: {share_percent: 30, at_least: 50, within: 2m, resolved_percent: 80}
            receivers:
              - name: pager
                kinds: [offline, mass-offline]
                webhook:
                  url: https://pager.example/hook?x=1
                  secret_file: secret
                  authorization_file: \(folder)/secret
                  timeout: 5s
                  concurrency: 2
                  proxy: false
              - name: chat
                webhook: {url_file: address}
              - name: prometheus
                alertmanager: {url: "http://127.0.0.1:9093/", repeat: 30s}
              - name: local
                notify: {channel: my_alerts}
            """
        let read = try AlertsFile.parse(Array(text.utf8), path: "\(folder)/alerts.yaml")
        #expect(read.dispatch.groupWait == 20_000 && read.dispatch.massShare == 30)
        #expect(read.dispatch.massMinimum == 50 && read.dispatch.massWithin == 120_000)
        #expect(read.dispatch.massResolvedShare == 80)
        var pager = WebhookSettings(
            url: "https://pager.example/hook?x=1", secret: ByteBuffer("hush".utf8))
        pager.authorization = "hush"
        pager.timeout = 5_000
        pager.concurrency = 2
        pager.usesEnvironmentProxy = false
        var manager = AlertmanagerSettings(url: "http://127.0.0.1:9093/")
        manager.repeatInterval = 30_000
        #expect(
            read.receivers == [
                AlertReceiverSettings(
                    name: "pager", kinds: ["offline", "mass-offline"], target: .webhook(pager)),
                AlertReceiverSettings(
                    name: "chat", target: .webhook(WebhookSettings(url: "https://x.example/T0/B0"))),
                AlertReceiverSettings(name: "prometheus", target: .alertmanager(manager)),
                AlertReceiverSettings(name: "local", target: .notify(channel: "my_alerts")),
            ])
        for empty in ["", "# nothing\n", "receivers: []\n"] {
            #expect(
                try AlertsFile.parse(Array(empty.utf8), path: "x") == AlertsConfiguration())
        }
    }

    @Test func whatIsWrongIsNamedWithItsPlace() {
        #expect(
            errors("group_wiat: 10s")
                == [
                    #"alerts.yaml:1:1: unknown key "group_wiat" in alerts: did you mean group_wait?"#
                ])
        #expect(
            errors("receivers:\n  - name: a\n    webhook: {url: 'http://x', secret: hush}")[0]
                .hasPrefix(#"alerts.yaml:3:32: unknown key "secret" in webhook: known are url,"#))
        #expect(
            errors("receivers:\n  - name: a\n    webhook: {url: 'http://x', secret_file: gone}")
                == ["alerts.yaml:3:45: secret_file: reading ./gone: No such file or directory"])
        #expect(
            errors("receivers:\n  - name: a\n    kinds: [ofline]\n    notify: {channel: c}")[0]
                .contains(#"3:13: there is no kind of alert "ofline": did you mean offline?"#))
        #expect(errors("receivers: [{name: a}]")[0].contains("a receiver is one of webhook"))
        #expect(
            errors("receivers: [{name: a, notify: {channel: c}, webhook: {url: 'http://x'}}]")[0]
                .contains("a receiver is one of webhook"))
        #expect(errors("receivers: [{notify: {channel: c}}]")[0].contains("has no name"))
        #expect(
            errors("receivers: [{name: a, notify: {channel: c}}, {name: a, notify: {channel: d}}]")[
                0
            ]
            .contains("named a already"))
        #expect(
            errors("receivers: [{name: a, notify: {channel: heartline_alerts}}]")[0]
                .contains("Heartline's own"))
        #expect(errors("mass_offline: {share_percent: 0}")[0].contains("from 1 to 100"))
        #expect(errors("group_wait: 10")[0].contains("did you mean 10s?"))
    }

    @Test func noMessageShowsASecret() {
        for url in ["ftp://hush@x", "https://user:hush@x/", "https://x/ hush", "http:///hush"] {
            let found = errors("receivers: [{name: a, webhook: {url: '\(url)'}}]")
            #expect(found.count == 1)
            #expect(!found[0].contains("hush"), "\(found)")
        }
    }
}
