-- App updates: installations and who may ask for them, links, and what the rollout's pipeline derives.
-- Applied once, under an advisory lock, in one transaction; never edited after a release.

-- The registry -----------------------------------------------------------------------------------

CREATE TABLE heartline.app_installations (
    installation_id uuid PRIMARY KEY,
    device text NOT NULL,
    app text NOT NULL,
    source text NOT NULL,
    filter text,
    refinement text,
    team text,
    channel text NOT NULL CHECK (channel IN ('latest', 'pre-release')),
    credential bytea,
    version text,
    asset_name text,
    fingerprint text,
    generation int8 NOT NULL DEFAULT 0,
    created_at timestamptz NOT NULL DEFAULT now(),
    created_by text NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now(),
    revoked_at timestamptz
);
CREATE INDEX app_installations_by_device ON heartline.app_installations (device);
COMMENT ON TABLE heartline.app_installations IS 'Apps that are updated from here, one row for each app on each device.';
COMMENT ON COLUMN heartline.app_installations.installation_id IS 'Internal and constant: what topics and tables name it by. It is no credential; those stand in app_installation_ids.';
COMMENT ON COLUMN heartline.app_installations.device IS 'The device, as the installing commands know it.';
COMMENT ON COLUMN heartline.app_installations.app IS 'The app''s name, for people.';
COMMENT ON COLUMN heartline.app_installations.source IS 'Where updates come from: gh:owner/repo, an http or https address, or a path.';
COMMENT ON COLUMN heartline.app_installations.filter IS 'Words that the name of a release''s file must have; null: none.';
COMMENT ON COLUMN heartline.app_installations.refinement IS 'The shape of a file''s name by which a choice among several was made before; null: none yet.';
COMMENT ON COLUMN heartline.app_installations.team IS 'The signing team that was asked for; null: the signing command''s own.';
COMMENT ON COLUMN heartline.app_installations.channel IS 'latest: the latest stable release; pre-release: the latest prerelease. Of other sources than releases it says nothing.';
COMMENT ON COLUMN heartline.app_installations.credential IS 'The source''s Authorization header, sealed under HEARTLINE_SECRET_KEY; null: none.';
COMMENT ON COLUMN heartline.app_installations.version IS 'The release that is installed; null: not known.';
COMMENT ON COLUMN heartline.app_installations.asset_name IS 'The file that is installed.';
COMMENT ON COLUMN heartline.app_installations.fingerprint IS 'What tells that file from others: of an asset its id, size and time; of an address its validators.';
COMMENT ON COLUMN heartline.app_installations.generation IS 'Number of the newest id that was issued.';
COMMENT ON COLUMN heartline.app_installations.created_at IS 'When it was added.';
COMMENT ON COLUMN heartline.app_installations.created_by IS 'The operator who added it.';
COMMENT ON COLUMN heartline.app_installations.updated_at IS 'When it was changed last, by an operator or an installation.';
COMMENT ON COLUMN heartline.app_installations.revoked_at IS 'From here on its ids and links are good for nothing; null: not revoked.';

CREATE TABLE heartline.app_installation_ids (
    id_digest bytea PRIMARY KEY CHECK (length(id_digest) = 32),
    installation_id uuid NOT NULL REFERENCES heartline.app_installations ON DELETE CASCADE,
    generation int8 NOT NULL,
    attempt_id uuid,
    version text,
    asset_name text,
    fingerprint text,
    issued_at timestamptz NOT NULL DEFAULT now(),
    confirmed_at timestamptz,
    retired_at timestamptz,
    UNIQUE (installation_id, generation)
);
COMMENT ON TABLE heartline.app_installation_ids IS 'Ids that installed apps show. The ids themselves are not stored.';
COMMENT ON COLUMN heartline.app_installation_ids.id_digest IS 'SHA-256 of the id''s 48 lower-case hexadecimal digits.';
COMMENT ON COLUMN heartline.app_installation_ids.installation_id IS 'The installation.';
COMMENT ON COLUMN heartline.app_installation_ids.generation IS 'Order in which the installation''s ids were issued.';
COMMENT ON COLUMN heartline.app_installation_ids.attempt_id IS 'The attempt whose app was signed with it; null: an operator issued it.';
COMMENT ON COLUMN heartline.app_installation_ids.version IS 'The release of that app.';
COMMENT ON COLUMN heartline.app_installation_ids.asset_name IS 'Its file.';
COMMENT ON COLUMN heartline.app_installation_ids.fingerprint IS 'Its fingerprint.';
COMMENT ON COLUMN heartline.app_installation_ids.issued_at IS 'When it was made.';
COMMENT ON COLUMN heartline.app_installation_ids.confirmed_at IS 'When it was shown first: the app that has it runs.';
COMMENT ON COLUMN heartline.app_installation_ids.retired_at IS 'When a newer one was confirmed; from then on it is refused.';

