/// What requests are counted as: the routes of the code, and nothing that a client could choose.
enum RouteNames {
    /// Of the public listener, and of that of updates, from 1 on.
    enum Public: Int, CaseIterable {
        case heartbeat = 1, provision, telemetry, metrics, socket
        case appUpdate, update, globalUpdate

        var path: String {
            switch self {
            case .heartbeat: "/api/v1/heartbeat"
            case .provision: "/api/v1/provision"
            case .telemetry: "/v1/telemetry"
            case .metrics: "/v1/metrics"
            case .socket: "/ws"
            case .appUpdate: "/api/app/{id}/update"
            case .update: "/update/{id}"
            case .globalUpdate: "/global-update/{id}"
            }
        }
    }

    private static let people = unique(ProximityRoute.allCases.map { "\($0.path)" })
    private static let peopleNumbers = ProximityRoute.allCases.map { route in
        Public.allCases.count + 1 + (people.firstIndex(of: "\(route.path)") ?? 0)
    }

    static let publicNames = Public.allCases.map(\.path) + people

    static func number(of route: ProximityRoute) -> Int { peopleNumbers[route.rawValue] }

    /// Of the operators' listener, from 1 on.
    enum Admin: Int, CaseIterable {
        case healthz = 1, readyz, metrics

        var path: String {
            switch self {
            case .healthz: "/healthz"
            case .readyz: "/readyz"
            case .metrics: "/metrics"
            }
        }
    }

    private static let adminPaths = unique(AdminRoute.all.map(\.path))

    static let adminNames = Admin.allCases.map(\.path) + adminPaths

    static func number(of route: AdminRoute) -> Int {
        Admin.allCases.count + 1 + (adminPaths.firstIndex(of: route.path) ?? 0)
    }

    /// In the order of their first place.
    private static func unique(_ names: [String]) -> [String] {
        var seen: Set<String> = []
        return names.filter { seen.insert($0).inserted }
    }
}
