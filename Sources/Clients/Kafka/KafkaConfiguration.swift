internal import CRdKafka
internal import Synchronization

/// Told what happens in a client besides answers.
public protocol KafkaObserver: AnyObject, Sendable {
    /// Called on the thread that polls the client. Most errors pass by themselves; one that is
    /// fatal makes the client useless.
    func kafkaReported(_ error: KafkaError)

    /// librdkafka's own words. Called on any of its threads: hand over and return.
    /// - Parameter level: as `syslog` counts, 0 (worst) to 7.
    func kafkaLogged(level: Int32, _ message: String)
}

/// Owns an `rd_kafka_conf_t` until a client takes it over.
@safe public struct KafkaConfiguration: ~Copyable {
    private let pointer: OpaquePointer

    public init() { unsafe pointer = rd_kafka_conf_new() }

    deinit { unsafe rd_kafka_conf_destroy(pointer) }

    /// - Throws: if there is no such property, or it cannot have that value.
    /// - SeeAlso: librdkafka, `CONFIGURATION.md`.
    public func set(_ name: String, _ value: String) throws(KafkaError) {
        var reason = [CChar](repeating: 0, count: 512)
        let result = unsafe rd_kafka_conf_set(pointer, name, value, &reason, reason.count)
        guard result == RD_KAFKA_CONF_OK else {
            throw KafkaError(
                .configuring, RD_KAFKA_RESP_ERR__INVALID_ARG.rawValue, text(of: reason))
        }
    }

    enum Role { case producer, consumer }

    /// Makes the client, which owns the configuration from then on.
    consuming func makeClient(
        _ role: Role, _ context: KafkaContext
    ) throws(KafkaError) -> NativeClient {
        unsafe rd_kafka_conf_set_opaque(pointer, Unmanaged.passUnretained(context).toOpaque())
        unsafe rd_kafka_conf_set_error_cb(pointer, kafkaErrorCallback)
        unsafe rd_kafka_conf_set_log_cb(pointer, kafkaLogCallback)
        switch role {
        case .producer: unsafe rd_kafka_conf_set_dr_msg_cb(pointer, kafkaDeliveryCallback)
        case .consumer: unsafe rd_kafka_conf_set_rebalance_cb(pointer, kafkaRebalanceCallback)
        }
        var reason = [CChar](repeating: 0, count: 512)
        let type = role == .producer ? RD_KAFKA_PRODUCER : RD_KAFKA_CONSUMER
        guard let handle = unsafe rd_kafka_new(type, pointer, &reason, reason.count) else {
            _ = consume self  // runs `deinit`
            throw KafkaError(
                .configuring, RD_KAFKA_RESP_ERR__INVALID_ARG.rawValue, text(of: reason))
        }
        discard self  // skips `deinit`: librdkafka frees it from here on
        return unsafe NativeClient(handle, context)
    }
}

/// What the callbacks of one client are handed.
final class KafkaContext: Sendable {
    let observer: any KafkaObserver
    /// Of consumers.
    let assignment = Mutex(KafkaAssignment())

    init(_ observer: any KafkaObserver) { self.observer = observer }

    /// The client made with `opaque` holds its context until its handle is destroyed.
    static func from(_ opaque: UnsafeMutableRawPointer?) -> KafkaContext? {
        guard let opaque = unsafe opaque else { return nil }
        return unsafe Unmanaged<KafkaContext>.fromOpaque(opaque).takeUnretainedValue()
    }
}

/// Owns a librdkafka handle. The end of its life frees it, which may take as long as its last requests.
///
/// `@unchecked`: librdkafka locks inside.
@safe final class NativeClient: @unchecked Sendable {
    let handle: OpaquePointer
    let context: KafkaContext

    init(_ handle: OpaquePointer, _ context: KafkaContext) {
        unsafe self.handle = handle
        self.context = context
    }

    private let isAbandoned = Atomic(false)

    deinit {
        guard isAbandoned.load(ordering: .relaxed) else { return unsafe rd_kafka_destroy(handle) }
        // librdkafka may still call with it.
        unsafe _ = Unmanaged.passRetained(context)
    }

    /// The end of its life leaves the handle as it is.
    func abandon() { isAbandoned.store(true, ordering: .relaxed) }

    /// The error that made the client useless, if one did.
    var fatalFailure: KafkaError? {
        var reason = [CChar](repeating: 0, count: 512)
        let code = unsafe rd_kafka_fatal_error(handle, &reason, reason.count)
        guard code != RD_KAFKA_RESP_ERR_NO_ERROR else { return nil }
        return KafkaError(.connecting, code.rawValue, text(of: reason), isFatal: true)
    }
}

func text(of bytes: [CChar]) -> String {
    String(decoding: bytes.prefix { $0 != 0 }.map { UInt8(bitPattern: $0) }, as: UTF8.self)
}

// Free functions: C calls them on threads that are no actor's.

private func kafkaErrorCallback(
    _ client: OpaquePointer?, _ code: Int32, _ reason: UnsafePointer<CChar>?,
    _ opaque: UnsafeMutableRawPointer?
) {
    guard let context = unsafe KafkaContext.from(opaque) else { return }
    let words = unsafe reason.map { unsafe String(cString: $0) }
    context.observer.kafkaReported(KafkaError(.connecting, code, words))
}

private func kafkaLogCallback(
    _ client: OpaquePointer?, _ level: Int32, _ facility: UnsafePointer<CChar>?,
    _ message: UnsafePointer<CChar>?
) {
    guard let client = unsafe client, let message = unsafe message,
        let context = unsafe KafkaContext.from(rd_kafka_opaque(client))
    else { return }
    unsafe context.observer.kafkaLogged(level: level, String(cString: message))
}
