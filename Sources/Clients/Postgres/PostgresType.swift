/// A PostgreSQL type, by the object id that every server gives it.
///
/// - SeeAlso: PostgreSQL source, `src/include/catalog/pg_type.dat`.
public struct PostgresType: RawRepresentable, Hashable, Sendable {
    public var rawValue: UInt32

    public init(rawValue: UInt32) { self.rawValue = rawValue }

    /// The server infers the type from the statement.
    public static let inferred = PostgresType(rawValue: 0)
    public static let bool = PostgresType(rawValue: 16)
    public static let bytea = PostgresType(rawValue: 17)
    public static let char = PostgresType(rawValue: 18)
    public static let name = PostgresType(rawValue: 19)
    public static let int8 = PostgresType(rawValue: 20)
    public static let int2 = PostgresType(rawValue: 21)
    public static let int4 = PostgresType(rawValue: 23)
    public static let text = PostgresType(rawValue: 25)
    public static let oid = PostgresType(rawValue: 26)
    public static let json = PostgresType(rawValue: 114)
    public static let cidr = PostgresType(rawValue: 650)
    public static let float8 = PostgresType(rawValue: 701)
    public static let unknown = PostgresType(rawValue: 705)
    public static let inet = PostgresType(rawValue: 869)
    public static let bpchar = PostgresType(rawValue: 1042)
    public static let varchar = PostgresType(rawValue: 1043)
    public static let timestamptz = PostgresType(rawValue: 1184)
    public static let interval = PostgresType(rawValue: 1186)
    public static let uuid = PostgresType(rawValue: 2950)
    public static let jsonb = PostgresType(rawValue: 3802)

    /// The type of arrays of it; `nil` for types that are not listed here.
    public var array: PostgresType? {
        let id: UInt32? =
            switch self {
            case .bool: 1000
            case .bytea: 1001
            case .int8: 1016
            case .int2: 1005
            case .int4: 1007
            case .text: 1009
            case .oid: 1028
            case .cidr: 651
            case .float8: 1022
            case .inet: 1041
            case .varchar: 1015
            case .timestamptz: 1185
            case .interval: 1187
            case .uuid: 2951
            case .jsonb: 3807
            case .json: 199
            default: nil
            }
        return id.map { PostgresType(rawValue: $0) }
    }
}
