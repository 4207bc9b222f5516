import Bytes
import Schemas
import Testing

@Suite("Geohash cells of five characters")
struct GeohashTests {
    @Test(
        "points lie in the cells that the definition's bisection gives",
        arguments: [
            (57.64911, 10.40744, "u4pru"), (42.605, -5.603, "ezs42"), (0, 0, "s0000"),
            (-25.382708, -49.265506, "6gkzw"), (90, 180, "zzzzz"), (-90, -180, "00000"),
            (-0.0001, -0.0001, "7zzzz"), (52.5163, 13.3777, "u33db"),
        ])
    func points(latitude: Double, longitude: Double, text: String) {
        let cell = Geohash(latitude: latitude, longitude: longitude)
        #expect(cell?.description == text)
        #expect(cell == Geohash(text))
    }

    @Test("places that are none are refused")
    func badPoints() {
        for (latitude, longitude) in [
            (90.001, 0), (-91, 0), (0, 180.5), (0, -181), (.nan, 0), (0, .infinity),
        ] {
            #expect(Geohash(latitude: latitude, longitude: longitude) == nil)
        }
    }

    @Test("longer texts are cut, capitals are read, anything else is refused")
    func reading() {
        #expect(Geohash("u4pruydqqvj8")?.description == "u4pru")
        #expect(Geohash("U4PRU")?.description == "u4pru")
        for text in ["", "u4pr", "u4pra", "u4prua", "u4pri", "u4pro", "u4prl", "u4pr ", "u4pr-"] {
            #expect(Geohash(text) == nil, "\(text)")
        }
        #expect(Geohash("u4pruydqqvj80") == nil)
        #expect(Geohash("u4prü") == nil)
    }

    @Test("all characters of the alphabet come back")
    func roundTrip() {
        let alphabet = Array("0123456789bcdefghjkmnpqrstuvwxyz")
        for first in alphabet {
            for last in alphabet {
                let text = "\(first)\(last)\(first)\(first)\(last)"
                #expect(Geohash(text)?.description == text)
            }
        }
    }

    @Test(
        "neighbours, also across the antimeridian and the poles",
        arguments: [
            ("u33db", "u33e0 u33e1 u33dc u33d9 u33d8 u336x u336z u337p"),
            ("xbpbp", "xbpbr 80002 80000 2pbpb rzzzz rzzzy xbpbn xbpbq"),
            ("upbpb", "bpbpb bpbpc upbpc upbp9 upbp8 gzzzx gzzzz zzzzz"),
            ("00000", "00002 00003 00001 h0001 h0000 5bpbp pbpbp pbpbr"),
        ])
    func neighbors(text: String, expected: String) {
        let cell = Geohash(text)
        #expect(cell?.neighbors.map(\.description).joined(separator: " ") == expected)
    }

    @Test("a neighbour's neighbours hold the cell, and no cell is its own")
    func symmetry() throws {
        for latitude in stride(from: -90.0, through: 90, by: 7.5) {
            for longitude in stride(from: -180.0, through: 180, by: 7.5) {
                let cell = try #require(Geohash(latitude: latitude, longitude: longitude))
                let around = cell.neighbors
                #expect(Set(around).count == 8)
                #expect(!around.contains(cell))
                for neighbor in around { #expect(neighbor.neighbors.contains(cell)) }
            }
        }
    }
}
