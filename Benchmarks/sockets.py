#!/usr/bin/env python3
"""Memory that an idle socket costs a front-end.

    Benchmarks/sockets.py [--heartline .build/release/heartline] [--count 20000]
    Benchmarks/sockets.py --data D         measure the `heartline up` whose folder is D

Opens sockets of --count people, waits until they have joined, and prints by how much each has made the
process grow, as the kernel counts it (RssAnon). Both sides need a descriptor for each: ulimit -n.
"""

import argparse
import json
import pathlib
import resource
import selectors
import sys
import time

from people import Failure, Installation, Socket

ROOT = pathlib.Path(__file__).resolve().parent.parent


def answer_pings(streams, seconds):
    """Looks after the sockets for so long; returns how many are left."""
    selector = selectors.DefaultSelector()
    for stream in streams:
        selector.register(stream, selectors.EVENT_READ)
    end = time.monotonic() + seconds
    left = len(streams)
    while time.monotonic() < end:
        for key, _ in selector.select(0.2):
            data = key.fileobj.stream.recv(4096)
            if not data or data[0] & 15 == 8:
                selector.unregister(key.fileobj)
                left -= 1
            elif data[0] & 15 == 9:
                key.fileobj.send(10, data[2 : 2 + (data[1] & 127)])
    selector.close()
    return left


def measure(installation, count):
    """Bytes a socket, how many are left open, and how many were opened a second."""
    installation.add_people(count)
    streams = []
    try:
        # What the first ones make it load and reserve is not theirs.
        warm = min(200, count // 10)
        for index in range(count):
            if index == warm:
                answer_pings(streams, 2)
                before = installation.anonymous_bytes()
                began = time.monotonic()
            streams.append(Socket(installation.address, index))
            if index % 100 == 99 or index == count - 1:
                for stream in streams[-(index % 100 + 1) :]:
                    stream.join()
        opened = time.monotonic() - began
        left = answer_pings(streams, 40)
        grown = installation.anonymous_bytes() - before
        return grown / (count - warm), left, (count - warm) / opened
    finally:
        for stream in streams:
            stream.close()
        installation.remove_people()


def main():
    parser = argparse.ArgumentParser(description="Memory that an idle socket costs a front-end.")
    parser.add_argument("--heartline", default=str(ROOT / ".build/release/heartline"))
    parser.add_argument("--data", help="the folder of a heartline up that runs already")
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--json", metavar="FILE", help="write the figures there")
    options = parser.parse_args()
    # Also what the child gets.
    wanted = options.count + 1_000
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        # More than the limit of limits takes root.
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(most, wanted), max(most, wanted)))
    except (OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if wanted > most:
        options.count = most - 1_000
        print(f"No more than {most} files may be open (ulimit -n): {options.count} sockets.")
    if options.count < 1:
        parser.error("too few files may be open; see ulimit -n")
    installation = None
    try:
        installation = Installation(options.heartline, options.data)
        each, left, rate = measure(installation, options.count)
    except Failure as failure:
        print(f"sockets: {failure}", file=sys.stderr)
        return 1
    finally:
        if installation is not None:
            installation.close()
    print(f"Idle sockets of people, without TLS: {left} of {options.count} open after 40 s")
    print(f"  {each / 1024:.2f} KiB each (to stay below 12 KiB); {rate:.0f} opened a second")
    if options.json:
        figures = {"bytes": each, "open": left, "opened_per_second": rate}
        pathlib.Path(options.json).write_text(json.dumps(figures, indent=1) + "\n")
    return 0 if left == options.count else 1


if __name__ == "__main__":
    sys.exit(main())
