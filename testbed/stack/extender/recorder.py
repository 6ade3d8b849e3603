"""Events on pods, written beside the path of filter and bind, never in it."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

from testbed.errors import ClusterError
from testbed.stack.model import PodKey

log = logging.getLogger(__name__)

COMPONENT = "vgpu-extender"
#: The same word about the same pod is not repeated within this time.
REPEAT_S = 60.0
_WAITING = 1000
_LONGEST = 1024  # the API server's bound on an event's message


class Recorder:
    """Queues events and writes them one after another; drops them where it must."""

    def __init__(
        self,
        create: Callable[[str, dict[str, Any]], Awaitable[None]],
        clock: Callable[[], float],
    ) -> None:
        self._create = create
        self._clock = clock
        self._queue: asyncio.Queue[tuple[str, dict[str, Any]]] = asyncio.Queue(_WAITING)
        self._said: dict[tuple[str, str, str], float] = {}

    def report(self, pod: PodKey, reason: str, message: str) -> bool:
        """Queue a warning event; False if it is a repetition."""
        now = self._clock()
        key = (pod.uid, reason, message)
        if now - self._said.get(key, -REPEAT_S) < REPEAT_S:
            return False
        if len(self._said) > 10 * _WAITING:
            self._said = {k: t for k, t in self._said.items() if now - t < REPEAT_S}
        self._said[key] = now
        try:
            self._queue.put_nowait((pod.namespace, event(pod, reason, message)))
        except asyncio.QueueFull:
            log.debug("event dropped: %s %s", pod, reason)
        return True

    async def run(self) -> None:
        """Write events until cancelled."""
        while True:
            namespace, body = await self._queue.get()
            try:
                await self._create(namespace, body)
            except ClusterError as error:
                log.debug("event not written: %s", error.text())


def event(pod: PodKey, reason: str, message: str) -> dict[str, Any]:
    """Return the Event object."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": f"{pod.name[:200]}.{uuid.uuid4().hex[:16]}",
            "namespace": pod.namespace,
        },
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": pod.namespace,
            "name": pod.name,
            "uid": pod.uid,
        },
        "type": "Warning",
        "reason": reason,
        "message": message[:_LONGEST],
        "source": {"component": COMPONENT},
        "reportingComponent": COMPONENT,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
