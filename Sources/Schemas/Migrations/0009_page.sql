-- The page: how many people found each other in each minute.
-- Applied once, under an advisory lock, in one transaction; never edited after a release.

CREATE INDEX connections_by_time ON heartline.connections (connected_at);
