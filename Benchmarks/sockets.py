#!/usr/bin/env python3
"""Memory that an idle socket costs a front-end.

    Benchmarks/sockets.py [--heartline .build/release/heartline] [--count 20000]
    Benchmarks/sockets.py --data D         measure the `heartline up` whose folder is D

Opens sockets of --count people, waits until they have joined, and prints by how much each has made the
process grow, as the kernel counts it (RssAnon). Both sides need a descriptor for each: ulimit -n.
"""

import selectors
import sys
import time

from people import Failure, Socket, arguments, installation, save, sockets_possible


def answer_pings(streams, seconds):
    """Looks after the sockets for so long; returns how many are left."""
    selector = selectors.DefaultSelector()
    for stream in streams:
        selector.register(stream, selectors.EVENT_READ)
    end = time.monotonic() + seconds
    left = len(streams)
    goes_on = True
    while goes_on:
        for key, _ in selector.select(min(0.2, seconds)):
            data = key.fileobj.stream.recv(4096)
            if not data or data[0] & 15 == 8:
                selector.unregister(key.fileobj)
                left -= 1
            elif data[0] & 15 == 9:
                key.fileobj.send(10, data[2 : 2 + (data[1] & 127)])
        goes_on = time.monotonic() < end
    selector.close()
    return left


def measure(served, count):
    """Bytes a socket, how many are left open, and how many were opened a second."""
    served.add_people(count)
    streams = []
    joined = 0

    def join():
        nonlocal joined
        for stream in streams[joined:]:
            stream.join()
        joined = len(streams)

    try:
        # What the first ones make it load and reserve is not theirs.
        warm = min(200, count // 10)
        for index in range(count):
            if index == warm:
                join()
                answer_pings(streams, 2)
                before = served.anonymous_bytes()
                began = time.monotonic()
            streams.append(Socket(served.address, index))
            if index % 100 == 99 or index == count - 1:
                join()
            # While the others are opened, those that are open are asked whether they still live.
            if index % 1_000 == 999:
                answer_pings(streams, 0)
        opened = time.monotonic() - began
        left = answer_pings(streams, 40)
        grown = served.anonymous_bytes() - before
        return grown / (count - warm), left, (count - warm) / opened
    finally:
        for stream in streams:
            stream.close()
        served.remove_people()


def main():
    parser = arguments("Memory that an idle socket costs a front-end.")
    parser.add_argument("--count", type=int, default=20_000)
    options = parser.parse_args()
    count = sockets_possible(options.count)
    if count < 1:
        parser.error("too few files may be open; see ulimit -n")
    try:
        with installation(options) as served:
            each, left, rate = measure(served, count)
    except Failure as failure:
        print(f"sockets: {failure}", file=sys.stderr)
        return 1
    print(f"Idle sockets of people, without TLS: {left} of {count} open after 40 s")
    print(f"  {each / 1024:.2f} KiB each (to stay below 12 KiB); {rate:.0f} opened a second")
    save({"bytes": each, "open": left, "opened_per_second": rate}, options)
    return 0 if left == count else 1


if __name__ == "__main__":
    sys.exit(main())
