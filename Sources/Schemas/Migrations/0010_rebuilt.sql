-- Dead letters that a rebuild has processed, and kept states that know of clocks that run ahead.
-- Applied once, under an advisory lock, in one transaction; never edited after a release.

ALTER TABLE heartline.dead_letter_replays DROP CONSTRAINT dead_letter_replays_outcome_check;
ALTER TABLE heartline.dead_letter_replays ADD CONSTRAINT dead_letter_replays_outcome_check
    CHECK (outcome IN ('published', 'written', 'kept', 'rebuilt'));
COMMENT ON COLUMN heartline.dead_letter_replays.outcome IS 'published: the record goes to its topic again; written: the row is in its table; kept: the table had a row of that key, or this very row, already, which stays; rebuilt: heartline replay has processed the record at its place.';

-- A front-end whose clock is ahead stamps records with times after now: rows of such times follow from a state that
-- was kept before. Clocks that are further off count for an hour.
ALTER TABLE heartline.stream_partitions ADD COLUMN newest timestamptz;
COMMENT ON COLUMN heartline.stream_partitions.newest IS 'The latest receipt of all records that snapshots have included; null: not known.';
ALTER TABLE heartline.base_snapshots ADD COLUMN newest timestamptz;
COMMENT ON COLUMN heartline.base_snapshots.newest IS 'The latest receipt of all records that the state includes, at most an hour after kept_at; null: not known.';

CREATE FUNCTION heartline.keep_base_snapshot(
    of_pipeline text, of_partition int4, every interval, life interval, newest_receipt timestamptz)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE heartline.stream_partitions p SET newest = greatest(p.newest, newest_receipt)
     WHERE p.pipeline = of_pipeline AND p.partition = of_partition
       AND p.newest IS DISTINCT FROM greatest(p.newest, newest_receipt);
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
    INSERT INTO heartline.base_snapshots
        (pipeline, partition, next_offset, chunk, snapshot_offset, bytes, newest)
    SELECT s.pipeline, s.partition, p.next_offset, s.chunk, s.snapshot_offset, s.bytes,
           least(p.newest, now() + interval '1 hour')
      FROM heartline.snapshots s
      JOIN heartline.stream_partitions p USING (pipeline, partition)
     WHERE s.pipeline = of_pipeline AND s.partition = of_partition;
END
$$;
COMMENT ON FUNCTION heartline.keep_base_snapshot(text, int4, interval, interval, timestamptz) IS 'Keeps the stored snapshot of a partition for heartline replay, if it is time.';

-- For workers of the release before.
CREATE OR REPLACE FUNCTION heartline.keep_base_snapshot(
    of_pipeline text, of_partition int4, every interval, life interval)
RETURNS void LANGUAGE sql AS $$
    SELECT heartline.keep_base_snapshot(of_pipeline, of_partition, every, life, NULL::timestamptz)
$$;

ALTER TABLE heartline.stream_partitions ADD COLUMN rebuilt_at timestamptz;
COMMENT ON COLUMN heartline.stream_partitions.rebuilt_at IS 'When heartline replay last built its tables anew; null: never.';
