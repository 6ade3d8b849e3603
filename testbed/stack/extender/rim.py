"""The scheduler's port: its three verbs by a small protocol, all else by aiohttp.

A decision takes a tenth of a millisecond, and a web framework takes more than that to
bring a request of 100 KB to it and the answer back. So a connection is read here first:
``POST`` of a verb with a length is answered at once. Anything else (a probe, a body in
chunks, a body that is too large, a stranger's certificate) hands the whole connection
to aiohttp, which answers as it always does. Where TLS has agreed on HTTP/2, as with
kube-scheduler, ``http2`` takes the connection. ``app[VERBS]`` names the verbs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, cast

from aiohttp import web

from testbed.stack.extender.verbs import HTTP2, IDLE_S, REQUEST_S, Answer, Verbs, date

if TYPE_CHECKING:
    from testbed.stack.extender.http2 import Http2

log = logging.getLogger(__name__)

#: Longest head that is read here, and the buffer of a connection that begins.
_HEAD_BYTES = 16 << 10
#: A larger buffer is not kept for the connection's next request.
_KEPT_BYTES = 512 << 10
#: Heads that only aiohttp understands.
_OTHERS = frozenset((b"transfer-encoding", b"expect", b"content-encoding", b"connection"))


class Site(web.BaseSite):
    """Listens for an application that has verbs."""

    def __init__(
        self, runner: web.AppRunner, host: str, port: int, tls: object, verbs: Verbs
    ) -> None:
        super().__init__(runner, ssl_context=tls)  # type: ignore[arg-type]
        self._host, self._port, self._verbs = host, port, verbs
        self._open: set[Connection] = set()
        self._open2: set[Http2] = set()

    @property
    def name(self) -> str:
        return f"{'https' if self._ssl_context else 'http'}://{self._host}:{self._port}"

    async def start(self) -> None:
        await super().start()
        others = self._runner.server
        assert others is not None  # of a runner that is set up
        self._server = await asyncio.get_running_loop().create_server(
            lambda: Connection(self._verbs, cast("Others", others), self._open, self._open2),
            self._host,
            self._port,
            ssl=self._ssl_context,
            backlog=self._backlog,
        )

    async def stop(self) -> None:
        """Take no more connections, answer what is under way, close what is open."""
        await super().stop()
        working = [one.task for one in self._open if one.task is not None]
        working += [task for one in self._open2 for task in one.tasks]
        if working:
            await asyncio.wait(working, timeout=2)
        for one in list(self._open):
            one.close()
        for other in list(self._open2):
            other.close()


Others = Callable[[], asyncio.Protocol]


class Connection(asyncio.BufferedProtocol):
    """One connection: requests one after the other, in one buffer."""

    def __init__(
        self, verbs: Verbs, others: Others, open_: set[Connection], open2: set[Http2]
    ) -> None:
        self._verbs, self._others, self._open, self._open2 = verbs, others, open_, open2
        self._buffer = bytearray(_HEAD_BYTES)
        self._have = 0  # bytes in the buffer
        self._body = 0  # where the body begins; 0 while the head is incomplete
        self._end = 0  # where it ends
        self._path = b""
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._since = 0.0  # of the last answer, or of the request's first byte
        self.task: asyncio.Future[None] | None = None

    # --- what the transport tells ------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        admitted = self._verbs.admits(transport)
        tls = transport.get_extra_info("ssl_object")
        if tls is not None and tls.selected_alpn_protocol() == HTTP2:
            # Where nobody speaks it, its library takes no memory.
            from testbed.stack.extender.http2 import Http2

            self._verbs.connections[HTTP2] += 1
            self._become(Http2(self._verbs, admitted, self._open2))
            return
        self._verbs.connections["http/1.1"] += 1
        if not admitted:
            self._hand_over(b"")
            return
        self._open.add(self)
        self._since = asyncio.get_running_loop().time()
        self._watch()

    def connection_lost(self, exc: BaseException | None) -> None:  # noqa: ARG002
        self._forget()
        self._transport = None

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        return memoryview(self._buffer)[self._have :]

    def buffer_updated(self, nbytes: int) -> None:
        if not self._have:
            self._since = asyncio.get_running_loop().time()
        self._have += nbytes
        self._advance()

    def pause_writing(self) -> None:
        # Who does not read its answers gets no more of them.
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        if self._transport is not None and self.task is None:
            self._transport.resume_reading()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    # --- requests ------------------------------------------------------------

    def _advance(self) -> None:
        """Answer every request that is complete."""
        while self._transport is not None and self.task is None:
            if not self._body and not self._read_head():
                return
            if self._have < self._end:
                return
            body = bytes(memoryview(self._buffer)[self._body : self._end])
            rest = bytes(memoryview(self._buffer)[self._end : self._have])
            path = self._path
            if len(self._buffer) > _KEPT_BYTES:
                self._buffer = bytearray(max(_HEAD_BYTES, 2 * len(rest)))
            self._buffer[: len(rest)] = rest
            self._have, self._body, self._end = len(rest), 0, 0
            self._answer(path, body)

    def _read_head(self) -> bool:
        """Read a request's head; False where it is incomplete, or not for us."""
        at = self._buffer.find(b"\r\n\r\n", 0, self._have)
        if at < 0:
            if self._have >= _HEAD_BYTES:
                self._hand_over(self._taken())
            return False
        line, *fields = bytes(memoryview(self._buffer)[:at]).split(b"\r\n")
        length = self._length(line, fields)
        if length is None:
            self._hand_over(self._taken())
            return False
        self._body = at + 4
        self._end = self._body + length
        if self._end > len(self._buffer):
            larger = bytearray(self._end)
            larger[: self._have] = memoryview(self._buffer)[: self._have]
            self._buffer = larger
        return True

    def _length(self, line: bytes, fields: list[bytes]) -> int | None:
        """Return the body's length; None for a request that aiohttp shall answer."""
        method, _, rest = line.partition(b" ")
        self._path, _, version = rest.partition(b" ")
        if method != b"POST" or version != b"HTTP/1.1" or self._path not in self._verbs.by_path:
            return None
        length = None
        for field in fields:
            name, colon, value = field.partition(b":")
            name = name.lower()
            if not colon or name in _OTHERS:
                return None
            if name == b"content-length":
                value = value.strip()
                if length is not None or not value.isdigit() or len(value) > 12:
                    return None
                length = int(value)
        return length if length is not None and length <= self._verbs.most else None

    def _answer(self, path: bytes, body: bytes) -> None:
        try:
            found = self._verbs.by_path[path](body)
        except Exception:
            log.exception("%s failed", path.decode())
            found = self._verbs.fault(path.decode())
        if isinstance(found, Answer):
            self._write(found)
            return
        if self._transport is not None:
            self._transport.pause_reading()
        self.task = asyncio.ensure_future(self._wait(path, found))

    async def _wait(self, path: bytes, coming: Awaitable[Answer]) -> None:
        try:
            found = await coming
        except Exception:
            log.exception("%s failed", path.decode())
            found = self._verbs.fault(path.decode())
        self.task = None
        self._write(found)
        self._advance()
        if self._transport is not None and self.task is None:
            self._transport.resume_reading()

    def _write(self, answer: Answer) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        head = (
            f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}\r\n"
            f"Content-Type: {answer.content_type}; charset=utf-8\r\n"
            f"Content-Length: {len(answer.body)}\r\nDate: {date()}\r\n\r\n"
        )
        self._transport.write(head.encode() + answer.body)
        self._since = asyncio.get_running_loop().time()

    # --- the ends ------------------------------------------------------------

    def _taken(self) -> bytes:
        return bytes(memoryview(self._buffer)[: self._have])

    def _hand_over(self, read: bytes) -> None:
        """Let aiohttp have the connection, with what was read of it."""
        other = cast("asyncio.Protocol", self._become(self._others()))
        if read:
            other.data_received(read)

    def _become(self, other: asyncio.BaseProtocol) -> asyncio.BaseProtocol:
        """Let another protocol have the connection."""
        transport = self._transport
        assert transport is not None
        self._forget()
        self._transport = None
        transport.set_protocol(other)
        other.connection_made(transport)
        return other

    def _watch(self) -> None:
        """Close the connection when it has been idle, or a request incomplete, too long."""
        loop = asyncio.get_running_loop()
        allowed = REQUEST_S if self._have else IDLE_S
        if self.task is None and loop.time() - self._since >= allowed:
            self._timer = None
            self.close()
            return
        self._timer = loop.call_later(REQUEST_S / 2, self._watch)

    def _forget(self) -> None:
        self._open.discard(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
