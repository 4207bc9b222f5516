package import Bytes
internal import JSON

/// A piece of the page that can be brought up to date by itself.
package struct PagePart: Hashable, Sendable {
    /// Of the element that holds it.
    package var id: StaticName
    package var html: HTML

    init(_ id: StaticName, _ write: (inout HTML) -> Void) {
        self.id = id
        html = HTML()
        write(&html)
    }

    /// As an event of a stream.
    /// - SeeAlso: HTML Living Standard, section 9.2 (server-sent events).
    package var event: ByteBuffer {
        var event = ByteBuffer()
        event.append("event: part\ndata: {\"id\":\"")
        event.append(text: id.rawValue)
        event.append("\",\"html\":")
        event.append(jsonString: html.bytes.span)
        event.append("}\n\n")
        return event
    }
}

/// Names of the parts, which are ids of elements.
package enum StaticName: String, Sendable {
    case summary, states, picture, numbers, troubles, alerts, flow, partitions, configurations
    case releases, matches
    case device, timeline, intervals, versions
    case deviceAlerts = "device-alerts"
}
