// swift-tools-version: 6.2
import PackageDescription

/// Every target takes the same settings; `grep -rw unsafe Sources` is the audit list.
let strict: [SwiftSetting] = [
    .enableUpcomingFeature("ExistentialAny"),
    .enableUpcomingFeature("InternalImportsByDefault"),
    .enableUpcomingFeature("MemberImportVisibility"),
    // `Span` as a computed property (SE-0456) needs it in code of our own.
    .enableExperimentalFeature("Lifetimes"),
    .strictMemorySafety(),
    .treatAllWarnings(as: .error),
]

func library(
    _ name: String, path: String? = nil, _ dependencies: [Target.Dependency] = [],
    resources: [Resource]? = nil
) -> Target {
    .target(
        name: name, dependencies: dependencies, path: path ?? "Sources/\(name)",
        resources: resources, swiftSettings: strict)
}

func client(_ name: String, _ dependencies: [Target.Dependency] = []) -> Target {
    library(name, path: "Sources/Clients/\(name)", dependencies)
}

func cLibrary(_ name: String, pkgConfig: String? = nil) -> Target {
    .systemLibrary(name: name, path: "Sources/CLibraries/\(name)", pkgConfig: pkgConfig)
}

func tests(
    _ name: String, _ dependencies: [Target.Dependency], exclude: [String] = []
) -> Target {
    .testTarget(
        name: "\(name)Tests", dependencies: dependencies + ["TestSupport"],
        path: "Tests/\(name)", exclude: exclude, swiftSettings: strict)
}

