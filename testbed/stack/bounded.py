"""Connections that a server cannot hold by answering a byte at a time.

A socket's timeout bounds each read; http.client needs many of them for an answer's head,
so a server that drips would keep its caller for hours. Here the head as a whole has the
time that the connection's timeout gives; whoever reads the body minds the time itself.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.response import HTTPResponse


@contextlib.contextmanager
def _ended_after(connection: HTTPConnection) -> Iterator[None]:
    """End a connection if its timeout passes in here: whoever reads from it then fails."""
    seconds, sock = connection.timeout, connection.sock
    if sock is None or not isinstance(seconds, (int, float)):
        yield
        return

    def end() -> None:
        with contextlib.suppress(OSError):
            # Of a TLS socket, too, the connection below: another thread is reading.
            socket.socket.shutdown(sock, socket.SHUT_RDWR)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class _Plain(HTTPConnection):
    def getresponse(self) -> HTTPResponse:  # type: ignore[override]
        with _ended_after(self):
            return super().getresponse()


class _Tls(HTTPSConnection):
    def getresponse(self) -> HTTPResponse:  # type: ignore[override]
        with _ended_after(self):
            return super().getresponse()


class _PlainPool(urllib3.HTTPConnectionPool):
    ConnectionCls = _Plain


class _TlsPool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _Tls


def bound(manager: urllib3.PoolManager) -> None:
    """Have a manager's future connections wait for a head no longer than their timeout."""
    manager.pool_classes_by_scheme = {"http": _PlainPool, "https": _TlsPool}
