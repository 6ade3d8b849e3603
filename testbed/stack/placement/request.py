"""What a pod asks for, read from the raw object.

Whatever cannot be meant (``16Gi`` of a quantity in MiB, halves, negative numbers,
limits that differ from requests) is refused with the container, the key and the
value: a request that is read as "nothing" would run without any limit (HAMi #2284).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from testbed import units
from testbed.errors import InputError
from testbed.stack import names
from testbed.stack.config import DeviceConfig
from testbed.stack.model import NO_REQUEST, Constraint, Request
from testbed.stack.placement.effective import Kind

INT32_MAX = 2**31 - 1
POLICIES = ("binpack", "spread")

_BINARY_SUFFIX = re.compile(r"[KMGTPE]i$")


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRequest:
    """A pod's requests, one entry for each container, init containers first."""

    containers: tuple[Request, ...]
    kinds: tuple[Kind, ...]
    constraint: Constraint = field(default_factory=Constraint)
    node_policy: str = "binpack"
    card_policy: str = "spread"

    @property
    def asks(self) -> bool:
        """Whether any container asks for a card."""
        return any(request.count for request in self.containers)


def pod_request(pod: Mapping[str, Any], config: DeviceConfig) -> PodRequest:
    """Return what the pod asks for.

    Raises:
        InputError: a quantity, an annotation or the pod's shape cannot be used.
    """
    members = list(containers(pod))
    annotations = _annotations(pod)
    _refuse_unsupported(annotations)
    return PodRequest(
        containers=tuple(container_request(member, config) for _, member in members),
        kinds=tuple(kind for kind, _ in members),
        constraint=Constraint(
            use_types=_words(annotations, names.USE_TYPE),
            nouse_types=_words(annotations, names.NOUSE_TYPE),
            use_uuids=_words(annotations, names.USE_UUID),
            nouse_uuids=_words(annotations, names.NOUSE_UUID),
        ),
        node_policy=_policy(annotations, names.NODE_POLICY, config.nodeSchedulerPolicy),
        card_policy=_policy(annotations, names.CARD_POLICY, config.gpuSchedulerPolicy),
    )


def container_kinds(pod: Mapping[str, Any]) -> tuple[Kind, ...]:
    """Return the life of each container, init containers first."""
    return tuple(kind for kind, _ in containers(pod))


def containers(pod: Mapping[str, Any]) -> Iterator[tuple[Kind, dict[str, Any]]]:
    """Yield init containers, then app containers, as the annotations list them.

    Raises:
        InputError: the pod has not the shape of a pod.
    """
    spec = pod.get("spec")
    if not isinstance(spec, dict):
        raise InputError("the pod has no spec")
    for key in ("initContainers", "containers"):
        members = spec.get(key)
        if members is None:
            continue
        if not isinstance(members, list) or not all(isinstance(m, dict) for m in members):
            raise InputError(f"spec.{key} of the pod is not a list of containers")
        for member in members:
            if key == "containers":
                yield Kind.APP, member
            elif member.get("restartPolicy") == "Always":
                yield Kind.SIDECAR, member
            else:
                yield Kind.INIT, member


def container_request(container: Mapping[str, Any], config: DeviceConfig) -> Request:
    """Return what one container asks for; ``NO_REQUEST`` where it names no card.

    Raises:
        InputError: a quantity cannot be used, or a share is asked of no card.
    """
    count = quantity(container, config.resourceCountName)
    mem = quantity(container, config.resourceMemoryName)
    mem_pct = quantity(container, config.resourceMemoryPercentageName, most=100)
    cores = quantity(container, config.resourceCoreName, most=100)
    quantity(container, config.resourcePriorityName, most=1)
    if not count:
        if mem or mem_pct or cores:
            raise InputError(
                f"container {_name(container)} asks for a share of a card and for "
                f"{config.resourceCountName} {count or 'nothing'}",
                why="without a count the node hands it no card",
                hint=f"set {config.resourceCountName}: 1 in its limits",
            )
        return NO_REQUEST
    core_pct = config.defaultCores if cores is None else cores
    if mem:
        mem_mib = mem * config.memoryFactor
        if mem_mib > INT32_MAX:
            raise InputError(
                f"container {_name(container)}: {config.resourceMemoryName} {mem} is too large",
                why=f"it means {units.mib_text(mem_mib)}",
            )
        return Request(count=count, mem_mib=mem_mib, core_pct=core_pct)
    if mem_pct:
        return Request(count=count, mem_pct=mem_pct, core_pct=core_pct)
    if config.defaultMemory:
        mem_mib = config.defaultMemory * config.memoryFactor
        return Request(count=count, mem_mib=mem_mib, core_pct=core_pct)
    return Request(count=count, mem_pct=100, core_pct=core_pct)


