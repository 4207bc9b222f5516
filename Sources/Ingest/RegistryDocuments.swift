internal import Schemas

// How the operators' interfaces write what the registry holds. No secrets, but for the tokens that
// were just made.

extension DeviceSummary: Encodable {
    private enum CodingKeys: String, CodingKey {
        case device_id, internal_ip, public_key, version, suspended, expected_interval_ms
        case created_at
    }

    public func encode(to encoder: any Encoder) throws {
        var values = encoder.container(keyedBy: CodingKeys.self)
        try values.encode("\(device)", forKey: .device_id)
        try values.encode(internalAddress, forKey: .internal_ip)
        try values.encode(publicKey, forKey: .public_key)
        try values.encode(version, forKey: .version)
        try values.encode(isSuspended, forKey: .suspended)
        try values.encodeIfPresent(expectedIntervalMilliseconds, forKey: .expected_interval_ms)
        try values.encode("\(createdAt)", forKey: .created_at)
    }
}

extension RegistrationToken: Encodable {
    private enum CodingKeys: String, CodingKey { case token_id, token, expires_at }

    public func encode(to encoder: any Encoder) throws {
        var values = encoder.container(keyedBy: CodingKeys.self)
        try values.encode(id, forKey: .token_id)
        try values.encode(token, forKey: .token)
        try values.encode("\(expiresAt)", forKey: .expires_at)
    }
}

extension TokenSummary: Encodable {
    private enum CodingKeys: String, CodingKey {
        case token_id, state, created_at, created_by, expires_at, used_at, device_id, note
    }

    public func encode(to encoder: any Encoder) throws {
        var values = encoder.container(keyedBy: CodingKeys.self)
        try values.encode(id, forKey: .token_id)
        try values.encode(state.rawValue, forKey: .state)
        try values.encode("\(createdAt)", forKey: .created_at)
        try values.encode(createdBy, forKey: .created_by)
        try values.encode("\(expiresAt)", forKey: .expires_at)
        try values.encodeIfPresent(usedAt.map { "\($0)" }, forKey: .used_at)
        try values.encodeIfPresent(device.map { "\($0)" }, forKey: .device_id)
        try values.encode(note, forKey: .note)
    }
}

extension AuditEntry: Encodable {
    private enum CodingKeys: String, CodingKey {
        case audit_id, at, actor, action, entity, request_id, details, answer
    }

    public func encode(to encoder: any Encoder) throws {
        var values = encoder.container(keyedBy: CodingKeys.self)
        try values.encode(number, forKey: .audit_id)
        try values.encode("\(time)", forKey: .at)
        try values.encode(actor, forKey: .actor)
        try values.encode(action, forKey: .action)
        try values.encode(entity, forKey: .entity)
        try values.encodeIfPresent(requestID, forKey: .request_id)
        try values.encode(try AuditJSON.value(JSONTree.self, details), forKey: .details)
        try values.encode(try AuditJSON.value(JSONTree.self, answer), forKey: .answer)
    }
}

/// JSON of any shape, to be put into other JSON.
private enum JSONTree: Codable {
    case null
    case bool(Bool)
    case integer(Int64)
    case number(Double)
    case text(String)
    case array([JSONTree])
    case object([String: JSONTree])

    init(from decoder: any Decoder) throws {
        let value = try decoder.singleValueContainer()
        if value.decodeNil() {
            self = .null
        } else if let bool = try? value.decode(Bool.self) {
            self = .bool(bool)
        } else if let integer = try? value.decode(Int64.self) {
            self = .integer(integer)
        } else if let number = try? value.decode(Double.self) {
            self = .number(number)
        } else if let text = try? value.decode(String.self) {
            self = .text(text)
        } else if let array = try? value.decode([JSONTree].self) {
            self = .array(array)
        } else {
            self = .object(try value.decode([String: JSONTree].self))
        }
    }

    func encode(to encoder: any Encoder) throws {
        var value = encoder.singleValueContainer()
        switch self {
        case .null: try value.encodeNil()
        case .bool(let bool): try value.encode(bool)
        case .integer(let integer): try value.encode(integer)
        case .number(let number): try value.encode(number)
        case .text(let text): try value.encode(text)
        case .array(let array): try value.encode(array)
        case .object(let object): try value.encode(object)
        }
    }
}
