"""The pods of the node, folded from list and watch."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from testbed.errors import CodecError
from testbed.stack import names
from testbed.stack.codec import decode_pod_shares
from testbed.stack.model import ContainerShares, PodKey, PodShares


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitoredPod:
    """One pod, as far as the monitor needs it.

    Attributes:
        runtime_ids: Names of containers by the runtime's ids.
        shares: What app containers were promised, by name.
        init_shares: The same for init containers, sidecars among them.
        started: Containers that the runtime has made and that have not ended.
    """

    key: PodKey
    finished: bool = False
    runtime_ids: Mapping[str, str]
    shares: Mapping[str, ContainerShares]
    init_shares: Mapping[str, ContainerShares] = field(default_factory=dict)
    started: frozenset[str] = frozenset()

    @property
    def promised(self) -> Mapping[str, ContainerShares]:
        """All shares by container; names are unique in a pod."""
        return {**self.init_shares, **self.shares}


def monitored_pod(item: dict[str, Any]) -> MonitoredPod:
    """Return what the monitor needs of a raw pod."""
    metadata, spec, status = item["metadata"], item["spec"], item.get("status") or {}
    text = (metadata.get("annotations") or {}).get(names.POD_ALLOCATED, "")
    inits = [container["name"] for container in spec.get("initContainers") or []]
    containers = [container["name"] for container in spec["containers"]]
    try:
        shares = decode_pod_shares(text, len(inits) + len(containers))
    except CodecError:
        shares = ()
    every = [
        *(status.get("containerStatuses") or []),
        *(status.get("initContainerStatuses") or []),
    ]
    return MonitoredPod(
        key=PodKey(namespace=metadata["namespace"], name=metadata["name"], uid=metadata["uid"]),
        finished=status.get("phase") in ("Succeeded", "Failed"),
        runtime_ids={
            state["containerID"].rsplit("/", 1)[-1]: state["name"]
            for state in every
            if state.get("containerID")
        },
        shares=_named(containers, shares[len(inits) :]),
        init_shares=_named(inits, shares[: len(inits)]),
        started=frozenset(
            state["name"] for state in every if "running" in (state.get("state") or {})
        ),
    )


def _named(names: Sequence[str], shares: PodShares) -> dict[str, ContainerShares]:
    return {name: share for name, share in zip(names, shares, strict=False) if share}


class PodIndex:
    """Pods by uid; names of pods that are gone are kept while samples may name them."""

    def __init__(self, *, keep_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._keep_s = keep_s
        self._clock = clock
        self._lock = threading.Lock()
        self._pods: dict[str, MonitoredPod] = {}
        self._gone: dict[str, tuple[float, PodKey]] = {}
        self.synced = False

    def replace(self, items: Iterable[dict[str, Any]]) -> None:
        """Take a complete list."""
        pods = {pod.key.uid: pod for pod in map(monitored_pod, items)}
        with self._lock:
            for uid in self._pods.keys() - pods.keys():
                self._bury(self._pods[uid].key)
            self._pods = pods
            self.synced = True

    def apply(self, event: str, item: dict[str, Any]) -> None:
        """Take one event of the watch."""
        pod = monitored_pod(item)
        with self._lock:
            if event == "DELETED":
                self._pods.pop(pod.key.uid, None)
                self._bury(pod.key)
            else:
                self._pods[pod.key.uid] = pod

    def alive(self) -> tuple[MonitoredPod, ...]:
        """Return the pods that have not ended, by namespace and name."""
        with self._lock:
            pods = [pod for pod in self._pods.values() if not pod.finished]
        return tuple(sorted(pods, key=lambda pod: str(pod.key)))

    def key(self, uid: str) -> PodKey | None:
        """Return a pod's names, also for a while after it has gone."""
        with self._lock:
            if uid in self._pods:
                return self._pods[uid].key
            gone = self._gone.get(uid)
            return gone[1] if gone else None

    def container_name(self, uid: str, runtime_id: str) -> str:
        """Return the container of a runtime's id, or nothing."""
        with self._lock:
            pod = self._pods.get(uid)
            return pod.runtime_ids.get(runtime_id, "") if pod else ""

    def _bury(self, key: PodKey) -> None:
        now = self._clock()
        self._gone = {
            uid: entry for uid, entry in self._gone.items() if now - entry[0] < self._keep_s
        }
        self._gone[key.uid] = (now, key)
