internal import Bytes
internal import Crypto
internal import HTTP
internal import Postgres
public import Schemas
internal import Updates

/// A new installation, and the id that its app is to show. The id is shown once and stored nowhere.
public struct NewInstallation: Sendable, CustomStringConvertible {
    public var id: DeviceID
    /// 48 hexadecimal digits; `nil` for a request that was answered before.
    public var token: String?

    public var description: String { "NewInstallation(\(id))" }
}

/// A new global link, and what stands in it. Shown once and stored nowhere.
public struct NewLink: Sendable, CustomStringConvertible {
    public var id: DeviceID
    /// 48 hexadecimal digits; `nil` for a request that was answered before.
    public var token: String?

    public var description: String { "NewLink(\(id))" }
}

/// A global link as operators see it; never what stands in it.
public struct LinkSummary: Sendable, Equatable {
    public var id: DeviceID
    public var isAnywhere: Bool
    public var createdAt: EventTime
    public var createdBy: String
    public var revokedAt: EventTime?
}

/// An address from which a device may ask.
public struct PairedAddress: Sendable, Equatable {
    public var address: String
    public var device: String
    public var isAdmin: Bool
}

extension Registry {
    /// What an operator tells of an app that was installed elsewhere, or is to be.
    public struct InstallationSettings: Sendable {
        /// As the installing commands know it; 1 to 100 printable characters, no hyphen first.
        public var device: String
        /// The app's name; 1 to 100 printable characters.
        public var app: String
        /// `gh:owner/repo`, an http or https address, or an absolute path.
        public var source: String
        public var filter: String?
        public var team: String?
        /// `latest` or `pre-release`.
        public var channel = "latest"
        /// The release that is installed.
        public var version: String?
        public var assetName: String?
        /// The source's credential: a bearer token, or a whole `Authorization` value.
        public var credential: String?
        /// Addresses from which the device asks.
        public var addresses: [String] = []
        /// Whether it may ask for other devices' apps as well.
        public var isAdmin = false

        public init(device: String, app: String, source: String) {
            self.device = device
            self.app = app
            self.source = source
        }
    }

    private struct InstallationDetails: Encodable {
        var device: String
        var app: String
        var source: String
        var filter: String?
        var team: String?
        var channel: String
        var version: String?
        var has_credential: Bool
        var addresses: [String]
        var admin: Bool
    }

    private struct Made: Codable {
        var id: String
    }

    private struct Done: Codable {
        var changed: Bool
    }

    private static func check(_ name: String, _ value: String?, most: Int = 100) throws {
        guard let value else { return }
        guard (1...most).contains(value.count), value.isPrintable, !value.hasPrefix("-") else {
            throw RegistryError(
                "adding an installation", .badSetting,
                "\(name) has 1 to \(most) printable characters and does not begin with a hyphen")
        }
    }

    private static func addresses(_ texts: [String]) throws -> [String] {
        try texts.map { text in
            guard let address = ClientAddress(text) else {
                throw RegistryError(
                    "pairing an address", .badSetting, "\"\(text)\" is not an IP address")
            }
            return "\(address)"
        }
    }

    /// Adds an app on a device, and issues the first id for it.
    public func addInstallation(
        _ settings: InstallationSettings, by request: OperatorRequest
    ) throws -> NewInstallation {
        try Self.check("the device", settings.device)
        try Self.check("the app's name", settings.app)
        try Self.check("the team", settings.team)
        try Self.check("the version", settings.version, most: 200)
        try Self.check("the file's name", settings.assetName, most: 200)
        if let filter = settings.filter, filter.count > 200 || !filter.isPrintable {
            throw RegistryError(
                "adding an installation", .badSetting,
                "a filter has at most 200 printable characters")
        }
        guard let source = UpdateSource(settings.source) else {
            throw RegistryError(
                "adding an installation", .badSetting,
                "a source is gh:owner/repo, an http or https address without a password, or an absolute path"
            )
        }
        guard UpdateChannel(rawValue: settings.channel) != nil else {
            throw RegistryError(
                "adding an installation", .badSetting, "a channel is latest or pre-release")
        }
        if let credential = settings.credential, SourceCredential(credential) == nil {
            throw RegistryError(
                "adding an installation", .badSetting,
                "a credential has 1 to 4096 printable ASCII characters")
        }
        let addresses = try Self.addresses(settings.addresses)
        let details = InstallationDetails(
            device: settings.device, app: settings.app, source: source.description,
            filter: settings.filter, team: settings.team, channel: settings.channel,
            version: settings.version, has_credential: settings.credential != nil,
            addresses: addresses, admin: settings.isAdmin)
        var token: String?
        let made: Made = try audited("installation.add", of: "", details, by: request) { _ in
            let id = try DeviceID.random()
            let new = try UpdateRequest.newID()
            guard let digest = UpdateRequest.digest(of: new) else {
                preconditionFailure("a new id is none")
            }
            let sealed = try settings.credential.map { try box.seal($0, of: "\(id)") }
            try connection.execute(
                """
                INSERT INTO heartline.app_installations (installation_id, device, app, source, \
                filter, team, channel, credential, version, asset_name, generation, created_by) \
                VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, 1, $11)
                """,
                .uuid(id.high, id.low), .text(settings.device), .text(settings.app),
                .text(source.description), Self.optional(settings.filter),
                Self.optional(settings.team), .text(settings.channel),
                sealed.map { .bytea($0) } ?? .null, Self.optional(settings.version),
                Self.optional(settings.assetName), .text(request.actor))
            try connection.execute(
                """
                INSERT INTO heartline.app_installation_ids \
                (id_digest, installation_id, generation, version, asset_name) \
                VALUES ($1, $2, 1, $3, $4)
                """,
                .bytea(ByteBuffer(digest.bytes)), .uuid(id.high, id.low),
                Self.optional(settings.version), Self.optional(settings.assetName))
            for address in addresses {
                try pair(address, settings.device, isAdmin: settings.isAdmin, request)
            }
            token = new
            return Made(id: "\(id)")
        }
        guard let id = DeviceID(made.id) else {
            throw RegistryError(
                "adding an installation", .badSetting, "the earlier answer is no installation")
        }
        return NewInstallation(id: id, token: token)
    }

