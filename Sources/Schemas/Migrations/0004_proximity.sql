-- Proximity: accounts, sessions, presence, waves, connections, encounters, messages and pushes.
-- Applied once, under an advisory lock, in one transaction; never edited after a release.
--
-- Whatever names an account goes with its row, so that erasing the account erases it all in one
-- statement; and what comes later for an account that has no row is not written. Most refer to the row by a
-- foreign key. Those that mutual-waves writes by the thousand do not: a key would look each row's accounts up once
-- more, which takes as long as writing it. The pipeline's statements lock the accounts' rows in any case
-- (FOR KEY SHARE), so that an erasure waits for them and then finds, by the trigger at the end of this file, all
-- that they have written.

CREATE TABLE heartline.accounts (
    account_id uuid PRIMARY KEY,
    provider text NOT NULL CHECK (provider IN ('apple', 'google')),
    provider_subject text NOT NULL,
    display_name text,
    email text,
    created_at timestamptz NOT NULL DEFAULT now(),
    UNIQUE (provider, provider_subject)
);
COMMENT ON TABLE heartline.accounts IS 'People of the proximity service. Who an account id is stands only here.';
COMMENT ON COLUMN heartline.accounts.account_id IS 'Random; the only thing of an account that topics hold.';
COMMENT ON COLUMN heartline.accounts.provider IS 'Who vouched for the person: apple or google.';
COMMENT ON COLUMN heartline.accounts.provider_subject IS 'The person''s id there (the token''s sub).';
COMMENT ON COLUMN heartline.accounts.display_name IS 'As the provider told it; null: it did not.';
COMMENT ON COLUMN heartline.accounts.email IS 'As the provider told it; null: it did not.';
COMMENT ON COLUMN heartline.accounts.created_at IS 'First exchange.';

CREATE TABLE heartline.sessions (
    token_hash bytea PRIMARY KEY CHECK (length(token_hash) = 32),
    account_id uuid NOT NULL REFERENCES heartline.accounts ON DELETE CASCADE,
    created_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz NOT NULL
);
CREATE INDEX sessions_by_account ON heartline.sessions (account_id);
CREATE INDEX sessions_by_expiry ON heartline.sessions (expires_at);
COMMENT ON TABLE heartline.sessions IS 'Open sessions; a revoked one has no row.';
COMMENT ON COLUMN heartline.sessions.token_hash IS 'SHA-256 of the session''s token, which is kept nowhere.';
COMMENT ON COLUMN heartline.sessions.account_id IS 'Whose session.';
COMMENT ON COLUMN heartline.sessions.created_at IS 'The exchange.';
COMMENT ON COLUMN heartline.sessions.expires_at IS 'From when on it is refused.';

CREATE FUNCTION heartline.session_ended() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify(
        'heartline_sessions', encode(OLD.token_hash, 'hex') || ' ' || OLD.account_id::text);
    RETURN NULL;
END $$;
COMMENT ON FUNCTION heartline.session_ended() IS 'Tells every front-end that a session has ended, for whatever reason.';
CREATE TRIGGER session_ended AFTER DELETE ON heartline.sessions
    FOR EACH ROW EXECUTE FUNCTION heartline.session_ended();

CREATE TABLE heartline.presence (
    token text PRIMARY KEY,
    account_id uuid NOT NULL REFERENCES heartline.accounts ON DELETE CASCADE,
    tier int2 NOT NULL CHECK (tier BETWEEN 1 AND 3),
    geohash text,
    registered_at timestamptz NOT NULL
);
CREATE INDEX presence_by_account ON heartline.presence (account_id);
CREATE INDEX presence_by_cell ON heartline.presence (geohash, tier);
CREATE INDEX presence_by_age ON heartline.presence (registered_at);
COMMENT ON TABLE heartline.presence IS 'Anonymous tokens that people broadcast now; good for five minutes from their last registration.';
COMMENT ON COLUMN heartline.presence.token IS 'The anonymous token.';
COMMENT ON COLUMN heartline.presence.account_id IS 'Whose it is.';
COMMENT ON COLUMN heartline.presence.tier IS '1 ultra-wideband, 2 Bluetooth, 3 the same area.';
COMMENT ON COLUMN heartline.presence.geohash IS 'Cell of five characters; null: not told.';
COMMENT ON COLUMN heartline.presence.registered_at IS 'Last registration.';

