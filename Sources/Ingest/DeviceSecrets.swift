internal import Bytes
internal import Crypto
internal import Schemas

/// Seals and opens the keys of devices under `HEARTLINE_SECRET_KEY`. One for each thread.
final class SecretBox {
    private var cipher: AESGCM

    init(key: [UInt8]) throws(CryptoError) {
        cipher = try AESGCM(key: key.span)
    }

    private static func context(_ device: DeviceID) -> ByteBuffer {
        var context = ByteBuffer()
        context.append(device)
        return context
    }

    /// Sealed to the device: the bytes of one open for no other.
    func seal(
        _ secrets: DeviceSecrets, of device: DeviceID, into output: inout ByteBuffer
    ) throws(CryptoError) {
        try cipher.seal(
            secrets.bytes.span, associatedData: Self.context(device).span, into: &output)
    }

    func open(
        _ sealed: Span<UInt8>, of device: DeviceID
    ) throws(RegistryError) -> DeviceSecrets {
        var bytes = ByteBuffer()
        do throws(CryptoError) {
            try cipher.open(sealed, associatedData: Self.context(device).span, into: &bytes)
        } catch {
            throw RegistryError(
                "opening the keys of device \(device.shortened)", .damagedSecrets,
                "they do not open under HEARTLINE_SECRET_KEY")
        }
        guard bytes.count == 64 else {
            throw RegistryError(
                "opening the keys of device \(device.shortened)", .damagedSecrets,
                "they are not two keys of 32 bytes")
        }
        return DeviceSecrets(bytes: bytes)
    }

    /// Seals a text to what it belongs to.
    func seal(_ text: String, of owner: String) throws(CryptoError) -> ByteBuffer {
        var output = ByteBuffer()
        let (plain, context) = (ByteBuffer(text.utf8), ByteBuffer(owner.utf8))
        try cipher.seal(plain.span, associatedData: context.span, into: &output)
        return output
    }

    /// `nil` if it does not open.
    func openText(_ sealed: ByteBuffer, of owner: String) -> String? {
        var output = ByteBuffer()
        let context = ByteBuffer(owner.utf8)
        do throws(CryptoError) {
            try cipher.open(sealed.span, associatedData: context.span, into: &output)
        } catch { return nil }
        return output.span.text
    }

    // What stands in `network.secret_check`.
    private static let checkText = ByteBuffer("heartline secret check 1".utf8)
    private static let checkContext = ByteBuffer("network".utf8)

    func sealCheck() throws(CryptoError) -> ByteBuffer {
        var output = ByteBuffer()
        try cipher.seal(
            Self.checkText.span, associatedData: Self.checkContext.span, into: &output)
        return output
    }

    /// Whether this is the key under which the check was sealed.
    func opensCheck(_ sealed: ByteBuffer) -> Bool {
        var output = ByteBuffer()
        do throws(CryptoError) {
            try cipher.open(sealed.span, associatedData: Self.checkContext.span, into: &output)
        } catch { return false }
        return output == Self.checkText
    }
}

/// A device's private key and preshared key, 32 raw bytes each.
struct DeviceSecrets: CustomStringConvertible {
    fileprivate var bytes: ByteBuffer

    init(privateKey: [UInt8], presharedKey: [UInt8]) {
        bytes = ByteBuffer(privateKey)
        bytes.append(presharedKey)
    }

    fileprivate init(bytes: ByteBuffer) { self.bytes = bytes }

    var privateKey: Span<UInt8> {
        @_lifetime(borrow self) get { bytes.span.extracting(0..<32) }
    }

    var presharedKey: Span<UInt8> {
        @_lifetime(borrow self) get { bytes.span.extracting(32..<64) }
    }

    var description: String { "DeviceSecrets(hidden)" }
}
