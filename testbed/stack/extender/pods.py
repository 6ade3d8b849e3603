"""What the extender needs of a pod, taken once from the raw object."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from sys import intern
from typing import Any, TypedDict

import msgspec

from testbed.errors import CodecError, InputError
from testbed.stack import names
from testbed.stack.config import DeviceConfig
from testbed.stack.devices.vendor import read_shares, vendors
from testbed.stack.model import PodKey, PodShares
from testbed.stack.placement.effective import Kind
from testbed.stack.placement.request import container_request, containers, initialised

DEFAULTS = DeviceConfig()

#: Pods have few shapes: each is kept once.
ONE_APP = (Kind.APP,)
_KINDS: dict[tuple[Kind, ...], tuple[Kind, ...]] = {ONE_APP: ONE_APP}
_MOST_KINDS = 4096
_TERMINAL = ("Succeeded", "Failed")


def same_kinds(kinds: tuple[Kind, ...]) -> tuple[Kind, ...]:
    """Return the one object that stands for these lives."""
    if kinds is ONE_APP:
        return kinds
    if len(_KINDS) < _MOST_KINDS:
        return _KINDS.setdefault(kinds, kinds)
    return _KINDS.get(kinds, kinds)


class PodView(msgspec.Struct, kw_only=True, gc=False):
    """A pod as one watch event shows it.

    Attributes:
        node: Where it is bound; empty while it is pending.
        scheduler: ``spec.schedulerName``.
        terminal: It has ended and holds nothing.
        shares: What its annotations promise; None without a promise.
        unreadable: Why the promise cannot be read; empty if it can.
        promised_node: ``hami.io/vgpu-node``.
        bind_phase: ``hami.io/bind-phase``.
        left: What its plugin has still to serve, while it is being allocated.
        kinds: The life of each container, init containers first.
        counts: How many cards each of them asks for; read only with a promise.
        priority: ``spec.priority``.
        initialised: Every plain init container has ended with 0.
        unschedulable: The scheduler has put it back in its queue; never of a bound pod.
    """

    key: PodKey
    node: str = ""
    scheduler: str = ""
    terminal: bool = False
    shares: PodShares | None = None
    unreadable: str = ""
    promised_node: str = ""
    bind_phase: str = ""
    left: str = ""
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
        namespace=intern(str(metadata.get("namespace") or "default")),
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
    apps = spec.get("containers")
    kinds: tuple[Kind, ...] = ONE_APP
    if not spec.get("initContainers") and isinstance(apps, list) and len(apps) == 1:
        # Most pods of a large list: what follows would take twice as long.
        members = apps
        if not isinstance(apps[0], dict):
            raise InputError("spec.containers of the pod is not a list of containers")
    else:
        found = list(containers(pod))
        members = [member for _, member in found]
        kinds = tuple(kind for kind, _ in found)
        kinds = same_kinds(kinds)
    shares, unreadable = _shares(annotations, len(kinds), config)
    node = intern(str(spec.get("nodeName") or ""))
    phase = annotations.get(names.POD_BIND_PHASE) or ""
    return PodView(
        key=pod_key(pod),
        node=node,
        scheduler=spec.get("schedulerName") or "",
        terminal=status.get("phase") in _TERMINAL,
        shares=shares,
        unreadable=unreadable,
        promised_node=annotations.get(names.POD_NODE) or "",
        bind_phase=phase,
        left=_left(annotations, config) if phase == names.PHASE_ALLOCATING else "",
        kinds=kinds,
        counts=_counts(members, config) if shares is not None else (),
        priority=int(spec.get("priority") or 0),
        initialised=initialised(pod),
        unschedulable=not node and _unschedulable(status.get("conditions") or ()),
    )


def _unschedulable(conditions: Iterable[Mapping[str, Any]]) -> bool:
    for condition in conditions:
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return True
    return False


def _left(annotations: Mapping[str, str], config: DeviceConfig) -> str:
    return "|".join(annotations.get(vendor.to_allocate) or "" for vendor in vendors(config))


def _shares(
    annotations: Mapping[str, str], containers: int, config: DeviceConfig
) -> tuple[PodShares | None, str]:
    if not annotations:
        return None, ""
    try:
        return read_shares(annotations, containers, config), ""
    except CodecError as error:
        return None, error.text()


def _counts(members: list[dict[str, Any]], config: DeviceConfig) -> tuple[int, ...]:
    if len(members) == 1:
        return (_count(members[0], config),)
    return tuple([_count(member, config) for member in members])


def _count(member: Mapping[str, Any], config: DeviceConfig) -> int:
    limits = (member.get("resources") or {}).get("limits") or {}
    given, asked = "", 0
    for vendor in vendors(config):
        if vendor.count in limits:
            given, asked = limits[vendor.count], asked + 1
    if asked == 1 and isinstance(given, str) and given.isdecimal():
        return int(given)  # as the API server writes it
    return container_request(member, config).count


class _Meta(TypedDict, total=False):
    name: str
    namespace: str
    uid: str
    resourceVersion: str
    annotations: dict[str, str] | None


class _Container(TypedDict, total=False):
    name: str
    restartPolicy: str | None
    resources: dict[str, Any] | None


class _Spec(TypedDict, total=False):
    nodeName: str
    schedulerName: str
    priority: int | None
    containers: list[_Container] | None
    initContainers: list[_Container] | None


class _Status(TypedDict, total=False):
    phase: str
    conditions: list[dict[str, Any]] | None
    initContainerStatuses: list[dict[str, Any]] | None


class PodPart(TypedDict, total=False):
    """What ``view_of`` reads of a pod: the rest of a large list need not become objects."""

    metadata: _Meta
    spec: _Spec
    status: _Status


class _AskedSpec(_Spec, total=False):
    preemptionPolicy: str | None


class FilterPod(TypedDict, total=False):
    """What ``filter`` reads of a pod."""

    metadata: _Meta
    spec: _AskedSpec


class _NodeStatus(TypedDict, total=False):
    allocatable: dict[str, Any] | None


class NodePart(TypedDict, total=False):
    """What the ledger reads of a node."""

    metadata: _Meta
    status: _NodeStatus
