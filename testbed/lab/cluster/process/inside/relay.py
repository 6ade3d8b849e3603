"""Relay from a listening socket of the host's network to an address inside.

    relay.py LISTEN_FD HOST PORT

The socket was made on 127.0.0.1 before the network namespace was entered, and a
socket stays in the namespace that it was made in.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys

CHUNK = 1 << 16


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy one direction, and hand on its end."""
    with contextlib.suppress(OSError):
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()
    with contextlib.suppress(OSError, RuntimeError):
        writer.write_eof()


async def serve(listen_fd: int, host: str, port: int) -> None:
    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection(host, port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(pump(reader, back), pump(there, writer))
        for each in (writer, back):
            each.close()

    listener = socket.socket(fileno=listen_fd)
    listener.setblocking(False)
    server = await asyncio.start_server(relay, sock=listener)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