    private static func optional(_ text: String?) -> PostgresValue {
        text.map { .text($0) } ?? .null
    }

    private func pair(
        _ address: String, _ device: String, isAdmin: Bool, _ request: OperatorRequest
    ) throws {
        try connection.execute(
            """
            INSERT INTO heartline.paired_addresses (address, device, admin, created_by) \
            VALUES ($1::text::inet, $2, $3, $4) \
            ON CONFLICT (address, device) DO UPDATE SET admin = EXCLUDED.admin
            """, .text(address), .text(device), .bool(isAdmin), .text(request.actor))
    }

    private struct PairDetails: Encodable {
        var device: String
        var addresses: [String]
        var admin: Bool
    }

    /// Lets a device ask for its apps from these addresses; what it was paired with before stays.
    public func pairDevice(
        _ device: String, addresses texts: [String], isAdmin: Bool, by request: OperatorRequest
    ) throws {
        try Self.check("the device", device)
        let addresses = try Self.addresses(texts)
        let details = PairDetails(device: device, addresses: addresses, admin: isAdmin)
        let _: Done = try audited("device.pair", of: device, details, by: request) { _ in
            for address in addresses { try pair(address, device, isAdmin: isAdmin, request) }
            return Done(changed: true)
        }
    }

    /// Ends what `pairDevice` began.
    /// - Parameter texts: empty for all addresses of the device.
    public func unpairDevice(
        _ device: String, addresses texts: [String], by request: OperatorRequest
    ) throws -> Bool {
        let addresses = try Self.addresses(texts)
        let details = PairDetails(device: device, addresses: addresses, admin: false)
        let done: Done = try audited("device.unpair", of: device, details, by: request) { _ in
            let removed = try connection.execute(
                """
                DELETE FROM heartline.paired_addresses WHERE device = $1 \
                AND ($2 = '{}' OR address = ANY ($2::text[]::inet[]))
                """, .text(device), .textArray(addresses))
            return Done(changed: removed.affectedRows > 0)
        }
        return done.changed
    }

    // MARK: - Reading

    /// Installations, the newest first.
    /// - Parameter device: only of this one.
    public func installations(
        limit: Int, device: String? = nil
    ) throws -> [InstallationSummary] {
        try connection.execute(
            """
            SELECT \(Self.installationColumns) FROM heartline.app_installations \
            WHERE $2::text IS NULL OR device = $2 \
            ORDER BY created_at DESC, installation_id LIMIT $1
            """, .int8(Int64(limit)), Self.optional(device)
        ).map { try Self.installation($0) }
    }

    /// `nil` if there is none of that id.
    public func installation(_ id: DeviceID) throws -> InstallationSummary? {
        try connection.execute(
            """
            SELECT \(Self.installationColumns) FROM heartline.app_installations \
            WHERE installation_id = $1
            """, .uuid(id.high, id.low)
        ).first.map { try Self.installation($0) }
    }

    private static let installationColumns =
        """
        installation_id, device, app, source, filter, team, channel, credential IS NOT NULL, \
        version, asset_name, created_at, created_by, revoked_at
        """

    private static func installation(_ row: PostgresRow) throws -> InstallationSummary {
        let (high, low) = try row.uuid(0)
        return InstallationSummary(
            id: DeviceID(high: high, low: low), device: try row.text(1), app: try row.text(2),
            source: try row.text(3), filter: try row.optionalText(4),
            team: try row.optionalText(5), channel: try row.text(6),
            hasCredential: try row.bool(7), version: try row.optionalText(8),
            assetName: try row.optionalText(9),
            createdAt: EventTime(postgresMicroseconds: try row.timestamptz(10)),
            createdBy: try row.text(11),
            revokedAt: try row.optionalTimestamptz(12).map(EventTime.init(postgresMicroseconds:)))
    }

