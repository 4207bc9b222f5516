#!/usr/bin/env python3
"""Memory that an idle socket costs a front-end. Needs nothing but Python.

    heartline up --data D …                       in another terminal
    Benchmarks/sockets.py --data D --count 20000

Opens sockets of --count accounts (whose rows and sessions it makes with psql and removes again) to the
`heartline up` whose folder is D, waits until they have joined, and prints by how much each has made the process
grow, as the kernel counts it (RssAnon). Both sides need a descriptor for each: ulimit -n.
"""

import argparse
import json
import os
import selectors
import socket
import subprocess
import time
import urllib.parse


def psql(database, sql):
    done = subprocess.run(
        ["psql", "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", database, "-c", sql],
        check=True, capture_output=True, text=True,
    )
    return done.stdout


def anonymous_bytes(pid):
    with open(f"/proc/{pid}/status") as file:
        for line in file:
            if line.startswith("RssAnon"):
                return int(line.split()[1]) * 1024
    raise SystemExit("no RssAnon")


def connect(address, token):
    stream = socket.create_connection(address)
    stream.sendall(
        (
            "GET /ws HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
            f"Authorization: Bearer {token}\r\n\r\n"
        ).encode()
    )
    return stream


def answer_pings(streams, seconds):
    """Looks after the sockets for so long; returns how many are left."""
    selector = selectors.DefaultSelector()
    for stream in streams:
        selector.register(stream, selectors.EVENT_READ)
    end = time.monotonic() + seconds
    left = len(streams)
    while time.monotonic() < end:
        for key, _ in selector.select(0.2):
            data = key.fileobj.recv(4096)
            if not data or data[0] & 15 == 8:
                selector.unregister(key.fileobj)
                left -= 1
            elif data[0] & 15 == 9:
                payload = data[2 : 2 + (data[1] & 127)]
                key.fileobj.sendall(bytes([0x8A, 0x80 | len(payload), 0, 0, 0, 0]) + payload)
    selector.close()
    return left


parser = argparse.ArgumentParser()
parser.add_argument("--data", required=True, help="the folder of heartline up")
parser.add_argument("--count", type=int, default=20_000)
arguments = parser.parse_args()
with open(os.path.join(arguments.data, "run.json")) as file:
    run = json.load(file)
url = urllib.parse.urlsplit(run["listen"])
address = (url.hostname, url.port)
mine = "provider_subject LIKE 'socket-bench-%'"
psql(
    run["database"],
    f"""
    INSERT INTO heartline.accounts (account_id, provider, provider_subject)
    SELECT gen_random_uuid(), 'apple', 'socket-bench-' || n
    FROM generate_series(0, {arguments.count - 1}) n;
    INSERT INTO heartline.sessions (token_hash, account_id, expires_at)
    SELECT sha256(lpad(split_part(provider_subject, '-', 3), 43, 'x')::bytea), account_id,
    now() + interval '1 hour' FROM heartline.accounts WHERE {mine}
    """,
)
streams = []
try:
    # What the first ones make it load and reserve is not theirs.
    warm = min(200, arguments.count // 10)
    for index in range(arguments.count):
        if index == warm:
            answer_pings(streams, 2)
            before = anonymous_bytes(run["pid"])
            began = time.monotonic()
        streams.append(connect(address, str(index).rjust(43, "x")))
        if index % 100 == 99 or index == arguments.count - 1:
            for stream in streams[-(index % 100 + 1) :]:
                answer = stream.recv(4096)
                assert answer.startswith(b"HTTP/1.1 101"), answer
    opened = time.monotonic() - began
    for _ in range(3):
        left = answer_pings(streams, 4)
        grown = anonymous_bytes(run["pid"]) - before
        print(
            f"{left} sockets open, {grown / (arguments.count - warm) / 1024:.2f} KiB each"
            f" ({(arguments.count - warm) / opened:.0f} opened a second)", flush=True,
        )
finally:
    for stream in streams:
        stream.close()
    psql(run["database"], f"DELETE FROM heartline.accounts WHERE {mine}")
