public import Schemas

/// A place of the page, and the only thing that its links can lead to.
public enum PagePath: Hashable, Sendable, CustomStringConvertible {
    case fleet
    case fleetLive
    /// Devices in a state, those that came into it last first.
    case devices(FleetState)
    case device(DeviceID)
    case deviceLive(DeviceID)
    case search, login, logout
    case styles, script, icon

    /// What an address leads to; `nil` if it is none of ours.
    /// - Parameter path: as it stands in a request, without the query.
    public init?(parsing path: some StringProtocol) {
        switch path {
        case "/": self = .fleet
        case "/live": self = .fleetLive
        case "/search": self = .search
        case "/login": self = .login
        case "/logout": self = .logout
        case "/page.css": self = .styles
        case "/page.js": self = .script
        case "/icon.svg": self = .icon
        default:
            let words = path.split(separator: "/", omittingEmptySubsequences: false)
            guard words.count >= 3, words[0].isEmpty else { return nil }
            switch (words[1], words.count) {
            case ("states", 3):
                guard let state = FleetState(rawValue: String(words[2])) else { return nil }
                self = .devices(state)
            case ("devices", 3):
                guard let device = DeviceID(String(words[2])) else { return nil }
                self = .device(device)
            case ("devices", 4):
                guard let device = DeviceID(String(words[2])), words[3] == "live" else {
                    return nil
                }
                self = .deviceLive(device)
            default: return nil
            }
        }
    }

    public var description: String {
        switch self {
        case .fleet: "/"
        case .fleetLive: "/live"
        case .devices(let state): "/states/\(state.rawValue)"
        case .device(let device): "/devices/\(device)"
        case .deviceLive(let device): "/devices/\(device)/live"
        case .search: "/search"
        case .login: "/login"
        case .logout: "/logout"
        case .styles: "/page.css"
        case .script: "/page.js"
        case .icon: "/icon.svg"
        }
    }
}
