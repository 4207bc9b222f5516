import Foundation
import Pipeline
import Postgres
import TestSupport
import Testing

@Suite struct TableDocumentationTests {
    private let path = URL(fileURLWithPath: #filePath).deletingLastPathComponent()
        .deletingLastPathComponent().deletingLastPathComponent()
        .appendingPathComponent("docs/tables.md").path

    @Test func theCommittedDocumentIsTheOneThatTheDatabaseGives() throws {
        let database = try TestDatabase.make()
        let text = try TableDocumentation.markdown(try database.connect())
        if ProcessInfo.processInfo.environment["HEARTLINE_WRITE_DOCS"] != nil {
            try text.write(toFile: path, atomically: true, encoding: .utf8)
        }
        let committed = try? String(contentsOfFile: path, encoding: .utf8)
        #expect(
            committed == text,
            "docs/tables.md is stale: run this test with HEARTLINE_WRITE_DOCS=1 and commit the file"
        )
    }

    @Test func whatHasNoCommentIsNamed() throws {
        let database = try TestDatabase.make()
        let connection = try database.connect()
        try connection.run(
            """
            CREATE TABLE heartline.secret (x int8);
            COMMENT ON TABLE heartline.secret IS 'A | B';
            CREATE VIEW heartline.glance AS SELECT 1 AS y;
            """)
        let error = #expect(throws: TableDocumentation.MissingComments.self) {
            try TableDocumentation.markdown(connection)
        }
        #expect(error?.names == ["heartline.glance", "heartline.glance.y", "heartline.secret.x"])
        try connection.run(
            """
            COMMENT ON COLUMN heartline.secret.x IS 'c | d'; DROP VIEW heartline.glance;
            SELECT heartline.ensure_day_partitions('2026-06-25', '2026-06-27');
            """)
        let text = try TableDocumentation.markdown(connection)
        #expect(text.contains("| `x` | bigint, or null | c \\| d |"))
        #expect(!text.contains("20260625"))
    }
}
