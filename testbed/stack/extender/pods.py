"""What the extender needs of a pod, taken once from the raw object."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from testbed.errors import CodecError, InputError
from testbed.stack import names
from testbed.stack.config import DeviceConfig
from testbed.stack.devices.vendor import read_shares
from testbed.stack.model import PodKey, PodShares
from testbed.stack.placement.effective import Kind
from testbed.stack.placement.request import container_request, containers, initialised

DEFAULTS = DeviceConfig()

_TERMINAL = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class PodView:
    """A pod as one watch event shows it.

    Attributes:
        node: Where it is bound; empty while it is pending.
        scheduler: ``spec.schedulerName``.
        terminal: It has ended and holds nothing.
        shares: What its annotations promise; None without a promise.
        unreadable: Why the promise cannot be read; empty if it can.
        promised_node: ``hami.io/vgpu-node``.
        bind_phase: ``hami.io/bind-phase``.
        kinds: The life of each container, init containers first.
        counts: How many cards each of them asks for; read only with a promise.
        priority: ``spec.priority``.
        initialised: Every plain init container has ended with 0.
        unschedulable: The scheduler has put it back in its queue.
    """

    key: PodKey
    node: str = ""
    scheduler: str = ""
    terminal: bool = False
    shares: PodShares | None = None
    unreadable: str = ""
    promised_node: str = ""
    bind_phase: str = ""
    kinds: tuple[Kind, ...] = ()
    counts: tuple[int, ...] = ()
    priority: int = 0
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


def view_of(pod: Mapping[str, Any], config: DeviceConfig = DEFAULTS) -> PodView:
    """Return the view of a pod as the API server sends it.

    Args:
        pod: The raw object.
        config: Names resources and annotations.

    Raises:
        InputError: it is not a pod.
    """
    spec = pod.get("spec") or {}
    status = pod.get("status") or {}
    annotations = (pod.get("metadata") or {}).get("annotations") or {}
    members = list(containers(pod))
    kinds = tuple(kind for kind, _ in members)
    shares, unreadable = _shares(annotations, len(kinds), config)
    return PodView(
        key=pod_key(pod),
        node=spec.get("nodeName") or "",
        scheduler=spec.get("schedulerName") or "",
        terminal=status.get("phase") in _TERMINAL,
        shares=shares,
        unreadable=unreadable,
        promised_node=annotations.get(names.POD_NODE) or "",
        bind_phase=annotations.get(names.POD_BIND_PHASE) or "",
        kinds=kinds,
        counts=_counts((c for _, c in members), config) if shares is not None else (),
        priority=int(spec.get("priority") or 0),
        initialised=initialised(pod),
        unschedulable=any(
            condition.get("type") == "PodScheduled" and condition.get("status") == "False"
            for condition in status.get("conditions") or ()
        ),
    )


def _shares(
    annotations: Mapping[str, str], containers: int, config: DeviceConfig
) -> tuple[PodShares | None, str]:
    try:
        return read_shares(annotations, containers, config), ""
    except CodecError as error:
        return None, error.text()


def _counts(members: Iterable[Mapping[str, Any]], config: DeviceConfig) -> tuple[int, ...]:
    return tuple(container_request(member, config).count for member in members)
