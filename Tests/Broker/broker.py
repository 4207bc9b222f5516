#!/usr/bin/env python3
"""A broker that knows Kafka's requests about itself: what topics there are, making them, their settings,
users and passwords. It keeps no records.

An implementation of the protocol that shares nothing with librdkafka, for tests of what librdkafka's own
mock cluster does not know. It refuses what Apache Kafka 3.6 refuses, in its words. What is asked is written
to FOLDER/requests, a JSON object a line; when it listens, FOLDER/port says where.

    broker.py FOLDER [--tls CERTIFICATE KEY] [--user NAME PASSWORD] [--mechanism SCRAM-SHA-512]
              [--topic NAME PARTITIONS NAME=VALUE,...] [--deny create] [--brokers 3]
"""

import argparse
import base64
import hashlib
import hmac
import json
import os
import secrets
import socket
import socketserver
import ssl
import struct
import sys
import threading
import time

PRODUCE, FETCH, LIST_OFFSETS, FIND_COORDINATOR, JOIN_GROUP, PRODUCER_ID = 0, 1, 2, 10, 11, 22
METADATA, SASL_HANDSHAKE, API_VERSIONS, CREATE_TOPICS = 3, 17, 18, 19
DESCRIBE_CONFIGS, SASL_AUTHENTICATE = 32, 36
# Oldest and newest version of each request that is understood.
VERSIONS = {
    METADATA: (0, 4),
    SASL_HANDSHAKE: (0, 1),
    API_VERSIONS: (0, 3),
    CREATE_TOPICS: (0, 4),
    DESCRIBE_CONFIGS: (0, 1),
    SASL_AUTHENTICATE: (0, 1),
}
NONE, UNKNOWN_TOPIC, TOPIC_DENIED, BAD_MECHANISM, ILLEGAL_STATE, UNSUPPORTED = 0, 3, 29, 33, 34, 35
TOPIC_EXISTS, BAD_PARTITIONS, BAD_REPLICATION, BAD_CONFIG, AUTHENTICATION_FAILED = 36, 37, 38, 40, 58

# What Kafka takes when nothing is said, of the settings that a topic may have.
DEFAULTS = {
    "cleanup.policy": "delete",
    "compression.type": "producer",
    "delete.retention.ms": "86400000",
    "max.compaction.lag.ms": "9223372036854775807",
    "max.message.bytes": "1048588",
    "message.timestamp.type": "CreateTime",
    "min.cleanable.dirty.ratio": "0.5",
    "min.compaction.lag.ms": "0",
    "min.insync.replicas": "1",
    "retention.bytes": "-1",
    "retention.ms": "604800000",
    "segment.bytes": "1073741824",
    "segment.ms": "604800000",
    "unclean.leader.election.enable": "false",
}
NUMBERS = {name for name, value in DEFAULTS.items() if value.lstrip("-").isdigit()}
# Said to be known, as every broker does; who asks is hung up on.
OTHERS = {PRODUCE: (3, 7), FETCH: (4, 11), LIST_OFFSETS: (1, 2), FIND_COORDINATOR: (0, 2), JOIN_GROUP: (0, 5),
          PRODUCER_ID: (0, 1)}
LARGEST_REQUEST = 100 << 20


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, count):
        if self.at + count > len(self.data):
            raise ValueError("a request is cut off")
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self, form):
        return struct.unpack(">" + form, self.take(struct.calcsize(form)))[0]

    def text(self):
        count = self.number("h")
        return None if count < 0 else self.take(count).decode()

    def list(self, item):
        count = self.number("i")
        return None if count < 0 else [item() for _ in range(count)]


def number(form, value):
    return struct.pack(">" + form, value)


def text(value):
    if value is None:
        return number("h", -1)
    data = value.encode()
    return number("h", len(data)) + data


def array(items):
    return number("i", len(items)) + b"".join(items)


