import Ingest
import JWT

/// Options of the proximity service, on the front-end's listener.
enum ProximityOptions {
    private struct Provider {
        var name: IdentityProvider.Name
        var keys: String
        var issuers: String

        var title: String {
            switch name {
            case .apple: "Apple"
            case .google: "Google"
            }
        }
        var keysOption: String { "\(name.rawValue)-jwks" }
        var issuerOption: String { "\(name.rawValue)-issuer" }
        var audienceOption: String { "\(name.rawValue)-audience" }

        var options: [Option] {
            [
                .text(
                    audienceOption, "LIST",
                    "our application's ids at \(title), with commas between; without any, nobody signs in by \(title)"
                ),
                .text(
                    keysOption, "URL|FILE", default: keys,
                    "where \(title)'s public keys are: https, or a file"),
                .text(
                    issuerOption, "LIST", default: issuers,
                    "what \(title)'s tokens name as their issuer, with commas between"),
            ]
        }
    }

    private static let providers = [
        Provider(
            name: .apple, keys: "https://appleid.apple.com/auth/keys",
            issuers: "https://appleid.apple.com"),
        Provider(
            name: .google, keys: "https://www.googleapis.com/oauth2/v3/certs",
            issuers: "https://accounts.google.com,accounts.google.com"),
    ]

    private static let exchangeLimit = Option.integer(
        "exchange-limit", 0...1_000_000, default: 60,
        "sign-ins of people at once, and again each minute, from one client address; 0: no limit")

    static let options = providers.flatMap(\.options) + [exchangeLimit]

    static func settings(_ arguments: Arguments) throws -> ProximitySettings {
        var settings = ProximitySettings()
        for provider in providers {
            let audiences = list(arguments.optionalText(provider.audienceOption))
            if audiences.isEmpty { continue }
            let issuers = list(arguments.text(provider.issuerOption))
            guard !issuers.isEmpty else {
                throw UsageError("--\(provider.issuerOption) names no issuer")
            }
            do throws(FrontEndError) {
                settings.providers.append(
                    IdentityProvider(
                        provider.name,
                        keys: try IdentityProvider.KeySource(
                            parsing: arguments.text(provider.keysOption)),
                        policy: JWTPolicy(issuers: issuers, audiences: audiences)))
            } catch {
                throw UsageError("--\(provider.keysOption): \(error.reason)")
            }
        }
        let exchanges = arguments.integer("exchange-limit")
        settings.exchangeLimit?.burst = exchanges
        settings.exchangeLimit?.perMinute = exchanges
        if exchanges == 0 { settings.exchangeLimit = nil }
        return settings
    }

    private static func list(_ text: String?) -> [String] {
        (text ?? "").split(separator: ",").map { item in
            String(item.drop { $0 == " " }.reversed().drop { $0 == " " }.reversed())
        }.filter { !$0.isEmpty }
    }
}
