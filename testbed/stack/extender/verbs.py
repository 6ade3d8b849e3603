"""What answers the scheduler, and what a connection must know about it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from time import time

from aiohttp import web

#: HTTP/2 as TLS names it (ALPN).
HTTP2 = "h2"
#: A request that has begun must have arrived after this: the scheduler waits no longer.
REQUEST_S = 30.0
#: Go's clients close idle connections after 90 s; who closes first loses requests.
IDLE_S = 120.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What a verb answers."""

    body: bytes
    status: int = 200
    content_type: str = "application/json"


Verb = Callable[[bytes], Answer | Awaitable[Answer]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verbs:
    """The verbs of a port.

    Attributes:
        by_path: What answers a body, by the path it is posted to.
        fault: The answer where a verb raises, by path.
        most: Largest body, bytes.
        admits: Tells by a peer's certificate whether it may call.
        connections: How many were taken, by protocol.
    """

    by_path: Mapping[bytes, Verb]
    fault: Callable[[str], Answer]
    most: int
    admits: Callable[[asyncio.BaseTransport], bool]
    connections: Counter[str] = field(default_factory=Counter)


VERBS = web.AppKey("verbs", Verbs)

_stamp: tuple[int, str] = (0, "")


def date() -> str:
    """Return the time as a ``Date`` field says it."""
    global _stamp
    now = int(time())
    if _stamp[0] != now:
        _stamp = (now, formatdate(now, usegmt=True))
    return _stamp[1]
