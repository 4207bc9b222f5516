import Bytes
import Foundation
import System
import TestSupport
import Testing

/// A real Chromium without a screen, driven over WebDriver (W3C) by Debian's chromedriver.
final class Browser {
    static let driver = "/usr/bin/chromedriver"
    static var isInstalled: Bool {
        FileSystem.exists(driver) && FileSystem.exists("/usr/bin/chromium")
    }
    static let missing: Comment =
        "chromium and chromium-driver are not installed: scripts/bootstrap test installs them"

    struct Fault: Error, CustomStringConvertible { var description: String }

    private let process: HeartlineProcess
    private let profile: TemporaryFolder
    private let port: UInt16
    private var session = ""

    init(runsScripts: Bool = true, width: Int = 1280, height: Int = 900) async throws {
        profile = try TemporaryFolder()
        let process = try HeartlineProcess(["--port=0"], executable: Self.driver)
        self.process = process
        var found: UInt16?
        _ = await holds(within: 60) {
            let said = process.output()
            guard let start = said.range(of: "started successfully on port ") else {
                return process.hasEnded
            }
            found = UInt16(said[start.upperBound...].prefix { $0.isNumber })
            return found != nil
        }
        guard let found else {
            throw Fault(
                description: "chromedriver did not start: \(process.output()) \(process.errors())")
        }
        port = found
        var options: [String: Any] = [
            "args": [
                "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                "--hide-scrollbars", "--user-data-dir=\(profile.path)/profile",
                "--window-size=\(width),\(height)",
            ]
        ]
        if !runsScripts {
            options["prefs"] = ["profile.managed_default_content_settings.javascript": 2]
        }
        let answer = try ask(
            "POST", "/session",
            [
                "capabilities": [
                    "alwaysMatch": [
                        "browserName": "chrome", "goog:chromeOptions": options,
                        "goog:loggingPrefs": ["browser": "ALL"],
                    ]
                ]
            ])
        guard let identifier = (answer as? [String: Any])?["sessionId"] as? String else {
            throw Fault(description: "chromedriver gave no session: \(answer)")
        }
        session = "/session/\(identifier)"
    }

    deinit {
        // The browser itself; it would outlive its driver.
        if !session.isEmpty { _ = try? ask("DELETE", session) }
        process.send(SIGTERM)
    }

    private func ask(_ method: String, _ path: String, _ body: [String: Any]? = nil) throws -> Any {
        let data = try body.map { try JSONSerialization.data(withJSONObject: $0) } ?? Data()
        // It answers to this name only.
        var head = "\(method) \(path) HTTP/1.1\r\nHost: localhost:\(port)\r\n"
        head += "Content-Type: application/json\r\nContent-Length: \(data.count)\r\n\r\n"
        let client = try RawClient(host: "127.0.0.1", port: port)
        try client.send(Array(head.utf8) + Array(data))
        let response = try client.response(milliseconds: 120_000)
        let answer = try JSONSerialization.jsonObject(with: Data(response.body.bytes))
        let value = (answer as? [String: Any])?["value"]
        guard response.status == 200, let value else {
            throw Fault(description: "\(method) \(path): \(response.text.prefix(400))")
        }
        return value
    }

    @discardableResult
    private func run(_ method: String, _ path: String, _ body: [String: Any] = [:]) throws -> Any {
        try ask(method, session + path, method == "GET" ? nil : body)
    }

    // MARK: - What a person does

    func open(_ url: String) throws { try run("POST", "/url", ["url": url]) }
    func back() throws { try run("POST", "/back") }
    func reload() throws { try run("POST", "/refresh") }
    var url: String { get throws { try run("GET", "/url") as? String ?? "" } }
    var title: String { get throws { try run("GET", "/title") as? String ?? "" } }

    private func find(_ selector: String) throws -> String {
        let value = try run(
            "POST", "/element", ["using": "css selector", "value": selector])
        guard let element = value as? [String: String], let identifier = element.values.first else {
            throw Fault(description: "no element \(selector)")
        }
        return identifier
    }

    /// What a person reads in the first element of a selector.
    func text(_ selector: String) throws -> String {
        try run("GET", "/element/\(find(selector))/text") as? String ?? ""
    }

    func click(_ selector: String) throws { try run("POST", "/element/\(find(selector))/click") }

    func type(_ text: String, into selector: String) throws {
        try run("POST", "/element/\(find(selector))/value", ["text": text])
    }

    /// Presses a key; `\u{E004}` is Tab, `\u{E007}` Enter (WebDriver, section 17.4.2).
    func press(_ key: String) throws {
        try run(
            "POST", "/actions",
            [
                "actions": [
                    [
                        "type": "key", "id": "keyboard",
                        "actions": [
                            ["type": "keyDown", "value": key], ["type": "keyUp", "value": key],
                        ],
                    ]
                ]
            ])
    }

    // MARK: - What a test looks at

    /// Runs a function's body in the page.
    func evaluate(_ script: String) throws -> Any? {
        let value = try run("POST", "/execute/sync", ["script": script, "args": [Any]()])
        return value is NSNull ? nil : value
    }

    func string(_ expression: String) throws -> String {
        try evaluate("return String(\(expression))") as? String ?? ""
    }

    func isTrue(_ expression: String) throws -> Bool {
        try evaluate("return Boolean(\(expression))") as? Bool ?? false
    }

    func waits(for expression: String) async throws -> Bool {
        try await holds(within: 60) { try self.isTrue(expression) }
    }

    /// Faults and warnings that pages have caused since the last call.
    func complaints() throws -> [String] {
        let entries = try run("POST", "/se/log", ["type": "browser"]) as? [[String: Any]] ?? []
        return entries.compactMap { $0["message"] as? String }
    }

    /// A command of the DevTools protocol.
    func command(_ name: String, _ parameters: [String: Any]) throws {
        try run("POST", "/goog/cdp/execute", ["cmd": name, "params": parameters])
    }

    func prefer(scheme: String) throws {
        try command(
            "Emulation.setEmulatedMedia",
            ["features": [["name": "prefers-color-scheme", "value": scheme]]])
    }

    /// As PNG.
    func screenshot() throws -> Data {
        guard let text = try run("GET", "/screenshot") as? String,
            let data = Data(base64Encoded: text)
        else { throw Fault(description: "no screenshot") }
        return data
    }
}
