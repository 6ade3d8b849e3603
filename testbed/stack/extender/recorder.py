"""Events on pods, written beside the path of filter and bind, never in it.

A waiting pod has one event a reason, which is counted up and gets the newest words,
not one for every attempt of the scheduler.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from testbed.errors import ClusterError
from testbed.stack.extender.api import ApiError
from testbed.stack.model import PodKey

log = logging.getLogger(__name__)

COMPONENT = "vgpu-extender"
#: The same words about the same pod are not repeated within this time, other words are
#: not written more often than that.
REPEAT_S, CHANGE_S = 60.0, 5.0
_KEPT = 10_000
_LONGEST = 1024  # the API server's bound on an event's message


class EventApi(Protocol):
    """The calls that events need."""

    async def create_event(self, namespace: str, event: dict[str, Any]) -> None: ...

    async def patch_event(self, namespace: str, name: str, patch: dict[str, Any]) -> None: ...


@dataclass(slots=True, kw_only=True)
class _Said:
    """An event of a pod for a reason."""

    pod: PodKey
    reason: str
    message: str
    kind: str
    count: int = 0
    first: str = ""
    written: float | None = None
    pending: bool = False


class Recorder:
    """Queues events and writes them one after another; drops them where it must."""

    def __init__(self, api: EventApi, clock: Callable[[], float]) -> None:
        self._api = api
        self._clock = clock
        self._said: OrderedDict[tuple[str, str], _Said] = OrderedDict()
        self._queue: list[_Said] = []
        self._wakeup = asyncio.Event()

    def report(self, pod: PodKey, reason: str, message: str, kind: str = "Warning") -> bool:
        """Queue an event; False if it is a repetition."""
        now = self._clock()
        key = (pod.uid, reason)
        said = self._said.get(key)
        if said is None:
            said = self._said[key] = _Said(pod=pod, reason=reason, message="", kind=kind)
            if len(self._said) > _KEPT:
                self._said.popitem(last=False)
        changed = said.message != message
        said.count += 1
        said.message = message
        if said.written is not None:
            age = now - said.written
            if age < (CHANGE_S if changed else REPEAT_S):
                return False
        if said.pending:
            return False
        said.pending = True
        said.written = now
        self._queue.append(said)
        self._wakeup.set()
        return True

    def forget(self, uid: str) -> None:
        """Forget what was said of a pod that is gone."""
        for key in [key for key in self._said if key[0] == uid]:
            del self._said[key]

    async def run(self) -> None:
        """Write events until cancelled."""
        while True:
            await self._wakeup.wait()
            self._wakeup.clear()
            while self._queue:
                said = self._queue.pop(0)
                said.pending = False
                try:
                    await self._write(said)
                except ClusterError as error:
                    log.debug("event not written: %s", error.text())

    async def _write(self, said: _Said) -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        if said.first:
            patch = {
                "message": said.message[:_LONGEST], "count": said.count, "lastTimestamp": now,
            }  # fmt: skip
            try:
                await self._api.patch_event(said.pod.namespace, _name(said), patch)
            except ApiError as error:
                if error.status != 404:
                    raise
            else:
                return
        said.first = now
        body = event(said.pod, said.reason, said.message, kind=said.kind, now=now)
        body["metadata"]["name"] = _name(said)
        body["count"] = said.count
        try:
            await self._api.create_event(said.pod.namespace, body)
        except ApiError as error:
            if error.status != 409:
                raise
            # An earlier process of ours has said it.
            patch = {"message": said.message[:_LONGEST], "lastTimestamp": now}
            await self._api.patch_event(said.pod.namespace, _name(said), patch)


def _name(said: _Said) -> str:
    key = hashlib.sha256(f"{said.pod.uid} {said.reason}".encode()).hexdigest()[:16]
    return f"{said.pod.name[:200]}.{key}"


def event(
    pod: PodKey, reason: str, message: str, *, kind: str = "Warning", now: str = ""
) -> dict[str, Any]:
    """Return the Event object, without its name."""
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"namespace": pod.namespace},
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": pod.namespace,
            "name": pod.name,
            "uid": pod.uid,
        },
        "type": kind,
        "reason": reason,
        "message": message[:_LONGEST],
        "source": {"component": COMPONENT},
        "reportingComponent": COMPONENT,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
