#!/usr/bin/env python3
"""A WireGuard agent written from its documents alone: the second client of the contract.

It provisions itself with a registration token, decrypts its configuration, sends heartbeats, and builds its
tunnel anew when `forwards_hash` changes. There is no tunnel here: building it means checking that
everything a tunnel needs is there.

What it sees it prints, a JSON object a line, never with a secret in it. It ends with status 0 at SIGTERM or
after --rebuilds rebuilds, with 1 when it gives up as its documents say, and with 3 when an answer breaks the
contract.
"""

import argparse
import base64
import hashlib
import http.client
import ipaddress
import json
import os
import signal
import ssl
import sys
import time
import urllib.parse
import uuid
from datetime import datetime, timezone

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

CONNECT_TIMEOUT, READ_TIMEOUT, WRITE_TIMEOUT = 10, 30, 10
MAX_RETRIES = 3
PAYLOAD = ["device_id", "private_key", "preshared_key", "internal_ip", "server_pub", "endpoint", "dns",
           "allowed_ips", "server_wg_ip"]
PROVISION_ERRORS = {
    400: {"invalid token format", "token already used", "invalid hardware id"},
    403: {"token expired"},
    500: {"provisioning failed"},
}
HEARTBEAT_ERRORS = {
    400: {"invalid device id"},
    403: {"device is suspended"},
    500: {"heartbeat failed"},
}


class ContractBroken(Exception):
    """An answer that the contract does not allow. Its text holds no values."""


class GaveUp(Exception):
    """All tries of a request came to nothing."""

    def __init__(self, status, error):
        super().__init__(error)
        self.status, self.error = status, error


def say(event, **facts):
    print(json.dumps({"event": event, "at": time.time(), **facts}), flush=True)


class Server:
    """One connection, kept open between requests."""

    def __init__(self, url, authority):
        parts = urllib.parse.urlsplit(url)
        self.host, self.port = parts.hostname, parts.port
        self.tls = None
        if parts.scheme == "https":
            self.tls = ssl.create_default_context(cafile=authority)
            self.tls.minimum_version = ssl.TLSVersion.TLSv1_2
        self.connection = None

    def post(self, path, body):
        """One try. Returns status, and the answer's JSON."""
        try:
            if self.connection is None:
                if self.tls:
                    self.connection = http.client.HTTPSConnection(
                        self.host, self.port, timeout=CONNECT_TIMEOUT, context=self.tls)
                else:
                    self.connection = http.client.HTTPConnection(
                        self.host, self.port, timeout=CONNECT_TIMEOUT)
                self.connection.connect()
            self.connection.sock.settimeout(WRITE_TIMEOUT)
            self.connection.request(
                "POST", path, json.dumps(body), {"Content-Type": "application/json"})
            self.connection.sock.settimeout(READ_TIMEOUT)
            response = self.connection.getresponse()
            text = response.read()
        except (OSError, http.client.HTTPException):
            if self.connection is not None:
                self.connection.close()
            self.connection = None
            raise
        if response.getheader("Content-Type", "").split(";")[0] != "application/json":
            raise ContractBroken(f"{path}: the answer's Content-Type is not application/json")
        try:
            return response.status, json.loads(text)
        except ValueError:
            raise ContractBroken(f"{path}: the answer is not JSON") from None

    def send(self, path, body, errors):
        """The contract's sendRequest: three tries; a connection that fails is tried again after a
        pause, a status other than 200 at once."""
        last = (None, "no answer")
        for attempt in range(1, MAX_RETRIES + 1):
            try:
                status, answer = self.post(path, body)
            except (OSError, http.client.HTTPException) as error:
                last = (None, type(error).__name__)
                if attempt < MAX_RETRIES:
                    time.sleep(attempt)
                continue
            if status == 200:
                return answer
            # Statuses that the contract does not list belong to HTTP itself (413, 429, 503).
            if status in errors and answer.get("error") not in errors[status]:
                raise ContractBroken(f"{path}: {status} with an error that is not the contract's")
            last = (status, answer.get("error"))
        raise GaveUp(*last)


def decrypt(encrypted, hwid, salt):
    """key = SHA256(hwid + salt); nonce of 12 bytes, ciphertext, tag of 16 bytes."""
    combined = base64.b64decode(encrypted, validate=True)
    key = hashlib.sha256(hwid.encode() + salt.encode()).digest()
    return json.loads(AESGCM(key).decrypt(combined[:12], combined[12:], None))


def provision(server, token, hwid, salt):
    answer = server.send("/api/v1/provision", {"token": token, "hwid": hwid}, PROVISION_ERRORS)
    if not isinstance(answer.get("encrypted_config"), str):
        raise ContractBroken("provision: no encrypted_config")
    try:
        config = decrypt(answer["encrypted_config"], hwid, salt)
    except (InvalidTag, ValueError):
        raise ContractBroken("provision: encrypted_config does not decrypt") from None
    if sorted(config) != sorted(PAYLOAD):
        raise ContractBroken(f"provision: the fields of ConfigPayload are {sorted(config)}")
    check(config)
    return config


