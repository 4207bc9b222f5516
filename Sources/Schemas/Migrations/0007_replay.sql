-- Dead letters that are replayed, and what a rebuild of a pipeline's tables starts from.
-- Applied once, under an advisory lock, in one transaction; never edited after a release.

ALTER TABLE heartline.outbox ADD COLUMN headers bytea;
ALTER TABLE heartline.outbox ADD COLUMN record_partition int4;
COMMENT ON COLUMN heartline.outbox.headers IS 'The record''s headers: (size of the name, 2 bytes; name; size of the value, 4 bytes; value), little endian; null: none.';
COMMENT ON COLUMN heartline.outbox.record_partition IS 'Partition of the topic that the record goes to; null: by its key.';

ALTER TABLE heartline.stream_partitions ADD COLUMN resumed boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN heartline.stream_partitions.resumed IS 'Whether an operator let it go on without records that the log had lost (heartline pipeline resume): what the log holds from start_offset on is not all that the state follows from.';

CREATE TABLE heartline.dead_letter_replays (
    pipeline text NOT NULL,
    topic text NOT NULL,
    partition int4 NOT NULL,
    record_offset int8 NOT NULL,
    row_sequence int8 NOT NULL DEFAULT -1,
    outcome text NOT NULL CHECK (outcome IN ('published', 'written', 'kept')),
    replayed_at timestamptz NOT NULL DEFAULT now(),
    replayed_by text NOT NULL,
    PRIMARY KEY (pipeline, topic, partition, record_offset, row_sequence)
);
COMMENT ON TABLE heartline.dead_letter_replays IS 'Dead letters that were replayed: each once. A row is of the transaction that put the record into the outbox, or the row into its table.';
COMMENT ON COLUMN heartline.dead_letter_replays.pipeline IS 'The pipeline that could not process it.';
COMMENT ON COLUMN heartline.dead_letter_replays.topic IS 'Topic of the record.';
COMMENT ON COLUMN heartline.dead_letter_replays.partition IS 'Partition of the record.';
COMMENT ON COLUMN heartline.dead_letter_replays.record_offset IS 'Offset of the record.';
COMMENT ON COLUMN heartline.dead_letter_replays.row_sequence IS 'Number of the row that the database had rejected; -1: the record itself could not be read.';
COMMENT ON COLUMN heartline.dead_letter_replays.outcome IS 'published: the record goes to its topic again; written: the row is in its table; kept: the table had a row of that key already, which stays.';
COMMENT ON COLUMN heartline.dead_letter_replays.replayed_at IS 'When.';
COMMENT ON COLUMN heartline.dead_letter_replays.replayed_by IS 'Who.';

CREATE TABLE heartline.base_snapshots (
    pipeline text NOT NULL,
    partition int4 NOT NULL,
    next_offset int8 NOT NULL,
    chunk int4 NOT NULL,
    snapshot_offset int8 NOT NULL,
    bytes bytea NOT NULL,
    kept_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (pipeline, partition, next_offset, chunk)
);
ALTER TABLE heartline.base_snapshots ALTER COLUMN bytes SET STORAGE EXTERNAL;
COMMENT ON TABLE heartline.base_snapshots IS 'Older states of each partition, a few over the time that the log holds: heartline replay starts from one.';
COMMENT ON COLUMN heartline.base_snapshots.pipeline IS 'Name of the pipeline.';
COMMENT ON COLUMN heartline.base_snapshots.partition IS 'Partition of the pipeline''s source topic.';
COMMENT ON COLUMN heartline.base_snapshots.next_offset IS 'The first offset whose effects were not in the tables when it was kept.';
COMMENT ON COLUMN heartline.base_snapshots.chunk IS 'Number of the chunk, from 0.';
COMMENT ON COLUMN heartline.base_snapshots.snapshot_offset IS 'The first offset that the state does not include.';
COMMENT ON COLUMN heartline.base_snapshots.bytes IS 'The chunk, as in table snapshots.';
COMMENT ON COLUMN heartline.base_snapshots.kept_at IS 'When it was kept.';

-- Keeps the snapshot that the same transaction has stored, if the last one that was kept is older than
-- `every`, and forgets those that are older than `life`.
CREATE FUNCTION heartline.keep_base_snapshot(of_pipeline text, of_partition int4, every interval, life interval)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM heartline.base_snapshots b
                WHERE b.pipeline = of_pipeline AND b.partition = of_partition
                  AND b.kept_at > now() - every) THEN
        RETURN;
    END IF;
    DELETE FROM heartline.base_snapshots b
     WHERE b.pipeline = of_pipeline AND b.partition = of_partition
       AND (b.kept_at < now() - life
            OR b.next_offset = (SELECT p.next_offset FROM heartline.stream_partitions p
                                 WHERE p.pipeline = of_pipeline AND p.partition = of_partition));
    INSERT INTO heartline.base_snapshots (pipeline, partition, next_offset, chunk, snapshot_offset, bytes)
    SELECT s.pipeline, s.partition, p.next_offset, s.chunk, s.snapshot_offset, s.bytes
      FROM heartline.snapshots s
      JOIN heartline.stream_partitions p USING (pipeline, partition)
     WHERE s.pipeline = of_pipeline AND s.partition = of_partition;
END
$$;
COMMENT ON FUNCTION heartline.keep_base_snapshot IS 'Keeps the stored snapshot of a partition for heartline replay, if it is time.';
