"""The scheduler's verbs over HTTP/2 (RFC 9113).

kube-scheduler offers it to every extender that is called by HTTPS. Over HTTP/1.1 it keeps
two connections, so that each burst of binds, which wait for the API server side by side,
opens new ones: a handshake with two certificates costs either side more than a decision.
Here all of them are streams of one connection.

Only what a verb needs is here. Another method than POST is told to come by HTTP/1.1, where
aiohttp answers.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Awaitable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import cast

from testbed.stack.extender.hpack import LIST_BYTES, Decoder, answer_block
from testbed.stack.extender.verbs import IDLE_S, REQUEST_S, Answer, Verbs, date

log = logging.getLogger(__name__)

PROTOCOL = "h2"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
#: Largest frame that is taken: a filter request of 5,000 nodes is one or two.
FRAME_BYTES = 1 << 20
#: Largest frame that every peer takes.
_LEAST_FRAME = 16 << 10
_BUFFER_BYTES = 64 << 10
#: A larger buffer is not kept for the connection's next request.
_KEPT_BYTES = 512 << 10
#: A pod that waits for its node's turn is a stream; beyond that Go opens a connection more.
STREAMS = 2000
_WINDOW = (1 << 31) - 1
_FIRST_WINDOW = 65_535
#: So much of the connection's window may be used before it is opened again.
_TAKEN = 1 << 28


class Frame(IntEnum):
    DATA = 0
    HEADERS = 1
    PRIORITY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PUSH_PROMISE = 5
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    CONTINUATION = 9


class Code(IntEnum):
    """Why a stream or a connection ends (section 7)."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    FLOW_CONTROL_ERROR = 3
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    COMPRESSION_ERROR = 9
    ENHANCE_YOUR_CALM = 11
    HTTP_1_1_REQUIRED = 13


_END_STREAM, _ACK, _END_HEADERS, _PADDED, _PRIORITY = 0x1, 0x1, 0x4, 0x8, 0x20
_INITIAL_WINDOW_SIZE, _MAX_FRAME_SIZE = 4, 5


class _Broken(Exception):
    """The peer breaks the protocol: the connection ends."""

    def __init__(self, code: Code, why: str) -> None:
        super().__init__(why)
        self.code = code


@dataclass(slots=True)
class _Stream:
    """A request and its answer."""

    path: bytes
    window: int
    parts: list[bytes] = field(default_factory=list)
    size: int = 0
    ended: bool = False  # by the peer
    rest: memoryview | None = None  # of the answer, not sent yet


