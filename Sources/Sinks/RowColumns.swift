internal import Bytes
internal import Postgres
internal import Schemas

/// Turns rows into columns: what one statement with an array a column takes.
struct RowColumns {
    private var columns: [ByteBuffer] = []

    /// The parameters of `TableStatements.fromArrays` for a range of rows. A field is encoded alike
    /// in a row and in an array, so its bytes are only moved.
    mutating func parameters(
        _ rows: RowBuffer, _ range: Range<Int>, types: [PostgresType]
    ) -> PostgresParameters {
        while columns.count < types.count { columns.append(ByteBuffer()) }
        for index in types.indices { columns[index].removeAll() }
        let bytes = rows.bytes.span
        for row in range {
            // After the 2-byte number of columns.
            var offset = rows.starts[row] + 2
            for index in types.indices {
                var size: Int32 = 0
                for step in 0..<4 { size = size << 8 | Int32(bytes[offset + step]) }
                let end = offset + 4 + Int(max(0, size))
                columns[index].append(bytes.extracting(offset..<end))
                offset = end
            }
        }
        var parameters = PostgresParameters()
        for index in types.indices {
            let elements = columns[index]
            parameters.append(
                arrayOf: types[index], count: range.count, elements: elements.span)
        }
        return parameters
    }
}

extension RowBuffer {
    /// The tuple of one row.
    func tuple(_ index: Int) -> Range<Int> {
        starts[index]..<(index + 1 < count ? starts[index + 1] : bytes.count)
    }

    /// Where the key's fields of a row stand, lengths included.
    private func key(_ index: Int) -> ByteBuffer {
        var key = ByteBuffer()
        let span = bytes.span
        for column in table.key {
            var offset = starts[index] + 2
            for _ in 0..<column { offset += 4 + fieldSize(at: offset) }
            key.append(span.extracting(offset..<(offset + 4 + fieldSize(at: offset))))
        }
        return key
    }

    private func fieldSize(at offset: Int) -> Int {
        var size: Int32 = 0
        for step in 0..<4 { size = size << 8 | Int32(bytes[offset + step]) }
        return Int(max(0, size))
    }

    /// The same rows, unique and sorted by the key's bytes: two workers that write the same keys take
    /// their locks in one order, and no statement meets a key twice. Of rows with one key the last
    /// stays. Rows come sorted as a rule, and then nothing is copied.
    func sortedByKey() -> RowBuffer {
        guard !table.key.isEmpty, count > 1, !isSortedByFixedKey else { return self }
        var keys = (0..<count).map { (key(($0)), $0) }
        var isSorted = true
        for index in 1..<count where !Self.precedes(keys[index - 1].0, keys[index].0) {
            isSorted = false
            break
        }
        if isSorted { return self }
        keys.sort { a, b in
            Self.precedes(a.0, b.0) || a.0 == b.0 && a.1 < b.1
        }
        var sorted = RowBuffer(table)
        for (place, (key, index)) in keys.enumerated() {
            if place + 1 < keys.count, keys[place + 1].0 == key { continue }
            sorted.appendRow(index, of: self)
        }
        return sorted
    }

    /// The common case without an allocation: the key is the first column, and of a fixed size.
    private var isSortedByFixedKey: Bool {
        guard table.key == [0] else { return false }
        let span = bytes.span
        for row in 1..<count {
            let (a, b) = (starts[row - 1] + 2, starts[row] + 2)
            let size = fieldSize(at: a)
            guard size == fieldSize(at: b) else { return false }
            var isLess = false
            for step in 4..<(4 + size) where span[a + step] != span[b + step] {
                isLess = span[a + step] < span[b + step]
                break
            }
            if !isLess { return false }
        }
        return true
    }

    private static func precedes(_ a: ByteBuffer, _ b: ByteBuffer) -> Bool {
        let common = min(a.count, b.count)
        for index in 0..<common where a[index] != b[index] { return a[index] < b[index] }
        return a.count < b.count
    }
}
