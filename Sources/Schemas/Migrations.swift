internal import Foundation

/// One numbered change of the database's schema.
public struct Migration: Hashable, Sendable {
    /// From 1, without gaps.
    public var number: Int32
    /// What the file is called after its number, for example `initial`.
    public var name: String
    /// Statements without BEGIN and COMMIT.
    public var sql: String

    public init(number: Int32, name: String, sql: String) {
        self.number = number
        self.name = name
        self.sql = sql
    }
}

/// The numbered SQL files of directory `Migrations`, which the build puts beside the executable.
public enum Migrations {
    public struct LoadingError: Error, Hashable, Sendable, CustomStringConvertible {
        public var description: String
    }

    /// All migrations, in order.
    ///
    /// They are looked for in `heartline_Schemas.resources` beside the executable, in
    /// `../share/heartline` as packages install it, and last in the source tree that it was built from.
    /// - Throws: if they are not there, or their numbers have a gap.
    public static func load() throws(LoadingError) -> [Migration] {
        let places = candidates
        guard let place = places.first(where: { FileManager.default.fileExists(atPath: $0) }) else {
            throw LoadingError(
                description: """
                    loading migrations: there are none in \(places.joined(separator: ", ")). Copy \
                    heartline_Schemas.resources from the build directory to beside the executable
                    """)
        }
        return try load(from: place)
    }

    /// The migrations of a directory: files `NNNN_name.sql`.
    public static func load(from directory: String) throws(LoadingError) -> [Migration] {
        var migrations: [Migration] = []
        do {
            let files = try FileManager.default.contentsOfDirectory(atPath: directory)
            for file in files where file.hasSuffix(".sql") {
                let parts = file.dropLast(4).split(separator: "_", maxSplits: 1)
                guard parts.count == 2, let number = Int32(parts[0]) else {
                    throw LoadingError(
                        description: "loading migrations: \(directory)/\(file) is not NNNN_name.sql"
                    )
                }
                let sql = try String(contentsOfFile: "\(directory)/\(file)", encoding: .utf8)
                migrations.append(Migration(number: number, name: String(parts[1]), sql: sql))
            }
        } catch let error as LoadingError {
            throw error
        } catch {
            throw LoadingError(
                description: "loading migrations from \(directory): \(error.localizedDescription)")
        }
        migrations.sort { $0.number < $1.number }
        for (index, migration) in migrations.enumerated() where migration.number != index + 1 {
            throw LoadingError(
                description:
                    "loading migrations from \(directory): number \(index + 1) is missing or given twice"
            )
        }
        return migrations
    }

    private static var candidates: [String] {
        var places: [String] = []
        if let executable = try? FileManager.default.destinationOfSymbolicLink(
            atPath: "/proc/self/exe")
        {
            let directory = (executable as NSString).deletingLastPathComponent
            places.append("\(directory)/heartline_Schemas.resources/Migrations")
            places.append("\(directory)/../share/heartline/Migrations")
        }
        let source = (#filePath as NSString).deletingLastPathComponent
        places.append("\(source)/Migrations")
        return places
    }
}
