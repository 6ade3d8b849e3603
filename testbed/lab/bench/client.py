"""Who asks the extender in a bench: one connection with the scheduler's certificate.

Bare, since the extender is measured and not its client: a request goes out in one piece
and of an answer only what is needed is read. ``Client`` speaks HTTP/1.1, ``Client2``
HTTP/2 as kube-scheduler does.
"""

from __future__ import annotations

import socket
import ssl
import struct
from typing import Protocol

from hpack import Decoder, Encoder

from testbed.errors import ClusterError

_ANSWER_S = 30.0
_READ_BYTES = 256 << 10

# RFC 9113: a frame's head is length, kind, flags, stream.
_HEAD_BYTES = 9
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GOAWAY, _WINDOW = 0, 1, 3, 4, 6, 7, 8
_END_STREAM = _ACK = 1
_END_HEADERS = 4
_ENABLE_PUSH, _INITIAL_WINDOW, _MAX_FRAME, _MAX_LIST = 2, 4, 5, 6
#: As Go's client does (golang.org/x/net/http2, transport.go): windows of 1 GiB and 4 MiB,
#: an update for every read of 4 KiB or more, frames of 16 KiB taken, 10 MiB of fields.
_CONNECTION_WINDOW, _STREAM_WINDOW, _REFRESH = 1 << 30, 4 << 20, 4 << 10
_LIST_BYTES = 10 << 20


class Asking(Protocol):
    """A connection to the extender."""

    def post(self, path: str, body: bytes) -> bytes:
        """Return the answer.

        Raises:
            ClusterError: it is no 200, or none comes.
        """
        ...

    def close(self) -> None: ...


def connect(port: int, context: ssl.SSLContext, protocol: str) -> Asking:
    """Return a connection to a port of loopback.

    Args:
        port: Where somebody listens.
        context: The scheduler's.
        protocol: ``h2`` or ``http/1.1``.

    Raises:
        ClusterError: nobody speaks the protocol there.
    """
    context.set_alpn_protocols([protocol])
    plain = socket.create_connection(("127.0.0.1", port), timeout=_ANSWER_S)
    # Nagle's algorithm and delayed acknowledgements would cost 40 ms a request.
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection = context.wrap_socket(plain, server_hostname="127.0.0.1")
    if protocol != "h2":
        return Client(connection)
    if connection.selected_alpn_protocol() != "h2":
        connection.close()
        raise ClusterError(f"port {port} does not speak h2")
    return Client2(connection)


class Client:
    """HTTP/1.1."""

    def __init__(self, connection: ssl.SSLSocket) -> None:
        self._connection = connection

    def post(self, path: str, body: bytes) -> bytes:
        head = (
            f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: bench\r\n"
            f"Content-Length: {len(body)}\r\nContent-Type: application/json\r\n"
            "Accept-Encoding: gzip\r\n\r\n"
        )
        self._connection.sendall(head.encode() + body)
        found, end = b"", -1
        while end < 0:
            found += _received(self._connection, path)
            end = found.find(b"\r\n\r\n")
        line, *fields = found[:end].decode("latin-1").split("\r\n")
        known = {name.lower(): value for name, _, value in (f.partition(": ") for f in fields)}
        parts, have = [found[end + 4 :]], len(found) - end - 4
        while have < int(known["content-length"]):
            parts.append(_received(self._connection, path))
            have += len(parts[-1])
        raw = b"".join(parts)
        _check(path, line.split()[1], raw)
        return raw

    def close(self) -> None:
        self._connection.close()


