internal import Bytes

extension RowBuffer {
    /// Sorts the rows by the key's fields, byte by byte, and leaves one of each key: two workers that
    /// write the same keys take their locks in one order, and no statement meets a key twice. Of rows
    /// with one key the last stays, or the first where an old row stays (`insertNew`). Does nothing to
    /// rows that are so already, or have no key.
    public mutating func sortByKey() {
        guard !table.key.isEmpty, count > 1 else { return }
        let order = keyOrder()
        guard let order else { return }
        var sorted = RowBuffer(table)
        sorted.reserveBytes(bytes.count)
        let keepsFirst = table.mode == .insertNew
        for (place, row) in order.enumerated() {
            let isRepeat =
                keepsFirst
                ? place > 0 && compareKeys(order[place - 1].row, row.row) == 0
                : place + 1 < order.count && compareKeys(order[place + 1].row, row.row) == 0
            if !isRepeat { sorted.appendRow(row.row, of: self) }
        }
        self = sorted
    }

    /// The first bytes of a row's key, and the row: most comparisons need nothing else.
    private struct Sortable {
        var prefix: UInt64
        var row: Int
    }

    /// The rows in the order of their keys; `nil` if they are sorted and unique.
    private func keyOrder() -> ContiguousArray<Sortable>? {
        var order = ContiguousArray<Sortable>()
        order.reserveCapacity(count)
        var isSorted = true
        for row in 0..<count {
            let next = Sortable(prefix: prefix(of: row), row: row)
            if let last = order.last, isSorted, !precedes(last, next) { isSorted = false }
            order.append(next)
        }
        if isSorted { return nil }
        order.sort { a, b in
            if a.prefix != b.prefix { return a.prefix < b.prefix }
            let order = compareKeys(a.row, b.row)
            return order != 0 ? order < 0 : a.row < b.row
        }
        return order
    }

    private func precedes(_ a: Sortable, _ b: Sortable) -> Bool {
        a.prefix != b.prefix ? a.prefix < b.prefix : compareKeys(a.row, b.row) < 0
    }

    /// The bytes of a field of a row; empty for a null.
    private func field(_ column: Int, of row: Int) -> Range<Int> {
        var offset = starts[row] + 2
        for _ in 0..<column { offset += 4 + size(at: offset) }
        return (offset + 4)..<(offset + 4 + size(at: offset))
    }

    private func size(at offset: Int) -> Int {
        var size: Int32 = 0
        for step in 0..<4 { size = size << 8 | Int32(bytes[offset + step]) }
        return Int(max(0, size))
    }

    /// Eight bytes of the key's first field; zeros where it is shorter.
    private func prefix(of row: Int) -> UInt64 {
        let field = field(table.key[0], of: row)
        if field.count >= 8 {
            return bytes.span.littleEndianWord(at: field.lowerBound).byteSwapped
        }
        var value: UInt64 = 0
        for index in 0..<8 {
            value = value << 8 | (index < field.count ? UInt64(bytes[field.lowerBound + index]) : 0)
        }
        return value
    }

    /// Negative, zero or positive, as row `a` comes before, with or after row `b`.
    private func compareKeys(_ a: Int, _ b: Int) -> Int {
        for column in table.key {
            let (x, y) = (field(column, of: a), field(column, of: b))
            for step in 0..<min(x.count, y.count) {
                let (i, j) = (bytes[x.lowerBound + step], bytes[y.lowerBound + step])
                if i != j { return i < j ? -1 : 1 }
            }
            if x.count != y.count { return x.count < y.count ? -1 : 1 }
        }
        return 0
    }
}
