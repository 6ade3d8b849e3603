"""HAMi's lock of a node, ``hami.io/mutex.lock``, for mixed operation with its plugin.

The value is ``RFC3339,namespace,pod`` (older writers: the time alone). HAMi's plugin
serves the pod that owns the lock and takes the lock away when all is allocated. A lock
is stale after some minutes, or when its owner is gone or has ended (HAMi #1130, #3047);
nobody but the owner gives it back (HAMi #810).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from testbed.errors import InputError
from testbed.stack import names
from testbed.stack.extender.api import AnswerLost, ApiError
from testbed.stack.model import PodKey

#: How often, and how far apart, a lock is tried that somebody else changed meanwhile.
_TRIES, _PAUSE_S = 5, 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLock:
    """A lock as it stands on a node.

    Attributes:
        taken: Unix seconds; 0 where the time cannot be read.
        namespace, pod: The owner; empty in the older form.
    """

    taken: float
    namespace: str = ""
    pod: str = ""

    def owned_by(self, pod: PodKey) -> bool:
        return (self.namespace, self.pod) == (pod.namespace, pod.name)


def encode_lock(pod: PodKey, now: float) -> str:
    """Return the annotation's value."""
    when = datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return f"{when},{pod.namespace},{pod.name}"


def decode_lock(text: str) -> NodeLock | None:
    """Return the lock; None where there is none. An unreadable time is long over."""
    if not text.strip():
        return None
    when, _, owner = text.partition(",")
    namespace, _, pod = owner.partition(",")
    try:
        taken = datetime.fromisoformat(when.strip().replace("Z", "+00:00"))
        seconds = (taken if taken.tzinfo else taken.replace(tzinfo=UTC)).timestamp()
    except ValueError:
        seconds = 0.0
    return NodeLock(taken=seconds, namespace=namespace.strip(), pod=pod.strip())


class LockApi(Protocol):
    """The calls that locking needs."""

    async def read_node(self, name: str) -> dict[str, Any] | None: ...

    async def read_pod(self, namespace: str, name: str) -> dict[str, Any] | None: ...

    async def annotate_node(
        self, name: str, annotations: Mapping[str, str | None], version: str
    ) -> None: ...


class NodeLocks:
    """Takes and gives back locks of nodes."""

    def __init__(
        self,
        api: LockApi,
        *,
        lasts_s: float,
        wall: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        self._api = api
        self._lasts_s = lasts_s
        self._wall = wall
        self._sleep = sleep

    async def take(self, node: str, pod: PodKey) -> None:
        """Take a node's lock for a pod; one that it holds already is renewed.

        Raises:
            InputError: another pod holds it, the node is gone, or others were faster
                time and again.
            ClusterError: the API server does not answer.
        """
        lost: AnswerLost | None = None
        for _ in range(_TRIES):
            found = await self._api.read_node(node)
            if found is None:
                raise InputError(f"node {node} is gone")
            metadata = found.get("metadata") or {}
            lock = decode_lock((metadata.get("annotations") or {}).get(names.NODE_LOCK) or "")
            if lock is not None and not await self._free(lock, pod):
                owner = f"{lock.namespace}/{lock.pod}" if lock.pod else "somebody"
                raise InputError(f"node {node} is locked", why=f"{owner} holds {names.NODE_LOCK}")
            value = {names.NODE_LOCK: encode_lock(pod, self._wall())}
            try:
                await self._api.annotate_node(node, value, str(metadata.get("resourceVersion")))
            except AnswerLost as error:
                # It may be ours now, or become so: whoever holds it may take it again.
                lost = error
                await self._sleep(_PAUSE_S)
                continue
            except ApiError as error:
                if error.status != 409:
                    raise
                await self._sleep(_PAUSE_S)
                continue
            return
        if lost is not None:
            raise lost
        raise InputError(f"node {node} could not be locked", why="others were faster each time")

    async def give_back(self, node: str, pod: PodKey) -> None:
        """Give a lock back if this pod holds it.

        Raises:
            ClusterError: the API server does not answer.
        """
        lost: AnswerLost | None = None
        for _ in range(_TRIES):
            found = await self._api.read_node(node)
            metadata = (found or {}).get("metadata") or {}
            lock = decode_lock((metadata.get("annotations") or {}).get(names.NODE_LOCK) or "")
            if lock is None or not lock.owned_by(pod):
                return
            try:
                await self._api.annotate_node(
                    node, {names.NODE_LOCK: None}, str(metadata.get("resourceVersion"))
                )
            except AnswerLost as error:
                lost = error
                await self._sleep(_PAUSE_S)
                continue
            except ApiError as error:
                if error.status != 409:
                    raise
                await self._sleep(_PAUSE_S)
                continue
            return
        if lost is not None:
            raise lost

    async def _free(self, lock: NodeLock, pod: PodKey) -> bool:
        if lock.owned_by(pod) or self._wall() - lock.taken >= self._lasts_s:
            return True
        if not lock.pod:
            return False
        owner = await self._api.read_pod(lock.namespace, lock.pod)
        return owner is None or (owner.get("status") or {}).get("phase") in ("Succeeded", "Failed")
