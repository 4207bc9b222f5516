"""People for measurements of the proximity service, and an installation that serves them.

Needs nothing but Python and psql. What a client sends is written byte by byte: what is measured is the
server, not a library.
"""

import argparse
import contextlib
import json
import os
import pathlib
import resource
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parent.parent
# No exchange is made: sessions are written into the database as an exchange would.
NO_KEYS = '{"keys":[]}'


class Failure(Exception):
    """What was being done, what went wrong, what to do."""


class Installation:
    """`heartline up` in a folder of its own, or one that runs already."""

    def __init__(self, heartline, data=None):
        self.process, self.folder = None, None
        if data is None:
            self.folder = tempfile.mkdtemp(prefix="heartline-bench-", dir="/tmp")
            # PostgreSQL's user must get through when root starts it.
            os.chmod(self.folder, 0o711)
            keys = os.path.join(self.folder, "keys.json")
            with open(keys, "w") as file:
                file.write(NO_KEYS)
            data = os.path.join(self.folder, "data")
            self.log = os.path.join(self.folder, "log")
            with open(self.log, "wb") as output:
                self.process = subprocess.Popen(
                    [heartline, "up", "--data", data, "--listen", "127.0.0.1:0", "--admin",
                     "127.0.0.1:0", "--apple-audience", "bench", "--apple-jwks", keys],
                    stdin=subprocess.DEVNULL, stdout=output, stderr=output)
            self._wait(os.path.join(data, "run.json"))
        with open(os.path.join(data, "run.json")) as file:
            run = json.load(file)
        url = urllib.parse.urlsplit(run["listen"])
        self.address = (url.hostname, url.port)
        self.database, self.pid = run["database"], run["pid"]

    def _wait(self, file):
        deadline = time.monotonic() + 120
        while not os.path.exists(file):
            if self.process.poll() is not None or time.monotonic() > deadline:
                with open(self.log, errors="replace") as log:
                    words = log.read()[-2_000:]
                self.close()
                raise Failure(f"starting heartline up: it is not ready; its last words:\n{words}")
            time.sleep(0.05)

    def close(self):
        if self.process is not None:
            if self.process.poll() is None:
                self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)

    def psql(self, sql):
        done = subprocess.run(
            ["psql", "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", self.database, "-c", sql],
            capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Failure(f"asking PostgreSQL: {done.stderr.strip()}")
        return done.stdout

    def add_people(self, count):
        """Accounts, each with a session; `session(index)` names it."""
        self.remove_people()
        self.psql(
            f"""
            INSERT INTO heartline.accounts (account_id, provider, provider_subject)
            SELECT gen_random_uuid(), 'apple', 'bench-' || n FROM generate_series(0, {count - 1}) n;
            INSERT INTO heartline.sessions (token_hash, account_id, expires_at)
            SELECT sha256(lpad(split_part(provider_subject, '-', 2), 43, 'x')::bytea), account_id,
            now() + interval '1 hour' FROM heartline.accounts WHERE provider_subject LIKE 'bench-%'
            """)

    def remove_people(self):
        self.psql("DELETE FROM heartline.accounts WHERE provider_subject LIKE 'bench-%'")

    def anonymous_bytes(self):
        """Memory of the process that is in RAM and belongs to no file."""
        with open(f"/proc/{self.pid}/status") as file:
            for line in file:
                if line.startswith("RssAnon"):
                    return int(line.split()[1]) * 1024
        raise Failure(f"reading the memory of process {self.pid}: the kernel does not tell it")


def session(index):
    return str(index).rjust(43, "x")


class Client:
    """One connection with HTTP/1.1 requests, one after the other."""

    def __init__(self, address):
        self.stream = socket.create_connection(address)
        self.stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def post(self, path, body, index):
        text = json.dumps(body)
        self.stream.sendall(
            (
                f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                f"Authorization: Bearer {session(index)}\r\nContent-Length: {len(text)}\r\n\r\n{text}"
            ).encode())
        answer = b""
        while b"\r\n\r\n" not in answer:
            piece = self.stream.recv(4096)
            if not piece:
                raise Failure(f"POST {path}: the connection ended")
            answer += piece
        head, _, rest = answer.partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise Failure(f"POST {path}: {answer.decode(errors='replace')}")
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                missing = int(line.split(b":")[1]) - len(rest)
                while missing > 0:
                    missing -= len(self.stream.recv(missing))


class Socket:
    """A person's WebSocket."""

    def __init__(self, address, index):
        self.stream = socket.create_connection(address)
        self.stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.stream.sendall(
            (
                "GET /ws HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
                "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
                f"Authorization: Bearer {session(index)}\r\n\r\n"
            ).encode())
        self.bytes = b""

    def fileno(self):
        return self.stream.fileno()

    def join(self):
        """Reads the answer to the handshake."""
        while b"\r\n\r\n" not in self.bytes:
            self._read()
        head, _, self.bytes = self.bytes.partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 101"):
            raise Failure(f"opening a socket: {head.decode(errors='replace')}")

    def _read(self):
        piece = self.stream.recv(4096)
        if not piece:
            raise Failure("reading a socket: the server ended it")
        self.bytes += piece

    def _take(self, count):
        while len(self.bytes) < count:
            self._read()
        taken, self.bytes = self.bytes[:count], self.bytes[count:]
        return taken

    def send(self, opcode, payload):
        assert len(payload) < 126
        # A mask of zeros is a mask.
        self.stream.sendall(bytes([0x80 | opcode, 0x80 | len(payload), 0, 0, 0, 0]) + payload)

    def text(self):
        """The next message; pings are answered meanwhile."""
        while True:
            head = self._take(2)
            count = head[1] & 127
            if count == 126:
                count = int.from_bytes(self._take(2), "big")
            payload = self._take(count)
            opcode = head[0] & 15
            if opcode == 1:
                return json.loads(payload)
            if opcode == 9:
                self.send(10, payload)
            elif opcode == 8:
                raise Failure(f"reading a socket: closed with {int.from_bytes(payload[:2], 'big')}")

    def close(self):
        self.stream.close()


def arguments(description):
    """The options that all measurements of this folder have."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--heartline", default=str(ROOT / ".build/release/heartline"))
    parser.add_argument("--data", help="the folder of a heartline up that runs already")
    parser.add_argument("--json", metavar="FILE", help="write the figures there")
    return parser


@contextlib.contextmanager
def installation(options):
    """The installation that the options name, for as long as it is measured."""
    served = Installation(options.heartline, options.data)
    try:
        yield served
    finally:
        served.close()


def save(figures, options):
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(figures, indent=1) + "\n")


def sockets_possible(wanted):
    """Lets this process and those that it starts open so many sockets, or fewer where that is refused.

    Returns how many.
    """
    files = wanted + 1_000
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        # More than the limit of limits takes root.
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(most, files), max(most, files)))
    except (OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files > most:
        print(f"No more than {most} files may be open (ulimit -n): {most - 1_000} sockets.")
    return min(wanted, most - 1_000)