class Cluster:
    def __init__(self, options):
        self.options = options
        self.lock = threading.Lock()
        self.topics = {}
        self.port = 0
        for name, partitions, settings in options.topic:
            pairs = dict(pair.split("=", 1) for pair in settings.split(",") if pair)
            self.topics[name] = {"partitions": int(partitions), "settings": pairs}
        self.record = open(os.path.join(options.folder, "requests"), "w", encoding="utf-8")

    def note(self, **what):
        with self.lock:
            print(json.dumps(what, sort_keys=True), file=self.record, flush=True)

    def create(self, name, partitions, replication, settings):
        """-> (error code, words)"""
        if "create" in self.options.deny:
            return TOPIC_DENIED, "Authorization failed."
        if name in self.topics:
            return TOPIC_EXISTS, f"Topic '{name}' already exists."
        if partitions == 0 or partitions < -1:
            return BAD_PARTITIONS, "Number of partitions must be larger than 0."
        if replication == 0 or replication < -1:
            return BAD_REPLICATION, "Replication factor must be larger than 0."
        if replication > self.options.brokers:
            return BAD_REPLICATION, (
                f"Unable to replicate the partition {replication} time(s): The target replication factor "
                f"of {replication} cannot be reached because only {self.options.brokers} broker(s) are registered."
            )
        for key, value in settings.items():
            if key not in DEFAULTS:
                return BAD_CONFIG, f"Unknown topic config name: {key}"
            if key in NUMBERS and not (value or "").lstrip("-").isdigit():
                return BAD_CONFIG, f"Invalid value {value} for configuration {key}: Not a number"
        if settings.get("cleanup.policy", "delete") not in ("delete", "compact", "compact,delete"):
            return BAD_CONFIG, "Invalid value for configuration cleanup.policy"
        self.topics[name] = {"partitions": max(1, partitions), "settings": settings}
        return NONE, None


