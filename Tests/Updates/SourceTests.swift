import Testing
import Updates

@Suite("Sources of apps") struct SourceTests {
    @Test(
        "a source is a repository, a web address or a path",
        arguments: [
            ("gh:owner/repo", "gh:owner/repo"), ("gh:o.w-n_er/r.e-po", "gh:o.w-n_er/r.e-po"),
            ("https://example.com/a.ipa", "https://example.com/a.ipa"),
            ("HTTP://example.com:8080/a?b=c", "HTTP://example.com:8080/a?b=c"),
            ("/srv/an app.ipa", "/srv/an app.ipa"), ("file:///srv/a.ipa", "/srv/a.ipa"),
        ])
    func good(_ text: String, _ written: String) {
        #expect(UpdateSource(text)?.description == written)
    }

    @Test(
        "anything else is none",
        arguments: [
            "", "gh:owner", "gh:owner/repo/more", "gh:../x", "gh:a/..", "gh:a b/c", "gh:/x",
            "ftp://example.com/a", "relative.ipa", "https://", "https:///a", "http://a b/",
            "https://user:secret@example.com/a", "https://example.com:0/", "https://[::1/a",
            "https://example.com/\n", "/a\nb", "file://host/a",
        ])
    func bad(_ text: String) { #expect(UpdateSource(text) == nil) }

    @Test("the host of an address is what a request would go to")
    func places() throws {
        let place = try #require(WebPlace("https://Example.COM.:8443/a@b?c"))
        #expect(place.host == "example.com" && place.port == 8443 && place.isSecure)
        #expect(!place.hasCredentials)
        #expect(WebPlace("http://[FD00::1]:80/")?.host == "fd00::1")
        // What browsers and libcurl take for the host, not what stands before the sign.
        #expect(WebPlace("http://good.example@10.0.0.1/")?.host == "10.0.0.1")
        #expect(WebPlace("http://good.example@10.0.0.1/")?.hasCredentials == true)
        #expect(WebPlace("http://10.0.0.1\\@good.example/")?.host == "10.0.0.1")
    }

    @Test(
        "a redirect is resolved against what redirects",
        arguments: [
            ("https://other.example/x", "https://other.example/x"),
            ("//other.example/x", "https://other.example/x"),
            ("/x?y", "https://example.com:8443/x?y"), ("z#f", "https://example.com:8443/a/z"),
            ("?q", "https://example.com:8443/a/b?q"),
        ])
    func redirects(_ location: String, _ target: String) {
        #expect(Redirect.target(location, from: "https://example.com:8443/a/b?c=/d") == target)
    }

    @Test("a redirect to something else than the web leads nowhere")
    func noRedirects() {
        for location in ["file:///etc/passwd", "ftp://example.com/", "javascript:x", "gopher://a/"]
        {
            #expect(Redirect.target(location, from: "https://example.com/") == nil, "\(location)")
        }
        #expect(Redirect.target("x", from: "https://example.com") == "https://example.com/x")
    }

    @Test(
        "addresses that not everyone on the Internet can reach are private",
        arguments: [
            "0.0.0.0", "10.1.2.3", "127.0.0.1", "169.254.169.254", "172.16.0.1", "172.31.255.255",
            "192.168.1.1", "100.64.0.1", "100.127.255.255", "192.0.2.1", "198.18.0.1",
            "198.51.100.7", "203.0.113.9", "224.0.0.1", "255.255.255.255",
        ])
    func privateAddresses(_ text: String) {
        let bytes = text.split(separator: ".").map { UInt8($0)! }
        #expect(!AddressPolicy.isPublic(bytes))
        // In the clothes of IPv6 as well: mapped, compatible, NAT64, 6to4.
        let zeroes = [UInt8](repeating: 0, count: 10)
        #expect(!AddressPolicy.isPublic(zeroes + [0xFF, 0xFF] + bytes))
        #expect(!AddressPolicy.isPublic(zeroes + [0, 0] + bytes))
        #expect(
            !AddressPolicy.isPublic(
                [0, 0x64, 0xFF, 0x9B] + [UInt8](repeating: 0, count: 8) + bytes))
        #expect(
            !AddressPolicy.isPublic([0x20, 0x02] + bytes + [UInt8](repeating: 0, count: 10)))
    }

    static func six(_ head: [UInt8]) -> [UInt8] {
        head + [UInt8](repeating: 0, count: 15 - head.count) + [1]
    }

    @Test("others are public")
    func publicAddresses() {
        for bytes: [UInt8] in [
            [8, 8, 8, 8], [172, 15, 0, 1], [172, 32, 0, 1], [100, 63, 0, 1], [100, 128, 0, 1],
            [192, 167, 0, 1], [223, 255, 255, 255], Self.six([0x26, 0x06, 0x47]),
            Self.six([0x20, 0x02, 8, 8, 8, 8]),
        ] {
            #expect(AddressPolicy.isPublic(bytes), "\(bytes)")
        }
        for head: [UInt8] in [
            [], [0xFD], [0xFC], [0xFE, 0x80], [0xFF, 0x02], [0x20, 0x01, 0x0D, 0xB8], [0x20, 0x01],
            [0x3F, 0xFF], [0x64],
        ] {
            #expect(!AddressPolicy.isPublic(Self.six(head)), "\(head)")
        }
        #expect(!AddressPolicy.isPublic([1, 2, 3]))
    }

    @Test("an operator allows hosts by name, however they are written")
    func allowed() {
        let policy = AddressPolicy(allowedHosts: ["Mac.Local", "[fd00::1]", "10.0.0.5"])
        #expect(policy.allows([192, 168, 0, 1], of: "mac.local."))
        #expect(policy.allows(Self.six([0xFD]), of: "fd00::1"))
        #expect(policy.allows([10, 0, 0, 5], of: "10.0.0.5"))
        #expect(!policy.allows([192, 168, 0, 1], of: "other.local"))
        #expect(!policy.allows([10, 0, 0, 6], of: "10.0.0.6"))
        #expect(policy.allows([8, 8, 8, 8], of: "anything.example"))
    }
}

