import Ingest
import Schemas
import System

/// `heartline token create`, `list` and `revoke`.
enum TokenCommands {
    static let create = Command(
        name: "token create", summary: "make registration tokens, each for one device",
        details: """
            Prints the tokens alone, one a line: they are stored nowhere and cannot be shown again. With
            --request-id a repeat prints the same tokens.
            """,
        options: [
            .duration(
                "ttl", 1_000...365 * 86_400_000, default: "24h", "how long they are good for"),
            .integer("count", 1...Registry.maximumTokens, default: 1, "how many"),
            .text("note", "TEXT", "what stands beside them in lists"),
            .flag("json", "print one JSON object a token, with its id"),
        ] + OperatorOptions.all + DatabaseAccess.options
    ) { arguments in
        let request = try OperatorOptions.request(arguments)
        let registry = try RegistryAccess.open(arguments, as: "token create")
        let tokens = try registry.createTokens(
            count: arguments.integer("count"), ttl: .milliseconds(arguments.duration("ttl")),
            note: arguments.optionalText("note") ?? "", by: request)
        if arguments.wantsJSON {
            for token in tokens { try Terminal.writeAll(try JSONText.line(token)) }
        } else {
            try Terminal.writeAll(tokens.map { "\($0.token)\n" }.joined())
        }
        return .done
    }

    static let list = Command(
        name: "token list", summary: "list registration tokens, the newest first",
        details: "Tokens themselves are stored nowhere: a token is named by its id.",
        options: [
            .integer("limit", 1...1_000_000, default: 100, "at most so many"),
            .flag("json", "print one JSON object a line"),
        ] + DatabaseAccess.options
    ) { arguments in
        let registry = try RegistryAccess.open(arguments, as: "token list")
        let tokens = try registry.tokens(limit: arguments.integer("limit"))
        if arguments.wantsJSON {
            for token in tokens { Terminal.write(try JSONText.line(token)) }
            return .done
        }
        var table = TextTable("token id", "state", "expires", "by", "device", "note")
        for token in tokens {
            table.add(
                token.id, token.state.rawValue, "\(token.expiresAt)", token.createdBy,
                token.device.map { "\($0)" } ?? "", token.note)
        }
        Terminal.write(table.text)
        return .done
    }

    static let revoke = Command(
        name: "token revoke", summary: "make a registration token good for nothing",
        operands: Operands(
            placeholder: "ID|TOKEN", count: 1...1, help: "the token's id, or the token itself"),
        options: [.flag("json", "print a JSON object")] + OperatorOptions.all
            + DatabaseAccess.options
    ) { arguments in
        guard DeviceID(arguments.operands[0]) != nil else {
            throw UsageError("a token's id and a token are UUIDs")
        }
        let request = try OperatorOptions.request(arguments)
        let registry = try RegistryAccess.open(arguments, as: "token revoke")
        // The operand may be the token, so it is not shown.
        guard let id = try registry.tokenID(arguments.operands[0]) else {
            throw Failure("revoking a registration token: there is no such token")
        }
        let changed = try registry.revokeToken(id, by: request)
        if arguments.wantsJSON {
            Terminal.write(try JSONText.line(Revoked(token_id: "\(id)", changed: changed)))
        } else {
            Terminal.write("\(id) \(changed ? "revoked" : "was revoked already")\n")
        }
        return .done
    }

    private struct Revoked: Encodable {
        var token_id: String
        var changed: Bool
    }
}
