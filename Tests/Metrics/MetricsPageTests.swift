import Bytes
import Metrics
import Testing

@Suite("A page of metrics") struct MetricsPageTests {
    @Test("families stand by name, each once with what it is, its series together")
    func order() {
        var page = MetricsPage()
        page.counter("b_total", "Second.", 1, .init("topic", "a"))
        page.gauge("a", "First.", 7)
        page.counter("b_total", "Second.", 2, .init("topic", "b"), .init("partition", 3))
        #expect(
            page.render().span.text == """
                # HELP a First.
                # TYPE a gauge
                a 7
                # HELP b_total Second.
                # TYPE b_total counter
                b_total{topic="a"} 1
                b_total{topic="b",partition="3"} 2
                # HELP heartline_metrics_dropped_series Series that this page leaves out because it has too many.
                # TYPE heartline_metrics_dropped_series gauge
                heartline_metrics_dropped_series 0

                """)
    }

    @Test("what would end a label or a line is escaped, and read back as it was")
    func escaping() {
        let name = "a\"b\\c\nd{e=\"f\"}, \u{202E}<script>"
        var page = MetricsPage()
        page.gauge("g", "A back\\slash\nand a line.", 1, .init("name", configured: name))
        let text = page.render().span.text
        #expect(text.contains("# HELP g A back\\\\slash\\nand a line.\n"))
        #expect(text.contains("g{name=\"a\\\"b\\\\c\\nd{e=\\\"f\\\"}, \u{202E}<script>\"} 1\n"))
        let reading = MetricsReading(text)
        #expect(reading.samples.first?.labels == ["name": name])
        #expect(reading.types["g"] == "gauge")
    }

    @Test("a histogram's buckets add up to +Inf, with sum and count behind them")
    func histogram() {
        var counts = DurationCounts()
        for nanoseconds: UInt64 in [
            1, 100_000, 100_001, 3_000_000, 10_000_000_000, 60_000_000_000,
        ] {
            counts.record(nanoseconds: nanoseconds)
        }
        var page = MetricsPage()
        page.histogram("d_seconds", "Time.", counts, .init("route", "/x"))
        let text = page.render().span.text
        #expect(text.contains("# TYPE d_seconds histogram\n"))
        let reading = MetricsReading(text)
        func bucket(_ bound: String) -> Double? {
            reading.sum("d_seconds_bucket", ["route": "/x", "le": bound])
        }
        #expect(bucket("0.0001") == 2)
        #expect(bucket("0.00025") == 3)
        #expect(bucket("0.0025") == 3)
        #expect(bucket("0.005") == 4)
        #expect(bucket("5") == 4)
        #expect(bucket("10") == 5)
        #expect(bucket("+Inf") == 6)
        #expect(reading.sum("d_seconds_count") == 6)
        #expect(abs((reading.sum("d_seconds_sum") ?? 0) - 70.003200002) < 1e-6)
        let bounds = reading.samples.filter { $0.name == "d_seconds_bucket" }.map(\.value)
        #expect(bounds == bounds.sorted())
        #expect(reading.quantile(0.5, of: "d_seconds") == 0.00025)
        #expect(reading.quantile(1, of: "d_seconds") == nil)
    }

    @Test("a histogram without labels, numbers that are none, and whole numbers as such")
    func numbers() {
        var page = MetricsPage()
        page.histogram("h_seconds", "Time.", DurationCounts())
        page.gauge("nan", "Nothing.", Double.nan)
        page.gauge("infinite", "All.", -Double.infinity)
        page.gauge("half", "A half.", 0.5)
        page.gauge("big", "Large.", UInt64.max)
        page.gauge("yes", "Is it?", true)
        let text = page.render().span.text
        for line in [
            "h_seconds_bucket{le=\"+Inf\"} 0", "h_seconds_sum 0", "h_seconds_count 0", "nan NaN",
            "infinite -Inf", "half 0.5", "big 18446744073709551615", "yes 1",
        ] {
            #expect(text.contains("\n\(line)\n"), "\(line)")
        }
    }

    @Test("a series that is told twice stands once, or a reader would refuse the whole page")
    func repeated() {
        var page = MetricsPage()
        page.gauge("g", "A gauge.", 1, .init("a", "x"))
        page.gauge("g", "A gauge.", 2, .init("a", "x"))
        let reading = MetricsReading(page.render().span.text)
        #expect(reading.samples.filter { $0.name == "g" }.map(\.value) == [1])
        #expect(reading.sum("heartline_metrics_dropped_series") == 1)
    }

    @Test("a million names are not a million series, and the page says that it leaves some out")
    func bounded() {
        var page = MetricsPage(limit: 1_000)
        for device in 0..<1_000_000 {
            page.gauge("g", "One for each device, by mistake.", 1, .init("device", device))
        }
        page.histogram("h_seconds", "Comes too late.", DurationCounts())
        let reading = MetricsReading(page.render().span.text)
        #expect(reading.samples.filter { $0.name == "g" }.count == 1_000)
        #expect(reading.types["h_seconds"] == nil)
        #expect(reading.sum("heartline_metrics_dropped_series") == 999_019)
    }

    @Test("what one thread counts, others read")
    func shared() {
        let durations = SharedDurations()
        for index in 0..<1_000 { durations.record(nanoseconds: UInt64(index) * 1_000_000) }
        let counts = durations.counts
        #expect(counts.count == 1_000)
        #expect(counts.sumNanoseconds == 499_500_000_000)
        #expect(counts.buckets[0] == 1)
        #expect(counts.buckets[16] == 0)
    }

    @Test("sources tell what they have now, and nothing any more once they are gone")
    func sources() {
        let sources = MetricsSources()
        sources.set("b") { $0.gauge("b", "B.", 1) }
        sources.set("a") { $0.gauge("a", "A.", 1) }
        #expect(MetricsReading(sources.page().render().span.text).types.keys.sorted().count == 3)
        sources.set("b", nil)
        #expect(MetricsReading(sources.page().render().span.text).types["b"] == nil)
        sources.removeAll()
        #expect(MetricsReading(sources.page().render().span.text).types.count == 1)
    }
}