class Connection(socketserver.BaseRequestHandler):
    def setup(self):
        self.cluster = self.server.cluster
        self.user = None
        self.exchange = None
        self.mechanism = None

    def handle(self):
        options = self.cluster.options
        try:
            if options.tls:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                context.load_cert_chain(*options.tls)
                self.request = context.wrap_socket(self.request, server_side=True)
            while self.serve():
                pass
        except (OSError, ValueError, UnicodeDecodeError):
            pass
        finally:
            try:
                self.request.close()
            except OSError:
                pass

    def read(self, count):
        data = b""
        while len(data) < count:
            more = self.request.recv(count - len(data))
            if not more:
                raise ValueError("the client has gone")
            data += more
        return data

    def serve(self):
        size = struct.unpack(">i", self.read(4))[0]
        if not 8 <= size <= LARGEST_REQUEST:
            return False
        request = Reader(self.read(size))
        api, version, correlation = request.number("h"), request.number("h"), request.number("i")
        request.text()  # the client's name
        options = self.cluster.options
        if options.user and self.user is None and api not in (
            API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE,
        ):
            # As Kafka does: it hangs up without a word.
            return False
        if api not in VERSIONS:
            return False
        oldest, newest = VERSIONS[api]
        if api == API_VERSIONS:
            answer = self.versions(version)
        elif not oldest <= version <= newest:
            return False
        else:
            answer = {
                METADATA: self.metadata,
                CREATE_TOPICS: self.create_topics,
                DESCRIBE_CONFIGS: self.describe_configs,
                SASL_HANDSHAKE: self.handshake,
                SASL_AUTHENTICATE: self.authenticate,
            }[api](request, version)
        message = number("i", correlation) + answer
        self.request.sendall(number("i", len(message)) + message)
        return self.exchange != "refused"

    def versions(self, version):
        error = NONE if version <= VERSIONS[API_VERSIONS][1] else UNSUPPORTED
        items = [number("h", api) + number("h", old) + number("h", new)
                 for api, (old, new) in sorted({**VERSIONS, **OTHERS}.items())]
        if error or version < 3:
            return number("h", error) + array(items) + (b"" if version < 1 or error else number("i", 0))
        tags = b"\0"
        return (number("h", NONE) + bytes([len(items) + 1]) + b"".join(item + tags for item in items)
                + number("i", 0) + tags)

    # Topics

    def metadata(self, request, version):
        names = request.list(request.text)
        may_create = bool(request.number("b")) if version >= 4 else True
        self.cluster.note(api="metadata", topics=names, may_create=may_create)
        with self.cluster.lock:
            everything = names is None or (version == 0 and not names)
            known = sorted(self.cluster.topics) if everything else names
            topics = []
            for name in known:
                found = self.cluster.topics.get(name)
                error = NONE if found else UNKNOWN_TOPIC
                if "describe" in self.cluster.options.deny:
                    if everything:
                        continue
                    error, found = TOPIC_DENIED, None
                partitions = [
                    number("h", NONE) + number("i", index) + number("i", 1)
                    + array([number("i", 1)]) + array([number("i", 1)])
                    for index in range(found["partitions"] if found else 0)
                ]
                topics.append(number("h", error) + text(name)
                              + (number("b", 0) if version >= 1 else b"") + array(partitions))
        broker = number("i", 1) + text("localhost") + number("i", self.cluster.port)
        if version >= 1:
            broker += text(None)
        answer = number("i", 0) if version >= 3 else b""
        answer += array([broker])
        if version >= 2:
            answer += text("of-the-tests")
        if version >= 1:
            answer += number("i", 1)
        return answer + array(topics)

    def create_topics(self, request, version):
        def topic():
            name = request.text()
            partitions, replication = request.number("i"), request.number("h")
            placed = request.list(lambda: (request.number("i"), request.list(lambda: request.number("i"))))
            settings = dict(request.list(lambda: (request.text(), request.text())))
            if placed:
                raise ValueError("replicas are placed by the broker")
            return name, partitions, replication, settings

        topics = request.list(topic)
        request.number("i")  # how long the broker may take
        only_checks = bool(request.number("b")) if version >= 1 else False
        results = []
        for name, partitions, replication, settings in topics:
            self.cluster.note(api="create", name=name, partitions=partitions, replication=replication,
                              settings=settings)
            if version < 4 and replication < 1:
                error, words = BAD_REPLICATION, "Replication factor must be larger than 0."
            elif only_checks:
                error, words = NONE, None
            else:
                with self.cluster.lock:
                    error, words = self.cluster.create(name, partitions, replication, settings)
            results.append(text(name) + number("h", error) + (text(words) if version >= 1 else b""))
        return (number("i", 0) if version >= 2 else b"") + array(results)

    def describe_configs(self, request, version):
        def resource():
            return request.number("b"), request.text(), request.list(request.text)

        resources = request.list(resource)
        results = []
        for kind, name, wanted in resources:
            self.cluster.note(api="describe", name=name)
            with self.cluster.lock:
                found = self.cluster.topics.get(name) if kind == 2 else None
                error, words = NONE, None
                if "describe-configs" in self.cluster.options.deny:
                    error, words, found = TOPIC_DENIED, "Authorization failed.", None
                elif not found:
                    error, words = UNKNOWN_TOPIC, None
                entries = []
                if found:
                    for key, value in sorted({**DEFAULTS, **found["settings"]}.items()):
                        if wanted is not None and key not in wanted:
                            continue
                        is_default = key not in found["settings"]
                        entry = text(key) + text(value) + number("b", 0)
                        if version == 0:
                            entry += number("b", is_default) + number("b", 0)
                        else:
                            # Where the value is from: of this topic, or a default.
                            entry += number("b", 5 if is_default else 1) + number("b", 0) + array([])
                        entries.append(entry)
            results.append(number("h", error) + text(words) + number("b", kind) + text(name) + array(entries))
        return number("i", 0) + array(results)

    # Users

    def handshake(self, request, version):
        self.mechanism = request.text()
        offered = self.cluster.options.mechanism
        error = NONE if self.mechanism == offered else BAD_MECHANISM
        if error:
            self.exchange = "refused"
        return number("h", error) + array([text(offered)])

    def authenticate(self, request, version):
        count = request.number("i")
        said = request.take(count)
        answer, error, words = b"", NONE, None
        try:
            if self.mechanism == "PLAIN":
                _, name, password = said.decode().split("\0")
                if [name, password] != self.cluster.options.user:
                    raise PermissionError
                self.user = name
            elif self.mechanism and self.mechanism.startswith("SCRAM-SHA-"):
                answer = self.scram(said)
            else:
                error, words = ILLEGAL_STATE, "SaslAuthenticate request received before SASL handshake"
        except PermissionError:
            error = AUTHENTICATION_FAILED
            words = (
                "Authentication failed: Invalid username or password" if self.mechanism == "PLAIN" else
                f"Authentication failed during authentication due to invalid credentials with SASL mechanism {self.mechanism}"
            )
        self.cluster.note(api="authenticate", mechanism=self.mechanism, error=error)
        if error:
            self.exchange = "refused"
        result = number("h", error) + text(words) + number("i", len(answer)) + answer
        return result + (number("q", 0) if version >= 1 else b"")

    def scram(self, said):
        """One step of RFC 5802, as the server."""
        form = hashlib.sha512 if self.mechanism.endswith("512") else hashlib.sha256
        name, password = self.cluster.options.user
        if self.exchange is None:
            bare = said.decode().split(",", 2)[2]
            fields = dict(part.split("=", 1) for part in bare.split(","))
            if fields["n"] != name:
                raise PermissionError
            salt = secrets.token_bytes(16)
            first = f"r={fields['r']}{secrets.token_hex(8)},s={base64.b64encode(salt).decode()},i=4096"
            self.exchange = (bare, first, salt)
            return first.encode()
        bare, first, salt = self.exchange
        final = said.decode()
        without_proof, proof = final.rsplit(",p=", 1)
        nonce = dict(part.split("=", 1) for part in without_proof.split(","))["r"]
        # Kafka looks at the end alone, and librdkafka before 2.6.1 says its own part twice.
        if not nonce.endswith(first.split(",")[0][2:]):
            raise PermissionError
        salted = hashlib.pbkdf2_hmac(form().name, password.encode(), salt, 4096)
        client_key = hmac.digest(salted, b"Client Key", form)
        everything = f"{bare},{first},{without_proof}".encode()
        signature = hmac.digest(form(client_key).digest(), everything, form)
        expected = bytes(a ^ b for a, b in zip(client_key, signature))
        if not hmac.compare_digest(expected, base64.b64decode(proof)):
            raise PermissionError
        self.user = name
        server_key = hmac.digest(salted, b"Server Key", form)
        return b"v=" + base64.b64encode(hmac.digest(server_key, everything, form))


class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
    address_family = socket.AF_INET
    request_queue_size = 64


def end_with(parent):
    """Ends this process when the one that started it has ended."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(0)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--tls", nargs=2)
    parser.add_argument("--user", nargs=2)
    parser.add_argument("--mechanism", default="PLAIN")
    parser.add_argument("--topic", nargs=3, action="append", default=[])
    parser.add_argument("--deny", action="append", default=[])
    parser.add_argument("--brokers", type=int, default=3)
    options = parser.parse_args()
    cluster = Cluster(options)
    threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()
    with Server(("127.0.0.1", 0), Connection) as server:
        server.cluster = cluster
        cluster.port = server.server_address[1]
        # Whole at once for who waits for it.
        written = os.path.join(options.folder, "port")
        with open(written + "-", "w", encoding="ascii") as file:
            file.write(str(cluster.port))
        os.rename(written + "-", written)
        server.serve_forever()


if __name__ == "__main__":
    sys.exit(main())
