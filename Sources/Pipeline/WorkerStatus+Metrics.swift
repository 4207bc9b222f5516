public import Metrics
internal import Processors
public import Schemas

extension WorkerStatus {
    /// What the worker counts, by pipeline and partition.
    /// - Parameters:
    ///   - source: the topic that it reads.
    ///   - now: wall time, against which the age of what waits is told.
    public func write(to page: inout MetricsPage, source: Topic, now: EventTime) {
        let name = MetricsPage.Label("pipeline", configured: pipeline)
        let topic = MetricsPage.Label("topic", configured: source.rawValue)
        page.counter(
            "heartline_pipeline_records_total",
            "Records that were read and applied, those read again after a restart included.",
            records, name)
        page.counter(
            "heartline_pipeline_rows_total", "Rows written to PostgreSQL.", rows, name)
        page.counter("heartline_pipeline_commits_total", "Commits.", commits, name)
        page.counter(
            "heartline_pipeline_snapshots_total", "Commits that brought a snapshot.", snapshots,
            name)
        page.counter(
            "heartline_pipeline_dead_letters_total",
            "Records and rows that could not be processed and were put aside.", deadLetters, name)
        page.counter(
            "heartline_pipeline_events_total", "Events published to the log.", events, name)
        page.histogram(
            "heartline_pipeline_commit_duration_seconds",
            "From a commit's being ready to its being stored.", commitDurations, name)
        page.gauge(
            "heartline_pipeline_ready", "Whether the pipeline does its work.", isReady, name)
        page.gauge(
            "heartline_pipeline_paused", "Whether reading waits for the database.", isPaused, name)
        page.gauge(
            "heartline_pipeline_partitions", "Partitions that this process has.",
            partitions.count, name)
        if !devicesByState.isEmpty {
            page.gauge(
                "heartline_ingest_silent",
                "Whether no front-end has reported for 30 s: nothing is judged.", isIngestSilent)
        }
        for partition in partitions {
            let number = MetricsPage.Label("partition", partition.partition)
            page.gauge(
                "heartline_pipeline_partition_fault",
                "Whether the partition makes no progress.", partition.fault != nil, name, topic,
                number)
            // What is stored is not known yet.
            guard partition.isClaimed else { continue }
            page.gauge(
                "heartline_pipeline_committed_offset",
                "The first offset of the partition that is not stored.",
                partition.committedOffset, name, topic, number)
            page.gauge(
                "heartline_pipeline_lag_records",
                "Records that are in the log and not stored.", partition.lag, name, topic, number)
            let age = partition.oldestPending.map { now.milliseconds - $0.milliseconds } ?? 0
            page.gauge(
                "heartline_pipeline_lag_seconds",
                "Age of the oldest record that was read and is not stored; 0 if all are.",
                Double(max(0, age)) / 1_000, name, topic, number)
        }
        for entry in devicesByState {
            page.gauge(
                "heartline_devices",
                "Devices by state, over the partitions that this process has.", entry.count,
                .init("state", entry.state.name))
        }
    }
}
