import Foundation
import HTTP
import Ingest
import System
import TestSupport
import Testing
import YAML

/// The description of the HTTP interfaces against the code and the running server.
@Suite("docs/openapi.yaml") struct OpenAPITests {
    struct Operation: Hashable, CustomStringConvertible {
        var method: String
        var path: String
        var description: String { "\(method) \(path)" }
    }

    static let methods = ["get", "put", "post", "delete", "options", "head", "patch", "trace"]

    static func document() throws -> YAMLNode {
        let file = URL(filePath: #filePath).deletingLastPathComponent()
            .appending(path: "../../docs/openapi.yaml")
        return try #require(
            try YAMLNode.parse(String(contentsOf: file, encoding: .utf8)))
    }

    static func operations() throws -> [Operation: YAMLNode] {
        var result: [Operation: YAMLNode] = [:]
        for path in try #require(try document()["paths"]?.mapping) {
            for entry in path.value.mapping ?? [] where methods.contains(entry.key) {
                result[Operation(method: entry.key.uppercased(), path: path.key)] = entry.value
            }
        }
        return result
    }

    @Test("the operators' routes of the code are those of the file")
    func routes() throws {
        let documented = try Self.operations().keys.filter { $0.path.hasPrefix("/admin/") }
        let routes = AdminRoute.all.map { Operation(method: $0.method.text, path: $0.path) }
        #expect(Set(documented) == Set(routes))
        #expect(Set(routes).count == routes.count)
        let others = try Self.operations().keys.filter { !$0.path.hasPrefix("/admin/") }
        let people = ProximityRoute.allCases.map { "\($0.methodName) \($0.path)" }
        #expect(
            Set(others.map(\.description))
                == Set(people).union([
                    "GET /healthz", "GET /readyz", "GET /metrics", "POST /api/v1/heartbeat",
                    "POST /api/v1/provision",
                    "GET /ws", "POST /v1/telemetry", "POST /v1/metrics",
                    "GET /api/app/{id}/update", "POST /api/app/{id}/update",
                    "GET /api/app/{id}/update/check", "POST /api/app/{id}/update/check",
                    "GET /update/{id}", "POST /update/{id}", "GET /update/{id}/check",
                    "POST /update/{id}/check", "GET /global-update/{id}",
                    "POST /global-update/{id}",
                ]))
    }

    private static let open = [
        "/healthz", "/readyz", "/api/v1/heartbeat", "/api/v1/provision", "/v1/auth/exchange",
        "/v1/telemetry", "/v1/metrics", "/api/app/{id}/update", "/api/app/{id}/update/check",
        "/update/{id}", "/update/{id}/check", "/global-update/{id}",
    ]

    @Test(
        "operations but the open ones need a token, have names of their own and say what they answer"
    )
    func operations() throws {
        let operations = try Self.operations()
        var names: Set<String> = []
        for (operation, node) in operations {
            let name = try #require(node["operationId"]?.scalar, "\(operation)")
            #expect(names.insert(name).inserted, "\(name)")
            #expect(node["summary"]?.scalar?.isEmpty == false, "\(operation)")
            #expect(node["responses"]?.mapping?.isEmpty == false, "\(operation)")
            #expect(
                (node["security"] != nil) == !Self.open.contains(operation.path), "\(operation)")
        }
    }

    @Test("every reference leads somewhere")
    func references() throws {
        let document = try Self.document()
        var references: [String] = []
        func collect(_ node: YAMLNode) {
            for entry in node.mapping ?? [] {
                if entry.key == "$ref", let text = entry.value.scalar { references.append(text) }
                collect(entry.value)
            }
            for item in node.sequence ?? [] { collect(item) }
        }
        collect(document)
        #expect(references.count > 40)
        for reference in Set(references) {
            var node: YAMLNode? = document
            for part in reference.split(separator: "/").dropFirst() { node = node?[String(part)] }
            #expect(reference.hasPrefix("#/") && node != nil, "\(reference)")
        }
    }

    @Test("the running server has every documented operation, and no other method of its paths")
    func server() throws {
        let folder = try FileSystem.makeTemporaryDirectory("/tmp/heartline-openapi-")
        defer { FileSystem.removeTree(folder) }
        let rig = try AdminRig(updates: folder)
        let operations = try Self.operations().keys
        for path in Set(operations.map(\.path)) {
            let given = operations.filter { $0.path == path }.map(\.method)
            let target = path.replacing("{id}", with: "\(rig.rig.devices[0])")
            let isPublic =
                !path.hasPrefix("/admin/") && !["/healthz", "/readyz", "/metrics"].contains(path)
            for method in ["GET", "PUT", "POST", "DELETE", "PATCH"] {
                let response =
                    isPublic
                    ? try rig.rig.client().request(method, target, body: "{}".utf8)
                    : try rig.ask(method, target, "{}")
                if given.contains(method) {
                    // There: whatever it says to an empty request about a device that exists.
                    #expect(response.status != 405, "\(method) \(path)")
                    let isUnknown = response.text == "{\"error\":\"not found\"}"
                    #expect(!isUnknown, "\(method) \(path)")
                } else {
                    #expect(response.status == 405, "\(method) \(path): \(response.status)")
                    let allowed = response.headers["allow"] ?? ""
                    for method in given { #expect(allowed.contains(method), "\(path)") }
                }
            }
        }
    }
}

extension YAMLNode {
    fileprivate subscript(_ key: String) -> YAMLNode? {
        mapping?.first { $0.key == key }?.value
    }
}
