import Bytes
import Crypto
import Foundation
import TestSupport

/// An agent as the contract's text describes it: what it sends, and how it reads what it gets.
struct ContractAgent {
    /// The decrypted ConfigPayload, with its fields in the order in which they came.
    struct Config: Equatable {
        var fields: [String]
        var values: [String: String]

        subscript(_ field: String) -> String { values[field] ?? "" }
    }

    struct Fault: Error, CustomStringConvertible {
        var description: String
    }

    /// "Decrypted ConfigPayload".
    static let payloadFields = [
        "device_id", "private_key", "preshared_key", "internal_ip", "server_pub", "endpoint", "dns",
        "allowed_ips", "server_wg_ip",
    ]

    static func body(_ token: String, _ hardwareID: String) throws -> [UInt8] {
        Array(try JSONEncoder().encode(["token": token, "hwid": hardwareID]))
    }

    static func provision(
        _ client: RawClient, _ token: String, _ hardwareID: String
    ) throws -> RawResponse {
        try client.request(
            "POST", "/api/v1/provision", body: try body(token, hardwareID))
    }

    static func heartbeat(_ client: RawClient, _ device: String) throws -> RawResponse {
        try client.request(
            "POST", "/api/v1/heartbeat", body: "{\"device_id\":\"\(device)\"}".utf8)
    }

    /// What a successful answer holds.
    static func config(
        _ response: RawResponse, hardwareID: String, salt: String
    ) throws -> Config {
        guard response.status == 200 else {
            throw Fault(description: "status \(response.status): \(response.text)")
        }
        guard response.headers["content-type"] == "application/json" else {
            throw Fault(description: "not JSON: \(response.headers)")
        }
        let answer = try JSONDecoder().decode(
            [String: String].self, from: Data(response.body.bytes))
        guard answer.count == 1, let encrypted = answer["encrypted_config"] else {
            throw Fault(description: "other fields than encrypted_config: \(answer.keys)")
        }
        return try decrypt(encrypted, hardwareID: hardwareID, salt: salt)
    }

    /// "Crypto Protocol": key = SHA256(hwid + salt); nonce of 12 bytes, ciphertext, tag of 16 bytes.
    static func decrypt(
        _ encrypted: String, hardwareID: String, salt: String
    ) throws -> Config {
        guard let combined = Data(base64Encoded: encrypted), combined.count > 28 else {
            throw Fault(description: "not base64 of nonce, ciphertext and tag")
        }
        let material = ByteBuffer((hardwareID + salt).utf8)
        let key = SHA256.hash(material.span).bytes
        var cipher = try AESGCM(key: key.span)
        var plaintext = ByteBuffer()
        let sealed = ByteBuffer(combined)
        let nothing = ByteBuffer()
        try cipher.open(sealed.span, associatedData: nothing.span, into: &plaintext)
        let values = try JSONDecoder().decode(
            [String: String].self, from: Data(plaintext.bytes))
        let text = plaintext.span.text
        let fields = values.keys.sorted {
            text.range(of: "\"\($0)\":")!.lowerBound < text.range(of: "\"\($1)\":")!.lowerBound
        }
        return Config(fields: fields, values: values)
    }

    /// Sends all `requests` over `connections` connections that are open together, as fast as they are
    /// taken, and reads every answer.
    static func race(
        _ requests: [(token: String, hardwareID: String)], connections: Int,
        _ connect: (Int) throws -> RawClient
    ) throws -> [RawResponse] {
        let clients = try (0..<connections).map { try connect($0) }
        for (index, request) in requests.enumerated() {
            try clients[index % connections].sendRequest(
                "POST", "/api/v1/provision", body: try body(request.token, request.hardwareID))
        }
        return try requests.indices.map {
            try clients[$0 % connections].response(milliseconds: 120_000)
        }
    }
}
