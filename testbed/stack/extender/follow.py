"""Follow a collection: list once, then watch, and start anew when the watch is lost."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any, Protocol

from testbed.errors import ClusterError
from testbed.stack.extender.api import ApiError

log = logging.getLogger(__name__)

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 5.0


class Source(Protocol):
    async def list(self, path: str, take: Callable[[list[Any]], None], item: Any) -> str: ...

    def watch(self, path: str, version: str) -> AsyncIterator[dict[str, Any]]: ...


class Follower:
    """Tells of each object of a collection that appears, changes or goes.

    Args:
        source: Lists and watches.
        path: The collection.
        identify: Names an object.
        held: Returns the names of the objects of which anything is known; those that a new
            list lacks are told as gone. Asked before the list, so that it must have them.
        changed: Called with the object.
        gone: Called with its name.
        synced: Called after each complete list.
        item: What objects of a list are decoded to.
    """

    def __init__(
        self,
        source: Source,
        path: str,
        *,
        identify: Callable[[Mapping[str, Any]], str],
        held: Callable[[], Iterable[str]],
        changed: Callable[[Mapping[str, Any]], None],
        gone: Callable[[str], None],
        synced: Callable[[], None],
        item: Any = dict,
    ) -> None:
        self._source = source
        self._path = path
        self._identify = identify
        self._held = held
        self._changed = changed
        self._gone = gone
        self._synced = synced
        self._item = item
        self._version = ""
        self._anew = False
        self._following: asyncio.Future[None] | None = None

    async def run(self) -> None:
        """Follow until cancelled."""
        while True:
            self._following = asyncio.ensure_future(self._follow())
            try:
                await self._following
            except asyncio.CancelledError:
                self._following.cancel()
                if not self._anew:
                    raise
                self._anew = False
                self._version = ""

    def anew(self) -> None:
        """List again, whatever the watch has told: its news may be older than others'."""
        self._version = ""
        if self._following is not None:
            self._anew = True
            self._following.cancel()

    async def _follow(self) -> None:
        pause = _FIRST_PAUSE_S
        while True:
            try:
                if not self._version:
                    await self._list()
                async for event in self._source.watch(self._path, self._version):
                    pause = _FIRST_PAUSE_S
                    self._take(event)
            except ClusterError as error:
                if isinstance(error, ApiError) and error.status == 410:
                    self._version = ""  # too old: what was missed cannot be watched
                    log.info("%s: listing anew", self._path)
                    continue
                log.warning("%s (again in %.1f s)", error.text(), pause)
                await asyncio.sleep(pause * random.uniform(0.8, 1.2))
                pause = min(2 * pause, _LONGEST_PAUSE_S)

    async def _list(self) -> None:
        missing = set(self._held())

        def take(items: list[Any]) -> None:
            for item in items:
                if missing:
                    missing.discard(self._identify(item))
                self._changed(item)

        version = await self._source.list(self._path, take, self._item)
        for name in missing:
            self._gone(name)
        self._version = version
        self._synced()

    def _take(self, event: Mapping[str, Any]) -> None:
        kind, item = event.get("type"), event.get("object") or {}
        if kind == "ERROR":
            # The watch's own way to say that its version is gone, or that it failed.
            raise ApiError(
                f"watch {self._path}", int(item.get("code") or 500), str(item.get("message"))
            )
        if kind in ("ADDED", "MODIFIED"):
            self._changed(item)
        elif kind == "DELETED":
            self._gone(self._identify(item))
        version = (item.get("metadata") or {}).get("resourceVersion")
        if version:
            self._version = str(version)