class Client2:
    """HTTP/2: one stream after the other, the windows and updates those of Go's client.

    The extender's windows are not counted: it opens them again long before a request fills
    one.
    """

    def __init__(self, connection: ssl.SSLSocket) -> None:
        self._connection = connection
        self._encoder, self._decoder = Encoder(), Decoder(_LIST_BYTES)
        self._stream = -1
        self._have = bytearray()
        self._most = 16 << 10  # largest frame that the peer takes
        settings = struct.pack(
            ">HIHIHI", _ENABLE_PUSH, 0, _INITIAL_WINDOW, _STREAM_WINDOW, _MAX_LIST, _LIST_BYTES
        )
        connection.sendall(
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
            + _frame(_SETTINGS, 0, 0, settings)
            + _frame(_WINDOW, 0, 0, struct.pack(">I", _CONNECTION_WINDOW))
        )
        # The peer's settings are its first frame: the first body is cut by them already.
        kind, _, _, payload = self._next("the connection")
        if kind != _SETTINGS:
            raise ClusterError("the extender does not begin with its settings")
        self._agree(payload)

    def post(self, path: str, body: bytes) -> bytes:
        self._stream += 2
        self._connection.sendall(self._request(path, body))
        status, parts, ended = "", [], False
        unsent = 0
        while not ended:
            kind, flags, stream, payload = self._next(path)
            if kind == _SETTINGS and not flags & _ACK:
                self._agree(payload)
            elif kind == _PING and not flags & _ACK:
                self._connection.sendall(_frame(_PING, _ACK, 0, payload))
            elif kind == _GOAWAY or (kind == _RESET and stream == self._stream):
                raise ClusterError(f"{path} gets no answer", why=f"frame {kind}: {payload.hex()}")
            elif stream != self._stream:
                continue
            elif kind == _HEADERS:
                # The extender's heads fit in a frame; a trailer would overwrite the status.
                fields = dict(self._decoder.decode(payload, raw=True))
                status = fields[b":status"].decode()
                ended = bool(flags & _END_STREAM)
            elif kind == _DATA:
                parts.append(payload)
                ended = bool(flags & _END_STREAM)
                unsent += len(payload)
                if unsent >= _REFRESH:
                    update = struct.pack(">I", unsent)
                    self._connection.sendall(
                        _frame(_WINDOW, 0, 0, update) + _frame(_WINDOW, 0, stream, update)
                    )
                    unsent = 0
        raw = b"".join(parts)
        _check(path, status, raw)
        return raw

    def _request(self, path: str, body: bytes) -> bytes:
        fields = [
            (b":authority", b"127.0.0.1"),
            (b":method", b"POST"),
            (b":path", path.encode()),
            (b":scheme", b"https"),
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"accept-encoding", b"gzip"),
            (b"user-agent", b"bench"),
        ]
        flags = _END_HEADERS if body else _END_HEADERS | _END_STREAM
        parts = [_frame(_HEADERS, flags, self._stream, self._encoder.encode(fields))]
        for begin in range(0, len(body), self._most):
            end = begin + self._most
            last = _END_STREAM if end >= len(body) else 0
            parts.append(_frame(_DATA, last, self._stream, body[begin:end]))
        return b"".join(parts)

    def _next(self, path: str) -> tuple[int, int, int, bytes]:
        """Return kind, flags, stream and payload of the next frame."""
        have = self._have
        while len(have) < _HEAD_BYTES:
            have += _received(self._connection, path)
        size, kind = int.from_bytes(have[:3], "big"), have[3]
        flags, stream = have[4], int.from_bytes(have[5:9], "big")
        while len(have) < _HEAD_BYTES + size:
            have += _received(self._connection, path)
        payload = bytes(have[_HEAD_BYTES : _HEAD_BYTES + size])
        del have[: _HEAD_BYTES + size]
        return kind, flags, stream, payload

    def _agree(self, payload: bytes) -> None:
        for key, value in struct.iter_unpack(">HI", payload):
            if key == _MAX_FRAME:
                self._most = value
        self._connection.sendall(_frame(_SETTINGS, _ACK, 0, b""))

    def close(self) -> None:
        self._connection.close()


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return (
        struct.pack(">HBBBI", len(payload) >> 8, len(payload) & 255, kind, flags, stream) + payload
    )


def _received(connection: ssl.SSLSocket, path: str) -> bytes:
    part = connection.recv(_READ_BYTES)
    if not part:
        raise ClusterError(f"{path} gets no answer", why="the extender hung up")
    return part


def _check(path: str, status: str, raw: bytes) -> None:
    if status != "200":
        raise ClusterError(f"{path} answers {status}", why=raw.decode(errors="replace")[:500])
