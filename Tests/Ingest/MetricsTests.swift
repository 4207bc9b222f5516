import Bytes
import Ingest
import Schemas
import TestSupport
import Testing
import Zlib

@Suite("Metrics over OTLP/HTTP") struct MetricsTests {
    private static func post(
        _ rig: Rig, _ body: String, headers: [String] = ["Content-Type: application/json"]
    ) throws -> RawResponse {
        try rig.client().request("POST", "/v1/metrics", body: body.utf8, headers: headers)
    }

    private static func request(
        _ device: String, key: String = "device.id", metrics: String
    ) -> String {
        """
        {"resourceMetrics":[{"resource":{"attributes":[
          {"key":"service.name","value":{"stringValue":"agent"}},
          {"key":"\(key)","value":{"stringValue":"\(device)"}}]},
         "scopeMetrics":[{"scope":{"name":"meter"},"metrics":[\(metrics)]}]}]}
        """
    }

    private static let time = "\"timeUnixNano\":\"1790000000123456789\""

    /// `name=value` of every sample.
    private static func samples(_ rig: Rig) -> [String] {
        TelemetryTests.events(rig).flatMap { event in
            event.samples.map { "\(event.text($0.name).text)=\($0.value)" }
        }
    }

    @Test("Gauges and sums are samples; histograms their count, sum, smallest and largest")
    func kinds() throws {
        let rig = try Rig()
        let response = try Self.post(
            rig,
            Self.request(
                "\(rig.devices[0])",
                metrics: """
                    {"name":"temperature","unit":"Cel","gauge":{"dataPoints":[
                      {\(Self.time),"asDouble":21.5,"attributes":[
                        {"key":"room","value":{"stringValue":"roof \\"1\\""}},
                        {"key":"room","value":{"stringValue":"again"}},
                        {"key":"floor","value":{"intValue":"3"}},
                        {"key":"list","value":{"arrayValue":{"values":[]}}},
                        {"key":"open","value":{"boolValue":true}}]}]}},
                    {"name":"requests","sum":{"aggregationTemporality":2,"isMonotonic":true,"dataPoints":[
                      {\(Self.time),"asInt":"42"},{\(Self.time),"asInt":-7}]}},
                    {"name":"latency","histogram":{"dataPoints":[{\(Self.time),"count":"9","sum":4.5,
                      "min":0.25,"max":1,"bucketCounts":["4","5"],"explicitBounds":[0.5]}]}},
                    {"name":"size","exponentialHistogram":{"dataPoints":[{\(Self.time),"count":2}]}},
                    {"name":"quantiles","summary":{"dataPoints":[{\(Self.time),"count":"3","sum":6}]}}
                    """))
        #expect(response.status == 200)
        #expect(response.text == "{}")
        #expect(response.headers["content-type"] == "application/json")
        #expect(try eventually { Self.samples(rig).count == 10 })
        #expect(
            Self.samples(rig) == [
                "temperature=21.5", "requests=42.0", "requests=-7.0", "latency.count=9.0",
                "latency.sum=4.5", "latency.min=0.25", "latency.max=1.0", "size.count=2.0",
                "quantiles.count=3.0", "quantiles.sum=6.0",
            ])
        let event = try #require(TelemetryTests.events(rig).first)
        #expect(event.samples[0].time.milliseconds == 1_790_000_000_123)
        let value = try #require(rig.log.records(of: .telemetry).first?.value)
        let text = value.span.text
        #expect(
            text.contains(
                "\"attributes\":{\"room\":\"roof \\\"1\\\"\",\"floor\":3,\"open\":true}"))
        // Data points, not samples.
        #expect(rig.frontEnd.telemetry?.accepted == 6)
    }

    @Test("The device is device.id, or service.instance.id; a resource without one is rejected")
    func device() throws {
        let rig = try Rig()
        let gauge = "{\"name\":\"a\",\"gauge\":{\"dataPoints\":[{\(Self.time),\"asInt\":1}]}}"
        let instance = try Self.post(
            rig,
            Self.request("\(rig.devices[1])", key: "service.instance.id", metrics: gauge))
        #expect(instance.text == "{}")
        #expect(try eventually { TelemetryTests.events(rig).map(\.device) == [rig.devices[1]] })
        let nobody = try Self.post(rig, Self.request("host-1", metrics: gauge))
        #expect(nobody.status == 200)
        #expect(
            nobody.text == """
                {"partialSuccess":{"rejectedDataPoints":"1",\
                "errorMessage":"data point 1: the resource names no device (device.id)"}}
                """)
        let stranger = try Self.post(
            rig, Self.request("00000000-0000-4000-8000-00000000abcd", metrics: gauge))
        #expect(stranger.text.contains("\"rejectedDataPoints\":\"1\""))
        #expect(stranger.text.contains("unknown device"))
    }

    @Test("A bad data point is rejected alone; one without a recorded value is none")
    func partial() throws {
        let rig = try Rig()
        let response = try Self.post(
            rig,
            Self.request(
                "\(rig.devices[0])",
                metrics: """
                    {"name":"a","gauge":{"dataPoints":[
                      {\(Self.time),"asDouble":"NaN"},{\(Self.time),"asDouble":"Infinity"},
                      {\(Self.time),"flags":1},{\(Self.time)},{"asDouble":1},
                      {\(Self.time),"asDouble":1},{"timeUnixNano":-1,"asInt":1}]}},
                    {"name":"h","histogram":{"dataPoints":[
                      {\(Self.time),"count":"1","sum":"-Infinity"},{\(Self.time)}]}},
                    {"name":"","gauge":{"dataPoints":[{\(Self.time),"asInt":1}]}},
                    {"gauge":{"dataPoints":[{\(Self.time),"asInt":1}]}},
                    {"name":"n","gauge":{"dataPoints":5}}, 7
                    """))
        #expect(response.status == 200)
        #expect(
            response.text == """
                {"partialSuccess":{"rejectedDataPoints":"9",\
                "errorMessage":"data point 1: a value is not a finite number"}}
                """)
        #expect(try eventually { Self.samples(rig) == ["a=1.0"] })
    }

    @Test("What is no request is 400 with a status message; an empty one is fine; protobuf is 415")
    func requests() throws {
        let rig = try Rig()
        for (body, message) in [
            ("", "invalid json"), ("{", "invalid json"), ("[]", "not an object"),
            ("{\"resourceMetrics\":{}}", "resourceMetrics is not an array"),
            ("{\"a\":1,\"a\":2}", "repeated key"),
        ] {
            let response = try Self.post(rig, body)
            #expect(response.status == 400, "\(body)")
            #expect(response.text == "{\"code\":3,\"message\":\"\(message)\"}", "\(body)")
        }
        for body in ["{}", "{\"resourceMetrics\":[]}", "{\"resourceMetrics\":[{},1,null]}"] {
            let response = try Self.post(rig, body)
            #expect(response.status == 200 && response.text == "{}", "\(body)")
        }
        let protobuf = try Self.post(
            rig, "{}", headers: ["Content-Type: application/x-protobuf"])
        #expect(protobuf.status == 415)
    }

    @Test("A packed request is unpacked")
    func gzip() throws {
        let rig = try Rig()
        let gauge = "{\"name\":\"a\",\"gauge\":{\"dataPoints\":[{\(Self.time),\"asInt\":1}]}}"
        let body = ByteBuffer(Self.request("\(rig.devices[0])", metrics: gauge).utf8)
        let packed = try Deflate.pack(body.span)
        let response = try rig.client().request(
            "POST", "/v1/metrics", body: packed.bytes, headers: ["Content-Encoding: gzip"])
        #expect(response.text == "{}")
        #expect(try eventually { Self.samples(rig) == ["a=1.0"] })
    }
}
