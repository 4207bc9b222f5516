"""A WebSocket client that shares no code with the server: the library `websockets`.

Usage: websocket_client.py URL [CA]. Prints "done" if all that it tried went as RFC 6455 says.
"""

import asyncio
import ssl
import sys

import websockets


async def main(url, authority):
    context = None
    if authority:
        context = ssl.create_default_context(cafile=authority)
        context.check_hostname = False
    options = {"ssl": context, "max_size": None, "compression": None, "open_timeout": 60}
    async with websockets.connect(url, **options) as socket:
        for text in ["", "hello", "aé€𐍈" * 5000]:
            await socket.send(text)
            assert await socket.recv() == text
        for size in [0, 125, 126, 65535, 65536]:
            await socket.send(bytes(size))
            assert await socket.recv() == bytes(size)
        await socket.send(["in ", "three ", "fragments"])
        assert await socket.recv() == "in three fragments"
        await asyncio.wait_for(await socket.ping(b"are you there"), 60)
        await socket.close(4000, "enough")
        assert socket.close_code == 4000, socket.close_code
    # The offer of compression is not taken, and the socket works without it.
    options["compression"] = "deflate"
    async with websockets.connect(url, **options) as socket:
        await socket.send("plain")
        assert await socket.recv() == "plain"
        await socket.send(bytes(70_000))
        try:
            await socket.recv()
            raise AssertionError("a message too big was taken")
        except websockets.ConnectionClosed as closed:
            assert closed.rcvd and closed.rcvd.code == 1009, closed
    print("done")


asyncio.run(main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None))
