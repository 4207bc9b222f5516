internal import Bytes
internal import Schemas

extension UpdateRollout {
    func append(
        _ id: DeviceID, _ installation: Installation, _ offset: Int64, to rows: inout RowBuffer
    ) {
        rows.beginRow(origin: offset)
        rows.put(id)
        rows.put(int4: partition)
        rows.put(text: installation.source)
        rows.put(text: installation.channel)
        rows.put(text: installation.current)
        rows.put(text: installation.offered)
        rows.put(optional: installation.offerState?.text)
        rows.put(installation.checkedAt)
        rows.put(installation.installedAt)
        rows.put(optional: installation.recent.last)
        rows.put(installation.clonedAt)
    }

    func append(_ id: DeviceID, _ attempt: Attempt, _ offset: Int64, to rows: inout RowBuffer) {
        rows.beginRow(origin: offset)
        rows.put(id)
        rows.put(int4: partition)
        rows.put(attempt.installation)
        rows.put(text: attempt.action.rawValue)
        rows.put(text: attempt.source)
        rows.put(text: attempt.from)
        rows.put(text: attempt.to)
        rows.put(attempt.state.text)
        rows.put(optional: attempt.step?.text)
        rows.put(text: attempt.reason)
        rows.put(attempt.isLate)
        rows.put(int8: attempt.warnings)
        rows.put(attempt.startedAt)
        rows.put(attempt.endedAt)
        rows.put(attempt.disconnectedAt)
        for duration in attempt.durations {
            if duration < 0 { rows.putNull() } else { rows.put(int8: duration) }
        }
    }

    func append(
        _ release: Release, _ counts: Counts, _ offset: Int64, to rows: inout RowBuffer
    ) {
        rows.beginRow(origin: offset)
        rows.put(text: release.source)
        rows.put(text: release.name)
        rows.put(int4: partition)
        rows.put(int8: counts.offered)
        rows.put(int8: counts.downloading)
        rows.put(int8: counts.installed)
        rows.put(int8: counts.failed)
        rows.put(int8: counts.unconfirmed)
    }
}

extension RowBuffer {
    fileprivate mutating func put(text: String?) {
        guard let text else { return putNull() }
        let bytes = ByteBuffer(text.utf8)
        put(bytes.span)
    }

    fileprivate mutating func put(optional text: StaticString?) {
        guard let text else { return putNull() }
        put(text)
    }

    fileprivate mutating func put(optional id: DeviceID?) {
        guard let id else { return putNull() }
        put(id)
    }
}
