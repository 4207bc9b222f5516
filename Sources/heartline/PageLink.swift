import Foundation
import Ingest
import System

/// `heartline page`: a link to the page for people.
enum PageLink {
    static let command = Command(
        name: "page", summary: "a link to the page, which signs you in",
        details: """
            Prints where the page of the instance that runs on --data is, with a code that signs one browser in: good
            once, and for ten minutes. It is made from the operators' token, so whoever can read that can have one.
            """,
        options: [InstanceOptions.data, InstanceOptions.adminToken]
    ) { arguments in
        let folder = arguments.text("data")
        let file = try RunFile.read(in: folder)
        let token = try SecretFiles.adminToken(
            environment: ProcessInfo.processInfo.environment,
            file: arguments.optionalText("admin-token-file") ?? "\(folder)/admin-token",
            makesFile: false)
        guard let token else {
            throw Failure("making a link: the instance has no operators' token, and so no page")
        }
        Terminal.write("\(try text(file.admin, token))\n")
        return .done
    }

    static func text(_ admin: String, _ token: AdminToken) throws -> String {
        "\(admin)/login?code=\(try token.loginCode(now: SystemClock.wallMilliseconds()))"
    }

    /// What a ready instance prints: a link for who sits before it, and no code in what is kept of a service.
    static func shown(_ instance: Instance, _ file: RunFile) throws -> String {
        if Terminal.isTerminal(), let link = try instance.pageLink() {
            return "\(link)  (once, within ten minutes; later: heartline page)"
        }
        return
            "\(file.admin)/  (heartline page --data \(instance.settings.data) prints a link that signs you in)"
    }
}
