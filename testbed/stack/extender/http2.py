"""The scheduler's verbs over HTTP/2 (RFC 9113): streams to verbs, by the library ``h2``.

kube-scheduler offers it to every extender that is called by HTTPS. Over HTTP/1.1 it keeps
two connections, so that each burst of binds, which wait for the API server side by side,
opens new ones: a handshake with two certificates costs either side more than a decision.
Here all of them are streams of one connection.

The library reads and writes frames and header blocks and keeps the rules of the protocol:
who breaks them loses the connection. Here is what a verb needs: which stream asks what,
what was not sent yet, how long a peer may take, how much it may have under way. Another
method than POST is told to come by HTTP/1.1, where aiohttp answers.

To import it takes a thirtieth of a second, so ``rim`` does when a peer first speaks it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, cast

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    RemoteSettingsChanged,
    RequestReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
    WindowUpdated,
)
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes, Settings
from h2.utilities import HeaderValidationFlags, validate_headers
from hpack import Encoder
from hyperframe.frame import Frame

from testbed.stack.extender.verbs import IDLE_S, REQUEST_S, Answer, Verbs, date

log = logging.getLogger(__name__)

#: Largest frame that is taken: a filter request of 5,000 nodes is one. The library keeps
#: 64 of them while a header block is incomplete.
FRAME_BYTES = 128 << 10
#: What is read at one time: such a request, and some.
_BUFFER_BYTES = 160 << 10
#: A pod that waits for its node's turn is a stream; beyond that Go opens a connection more.
#: Of what waits also as many, since a stream that its peer resets ends and its bind does not.
STREAMS = 2000
#: Longest list of fields, as RFC 7541 counts it: a byte may stand for a whole entry.
LIST_BYTES = 64 << 10
_WINDOW = (1 << 31) - 1
_FIRST_WINDOW = 65_535

#: Lists of fields of which a connection remembers that they keep the rules: a scheduler's
#: requests have the same ones again and again, but for the length.
_KEPT_LISTS = 8
_REQUEST = HeaderValidationFlags(
    is_client=False, is_trailer=False, is_response_header=False, is_push_promise=False
)
_TRAILER = _REQUEST._replace(is_trailer=True)
_LENGTH = b"content-length"

# h2 makes a text of every frame it reads, for a log that is off (4.4.1); the text of a body
# is all of it in hexadecimal, which takes longer than all else that the frame needs.
Frame.__repr__ = object.__repr__  # type: ignore[method-assign]

Fields = Iterable[tuple[bytes, bytes]]


class _Encoder(Encoder):
    """Writes each field for itself, so that what was written once can be taken again.

    None is put into the table that both sides keep: an answer's are few, and half of them
    are other ones each time.
    """

    def encode(self, headers: Any, huffman: bool = True) -> bytes:
        # The peer may have changed the table's size, which is to be told.
        told = super().encode((), huffman) if self.header_table.resized else b""
        return told + b"".join([_written(name, value) for name, value in headers])


@lru_cache(maxsize=256)
def _written(name: bytes, value: bytes) -> bytes:
    return Encoder().encode([(name, value, True)])


class _Connection(H2Connection):
    #: Of so many streams it knows how they ended, for what may still come of them.
    MAX_CLOSED_STREAMS = 2 * STREAMS


@dataclass(slots=True)
class _Stream:
    """A request and its answer."""

    path: bytes
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
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._http = _http()
        self._agreed = False
        self._valid: deque[tuple[object, ...]] = deque(maxlen=_KEPT_LISTS)
        self._streams: dict[int, _Stream] = {}
        #: What is under way; also for streams that the peer has given up.
        self.tasks: set[asyncio.Future[None]] = set()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._since = 0.0

    # --- what the transport tells ------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._open.add(self)
        self._since = asyncio.get_running_loop().time()
        self._http.initiate_connection()
        self._http.increment_flow_control_window(_WINDOW - _FIRST_WINDOW)
        self._flush()
        self._watch()

    def connection_lost(self, exc: BaseException | None) -> None:  # noqa: ARG002
        self._open.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        self._transport = None

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._transport is None:
            return
        try:
            events = self._http.receive_data(self._buffer[:nbytes])
        except ProtocolError as error:
            log.warning("a connection breaks HTTP/2: %s", error)
            self._http.clear_outbound_data_buffer()  # which says so already, or not
            self._leave(error.error_code)
            return
        try:
            for event in events:
                self._take(event)
        except ProtocolError as error:
            log.warning("a connection breaks HTTP/2: %s", error)
            self._leave(error.error_code)
            return
        self._flush()

    def pause_writing(self) -> None:
        # Who does not read its answers gets no more of them.
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()

    def close(self) -> None:
        self._leave(ErrorCodes.NO_ERROR)

    # --- requests ------------------------------------------------------------

    def _take(self, event: Event) -> None:
        if isinstance(event, DataReceived):
            self._data(event)
        elif isinstance(event, RequestReceived):
            self._request(event)
        elif isinstance(event, StreamEnded):
            self._ended(event.stream_id)
        elif isinstance(event, WindowUpdated):
            self._send_rest(event.stream_id)
        elif isinstance(event, RemoteSettingsChanged):
            self._agreed = True
            self._send_rest(0)
        elif isinstance(event, StreamReset):
            # What is under way goes on: a Binding that was sent cannot be called back.
            self._streams.pop(event.stream_id, None)
        elif isinstance(event, TrailersReceived):
            self._check(event.headers, _TRAILER)
        elif isinstance(event, ConnectionTerminated):
            self._leave(ErrorCodes.NO_ERROR)  # the library sends nothing any more
        # Others ask nothing of a server, or the library answers.

    def _check(self, fields: Fields, what: HeaderValidationFlags) -> None:
        """Have the library check a list of fields; those that were checked are remembered.

        A length is checked by the library before, wherever it stands.

        Raises:
            ProtocolError: it breaks a rule.
        """
        said = (what, *[one if one[0] != _LENGTH else _LENGTH for one in fields])
        if said not in self._valid:
            deque(validate_headers(fields, what), maxlen=0)
            self._valid.append(said)

    def _request(self, event: RequestReceived) -> None:
        self._check(event.headers, _REQUEST)
        stream, fields = event.stream_id, dict(event.headers)
        self._since = asyncio.get_running_loop().time()
        if len(self.tasks) >= STREAMS:
            self._reset(stream, ErrorCodes.REFUSED_STREAM)
            return
        path = fields[b":path"]
        self._streams[stream] = _Stream(path)
        if not self._admitted:
            self._refuse(stream, 403, "not the scheduler's certificate")
        elif fields[b":method"] != b"POST" or b"content-encoding" in fields:
            self._reset(stream, ErrorCodes.HTTP_1_1_REQUIRED)
        elif path not in self._verbs.by_path:
            self._refuse(stream, 404, "no such path")

    def _data(self, event: DataReceived) -> None:
        stream, part = event.stream_id, event.data
        self._http.acknowledge_received_data(event.flow_controlled_length, stream)
        one = self._streams.get(stream)
        if one is None or one.rest is not None:
            return  # answered already, with a refusal
        one.size += len(part)
        if one.size > self._verbs.most:
            self._refuse(stream, 413, f"a body of more than {self._verbs.most} bytes")
        elif part:
            one.parts.append(part)

    def _ended(self, stream: int) -> None:
        one = self._streams.get(stream)
        if one is None:
            return
        one.ended = True
        if one.rest is not None:
            return
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
            self._flush()
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
            self._flush()

    # --- answers ---------------------------------------------------------------

    def _refuse(self, stream: int, status: int, why: str) -> None:
        self._send(stream, Answer(f"{why}\n".encode(), status, "text/plain"))

    def _send(self, stream: int, answer: Answer) -> None:
        self._since = asyncio.get_running_loop().time()
        fields = [
            (b":status", b"%d" % answer.status),
            (b"content-type", f"{answer.content_type}; charset=utf-8".encode()),
            (b"content-length", b"%d" % len(answer.body)),
            (b"date", date().encode()),
        ]
        try:
            self._http.send_headers(stream, fields)
        except ProtocolError:  # its reset was read together with the request
            del self._streams[stream]
            return
        self._streams[stream].rest = memoryview(answer.body)
        self._more(stream)

    def _send_rest(self, stream: int) -> None:
        """Send what the peer's windows let through now; of all streams if it is 0."""
        for name in list(self._streams) if stream == 0 else (stream,):
            one = self._streams.get(name)
            if one is not None and one.rest is not None:
                self._more(name)

    def _more(self, stream: int) -> None:
        """Send the next frames of an answer; what is complete is forgotten."""
        one, http = self._streams[stream], self._http
        assert one.rest is not None
        try:
            while True:
                room = min(http.max_outbound_frame_size, http.local_flow_control_window(stream))
                last = len(one.rest) <= room
                if not last and room <= 0:
                    return
                http.send_data(stream, one.rest[:room], end_stream=last)
                one.rest = one.rest[room:]
                if last:
                    break
        except ProtocolError:  # as above
            del self._streams[stream]
            return
        if one.ended:
            del self._streams[stream]
        else:  # nobody reads what is still coming
            self._reset(stream, ErrorCodes.NO_ERROR)

    def _reset(self, stream: int, code: ErrorCodes) -> None:
        self._streams.pop(stream, None)
        with contextlib.suppress(ProtocolError):  # it is reset already
            self._http.reset_stream(stream, code)

    def _flush(self) -> None:
        raw = self._http.data_to_send()
        if raw and self._transport is not None and not self._transport.is_closing():
            self._transport.write(raw)

    # --- the ends ------------------------------------------------------------

    def _leave(self, code: int) -> None:
        """Say up to which stream requests were taken, and close."""
        if self._transport is not None:
            self._http.close_connection(code)
            self._flush()
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


def _http() -> H2Connection:
    http = _Connection(
        H2Configuration(
            client_side=False, validate_outbound_headers=False, normalize_outbound_headers=False,
            # Checked by ``_check``; cookies are nobody's here.
            validate_inbound_headers=False, normalize_inbound_headers=False,
        )
    )  # fmt: skip
    http.encoder = _Encoder()
    http.local_settings = Settings(
        client=False,
        initial_values={
            SettingCodes.MAX_CONCURRENT_STREAMS: STREAMS,
            SettingCodes.INITIAL_WINDOW_SIZE: _WINDOW,
            SettingCodes.MAX_FRAME_SIZE: FRAME_BYTES,
            SettingCodes.MAX_HEADER_LIST_SIZE: LIST_BYTES,
        },
    )
    http.max_inbound_frame_size = FRAME_BYTES
    return http
