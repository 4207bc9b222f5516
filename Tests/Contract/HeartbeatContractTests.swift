import Foundation
import TestSupport
import Testing

/// The agent contract against a server that someone else started: `HEARTLINE_CONTRACT_ADDRESS`
/// (`127.0.0.1:8080`) and `HEARTLINE_CONTRACT_DEVICE` (the id of a device that it knows), and
/// `HEARTLINE_CONTRACT_SUSPENDED` if it has a suspended one. The front-end's own tests run the same
/// cases in process.
@Suite("Agent contract: heartbeat") struct HeartbeatContractTests {
    static let contract: HeartbeatContract? = {
        let environment = ProcessInfo.processInfo.environment
        guard let address = environment["HEARTLINE_CONTRACT_ADDRESS"],
            let device = environment["HEARTLINE_CONTRACT_DEVICE"],
            let colon = address.lastIndex(of: ":"),
            let port = UInt16(address[address.index(after: colon)...])
        else { return nil }
        return HeartbeatContract(
            host: String(address[..<colon]), port: port, device: device,
            suspended: environment["HEARTLINE_CONTRACT_SUSPENDED"])
    }()

    @Test(
        "requests are answered as the contract says",
        .enabled(
            if: contract != nil, "no HEARTLINE_CONTRACT_ADDRESS and HEARTLINE_CONTRACT_DEVICE"))
    func requests() throws {
        let contract = try #require(Self.contract)
        for example in contract.cases {
            let fault = try contract.check(example)
            #expect(fault == nil, "\(example)")
        }
        let fault = try contract.checkAnswer()
        #expect(fault == nil)
    }

    @Test("the cases cover every answer that the contract lists")
    func coverage() {
        let contract = HeartbeatContract(
            host: "127.0.0.1", port: 1, device: "3f2504e0-4f89-11d3-9a0c-0305e82c3301",
            suspended: "3f2504e0-4f89-11d3-9a0c-0305e82c3302")
        #expect(Set(contract.cases.map(\.status)) == [200, 400, 403, 404, 405])
        #expect(Set(contract.cases.map(\.description)).count == contract.cases.count)
        #expect(HeartbeatContract.answerFields.count == 11)
    }
}
