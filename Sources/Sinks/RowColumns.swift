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
}
