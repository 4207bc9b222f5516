#!/usr/bin/env python3
"""From the second wave's request to both pushes received, beside a WebSocket echo of the same server.

    Benchmarks/pushes.py [--heartline .build/release/heartline] [--pairs 500]
    Benchmarks/pushes.py --data D          measure the `heartline up` whose folder is D

One pair after the other: one of the two has waved; the clock starts when the other one's wave is sent
and stops when both sockets have their `mutual`. The echo is `ping` and its `{"type":"pong"}`. Times are wall
time on both sides of loopback, this script's own included.
"""

import os
import statistics
import sys
import time

from people import Client, Failure, Socket, arguments, installation, save, sockets_possible


def percentile(times, share):
    ordered = sorted(times)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def milliseconds(times):
    return f"p50 {percentile(times, 0.5) * 1e3:.2f} ms, p99 {percentile(times, 0.99) * 1e3:.2f} ms"


def measure(served, pairs, beside):
    served.add_people(pairs * 2 + beside)
    client = Client(served.address)
    sockets = []
    try:
        for index in range(pairs * 2 + beside):
            sockets.append(Socket(served.address, index))
            sockets[-1].join()
        for index in range(pairs * 2):
            client.post("/v1/token", {"token": f"bench-{index}", "tier": 1}, index)
        echoes, matches = [], []
        for pair in range(pairs):
            first, second = pair * 2, pair * 2 + 1
            client.post("/v1/wave", {"token": f"bench-{second}"}, first)
            began = time.perf_counter()
            sockets[first].send(1, b"ping")
            while sockets[first].text()["type"] != "pong":
                pass
            echoes.append(time.perf_counter() - began)
            began = time.perf_counter()
            client.post("/v1/wave", {"token": f"bench-{first}"}, second)
            for index in (first, second):
                while sockets[index].text()["type"] != "mutual":
                    pass
            matches.append(time.perf_counter() - began)
        return echoes, matches
    finally:
        for stream in sockets:
            stream.close()
        served.remove_people()


def main():
    parser = arguments("From the second wave to both pushes, beside an echo.")
    parser.add_argument("--pairs", type=int, default=500)
    parser.add_argument("--beside", type=int, default=0, help="idle sockets that are open meanwhile")
    options = parser.parse_args()
    if sockets_possible(options.pairs * 2 + options.beside) < options.pairs * 2 + options.beside:
        parser.error("too few files may be open; see ulimit -n")
    try:
        with installation(options) as served:
            echoes, matches = measure(served, options.pairs, options.beside)
    except Failure as failure:
        print(f"pushes: {failure}", file=sys.stderr)
        return 1
    print(f"Second wave's request to both pushes ({options.pairs} pairs, one after the other,"
          f" load {os.getloadavg()[0]:.1f})")
    print(f"  both pushes      {milliseconds(matches)}")
    print(f"  WebSocket echo   {milliseconds(echoes)}")
    print(f"  ratio {statistics.median(matches) / statistics.median(echoes):.1f}")
    save(
        {
            name: {"p50": percentile(times, 0.5), "p99": percentile(times, 0.99)}
            for name, times in (("pushes", matches), ("echo", echoes))
        }, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