    public func links(of installation: DeviceID) throws -> [LinkSummary] {
        try connection.execute(
            """
            SELECT link_id, anywhere, created_at, created_by, revoked_at \
            FROM heartline.update_links WHERE installation_id = $1 ORDER BY created_at
            """, .uuid(installation.high, installation.low)
        ).map { row in
            let (high, low) = try row.uuid(0)
            return LinkSummary(
                id: DeviceID(high: high, low: low), isAnywhere: try row.bool(1),
                createdAt: EventTime(postgresMicroseconds: try row.timestamptz(2)),
                createdBy: try row.text(3),
                revokedAt: try row.optionalTimestamptz(4)
                    .map(EventTime.init(postgresMicroseconds:)))
        }
    }

    public func pairedAddresses(of device: String) throws -> [PairedAddress] {
        try connection.execute(
            """
            SELECT host(address), device, admin FROM heartline.paired_addresses \
            WHERE device = $1 ORDER BY address
            """, .text(device)
        ).map {
            PairedAddress(
                address: try $0.text(0), device: try $0.text(1), isAdmin: try $0.bool(2))
        }
    }

    // MARK: - Revoking and links

    private struct Nothing: Encodable {}

    /// Makes an installation's ids and links good for nothing.
    /// - Returns: whether they were good for something.
    public func revokeInstallation(
        _ id: DeviceID, by request: OperatorRequest
    ) throws -> Bool {
        let done: Done = try audited(
            "installation.revoke", of: "\(id)", Nothing(), by: request
        ) { _ in
            let changed = try connection.execute(
                """
                UPDATE heartline.app_installations SET revoked_at = now(), updated_at = now() \
                WHERE installation_id = $1 AND revoked_at IS NULL
                """, .uuid(id.high, id.low))
            if changed.affectedRows == 0, try installation(id) == nil {
                throw Self.unknownInstallation(id)
            }
            return Done(changed: changed.affectedRows > 0)
        }
        return done.changed
    }

    private static func unknownInstallation(_ id: DeviceID) -> RegistryError {
        RegistryError(
            "finding an installation", .unknownDevice, "no installation has the id \(id)")
    }

    private struct LinkDetails: Encodable {
        var anywhere: Bool
    }

    /// Makes a global link for an installation. Links that were made before stay as they are.
    /// - Parameter isAnywhere: whether it is good from any address.
    public func createLink(
        of installation: DeviceID, isAnywhere: Bool, by request: OperatorRequest
    ) throws -> NewLink {
        var token: String?
        let made: Made = try audited(
            "link.create", of: "\(installation)", LinkDetails(anywhere: isAnywhere), by: request
        ) { _ in
            guard let known = try self.installation(installation) else {
                throw Self.unknownInstallation(installation)
            }
            guard known.revokedAt == nil else {
                throw RegistryError(
                    "making a link", .badSetting, "the installation is revoked")
            }
            let id = try DeviceID.random()
            let new = try UpdateRequest.newID()
            guard let digest = UpdateRequest.digest(of: new) else {
                preconditionFailure("a new link is none")
            }
            try connection.execute(
                """
                INSERT INTO heartline.update_links \
                (link_id, link_digest, installation_id, anywhere, created_by) \
                VALUES ($1, $2, $3, $4, $5)
                """,
                .uuid(id.high, id.low), .bytea(ByteBuffer(digest.bytes)),
                .uuid(installation.high, installation.low), .bool(isAnywhere),
                .text(request.actor))
            token = new
            return Made(id: "\(id)")
        }
        guard let id = DeviceID(made.id) else {
            throw RegistryError("making a link", .badSetting, "the earlier answer is no link")
        }
        return NewLink(id: id, token: token)
    }

    /// Makes a link good for nothing; installations that run go on.
    /// - Returns: whether it was good for something.
    public func revokeLink(_ id: DeviceID, by request: OperatorRequest) throws -> Bool {
        let done: Done = try audited("link.revoke", of: "\(id)", Nothing(), by: request) { _ in
            let changed = try connection.execute(
                """
                UPDATE heartline.update_links SET revoked_at = now() \
                WHERE link_id = $1 AND revoked_at IS NULL
                """, .uuid(id.high, id.low))
            if changed.affectedRows == 0 {
                let known = try connection.execute(
                    "SELECT FROM heartline.update_links WHERE link_id = $1",
                    .uuid(id.high, id.low))
                if known.isEmpty {
                    throw RegistryError(
                        "revoking a link", .unknownToken, "no link has the id \(id)")
                }
            }
            return Done(changed: changed.affectedRows > 0)
        }
        return done.changed
    }
}
