#!/usr/bin/env python3
"""The configuration hashes, computed from the text of docs/config-hash.md alone.

Written from that document and not from Heartline's code, with Python's standard library only, so that
the two can be checked against each other.

    config_hash.py DOCUMENT          computes the document's own test vectors and compares
    config_hash.py < LINES           a JSON object a line; prints config, forwards and reload hash
"""

import hashlib
import ipaddress
import json
import re
import sys

SPACES = " \t\r\n"


def field(data):
    return str(len(data)).encode() + b":" + data + b"\n"


def text(value):
    return field(value.encode())


def listing(entries):
    return text(str(len(entries))) + b"".join(field(entry) for entry in entries)


def lower(value):
    """ASCII letters only."""
    return "".join(c.lower() if c.isascii() else c for c in value)


def ipv6(address):
    """RFC 5952, every group in hexadecimal digits."""
    number = int(address)
    groups = [(number >> shift) & 0xFFFF for shift in range(112, -16, -16)]
    best, best_size, index = 0, 0, 0
    while index < 8:
        size = 0
        while index + size < 8 and groups[index + size] == 0:
            size += 1
        if size > max(best_size, 1):
            best, best_size = index, size
        index += size + 1
    words = ["%x" % group for group in groups]
    if best_size == 0:
        return ":".join(words)
    return ":".join(words[:best]) + "::" + ":".join(words[best + best_size :])


def address_of(value):
    try:
        return ipaddress.ip_address(value)
    except ValueError:
        return None


def spelled(address):
    return ipv6(address) if address.version == 6 else str(address)


def host(value):
    value = lower(value.strip(SPACES))
    if value.startswith("[") and value.endswith("]"):
        value = value[1:-1]
    address = address_of(value)
    if address is not None:
        return spelled(address)
    return value[:-1] if value.endswith(".") and len(value) > 1 else value


def endpoint(value):
    name, port = value.strip(SPACES).rsplit(":", 1)
    name = host(name)
    return f"[{name}]:{int(port)}" if ":" in name else f"{name}:{int(port)}"


def prefix(value):
    address, slash, length = value.strip(SPACES).partition("/")
    address = address_of(lower(address.strip(SPACES)))
    bits = address.max_prefixlen
    length = int(length) if slash else bits
    kept = int(address) >> (bits - length) << (bits - length)
    return f"{spelled(type(address)(kept))}/{length}"


def items(value):
    return [item.strip(SPACES) for item in value.split(",") if item.strip(SPACES)]


def hashes(c):
    names = list(dict.fromkeys(host(item) for item in items(c["dns"])))
    allowed = sorted({prefix(item).encode() for item in items(c["allowed_ips"])})
    settings = (
        b"heartline.config.1\n"
        + text(host(c["internal_ip"]))
        + text(hashlib.sha256(bytes.fromhex(c["private_key"])).hexdigest())
        + text(hashlib.sha256(bytes.fromhex(c["preshared_key"])).hexdigest())
        + text(lower(c["server_pub"].strip(SPACES)))
        + text(endpoint(c["endpoint"]))
        + text(host(c["server_wg_ip"]))
        + listing([name.encode() for name in names])
        + listing(allowed)
    )
    entries = {
        text(lower(transport)) + text(str(listen)) + text(host(target)) + text(str(port))
        for transport, listen, target, port in c["forwards"]
    }
    forwards = b"heartline.forwards.1\n" + listing(sorted(entries))
    both = b"heartline.reload.1\n" + field(settings) + field(forwards)
    return tuple(hashlib.sha256(data).hexdigest() for data in (settings, forwards, both))


FIRST = {
    "internal_ip": "10.172.21.2",
    "private_key": "01" * 32,
    "preshared_key": "02" * 32,
    "server_pub": "0a" * 32,
    "endpoint": "vpn.example.net:51820",
    "server_wg_ip": "10.172.21.1",
    "dns": "1.1.1.1",
    "allowed_ips": "0.0.0.0/0",
    "forwards": [],
}
FORWARD = ["tcp", 8080, "10.0.0.5", 80]
VECTORS = [
    FIRST,
    {**FIRST, "forwards": [FORWARD]},
    {
        **FIRST,
        "endpoint": "[2001:DB8::0:1]:051820",
        "dns": "9.9.9.9, 2620:FE:0::FE",
        "allowed_ips": "::/0, 10.0.0.7/8,0.0.0.0/0",
        "forwards": [["UDP", 53, "NAS.local.", 5353], FORWARD, FORWARD],
    },
]


def check(document):
    with open(document, encoding="utf-8") as file:
        rows = re.findall(r"^\| (\d) \| `(\w{64})` \| `(\w{64})` \| `(\w{64})` \|$", file.read(), re.M)
    if [row[0] for row in rows] != ["1", "2", "3"]:
        sys.exit(f"{document}: its table of test vectors is not found")
    for row, vector in zip(rows, VECTORS):
        if row[1:] != hashes(vector):
            sys.exit(f"{document}: vector {row[0]} is {row[1:]}, and its text gives {hashes(vector)}")
    print(f"{len(rows)} vectors agree with the text")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        check(sys.argv[1])
    else:
        for line in sys.stdin:
            print(*hashes(json.loads(line)))