@Suite("The choice of a release's file") struct AssetChoiceTests {
    static func assets(_ names: String...) -> [ReleaseAsset] {
        names.map {
            ReleaseAsset(id: "id of \($0)", name: $0, url: "https://e/\($0)", fingerprint: $0)
        }
    }

    static func choice(
        _ assets: [ReleaseAsset], filter: String? = nil, refinement: String? = nil,
        installed: String? = nil
    ) -> String {
        switch AssetChoice.make(
            assets, filter: filter, refinement: refinement, installedName: installed)
        {
        case .chosen(let asset, let saved): asset.name + (saved.map { " saving \($0)" } ?? "")
        case .ambiguous(let assets): assets.map(\.name).joined(separator: " or ")
        case .none: "none"
        }
    }

    @Test("one IPA needs no filter, and other files do not count")
    func single() {
        #expect(Self.choice(Self.assets("notes.txt", "App.IPA")) == "App.IPA")
        #expect(Self.choice(Self.assets("notes.txt")) == "none")
        #expect(Self.choice([]) == "none")
    }

    @Test("a filter has words that must and must not be in the name")
    func filter() {
        let files = Self.assets("App-tv-1.0.ipa", "App-phone-1.0.ipa", "App-phone-debug-1.0.ipa")
        #expect(Self.choice(files, filter: "TV") == "App-tv-1.0.ipa")
        #expect(Self.choice(files, filter: "phone -debug") == "App-phone-1.0.ipa")
        #expect(Self.choice(files, filter: "app-*-debug-*.ipa") == "App-phone-debug-1.0.ipa")
        #expect(
            Self.choice(files, filter: "phone") == "App-phone-1.0.ipa or App-phone-debug-1.0.ipa")
        #expect(!AssetFilter("a*").matches("ba"))
        #expect(AssetFilter("a*b*c").matches("a--b--c") && !AssetFilter("a*b*c").matches("a-c-b"))
        #expect(AssetFilter("").matches("anything"))
    }

    @Test("the installed file's name decides among several, and what it was is kept")
    func healing() {
        let files = Self.assets("App-tv-1.3.0.ipa", "App-phone-1.3.0.ipa")
        #expect(
            Self.choice(files, installed: "app-TV-1.2.10.ipa")
                == "App-tv-1.3.0.ipa saving app-tv-#.ipa")
        #expect(Self.choice(files, refinement: "app-phone-#.ipa") == "App-phone-1.3.0.ipa")
        #expect(
            Self.choice(files, filter: "watch", refinement: "app-phone-#.ipa")
                == "App-phone-1.3.0.ipa")
        #expect(
            Self.choice(files, refinement: "gone-#.ipa", installed: "app-phone-2.ipa")
                == "App-phone-1.3.0.ipa saving app-phone-#.ipa")
        #expect(Self.choice(files) == "App-tv-1.3.0.ipa or App-phone-1.3.0.ipa")
        #expect(Self.choice(files, installed: "Other.ipa").contains(" or "))
    }

    @Test("a name's shape is what stays the same from version to version")
    func shapes() {
        #expect(AssetChoice.shape(of: "App_1.2.3-tvOS17.ipa") == "app_#-tvos#.ipa")
        #expect(AssetChoice.shape(of: "v10_2.ipa") == "v#.ipa")
        #expect(AssetChoice.shape(of: "Über 1.ipa") == "über #.ipa")
        #expect(AssetChoice.shape(of: "App.1.2") == "app.#")
    }
}