def quantity(container: Mapping[str, Any], key: str, most: int = INT32_MAX) -> int | None:
    """Return the whole number that a container gives for a resource, or None.

    Raises:
        InputError: it is no whole number from 0 to ``most``, carries a byte suffix, or
            limit and request differ (Kubernetes cannot overcommit such resources).
    """
    resources = container.get("resources") or {}
    if not isinstance(resources, dict):
        raise InputError(f"container {_name(container)}: resources is not a map")
    found: dict[str, int] = {}
    for part in ("limits", "requests"):
        values = resources.get(part) or {}
        if not isinstance(values, dict):
            raise InputError(f"container {_name(container)}: resources.{part} is not a map")
        if values.get(key) is not None:
            found[part] = _whole(container, key, values[key], most)
    if len(set(found.values())) > 1:
        raise InputError(
            f"container {_name(container)}: {key} has limit {found['limits']} "
            f"and request {found['requests']}",
            why="cards cannot be overcommitted by a request below the limit",
            hint="leave the request out",
        )
    return next(iter(found.values()), None)


def _whole(container: Mapping[str, Any], key: str, raw: object, most: int) -> int:
    where = f"container {_name(container)}: {key} {str(raw)[:80]!r}"
    if isinstance(raw, bool) or not isinstance(raw, str | int | float):
        raise InputError(f"{where} is not a quantity")
    if isinstance(raw, str) and _BINARY_SUFFIX.search(raw.strip()):
        raise InputError(
            f"{where} carries a byte suffix", why="it is a plain number", hint=_in_mib(raw)
        )
    try:
        number = units.quantity(raw)
    except InputError as error:
        raise InputError(f"{where} is not a quantity", hint=error.hint) from error
    if number < 0:
        raise InputError(f"{where} is negative")
    if number > most:
        raise InputError(f"{where} is too large", why=f"the most is {most}")
    if number != int(number):
        raise InputError(f"{where} is not a whole number")
    return int(number)


def _in_mib(raw: str) -> str:
    try:
        mib = units.quantity(raw) / units.MIB
    except InputError:
        return "write a number such as 3000"
    return f"memory is counted in MiB: write {mib:f}" if mib == int(mib) else "write it in MiB"


def _annotations(pod: Mapping[str, Any]) -> dict[str, Any]:
    metadata = pod.get("metadata") or {}
    annotations = metadata.get("annotations") if isinstance(metadata, dict) else None
    return annotations if isinstance(annotations, dict) else {}


def _words(annotations: Mapping[str, Any], key: str) -> tuple[str, ...]:
    return tuple(
        word.strip() for word in str(annotations.get(key) or "").split(",") if word.strip()
    )


def _policy(annotations: Mapping[str, Any], key: str, default: str) -> str:
    policy = str(annotations.get(key) or default)
    if policy not in POLICIES:
        raise InputError(
            f"annotation {key} {policy!r} is not supported", hint=f"use {' or '.join(POLICIES)}"
        )
    return policy


def _refuse_unsupported(annotations: Mapping[str, Any]) -> None:
    # Each of these narrows where a pod may run: to ignore one would break a promise.
    if str(annotations.get(names.NUMA_BIND, "")).lower() == "true":
        raise InputError(f"annotation {names.NUMA_BIND} is not supported", hint="leave it out")
    mode = str(annotations.get(names.VGPU_MODE) or "hami-core")
    if mode != "hami-core":
        raise InputError(
            f"annotation {names.VGPU_MODE} {mode!r} is not supported", hint="use hami-core"
        )


def _name(container: Mapping[str, Any]) -> str:
    return repr(str(container.get("name", "")))