CREATE TABLE heartline.paired_addresses (
    address inet NOT NULL,
    device text NOT NULL,
    admin boolean NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    created_by text NOT NULL,
    PRIMARY KEY (address, device)
);
COMMENT ON TABLE heartline.paired_addresses IS 'Addresses from which devices may ask for their own apps.';
COMMENT ON COLUMN heartline.paired_addresses.address IS 'The address that a connection comes from.';
COMMENT ON COLUMN heartline.paired_addresses.device IS 'The device that has it.';
COMMENT ON COLUMN heartline.paired_addresses.admin IS 'Whether the device may ask for other devices'' apps as well.';
COMMENT ON COLUMN heartline.paired_addresses.created_at IS 'When it was paired.';
COMMENT ON COLUMN heartline.paired_addresses.created_by IS 'The operator.';

CREATE TABLE heartline.update_links (
    link_id uuid PRIMARY KEY,
    link_digest bytea NOT NULL UNIQUE CHECK (length(link_digest) = 32),
    installation_id uuid NOT NULL REFERENCES heartline.app_installations ON DELETE CASCADE,
    anywhere boolean NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    created_by text NOT NULL,
    revoked_at timestamptz
);
CREATE INDEX update_links_by_installation ON heartline.update_links (installation_id);
COMMENT ON TABLE heartline.update_links IS 'Global update links. The ids in them are not stored.';
COMMENT ON COLUMN heartline.update_links.link_id IS 'Names the link to operators; it is not what the link holds.';
COMMENT ON COLUMN heartline.update_links.link_digest IS 'SHA-256 of the link''s 48 lower-case hexadecimal digits.';
COMMENT ON COLUMN heartline.update_links.installation_id IS 'The one installation that it is good for.';
COMMENT ON COLUMN heartline.update_links.anywhere IS 'Whether it is good from any address; otherwise from this host and paired devices only.';
COMMENT ON COLUMN heartline.update_links.created_at IS 'When it was made.';
COMMENT ON COLUMN heartline.update_links.created_by IS 'The operator.';
COMMENT ON COLUMN heartline.update_links.revoked_at IS 'From here on it is refused; null: not revoked.';

-- What the pipeline derives ----------------------------------------------------------------------

CREATE TABLE heartline.installations (
    installation_id uuid PRIMARY KEY,
    partition int4 NOT NULL,
    source text NOT NULL,
    channel text,
    current_release text,
    offered_release text,
    offer_state text,
    checked_at timestamptz,
    installed_at timestamptz,
    last_attempt_id uuid,
    cloned_at timestamptz
);
CREATE INDEX installations_by_source ON heartline.installations (source, current_release);
COMMENT ON TABLE heartline.installations IS 'Where each app stands, by what it and its installations said.';
COMMENT ON COLUMN heartline.installations.installation_id IS 'The installation; app_installations tells whose it is.';
COMMENT ON COLUMN heartline.installations.partition IS 'Partition of topic updates that its records stand in.';
COMMENT ON COLUMN heartline.installations.source IS 'Where its updates come from.';
COMMENT ON COLUMN heartline.installations.channel IS 'Which releases it follows.';
COMMENT ON COLUMN heartline.installations.current_release IS 'The release that is installed; of sources without releases a name made from the file''s fingerprint.';
COMMENT ON COLUMN heartline.installations.offered_release IS 'The release that it is offered, or that was tried; null: it has the newest.';
COMMENT ON COLUMN heartline.installations.offer_state IS 'offered, downloading, failed or unconfirmed.';
COMMENT ON COLUMN heartline.installations.checked_at IS 'When it asked last.';
COMMENT ON COLUMN heartline.installations.installed_at IS 'When an installation from here succeeded last.';
COMMENT ON COLUMN heartline.installations.last_attempt_id IS 'The newest attempt to install.';
COMMENT ON COLUMN heartline.installations.cloned_at IS 'When an id came that a newer one had replaced: a copy of the app is somewhere; null: never.';

