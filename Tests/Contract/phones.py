"""Two phones that share no code with the server, written from the client's documents alone.

phones.py keys --folder F     makes the identity providers' keys and their JWKS files
phones.py play --folder F --server URL
                              signs two people in and plays: tokens, encounter, waves, keys, messages, block

Prints "done" if all went as documented; otherwise it ends with what was not.
"""

import argparse
import asyncio
import base64
import json
import os
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid

import websockets
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa, x25519
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

AUDIENCE = "app.example"
PATIENCE = 60


def base64url(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def number(value, size=None):
    return base64url(value.to_bytes(size or (value.bit_length() + 7) // 8, "big"))


def make_keys(folder):
    """Apple signs by RS256, Google by ES256: one of each."""
    apple = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    google = ec.generate_private_key(ec.SECP256R1())
    for name, key in [("apple", apple), ("google", google)]:
        with open(os.path.join(folder, name + ".pem"), "wb") as file:
            file.write(
                key.private_bytes(
                    serialization.Encoding.PEM,
                    serialization.PrivateFormat.PKCS8,
                    serialization.NoEncryption(),
                )
            )
    public = apple.public_key().public_numbers()
    point = google.public_key().public_numbers()
    keys = {
        "apple": {"kty": "RSA", "alg": "RS256", "n": number(public.n), "e": number(public.e)},
        "google": {
            "kty": "EC", "alg": "ES256", "crv": "P-256",
            "x": number(point.x, 32), "y": number(point.y, 32),
        },
    }
    for name, key in keys.items():
        with open(os.path.join(folder, name + ".json"), "w") as file:
            json.dump({"keys": [dict(key, kid=name + "-1", use="sig")]}, file)


def id_token(folder, provider, subject, **claims):
    with open(os.path.join(folder, provider + ".pem"), "rb") as file:
        key = serialization.load_pem_private_key(file.read(), None)
    issuer = {"apple": "https://appleid.apple.com", "google": "https://accounts.google.com"}
    now = int(time.time())
    body = {
        "iss": issuer[provider], "aud": AUDIENCE, "sub": subject, "iat": now, "exp": now + 600,
        **claims,
    }
    head = {"alg": "RS256" if provider == "apple" else "ES256", "kid": provider + "-1"}
    text = ".".join(base64url(json.dumps(part).encode()) for part in [head, body]).encode()
    if provider == "apple":
        signature = key.sign(text, padding.PKCS1v15(), hashes.SHA256())
    else:
        r, s = decode_dss_signature(key.sign(text, ec.ECDSA(hashes.SHA256())))
        signature = r.to_bytes(32, "big") + s.to_bytes(32, "big")
    return text.decode() + "." + base64url(signature)


class Phone:
    def __init__(self, server, name):
        self.server = server
        self.name = name
        self.session = None
        self.account = None
        self.key = x25519.X25519PrivateKey.generate()
        self.socket = None
        self.last = None

    def request(self, method, path, body=None, session=None):
        request = urllib.request.Request(self.server + path, method=method)
        request.add_header("Authorization", "Bearer " + (session or self.session or "none"))
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, data, timeout=PATIENCE) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def ok(self, method, path, body=None, session=None):
        status, answer = self.request(method, path, body, session)
        assert status == 200, (self.name, method, path, status, answer)
        return answer

    def sign_in(self, folder, provider, subject):
        nonce = "n-" + subject
        answer = self.ok(
            "POST", "/v1/auth/exchange",
            {
                "provider": provider, "nonce": nonce,
                "idToken": id_token(
                    folder, provider, subject, nonce=nonce, email=subject + "@example.org"
                ),
            },
        )
        assert answer["account"]["providerID"] == provider, answer
        return answer["token"], answer["account"]["id"]

    async def open(self, after=None, session=None):
        url = self.server.replace("http", "ws", 1) + "/ws" + (f"?after={after}" if after else "")
        return await websockets.connect(
            url, additional_headers={"Authorization": "Bearer " + (session or self.session)},
            open_timeout=PATIENCE, compression=None, max_size=None,
        )

    async def connect(self, after=None):
        self.socket = await self.open(after)

    async def next(self, socket=None):
        event = json.loads(await asyncio.wait_for((socket or self.socket).recv(), PATIENCE))
        self.last = event.get("id", self.last)
        return event

    async def nothing_came(self):
        """What had been sent before is there before the pong."""
        await self.socket.send(json.dumps({"type": "ping"}))
        event = await self.next()
        assert event == {"type": "pong"}, (self.name, event)

    def token(self, token):
        self.ok("POST", "/v1/token", {"token": token, "tier": 1, "geohash": "u4pruydqqvj"})

    def shared(self, peer_key):
        secret = self.key.exchange(x25519.X25519PublicKey.from_public_bytes(peer_key))
        return HKDF(hashes.SHA256(), 32, b"", b"proximity").derive(secret)

    def upload_key(self):
        raw = self.key.public_key().public_bytes_raw()
        self.ok("POST", "/v1/peer-key", {"publicKey": base64.b64encode(raw).decode()})

    def fetch_key(self, token):
        path = "/v1/peer-key?token=" + urllib.parse.quote(token)
        status, answer = self.request("GET", path)
        return status, base64.b64decode(answer["publicKey"]) if status == 200 else None

    def message(self, connection, key, text):
        nonce = os.urandom(12)
        box = nonce + ChaCha20Poly1305(key).encrypt(nonce, text.encode(), None)
        return {
            "id": str(uuid.uuid4()), "connectionID": connection, "senderID": self.account,
            "ciphertext": base64.b64encode(box).decode(), "sentAt": "2026-06-26T09:00:00Z",
        }


def read(message, key):
    box = base64.b64decode(message["ciphertext"])
    return ChaCha20Poly1305(key).decrypt(box[:12], box[12:], None).decode()


async def closed(socket):
    try:
        while True:
            await asyncio.wait_for(socket.recv(), PATIENCE)
    except websockets.ConnectionClosed:
        return socket.close_code


async def expect_message(phone, message, key, text, socket=None):
    event = await phone.next(socket)
    assert event["type"] == "message" and event["message"] == message, (phone.name, event)
    assert read(event["message"], key) == text
    assert uuid.UUID(event["id"])


async def play(folder, server):
    a, b = Phone(server, "a"), Phone(server, "b")
    a.session, a.account = a.sign_in(folder, "apple", "anna")
    b.session, b.account = b.sign_in(folder, "google", "bert")
    assert a.account != b.account
    forged = id_token(folder, "google", "anna")[:-8] + "AAAAAAAA"
    status, _ = a.request(
        "POST", "/v1/auth/exchange", {"provider": "google", "idToken": forged, "nonce": ""}
    )
    assert status == 401, status
    status, _ = a.request("GET", "/ws")
    assert status == 426, status
    try:
        await a.open(session="x" * 43)
        raise AssertionError("a socket without a session")
    except websockets.InvalidStatus as refused:
        assert refused.response.status_code == 401, refused

    await a.connect()
    await b.connect()
    a.token("token-a-1")
    b.token("token-b-1")
    for phone, other in [(a, "token-b-1"), (b, "token-a-1")]:
        phone.ok(
            "POST", "/v1/encounter",
            {
                "id": str(uuid.uuid4()), "remoteAnonToken": other, "tier": 1, "engine": "uwb",
                "timestamp": "2026-06-26T09:00:00Z", "geohash": "u4pruydqqvj",
                "status": "silhouette",
            },
        )
    a.upload_key()
    b.upload_key()
    a.ok("POST", "/v1/wave", {"token": "token-b-1"})
    assert a.fetch_key("token-b-1")[0] == 403
    # Both rotate: what was waved at before still counts.
    a.token("token-a-2")
    b.token("token-b-2")
    b.ok("POST", "/v1/wave", {"token": "token-a-2"})
    to_a, to_b = await a.next(), await b.next()
    assert to_a["type"] == to_b["type"] == "mutual", (to_a, to_b)
    assert to_a["remoteToken"] == "token-b-1", to_a
    assert to_b["remoteToken"] == "token-a-2", to_b
    connection = to_a["connectionID"]
    assert connection == to_b["connectionID"] and to_a["id"] != to_b["id"], (to_a, to_b)

    status, key_of_b = a.fetch_key("token-b-1")
    assert status == 200, status
    status, key_of_a = b.fetch_key("token-a-2")
    assert status == 200, status
    key = a.shared(key_of_b)
    assert key == b.shared(key_of_a)

    first = a.message(connection, key, "hello €")
    for _ in range(2):  # sent twice, it is one
        a.ok("POST", "/v1/message", first)
    await expect_message(b, first, key, "hello €")
    answer = b.message(connection, key, "well, hello")
    b.ok("POST", "/v1/message", answer)
    await expect_message(a, answer, key, "well, hello")
    await b.nothing_came()
    await a.nothing_came()
    try:
        read(answer, bytes(32))
        raise AssertionError("a message was read with another key")
    except InvalidTag:
        pass

    # Away: what was missed comes on the next connection, and with the last id nothing else.
    had = b.last
    await b.socket.close()
    missed = [a.message(connection, key, f"missed {count}") for count in range(3)]
    for message in missed:
        a.ok("POST", "/v1/message", message)
    await b.connect(after=had)
    for count, message in enumerate(missed):
        await expect_message(b, message, key, f"missed {count}")
    await b.nothing_came()
    lost = await b.open(after=str(uuid.uuid4()))
    assert (await b.next(lost)) == {"type": "resync"}
    assert (await b.next(lost))["type"] == "mutual"

    # Every socket of an account gets a push, and revoking one session closes its sockets only.
    other_session, account = b.sign_in(folder, "google", "bert")
    assert account == b.account
    second = await b.open(session=other_session)
    assert (await b.next(second))["type"] == "mutual"
    both = a.message(connection, key, "both")
    a.ok("POST", "/v1/message", both)
    for socket in [b.socket, lost, second]:
        await expect_message(b, both, key, "both", socket)
    began = time.monotonic()
    b.ok("POST", "/v1/auth/revoke", session=other_session)
    assert await closed(second) == 1008, second.close_code
    print(f"closed {time.monotonic() - began:.3f} s after the session was revoked")
    assert b.request("GET", "/v1/nearby?geohash=u4pru&tier=1", session=other_session)[0] == 401

    # A block holds at once and for both.
    b.ok("POST", "/v1/block", {"token": "token-a-2"})
    assert a.fetch_key("token-b-1")[0] == 403
    assert a.request("POST", "/v1/message", a.message(connection, key, "still there?"))[0] == 403
    assert b.request("POST", "/v1/message", b.message(connection, key, "no"))[0] == 403
    a.ok("POST", "/v1/wave", {"token": "token-b-2"})
    await b.nothing_came()
    await a.nothing_came()
    again = await b.open()
    await again.send("ping")
    assert (await b.next(again)) == {"type": "pong"}, "something of a blocked one came"

    # Erased, an account has no sockets and no session.
    a.ok("DELETE", "/v1/account")
    assert await closed(a.socket) == 1008, a.socket.close_code
    assert a.request("GET", "/v1/nearby?geohash=u4pru&tier=1")[0] == 401
    await b.nothing_came()
    print("done")


parser = argparse.ArgumentParser()
parser.add_argument("act", choices=["keys", "play"])
parser.add_argument("--folder", required=True)
parser.add_argument("--server")
arguments = parser.parse_args()
if arguments.act == "keys":
    make_keys(arguments.folder)
else:
    asyncio.run(play(arguments.folder, arguments.server))