class Http2(asyncio.BufferedProtocol):
    """One connection.

    Args:
        verbs: What answers.
        admitted: Whether the peer may call; else every request is refused.
        open_: Where the connection is listed while it lasts.
    """

    def __init__(self, verbs: Verbs, admitted: bool, open_: set[Http2]) -> None:
        self._verbs, self._admitted, self._open = verbs, admitted, open_
        self._buffer = bytearray(_BUFFER_BYTES)
        self._have = 0
        self._greeted = self._agreed = False
        self._decoder = Decoder()
        self._streams: dict[int, _Stream] = {}
        #: What is under way; also for streams that the peer has given up.
        self.tasks: set[asyncio.Future[None]] = set()
        self._last = 0  # youngest stream of the peer
        self._block: tuple[int, int, bytearray] | None = None  # stream, flags, so far
        self._taken = 0  # of the connection's window
        self._window = _FIRST_WINDOW  # of the peer's connection
        self._stream_window = _FIRST_WINDOW
        self._frame = _LEAST_FRAME
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._since = 0.0

    # --- what the transport tells ------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._open.add(self)
        self._since = asyncio.get_running_loop().time()
        settings = ((3, STREAMS), (_INITIAL_WINDOW_SIZE, _WINDOW), (_MAX_FRAME_SIZE, FRAME_BYTES),
                    (6, LIST_BYTES))  # fmt: skip
        self._transport.write(
            _frame(Frame.SETTINGS, 0, 0, b"".join(struct.pack(">HI", *one) for one in settings))
            + _frame(Frame.WINDOW_UPDATE, 0, 0, (_WINDOW - _FIRST_WINDOW).to_bytes(4, "big"))
        )
        self._watch()

    def connection_lost(self, exc: BaseException | None) -> None:  # noqa: ARG002
        self._open.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        self._transport = None

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        return memoryview(self._buffer)[self._have :]

    def buffer_updated(self, nbytes: int) -> None:
        self._have += nbytes
        try:
            self._advance()
        except _Broken as error:
            log.warning("a connection breaks HTTP/2: %s", error)
            self._leave(error.code)

    def pause_writing(self) -> None:
        # Who does not read its answers gets no more of them.
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()

    def close(self) -> None:
        self._leave(Code.NO_ERROR)

    # --- frames ----------------------------------------------------------------

    def _advance(self) -> None:
        """Take every frame that is complete."""
        at = 0
        if not self._greeted:
            if self._have < len(PREFACE):
                return
            if not self._buffer.startswith(PREFACE):
                raise _Broken(Code.PROTOCOL_ERROR, "it does not begin as HTTP/2 does")
            self._greeted, at = True, len(PREFACE)
        need = 9
        while self._transport is not None and self._have - at >= 9:
            length = int.from_bytes(self._buffer[at : at + 3], "big")
            if length > FRAME_BYTES:
                raise _Broken(Code.FRAME_SIZE_ERROR, f"a frame of {length} bytes")
            need = 9 + length
            if self._have - at < need:
                break
            kind, flags = self._buffer[at + 3], self._buffer[at + 4]
            stream = int.from_bytes(self._buffer[at + 5 : at + 9], "big") & 0x7FFFFFFF
            payload = bytes(memoryview(self._buffer)[at + 9 : at + need])
            at += need
            need = 9
            self._take(kind, flags, stream, payload)
        if self._transport is None:
            self._have = 0
            return
        size = max(_BUFFER_BYTES, need)
        if at or len(self._buffer) < size:
            rest = bytes(memoryview(self._buffer)[at : self._have])
            if not size <= len(self._buffer) <= _KEPT_BYTES:
                self._buffer = bytearray(size)
            self._buffer[: len(rest)] = rest
            self._have = len(rest)

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if self._block is not None and kind != Frame.CONTINUATION:
            raise _Broken(Code.PROTOCOL_ERROR, "a header block is interrupted")
        if not self._agreed and kind != Frame.SETTINGS:
            raise _Broken(Code.PROTOCOL_ERROR, "the settings do not come first")
        if kind == Frame.DATA:
            self._data(stream, flags, payload)
        elif kind == Frame.HEADERS:
            payload = _unpadded(flags, payload)
            self._block = (stream, flags, bytearray(payload[5 if flags & _PRIORITY else 0 :]))
            self._headers(flags)
        elif kind == Frame.CONTINUATION:
            if self._block is None or self._block[0] != stream:
                raise _Broken(Code.PROTOCOL_ERROR, "a header block goes on that had not begun")
            self._block[2].extend(payload)
            self._headers(flags)
        elif kind == Frame.SETTINGS:
            self._settings(flags, stream, payload)
        elif kind == Frame.WINDOW_UPDATE:
            self._opened(stream, payload)
        elif kind == Frame.PING:
            if len(payload) != 8 or stream:
                raise _Broken(Code.FRAME_SIZE_ERROR, "a ping of another form")
            if not flags & _ACK:
                self._write(_frame(Frame.PING, _ACK, 0, payload))
        elif kind == Frame.RST_STREAM:
            if not 0 < stream <= self._last:
                raise _Broken(Code.PROTOCOL_ERROR, "a stream is ended that had not begun")
            # What is under way goes on: a Binding that was sent cannot be called back.
            self._streams.pop(stream, None)
        elif kind == Frame.PUSH_PROMISE:
            raise _Broken(Code.PROTOCOL_ERROR, "clients promise nothing")
        # Others, PRIORITY and GOAWAY among them, ask nothing of a server.

    def _settings(self, flags: int, stream: int, payload: bytes) -> None:
        if stream or len(payload) % 6 or (flags & _ACK and payload):
            raise _Broken(Code.FRAME_SIZE_ERROR, "settings of another form")
        self._agreed = True
        if flags & _ACK:
            return
        for name, value in struct.iter_unpack(">HI", payload):
            if name == _INITIAL_WINDOW_SIZE:
                if value > _WINDOW:
                    raise _Broken(Code.FLOW_CONTROL_ERROR, "a window that is too large")
                for one in self._streams.values():
                    one.window += value - self._stream_window
                self._stream_window = value
            elif name == _MAX_FRAME_SIZE:
                if not _LEAST_FRAME <= value < 1 << 24:
                    raise _Broken(Code.PROTOCOL_ERROR, "a size of frames that there is not")
                self._frame = value
        self._write(_frame(Frame.SETTINGS, _ACK, 0, b""))
        self._send_rest()

    def _opened(self, stream: int, payload: bytes) -> None:
        more = int.from_bytes(payload, "big") & 0x7FFFFFFF
        if len(payload) != 4 or (more == 0 and stream == 0):
            raise _Broken(Code.PROTOCOL_ERROR, "a window that opens by nothing")
        if stream == 0:
            self._window += more
            if self._window > _WINDOW:
                raise _Broken(Code.FLOW_CONTROL_ERROR, "a window that is too large")
        elif (one := self._streams.get(stream)) is not None:
            one.window += more
            if more == 0 or one.window > _WINDOW:
                self._reset(stream, Code.FLOW_CONTROL_ERROR)
        elif stream > self._last:
            raise _Broken(Code.PROTOCOL_ERROR, "a window of a stream that had not begun")
        self._send_rest()

    # --- requests ------------------------------------------------------------

    def _headers(self, flags: int) -> None:
        """Take a header block when it is complete."""
        assert self._block is not None
        stream, first, block = self._block
        if len(block) > LIST_BYTES:
            raise _Broken(Code.ENHANCE_YOUR_CALM, "a header block that is too long")
        if not flags & _END_HEADERS:
            return
        self._block = None
        try:
            fields = dict(self._decoder.decode(bytes(block)))
        except ValueError as error:
            raise _Broken(Code.COMPRESSION_ERROR, str(error)) from error
        ended = bool(first & _END_STREAM)
        if stream <= self._last:
            # Trailers. After a reset they may still come.
            if stream in self._streams:
                self._ended(stream)
            return
        if not stream & 1:
            raise _Broken(Code.PROTOCOL_ERROR, "a stream that a server would begin")
        self._last = stream
        self._since = asyncio.get_running_loop().time()
        if len(self._streams) >= STREAMS:
            self._reset(stream, Code.REFUSED_STREAM)
            return
        path = fields.get(b":path", b"")
        self._streams[stream] = _Stream(path, self._stream_window, ended=ended)
        if not self._admitted:
            self._refuse(stream, 403, "not the scheduler's certificate")
        elif fields.get(b":method") != b"POST" or b"content-encoding" in fields:
            self._reset(stream, Code.HTTP_1_1_REQUIRED)
        elif path not in self._verbs.by_path:
            self._refuse(stream, 404, "no such path")
        elif ended:
            self._answer(stream)

    def _data(self, stream: int, flags: int, payload: bytes) -> None:
        self._taken += len(payload)
        if self._taken >= _TAKEN:
            self._write(_frame(Frame.WINDOW_UPDATE, 0, 0, self._taken.to_bytes(4, "big")))
            self._taken = 0
        if not 0 < stream <= self._last:
            raise _Broken(Code.PROTOCOL_ERROR, "data of a stream that had not begun")
        one = self._streams.get(stream)
        if one is None:
            return  # answered already, with a refusal
        if one.ended:
            raise _Broken(Code.STREAM_CLOSED, "data after the end")
        part = _unpadded(flags, payload) if one.rest is None else b""
        one.size += len(part)
        if one.size > self._verbs.most:
            self._refuse(stream, 413, f"a body of more than {self._verbs.most} bytes")
            return
        if part:
            one.parts.append(part)
        if flags & _END_STREAM:
            self._ended(stream)

    def _ended(self, stream: int) -> None:
        one = self._streams[stream]
        if one.ended:
            raise _Broken(Code.STREAM_CLOSED, "a second end")
        one.ended = True
        if one.rest is None:
            self._answer(stream)

    def _refuse(self, stream: int, status: int, why: str) -> None:
        self._send(stream, Answer(f"{why}\n".encode(), status, "text/plain"))

    def _answer(self, stream: int) -> None:
        one = self._streams[stream]
        body = one.parts[0] if len(one.parts) == 1 else b"".join(one.parts)
        one.parts.clear()
        path = one.path.decode()
        try:
            found = self._verbs.by_path[one.path](body)
        except Exception:
            log.exception("%s failed", path)
            found = self._verbs.fault(path)
        if isinstance(found, Answer):
            self._send(stream, found)
        else:
            task = asyncio.ensure_future(self._wait(stream, path, found))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    async def _wait(self, stream: int, path: str, coming: Awaitable[Answer]) -> None:
        try:
            found = await coming
        except Exception:
            log.exception("%s failed", path)
            found = self._verbs.fault(path)
        if stream in self._streams:
            self._send(stream, found)

    # --- answers ---------------------------------------------------------------

    def _send(self, stream: int, answer: Answer) -> None:
        one = self._streams[stream]
        kind = f"{answer.content_type}; charset=utf-8"
        block = answer_block(answer.status, kind, len(answer.body), date())
        self._since = asyncio.get_running_loop().time()
        one.rest = memoryview(answer.body)
        self._write(_frame(Frame.HEADERS, _END_HEADERS, stream, block) + self._more(stream, one))

    def _send_rest(self) -> None:
        """Send what the peer's windows let through now."""
        for stream, one in list(self._streams.items()):
            if one.rest is not None and min(self._window, one.window) > 0:
                self._write(self._more(stream, one))

    def _more(self, stream: int, one: _Stream) -> bytes:
        """Return the next frames of an answer; what is complete is forgotten."""
        assert one.rest is not None
        frames = []
        while True:
            size = min(len(one.rest), self._frame, max(0, self._window), max(0, one.window))
            last = size == len(one.rest)
            if not size and not last:
                break
            frames.append(_frame(Frame.DATA, last, stream, bytes(one.rest[:size])))
            self._window -= size
            one.window -= size
            one.rest = one.rest[size:]
            if last:
                del self._streams[stream]
                if not one.ended:  # nobody reads what is still coming
                    frames.append(_reset(stream, Code.NO_ERROR))
                break
        return b"".join(frames)

    def _reset(self, stream: int, code: Code) -> None:
        self._streams.pop(stream, None)
        self._write(_reset(stream, code))

    def _write(self, raw: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(raw)

    # --- the ends ------------------------------------------------------------

    def _leave(self, code: Code) -> None:
        """Say up to which stream requests were taken, and close."""
        self._write(_frame(Frame.GOAWAY, 0, 0, struct.pack(">II", self._last, code)))
        if self._transport is not None:
            self._transport.close()
            self._transport = None

    def _watch(self) -> None:
        """Close the connection when it has been idle, or a request incomplete, too long."""
        loop = asyncio.get_running_loop()
        begun = any(not one.ended for one in self._streams.values())
        allowed = REQUEST_S if begun or not self._agreed else IDLE_S
        if not self.tasks and loop.time() - self._since >= allowed:
            self._timer = None
            self.close()
            return
        self._timer = loop.call_later(REQUEST_S / 2, self._watch)


def _frame(kind: Frame, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">IBI", len(payload) << 8 | kind, flags, stream) + payload


def _reset(stream: int, code: Code) -> bytes:
    return _frame(Frame.RST_STREAM, 0, stream, code.to_bytes(4, "big"))


def _unpadded(flags: int, payload: bytes) -> bytes:
    if not flags & _PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise _Broken(Code.PROTOCOL_ERROR, "more padding than there is")
    return payload[1 : len(payload) - payload[0]]