let package = Package(
    name: "heartline",
    products: [.executable(name: "heartline", targets: ["heartline"])],
    targets: [
        // C libraries from Debian: module map and shim, no logic.
        cLibrary("CPostgres", pkgConfig: "libpq"),
        cLibrary("COpenSSL", pkgConfig: "openssl"),
        cLibrary("CLMDB", pkgConfig: "lmdb"),
        cLibrary("CYAML", pkgConfig: "yaml-0.1"),
        cLibrary("CCurl", pkgConfig: "libcurl"),
        cLibrary("CRdKafka", pkgConfig: "rdkafka"),
        cLibrary("CWslay"),
        cLibrary("CZlib", pkgConfig: "zlib"),
        .target(name: "CLlhttp", path: "Sources/CLibraries/CLlhttp"),
        .target(name: "CSystem", path: "Sources/CLibraries/CSystem"),
        .target(
            name: "CSimdjson", path: "Sources/CLibraries/CSimdjson",
            linkerSettings: [.linkedLibrary("simdjson")]),

        // One safe wrapper a C library; no domain words.
        client("Bytes"),
        client("System", ["CSystem", "Bytes"]),
        client("JSON", ["CSimdjson", "Bytes"]),
        client("Crypto", ["COpenSSL", "Bytes"]),
        client("TLS", ["COpenSSL", "Bytes"]),
        client("KeyValue", ["CLMDB", "Bytes"]),
        client("Postgres", ["CPostgres", "Bytes"]),
        client("YAML", ["CYAML"]),
        client("Curl", ["CCurl", "Bytes"]),
        client("Kafka", ["CRdKafka"]),
        client("Zlib", ["CZlib", "Bytes"]),
        // What a process tells Prometheus; no I/O.
        client("Metrics", ["Bytes"]),

        // Signed tokens of identity providers; no I/O.
        library("JWT", ["JSON", "Crypto", "Bytes"]),

        library("Schemas", ["JSON", "Crypto", "Bytes"], resources: [.copy("Migrations")]),
        library("Processors", ["Schemas", "Bytes"]),
        library("EventLog", ["Schemas", "Kafka", "KeyValue", "System", "Bytes"]),
        library(
            "HTTP",
            ["TLS", "Crypto", "CLlhttp", "CWslay", "CSystem", "Metrics", "System", "Bytes"]),
        // How apps are updated: sources, downloads, the installer; no HTTP server, no database.
        library("Updates", ["Curl", "JSON", "Crypto", "System", "Bytes"]),
        // The page for people: what it shows, its documents, its listener's routes.
        library(
            "Page", ["HTTP", "Schemas", "JSON", "Crypto", "Postgres", "System", "Bytes"],
            resources: [
                .embedInCode("Assets/page.css"), .embedInCode("Assets/page.js"),
                .embedInCode("Assets/icon.svg"),
            ]),
        library(
            "Ingest",
            [
                "HTTP", "EventLog", "Updates", "Page", "Schemas", "JWT", "JSON", "Zlib", "Crypto",
                "Curl", "Postgres", "TLS", "Metrics", "System", "Bytes",
            ]),
        library("Sinks", ["EventLog", "Schemas", "Postgres", "Crypto", "System", "Bytes"]),
        library(
            "Alerts", ["Schemas", "Postgres", "Curl", "JSON", "Crypto", "System", "Bytes"]),
        library(
            "Pipeline",
            [
                "Alerts", "Updates", "Processors", "Sinks", "EventLog", "Schemas", "Postgres",
                "YAML", "Crypto",
                "Metrics", "System",
                "Bytes",
            ]),
        library("Fleet", ["Schemas", "Curl", "JSON", "Crypto", "System", "Bytes"]),
        .executableTarget(
            name: "heartline",
            dependencies: [
                "Alerts", "Ingest", "Pipeline", "Processors", "Sinks", "EventLog", "Kafka",
                "HTTP", "JWT", "Updates", "Page", "Schemas", "Fleet", "Simulation", "Postgres",
                "Crypto", "TLS", "KeyValue", "JSON", "YAML", "Curl", "Zlib", "Metrics", "System",
                "Bytes",
            ],
            path: "Sources/heartline", swiftSettings: strict),
        library(
            "Simulation",
            [
                "Alerts", "Ingest", "Pipeline", "Processors", "Sinks", "EventLog", "Schemas",
                "System", "Bytes",
            ]),
        library(
            "TestSupport",
            [
                "Simulation", "Pipeline", "Processors", "Sinks", "EventLog", "Kafka", "Schemas",
                "Postgres", "JWT", "Crypto", "COpenSSL", "System", "Bytes",
            ]),

        tests("Bytes", ["Bytes"]),
        tests("JSON", ["JSON", "Bytes"]),
        tests("Crypto", ["Crypto", "Bytes"]),
        tests("JWT", ["JWT", "Crypto", "Bytes"]),
        tests(
            "Postgres", ["Postgres", "Schemas", "Pipeline", "System", "Bytes"],
            exclude: ["analysts.sql"]),
        tests("YAML", ["YAML"]),
        tests("Zlib", ["Zlib", "Bytes"]),
        tests("Metrics", ["Metrics", "Bytes"]),
        tests("System", ["System"]),
        tests(
            "Schemas", ["Schemas", "JSON", "Crypto", "YAML", "Bytes"],
            exclude: ["events-v1.txt"]),
        tests("Processors", ["Processors", "Simulation", "Schemas", "Bytes"]),
        tests("EventLog", ["EventLog", "KeyValue", "Schemas", "System", "Bytes"]),
        tests(
            "Kafka",
            [
                "Kafka", "EventLog", "Pipeline", "Processors", "Sinks", "Simulation", "Schemas",
                "Postgres", "System", "Bytes",
            ]),
        tests(
            "HTTP", ["HTTP", "TLS", "Metrics", "System", "Bytes"], exclude: ["websocket_client.py"]),
        tests(
            "Page",
            ["Page", "HTTP", "Schemas", "Postgres", "Simulation", "System", "Bytes"]),
        tests(
            "Ingest",
            [
                "Ingest", "HTTP", "TLS", "EventLog", "Sinks", "Schemas", "Postgres", "JWT", "JSON",
                "Crypto", "YAML", "Zlib", "Pipeline", "Simulation", "Metrics", "System", "Bytes",
            ]),
        tests(
            "Sinks",
            [
                "Sinks", "Schemas", "Postgres", "EventLog", "Pipeline", "Simulation", "System",
                "Bytes",
            ]),
        tests(
            "Alerts",
            [
                "Alerts", "Simulation", "Schemas", "Postgres", "Curl", "Crypto", "System",
                "Bytes",
            ]),
        tests(
            "Pipeline",
            [
                "Alerts", "Updates", "Pipeline", "Processors", "Sinks", "EventLog", "Simulation",
                "Schemas", "Postgres", "YAML", "Crypto", "Metrics", "System", "Bytes",
            ]),
        tests("Updates", ["Updates", "Curl", "Crypto", "System", "Bytes"]),
        tests("Fleet", ["Fleet", "Schemas", "Curl", "Crypto", "JSON", "System", "Bytes"]),
        tests(
            "Simulation",
            [
                "Simulation", "Pipeline", "Processors", "Sinks", "EventLog", "Schemas", "System",
                "Bytes",
            ]),
        tests(
            "Contract",
            [
                "Ingest", "Updates", "HTTP", "EventLog", "Sinks", "Schemas", "Postgres", "Crypto",
                "System", "Bytes",
            ],
            exclude: [
                "agent.py", "phones.py", "requirements.txt", "schemathesis.toml",
                "updates_client.py",
            ]),
        tests(
            "EndToEnd",
            [
                "Alerts", "Ingest", "Pipeline", "Processors", "Sinks", "EventLog", "Kafka", "HTTP",
                "Schemas", "Fleet", "Simulation", "Postgres", "JSON", "Crypto", "Curl", "Zlib",
                "Metrics", "System",
                "Bytes",
            ]),
    ],
    swiftLanguageModes: [.v6],
    cxxLanguageStandard: .cxx17
)
