internal import Foundation
internal import HTTP
internal import Schemas

/// The query of a request.
struct QueryParameters: Sendable {
    private var values: [String: String] = [:]

    /// - Throws: `AdminFault` for a parameter that is given twice or wrongly encoded.
    init(_ text: String?) throws(AdminFault) {
        for pair in (text ?? "").split(separator: "&") {
            let sides = pair.split(separator: "=", maxSplits: 1, omittingEmptySubsequences: false)
            guard let name = String(sides[0]).removingPercentEncoding,
                let value = (sides.count > 1 ? String(sides[1]) : "").removingPercentEncoding
            else { throw AdminFault(.badRequest, "the query is not encoded as it must be") }
            guard values.updateValue(value, forKey: name) == nil else {
                throw AdminFault(.badRequest, "the query repeats a parameter")
            }
        }
    }

    subscript(_ name: String) -> String? { values[name] }

    func integer(_ name: String, _ range: ClosedRange<Int>) throws(AdminFault) -> Int? {
        guard let text = values[name] else { return nil }
        guard let value = Int(text), range.contains(value) else {
            throw AdminFault(
                .badRequest,
                range.upperBound == .max
                    ? "\(name) is a whole number, at least \(range.lowerBound)"
                    : "\(name) is a whole number from \(range.lowerBound) to \(range.upperBound)")
        }
        return value
    }

    func uuid(_ name: String) throws(AdminFault) -> DeviceID? {
        guard let text = values[name] else { return nil }
        guard let value = DeviceID(text) else {
            throw AdminFault(.badRequest, "\(name) is a UUID")
        }
        return value
    }
}
