"""An app's part of the update contract, written from the contract's text alone; standard library only.

Usage: updates_client.py check|install [--prefetch POLICY] [--open true|false] DESTINATION...

Tries the destinations in order and goes on to the next only where nothing can have been delivered. Prints
each event as it comes, one JSON object a line, and at the end an object with "outcome": result, error,
selection, unconfirmed, json (an ordinary answer) or http (a status that is not 2xx).
"""

import argparse
import http.client
import json
import re
import sys
import time
import urllib.parse

PATH = re.compile(r"/api/app/[0-9a-f]{48}/update|/update/[0-9a-f]{48}")


def say(**values):
    print(json.dumps(values), flush=True)


def target(destination, arguments):
    parts = urllib.parse.urlsplit(destination)
    assert parts.scheme in ("http", "https") and parts.hostname and PATH.fullmatch(parts.path), "destination"
    path = parts.path + ("/check" if arguments.action == "check" else "")
    items = [parts.query] if parts.query else []
    for name in ("prefetch", "open"):
        value = getattr(arguments, name)
        if value is not None:
            items.append(f"{name}={value}")
    return parts, path + ("?" + "&".join(items) if items else "")


def connect(destinations, arguments):
    for destination in destinations:
        parts, path = target(destination, arguments)
        connection = http.client.HTTPConnection(parts.hostname, parts.port or 80, timeout=120)
        try:
            connection.connect()
        except (ConnectionRefusedError, OSError) as error:
            # Nothing was delivered: the next one may be tried.
            say(unreachable=parts.hostname, why=type(error).__name__)
            continue
        connection.request("POST" if arguments.action == "install" else "GET", path)
        return connection.getresponse()
    return None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("action", choices=["check", "install"])
    parser.add_argument("--prefetch")
    parser.add_argument("--open")
    parser.add_argument("destinations", nargs="+")
    arguments = parser.parse_args()
    response = connect(arguments.destinations, arguments)
    if response is None:
        say(outcome="unreachable")
        return
    kind = response.getheader("Content-Type", "")
    if not 200 <= response.status < 300:
        body = json.loads(response.read())
        assert isinstance(body["error"], str) and body["error"], "an error is an object with a text"
        say(outcome="http", status=response.status, error=body["error"])
        return
    if kind == "application/json":
        say(outcome="json", status=response.status, body=json.loads(response.read()))
        return
    assert kind == "application/x-ndjson", kind
    outcome = None
    rest = b""
    try:
        while True:
            piece = response.read1(65536)
            if not piece:
                break
            rest += piece
            while b"\n" in rest:
                line, rest = rest.split(b"\n", 1)
                event = json.loads(line.decode("utf-8"))
                say(event=event, at=time.monotonic())
                if event["type"] == "progress":
                    progress = event["progress"]
                    assert isinstance(progress["step"], str) and isinstance(progress["message"], str)
                elif event["type"] in ("result", "error", "selection"):
                    assert outcome is None, "an event behind the last one"
                    outcome = event["type"]
    except http.client.IncompleteRead:
        pass
    assert rest == b"", "a line without its end"
    say(outcome=outcome or "unconfirmed")


try:
    main()
except BrokenPipeError:
    sys.exit(1)
