import Bytes
import Crypto
import Foundation
import Testing

/// What of a provisioning's answer tests look for, read as the agent contract says.
struct ProvisionedPayload: Decodable {
    var device_id: String
    var private_key: String
    var preshared_key: String

    /// - Parameter body: of the answer.
    init(_ body: Data, hardwareID: String, salt: String) throws {
        let fields = try JSONDecoder().decode([String: String].self, from: body)
        let sealed = ByteBuffer(
            try #require(Data(base64Encoded: fields["encrypted_config"] ?? "")))
        let material = ByteBuffer((hardwareID + salt).utf8)
        let key = SHA256.hash(material.span).bytes
        var cipher = try AESGCM(key: key.span)
        var plaintext = ByteBuffer()
        let nothing = ByteBuffer()
        try cipher.open(sealed.span, associatedData: nothing.span, into: &plaintext)
        self = try JSONDecoder().decode(Self.self, from: Data(plaintext.bytes))
    }
}