@Suite("What a check says") struct CheckOutcomeTests {
    static let app = TrackedApp(
        source: UpdateSource("gh:o/r")!, version: "v1", fingerprint: "a")

    static func outcome(
        _ version: String?, fingerprint: String = "a", reason: String? = nil,
        _ change: (inout TrackedApp) -> Void = { _ in }
    ) -> UpdateCheck? {
        var app = app
        change(&app)
        let state = SourceState(
            version: version,
            assets: [ReleaseAsset(id: "1", name: "a.ipa", url: "u", fingerprint: fingerprint)],
            reason: reason)
        if case .checked(let check) = CheckOutcome.make(app, state) { return check }
        return nil
    }

    @Test("another tag is an update, and so is another file under the same tag")
    func releases() {
        #expect(Self.outcome("v2")?.isAvailable == true)
        // A tagged prerelease goes on to the latest stable one, though that is older.
        #expect(Self.outcome("v0.9")?.isAvailable == true)
        #expect(Self.outcome("v1")?.isAvailable == false)
        #expect(Self.outcome("v1", fingerprint: "b")?.isAvailable == true)
        #expect(Self.outcome("v1", fingerprint: "b") { $0.fingerprint = nil }?.isAvailable == false)
        #expect(Self.outcome("v2") { $0.version = nil }?.isAvailable == true)
    }

    @Test("an address is compared by its validators, and says why where it cannot be")
    func addresses() {
        func url(_ app: inout TrackedApp) { app.source = UpdateSource("https://e.example/a.ipa")! }
        #expect(Self.outcome(nil, fingerprint: "b", url)?.isAvailable == true)
        #expect(Self.outcome(nil, fingerprint: "a", url)?.isAvailable == false)
        let unknown = Self.outcome(nil, fingerprint: "") {
            url(&$0)
            $0.fingerprint = nil
        }
        #expect(unknown?.isAvailable == false && unknown?.reason?.contains("reliably") == true)
        let bare = Self.outcome(nil, fingerprint: "", reason: "no validators", url)
        #expect(bare?.isAvailable == false && bare?.reason == "no validators")
    }

    @Test("a release without an IPA is a failure, a repository without one is none")
    func nothing() {
        let empty = CheckOutcome.make(Self.app, SourceState(version: "v2", assets: []))
        #expect(empty == .failed("Release v2 of gh:o/r has no IPA."))
        let none = CheckOutcome.make(
            Self.app, SourceState(version: nil, assets: [], reason: "has no stable release"))
        #expect(
            none
                == .checked(
                    UpdateCheck(
                        isAvailable: false, current: "v1", reason: "has no stable release")))
    }
}
