"""What the extender needs of a pod, taken once from the raw object."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from testbed.errors import InputError
from testbed.stack import names
from testbed.stack.model import PodKey
from testbed.stack.placement.effective import Kind
from testbed.stack.placement.request import containers, quantity

_TERMINAL = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class PodView:
    """A pod as one watch event shows it.

    Attributes:
        node: Where it is bound; empty while it is pending.
        scheduler: ``spec.schedulerName``.
        terminal: It has ended and holds nothing.
        allocated: ``hami.io/vgpu-devices-allocated``.
        promised_node: ``hami.io/vgpu-node``.
        bind_phase: ``hami.io/bind-phase``.
        kinds: The life of each container, init containers first.
        counts: How many cards each of them asks for; read only where ``allocated`` is set.
        initialised: Every plain init container has ended with 0.
        unschedulable: The scheduler has put it back in its queue.
    """

    key: PodKey
    node: str = ""
    scheduler: str = ""
    terminal: bool = False
    allocated: str = ""
    promised_node: str = ""
    bind_phase: str = ""
    kinds: tuple[Kind, ...] = ()
    counts: tuple[int, ...] = ()
    initialised: bool = False
    unschedulable: bool = False


def pod_key(pod: Mapping[str, Any]) -> PodKey:
    """Return the pod's names.

    Raises:
        InputError: it has no uid.
    """
    metadata = pod.get("metadata")
    uid = metadata.get("uid") if isinstance(metadata, dict) else None
    if not isinstance(metadata, dict) or not isinstance(uid, str) or not uid:
        raise InputError("the pod has no uid")
    return PodKey(
        namespace=str(metadata.get("namespace") or "default"),
        name=str(metadata.get("name") or ""),
        uid=uid,
    )


def view_of(pod: Mapping[str, Any], resource: str = names.RESOURCE_COUNT) -> PodView:
    """Return the view of a pod as the API server sends it.

    Args:
        pod: The raw object.
        resource: Name of the resource that counts cards.

    Raises:
        InputError: it is not a pod.
    """
    spec = pod.get("spec") or {}
    status = pod.get("status") or {}
    annotations = (pod.get("metadata") or {}).get("annotations") or {}
    members = list(containers(pod))
    kinds = tuple(kind for kind, _ in members)
    allocated = annotations.get(names.POD_ALLOCATED) or ""
    return PodView(
        key=pod_key(pod),
        node=spec.get("nodeName") or "",
        scheduler=spec.get("schedulerName") or "",
        terminal=status.get("phase") in _TERMINAL,
        allocated=allocated,
        promised_node=annotations.get(names.POD_NODE) or "",
        bind_phase=annotations.get(names.POD_BIND_PHASE) or "",
        kinds=kinds,
        counts=tuple(quantity(c, resource) or 0 for _, c in members) if allocated else (),
        initialised=_initialised(spec, status, kinds),
        unschedulable=any(
            condition.get("type") == "PodScheduled" and condition.get("status") == "False"
            for condition in status.get("conditions") or ()
        ),
    )


def _initialised(
    spec: Mapping[str, Any], status: Mapping[str, Any], kinds: tuple[Kind, ...]
) -> bool:
    if Kind.INIT not in kinds:
        return True
    states = {
        s.get("name"): (s.get("state") or {}).get("terminated") or {}
        for s in status.get("initContainerStatuses") or ()
    }
    return all(
        states.get(container.get("name"), {}).get("exitCode") == 0
        for container in spec.get("initContainers") or ()
        if container.get("restartPolicy") != "Always"
    )
