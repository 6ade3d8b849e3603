"""Nodes that exist for the API server alone, for questions about placement.

No kubelet runs on them: their status is kept here, and what a device plugin would write
(the register annotation, the phase of a pod's binding) is written in its name, since
nobody else may. A taint keeps everything away that does not tolerate it, the stack's
own DaemonSets included; a label leads a trial's pods to its nodes.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from testbed.errors import TestbedError
from testbed.lab.kube import Kube
from testbed.stack import names
from testbed.stack.codec import encode_register
from testbed.stack.codec.links import encode_links
from testbed.stack.model import Card

LABEL = "vgpu-testbed.dev/simulated"
#: Told by its plugin; the only account beside the scheduler's that may write such keys.
WRITER = f"system:serviceaccount:{names.NAMESPACE}:vgpu-plugin"
#: A node of which nothing is heard for 40 s and more is taken for lost.
_BEAT_S = 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedNode:
    """A node to make.

    Attributes:
        name: Its name in the question; the cluster's has the trial before it.
        group: Pods choose among the nodes of their group.
        cards: What it registers; uuids are told apart by the trial.
        links: What links between its cards are worth: index, index, worth.
    """

    name: str
    group: str
    cards: tuple[Card, ...]
    links: tuple[tuple[int, int, int], ...] = ()


def cards_of(
    node: str, *, count: int, mem_mib: int, model: str, slots: int = 10
) -> tuple[Card, ...]:
    """Return equal cards, the first half on NUMA node 0, the rest on 1."""
    return tuple(
        Card(
            uuid=f"GPU-{node}-{index}", index=index, slots=slots, mem_mib=mem_mib, model=model,
            numa=2 * index // count,
        )
        for index in range(count)
    )  # fmt: skip


def _links(node: SimulatedNode) -> dict[str, dict[str, int]]:
    """Return the worth of each link by uuids, told once from each end."""
    uuids = {card.index: card.uuid for card in node.cards}
    found: dict[str, dict[str, int]] = {uuid: {} for uuid in uuids.values()}
    for one, other, worth in node.links:
        found[uuids[one]][uuids[other]] = found[uuids[other]][uuids[one]] = worth
    return found


def node_manifest(name: str, group: str) -> dict[str, Any]:
    """Return a node that takes only the pods of its group."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, LABEL: group}},
        "spec": {"taints": [{"key": LABEL, "value": group, "effect": "NoSchedule"}]},
    }


def status_of(cards: Sequence[Card], now: datetime) -> dict[str, Any]:
    """Return what its kubelet would write."""
    amounts = {
        "cpu": "64", "memory": "512Gi", "pods": "200",
        names.RESOURCE_COUNT: str(sum(card.slots for card in cards)),
    }  # fmt: skip
    ready = {
        "type": "Ready", "status": "True", "reason": "Simulated",
        "message": "kept by the testbed", "lastHeartbeatTime": f"{now:%Y-%m-%dT%H:%M:%SZ}",
    }  # fmt: skip
    return {"status": {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}}


class Nodes:
    """A trial's nodes, as long as it lasts; a context manager that removes them.

    Args:
        kube: The cluster, as its administrator.
        plugin: The same, in the name of the device plugin.
        nodes: Cluster's name and node.
    """

    def __init__(
        self,
        kube: Kube,
        plugin: Kube,
        nodes: Sequence[tuple[str, SimulatedNode]],
        *,
        group_of: Callable[[str], str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kube, self._plugin, self._nodes = kube, plugin, nodes
        self._group_of, self._clock = group_of, clock
        self._beaten = clock()

    def __enter__(self) -> Nodes:
        try:
            for name, node in self._nodes:
                self._kube.create(node_manifest(name, self._group_of(node.group)))
                notes = {names.NODE_REGISTER: encode_register(node.cards)}
                if node.links:
                    notes[names.NODE_SCORE] = encode_links(_links(node))
                self._plugin.patch("v1", "Node", name, {"metadata": {"annotations": notes}})
            self._write()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name, _node in self._nodes:
            # The first error is the cause; what is left, the next run's tidying finds.
            with contextlib.suppress(TestbedError):
                self._kube.delete("v1", "Node", name)

    def beat(self) -> None:
        """Tell the cluster that the nodes live; called wherever something is waited for."""
        if self._clock() - self._beaten >= _BEAT_S:
            self._write()

    def _write(self) -> None:
        self._beaten = self._clock()
        for name, node in self._nodes:
            body = status_of(node.cards, datetime.now(UTC))
            self._kube.patch("v1", "Node", name, body, subresource="status")


def as_plugin(kube: Kube, kubectl: Path | None = None) -> Kube:
    """Return the same cluster in the name of the device plugin."""
    return Kube(kube.kubeconfig, context=kube.context, kubectl=kubectl, as_user=WRITER)


def clear(kube: Kube) -> bool:
    """Remove the nodes of a run that was killed, and their pods; tell whether there were any.

    No kubelet would ever confirm the end of such a pod.
    """
    found = kube.list("v1", "Node", labels=LABEL)
    for node in found:
        name = node["metadata"]["name"]
        for pod in kube.list("v1", "Pod", fields=f"spec.nodeName={name}"):
            meta = pod["metadata"]
            kube.delete("v1", "Pod", meta["name"], meta["namespace"], grace_s=0)
        kube.delete("v1", "Node", name)
    return bool(found)
