/// Why bytes could not be unpacked or packed.
public enum ZlibError: Error, Hashable, Sendable, CustomStringConvertible {
    /// Not gzip (RFC 1952), or damaged: a wrong checksum or size.
    case damaged
    /// The end is missing.
    case truncated
    /// More would come out than was allowed.
    case tooLarge
    case outOfMemory

    public var description: String {
        switch self {
        case .damaged: "unpacking gzip: the bytes are not gzip, or are damaged"
        case .truncated: "unpacking gzip: the end is missing"
        case .tooLarge: "unpacking gzip: more comes out than is allowed"
        case .outOfMemory: "packing or unpacking gzip: no memory"
        }
    }
}