CREATE TABLE heartline.peer_keys (
    account_id uuid PRIMARY KEY REFERENCES heartline.accounts ON DELETE CASCADE,
    public_key text NOT NULL,
    stored_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE heartline.peer_keys IS 'Public keys by which connected people encrypt for each other.';
COMMENT ON COLUMN heartline.peer_keys.account_id IS 'Whose key.';
COMMENT ON COLUMN heartline.peer_keys.public_key IS 'Raw X25519 key in Base64, 32 bytes.';
COMMENT ON COLUMN heartline.peer_keys.stored_at IS 'When it was uploaded.';

CREATE TABLE heartline.blocks (
    blocker uuid NOT NULL REFERENCES heartline.accounts ON DELETE CASCADE,
    blocked uuid NOT NULL REFERENCES heartline.accounts ON DELETE CASCADE,
    blocked_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (blocker, blocked),
    CHECK (blocker <> blocked)
);
CREATE INDEX blocks_by_blocked ON heartline.blocks (blocked);
COMMENT ON TABLE heartline.blocks IS 'Who blocked whom: for good, and it holds in both directions.';
COMMENT ON COLUMN heartline.blocks.blocker IS 'Who blocked.';
COMMENT ON COLUMN heartline.blocks.blocked IS 'Whom.';
COMMENT ON COLUMN heartline.blocks.blocked_at IS 'When.';

-- Written by the pipeline mutual-waves.

CREATE TABLE heartline.waves (
    from_account uuid NOT NULL,
    to_account uuid NOT NULL,
    token text NOT NULL,
    waved_at timestamptz NOT NULL,
    PRIMARY KEY (from_account, token, to_account)
);
CREATE INDEX waves_by_receiver ON heartline.waves (to_account);
COMMENT ON TABLE heartline.waves IS 'Who waved at whom, by the token that they saw. It says of an old token whose it was, for those alone who waved at it.';
COMMENT ON COLUMN heartline.waves.from_account IS 'Who waved.';
COMMENT ON COLUMN heartline.waves.to_account IS 'Whose token it was when the wave came in.';
COMMENT ON COLUMN heartline.waves.token IS 'The token that was waved at.';
COMMENT ON COLUMN heartline.waves.waved_at IS 'Receipt of the last wave at this token.';

CREATE TABLE heartline.connections (
    connection_id uuid PRIMARY KEY,
    first_account uuid NOT NULL,
    second_account uuid NOT NULL,
    connected_at timestamptz NOT NULL,
    UNIQUE (first_account, second_account),
    CHECK (first_account < second_account)
);
CREATE INDEX connections_by_second ON heartline.connections (second_account);
COMMENT ON TABLE heartline.connections IS 'Pairs that waved at each other: one row a pair, for good.';
COMMENT ON COLUMN heartline.connections.connection_id IS 'Follows from the pair.';
COMMENT ON COLUMN heartline.connections.first_account IS 'The account whose id comes first.';
COMMENT ON COLUMN heartline.connections.second_account IS 'The other.';
COMMENT ON COLUMN heartline.connections.connected_at IS 'Receipt of the second wave.';

-- Written by the pipeline encounters.

CREATE TABLE heartline.encounter_reports (
    reporter uuid NOT NULL REFERENCES heartline.accounts ON DELETE CASCADE,
    encounter_id uuid NOT NULL,
    other uuid NOT NULL REFERENCES heartline.accounts ON DELETE CASCADE,
    tier int2 NOT NULL,
    engine text NOT NULL,
    geohash text,
    reported_at timestamptz NOT NULL,
    PRIMARY KEY (reporter, encounter_id)
);
CREATE INDEX encounter_reports_by_other ON heartline.encounter_reports (other);
COMMENT ON TABLE heartline.encounter_reports IS 'Encounters as one side reported them.';
COMMENT ON COLUMN heartline.encounter_reports.reporter IS 'Who reported.';
COMMENT ON COLUMN heartline.encounter_reports.encounter_id IS 'The client''s id of the report.';
COMMENT ON COLUMN heartline.encounter_reports.other IS 'Who was near.';
COMMENT ON COLUMN heartline.encounter_reports.tier IS '1 ultra-wideband, 2 Bluetooth, 3 the same area.';
COMMENT ON COLUMN heartline.encounter_reports.engine IS 'What measured it, in the client''s word.';
COMMENT ON COLUMN heartline.encounter_reports.geohash IS 'Cell of five characters; null: not told.';
COMMENT ON COLUMN heartline.encounter_reports.reported_at IS 'Receipt, to the minute.';

CREATE TABLE heartline.encounters (
    encounter_id uuid PRIMARY KEY,
    token_a text NOT NULL,
    token_b text NOT NULL,
    tier int2 NOT NULL,
    engine text NOT NULL,
    geohash text,
    met_at timestamptz NOT NULL
);
COMMENT ON TABLE heartline.encounters IS 'Encounters that both sides reported within one rotation of their tokens. They name no account.';
COMMENT ON COLUMN heartline.encounters.encounter_id IS 'Follows from the two reports.';
COMMENT ON COLUMN heartline.encounters.token_a IS 'One side''s token at the time.';
COMMENT ON COLUMN heartline.encounters.token_b IS 'The other''s.';
COMMENT ON COLUMN heartline.encounters.tier IS 'The nearer of the two reports: 1 ultra-wideband, 2 Bluetooth, 3 the same area.';
COMMENT ON COLUMN heartline.encounters.engine IS 'What measured it, in the client''s word.';
COMMENT ON COLUMN heartline.encounters.geohash IS 'Cell of five characters; null: neither told.';
COMMENT ON COLUMN heartline.encounters.met_at IS 'Receipt of the second report, to the minute.';

-- Written by the pipeline messages.

CREATE TABLE heartline.messages (
    message_id uuid NOT NULL,
    connection_id uuid NOT NULL REFERENCES heartline.connections ON DELETE CASCADE,
    sender uuid NOT NULL REFERENCES heartline.accounts ON DELETE CASCADE,
    body text NOT NULL,
    received_at timestamptz NOT NULL,
    PRIMARY KEY (connection_id, message_id)
);
CREATE INDEX messages_by_sender ON heartline.messages (sender);
COMMENT ON TABLE heartline.messages IS 'Messages between connected people, as ciphertext only.';
COMMENT ON COLUMN heartline.messages.message_id IS 'The sending client''s id: sent twice, it is one.';
COMMENT ON COLUMN heartline.messages.connection_id IS 'The connection it goes over.';
COMMENT ON COLUMN heartline.messages.sender IS 'The account that sent it.';
COMMENT ON COLUMN heartline.messages.body IS 'The message as the client wrote it, one JSON object; what it says is encrypted.';
COMMENT ON COLUMN heartline.messages.received_at IS 'Receipt.';

-- What people are told; written by mutual-waves and messages, read by the front-ends' sockets.

CREATE TABLE heartline.pushes (
    account_id uuid NOT NULL,
    push_id uuid NOT NULL,
    peer uuid NOT NULL,
    kind text NOT NULL CHECK (kind IN ('mutual', 'message')),
    body text NOT NULL,
    created_at timestamptz NOT NULL,
    delivered_at timestamptz,
    PRIMARY KEY (account_id, push_id)
);
CREATE INDEX pushes_by_peer ON heartline.pushes (peer);
CREATE INDEX pushes_by_age ON heartline.pushes USING brin (created_at);
CREATE INDEX pushes_open ON heartline.pushes (account_id, created_at, push_id)
    WHERE delivered_at IS NULL;
CREATE INDEX pushes_delivered ON heartline.pushes (account_id, delivered_at, push_id)
    WHERE delivered_at IS NOT NULL;
COMMENT ON TABLE heartline.pushes IS 'What an account is told over its sockets.';
COMMENT ON COLUMN heartline.pushes.account_id IS 'Who is told.';
COMMENT ON COLUMN heartline.pushes.push_id IS 'Follows from what caused it: made again, it is the same.';
COMMENT ON COLUMN heartline.pushes.peer IS 'Whom it is about; nothing is told of somebody blocked.';
COMMENT ON COLUMN heartline.pushes.kind IS 'mutual or message.';
COMMENT ON COLUMN heartline.pushes.body IS 'What is sent: one JSON object.';
COMMENT ON COLUMN heartline.pushes.created_at IS 'Receipt of what caused it.';
COMMENT ON COLUMN heartline.pushes.delivered_at IS 'When a socket of the account first said that it has it; null: not yet.';

CREATE FUNCTION heartline.account_erased() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM heartline.waves WHERE from_account = OLD.account_id;
    DELETE FROM heartline.waves WHERE to_account = OLD.account_id;
    DELETE FROM heartline.pushes WHERE account_id = OLD.account_id;
    DELETE FROM heartline.pushes WHERE peer = OLD.account_id;
    DELETE FROM heartline.connections WHERE first_account = OLD.account_id;
    DELETE FROM heartline.connections WHERE second_account = OLD.account_id;
    RETURN NULL;
END $$;
COMMENT ON FUNCTION heartline.account_erased() IS 'Removes what names an erased account without a foreign key.';
CREATE TRIGGER account_erased AFTER DELETE ON heartline.accounts
    FOR EACH ROW EXECUTE FUNCTION heartline.account_erased();
