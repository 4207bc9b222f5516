/// Who asks for a change of the registry, and by which request.
public struct OperatorRequest: Sendable, Hashable {
    /// An operator's name.
    public let actor: String
    /// Chosen by whoever asks: the registry does what it says once, however often it comes.
    public let id: String?

    /// Longest name of an operator, in characters.
    public static let maximumActor = 100
    /// Longest id of a request, in characters.
    public static let maximumID = 200

    /// - Parameters:
    ///   - actor: 1 to `maximumActor` characters, none of them a control character.
    ///   - id: 1 to `maximumID` visible ASCII characters; `nil`: the request is not repeated.
    /// - Throws: `RegistryError` of kind `.badSetting`.
    public init(actor: String, id: String? = nil) throws(RegistryError) {
        guard (1...Self.maximumActor).contains(actor.count), actor.isPrintable else {
            throw RegistryError(
                "reading the operator's name", .badSetting,
                "a name has 1 to \(Self.maximumActor) characters and no control characters")
        }
        if let id {
            guard (1...Self.maximumID).contains(id.utf8.count),
                id.utf8.allSatisfy({ $0 > 0x20 && $0 < 0x7F })
            else {
                throw RegistryError(
                    "reading the request's id", .badSetting,
                    "an id has 1 to \(Self.maximumID) visible ASCII characters, without spaces")
            }
        }
        self.actor = actor
        self.id = id
    }

    private init(known actor: String) {
        self.actor = actor
        id = nil
    }

    /// What the program does by itself, as the demo does.
    public static let heartline = OperatorRequest(known: "heartline")
}

extension String {
    /// Whether it holds no control characters, which terminals and PostgreSQL take amiss.
    var isPrintable: Bool {
        unicodeScalars.allSatisfy {
            $0.properties.generalCategory != .control && $0.properties.generalCategory != .format
                && $0.properties.generalCategory != .lineSeparator
                && $0.properties.generalCategory != .paragraphSeparator
        }
    }
}