def check(config):
    """What a tunnel is built from must be there, in the form that the contract shows."""
    for field in PAYLOAD:
        if not isinstance(config.get(field), str) or not config[field]:
            raise ContractBroken(f"{field} is no text")
    for field in ["private_key", "preshared_key", "server_pub"]:
        if len(config[field]) != 64 or len(bytes.fromhex(config[field])) != 32:
            raise ContractBroken(f"{field} is not 64 hexadecimal digits")
    if str(uuid.UUID(config["device_id"])) != config["device_id"]:
        raise ContractBroken("device_id is not a UUID in its usual form")
    ipaddress.ip_address(config["internal_ip"])
    ipaddress.ip_address(config["server_wg_ip"])
    ipaddress.ip_address(config["dns"])
    for network in config["allowed_ips"].split(","):
        ipaddress.ip_network(network.strip())
    host, _, port = config["endpoint"].rpartition(":")
    if not host or not 0 < int(port) < 65536:
        raise ContractBroken("endpoint is not host:port")


def public_key(config):
    """Of the private key: what the server must know the device by."""
    private = X25519PrivateKey.from_private_bytes(bytes.fromhex(config["private_key"]))
    return private.public_key().public_bytes(
        serialization.Encoding.Raw, serialization.PublicFormat.Raw).hex()


def fingerprint(config):
    """Tells configurations apart without giving them away."""
    text = json.dumps({field: config[field] for field in PAYLOAD}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Agent:
    def __init__(self, options, server, salt):
        self.options, self.server, self.salt = options, server, salt
        self.config = None
        # The contract's UserDefaults key "config_hash".
        self.hash = ""
        self.last_handshake = None
        self.rebuilds = 0

    def start(self):
        token = sys.stdin.readline().strip()
        self.config = provision(self.server, token, self.options.hwid, self.salt)
        say("provisioned", device_id=self.config["device_id"],
            internal_ip=self.config["internal_ip"], public_key=public_key(self.config),
            fingerprint=fingerprint(self.config))
        self.tunnel_up()

    def tunnel_up(self):
        self.last_handshake = datetime.now(timezone.utc)

    def heartbeat(self):
        body = {
            "device_id": self.config["device_id"],
            "status": "connected",
            "tunnel_up": True,
            "last_handshake": self.last_handshake.strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        try:
            answer = self.server.send("/api/v1/heartbeat", body, HEARTBEAT_ERRORS)
        except GaveUp as failure:
            # "HTTP heartbeat fail: log only, continue".
            say("heartbeat-failed", status=failure.status, error=failure.error)
            return
        if answer.get("status") != "ok" or not isinstance(answer.get("forwards_hash"), str):
            raise ContractBroken("heartbeat: no status ok, or no forwards_hash")
        if answer.get("device_id") != self.config["device_id"]:
            raise ContractBroken("heartbeat: the answer is another device's")
        check(answer)
        say("heartbeat", forwards_hash=answer["forwards_hash"])
        if answer["forwards_hash"] != self.hash:
            self.rebuild(answer)

    def rebuild(self, answer):
        before = self.config
        self.config = {field: answer[field] for field in PAYLOAD}
        self.hash = answer["forwards_hash"]
        self.rebuilds += 1
        self.tunnel_up()
        say("rebuilt", number=self.rebuilds, forwards_hash=self.hash,
            public_key=public_key(self.config), fingerprint=fingerprint(self.config),
            changed=[field for field in PAYLOAD if before[field] != self.config[field]])

    def run(self):
        self.start()
        while not self.options.rebuilds or self.rebuilds < self.options.rebuilds:
            self.heartbeat()
            time.sleep(self.options.interval)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", required=True, help="http://127.0.0.1:8080")
    parser.add_argument("--hwid", required=True)
    parser.add_argument("--salt-file", required=True, help="SERVER_SALT; the token is the first line of stdin")
    parser.add_argument("--interval", type=float, default=30)
    parser.add_argument("--rebuilds", type=int, default=0, help="end after so many; 0: never")
    parser.add_argument("--ca", help="PEM file of the authority to trust")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    with open(options.salt_file, encoding="utf-8") as file:
        salt = file.read().strip()
    try:
        Agent(options, Server(options.server, options.ca), salt).run()
    except ContractBroken as broken:
        say("contract-broken", what=str(broken))
        return 3
    except GaveUp as failure:
        # "HTTP provision fail: retry 3x, then notify user".
        say("gave-up", status=failure.status, error=failure.error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