CREATE TABLE heartline.update_attempts (
    attempt_id uuid PRIMARY KEY,
    partition int4 NOT NULL,
    installation_id uuid NOT NULL,
    action text NOT NULL,
    source text NOT NULL,
    from_release text,
    to_release text,
    state text NOT NULL,
    step text,
    reason text,
    late boolean NOT NULL,
    warnings int8 NOT NULL,
    started_at timestamptz NOT NULL,
    ended_at timestamptz,
    disconnected_at timestamptz,
    check_ms int8,
    download_ms int8,
    sign_ms int8,
    install_ms int8
);
CREATE INDEX update_attempts_by_installation ON heartline.update_attempts (installation_id, started_at);
CREATE INDEX update_attempts_by_time ON heartline.update_attempts (started_at);
COMMENT ON TABLE heartline.update_attempts IS 'Every attempt to download or install an app, and what became of it.';
COMMENT ON COLUMN heartline.update_attempts.attempt_id IS 'The attempt; a global link''s answer calls it job.';
COMMENT ON COLUMN heartline.update_attempts.partition IS 'Partition of topic updates that its records stand in.';
COMMENT ON COLUMN heartline.update_attempts.installation_id IS 'The installation.';
COMMENT ON COLUMN heartline.update_attempts.action IS 'prefetch or install.';
COMMENT ON COLUMN heartline.update_attempts.source IS 'Where the app comes from.';
COMMENT ON COLUMN heartline.update_attempts.from_release IS 'The release that was installed when it began.';
COMMENT ON COLUMN heartline.update_attempts.to_release IS 'The release that it is about; null while that is not known.';
COMMENT ON COLUMN heartline.update_attempts.state IS 'in-progress, succeeded, failed, needs-selection, or unconfirmed: it ended without saying how.';
COMMENT ON COLUMN heartline.update_attempts.step IS 'The last step that began: check, download, sign or install.';
COMMENT ON COLUMN heartline.update_attempts.reason IS 'Why it failed, what must be chosen, or why it is not known.';
COMMENT ON COLUMN heartline.update_attempts.late IS 'Whether it was known to have succeeded only later, by the app''s own next check.';
COMMENT ON COLUMN heartline.update_attempts.warnings IS 'Warnings that came with the result.';
COMMENT ON COLUMN heartline.update_attempts.started_at IS 'When it began.';
COMMENT ON COLUMN heartline.update_attempts.ended_at IS 'When it ended; null: not yet.';
COMMENT ON COLUMN heartline.update_attempts.disconnected_at IS 'When the client went away before the end; null: it did not.';
COMMENT ON COLUMN heartline.update_attempts.check_ms IS 'Milliseconds of the check; null: there was none.';
COMMENT ON COLUMN heartline.update_attempts.download_ms IS 'Milliseconds of the download.';
COMMENT ON COLUMN heartline.update_attempts.sign_ms IS 'Milliseconds of signing.';
COMMENT ON COLUMN heartline.update_attempts.install_ms IS 'Milliseconds of installing.';

CREATE TABLE heartline.rollout_by_partition (
    source text NOT NULL,
    release text NOT NULL,
    partition int4 NOT NULL,
    offered int8 NOT NULL,
    downloading int8 NOT NULL,
    installed int8 NOT NULL,
    failed int8 NOT NULL,
    unconfirmed int8 NOT NULL,
    PRIMARY KEY (source, release, partition)
);
COMMENT ON TABLE heartline.rollout_by_partition IS 'What view rollout sums up.';
COMMENT ON COLUMN heartline.rollout_by_partition.source IS 'Where the release comes from.';
COMMENT ON COLUMN heartline.rollout_by_partition.release IS 'The release.';
COMMENT ON COLUMN heartline.rollout_by_partition.partition IS 'Partition of topic updates that is counted.';
COMMENT ON COLUMN heartline.rollout_by_partition.offered IS 'Installations that are offered it.';
COMMENT ON COLUMN heartline.rollout_by_partition.downloading IS 'Installations with an attempt under way.';
COMMENT ON COLUMN heartline.rollout_by_partition.installed IS 'Installations that have it.';
COMMENT ON COLUMN heartline.rollout_by_partition.failed IS 'Installations whose last attempt failed.';
COMMENT ON COLUMN heartline.rollout_by_partition.unconfirmed IS 'Installations of whose last attempt it is not known what became.';

CREATE VIEW heartline.rollout AS
    SELECT source, release, sum(offered)::int8 AS offered, sum(downloading)::int8 AS downloading,
           sum(installed)::int8 AS installed, sum(failed)::int8 AS failed,
           sum(unconfirmed)::int8 AS unconfirmed
      FROM heartline.rollout_by_partition GROUP BY source, release;
COMMENT ON VIEW heartline.rollout IS 'How far each release has come: every installation counts once where it is installed, and once where it is offered or tried.';
COMMENT ON COLUMN heartline.rollout.source IS 'Where the release comes from.';
COMMENT ON COLUMN heartline.rollout.release IS 'The release.';
COMMENT ON COLUMN heartline.rollout.offered IS 'Installations that are offered it and have not tried, or have it downloaded.';
COMMENT ON COLUMN heartline.rollout.downloading IS 'Installations with an attempt under way.';
COMMENT ON COLUMN heartline.rollout.installed IS 'Installations that have it.';
COMMENT ON COLUMN heartline.rollout.failed IS 'Installations whose last attempt failed, or needs a choice.';
COMMENT ON COLUMN heartline.rollout.unconfirmed IS 'Installations of whose last attempt it is not known what became.';
