internal import Postgres

extension NetworkSettings {
    /// - Throws: `RegistryError` if this is no prefix that device addresses can come from.
    public static func check(prefix: String) throws(RegistryError) {
        _ = try AddressPool(prefix: prefix, server: nil)
    }
}

extension Registry {
    /// Checks that device addresses come from this prefix.
    ///
    /// - Throws: `RegistryError` if they come from another one, which it names.
    public func checkPrefix(_ prefix: String) throws {
        let rows = try connection.execute("SELECT prefix::text FROM heartline.network")
        guard let row = rows.first else { throw Self.noNetwork }
        let stored = try row.text(0)
        let (given, known) = (
            try AddressPool(prefix: prefix, server: nil),
            try AddressPool(prefix: stored, server: nil)
        )
        guard given.network == known.network, given.bits == known.bits else {
            throw RegistryError(
                "checking the network's settings", .badSetting,
                "device addresses come from \(stored), as the first start set it, and not from \(prefix): leave --network out, or take another data directory or database"
            )
        }
    }
}
