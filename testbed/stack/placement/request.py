"""What a pod asks for, read from the raw object.

Whatever cannot be meant is refused with the container, the key and the value: a request
that is read as "nothing" would run without any limit (HAMi #2284).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from testbed import units
from testbed.errors import InputError
from testbed.stack import names, policy
from testbed.stack.config import DeviceConfig
from testbed.stack.devices.vendor import Vendor, resource_names, vendors
from testbed.stack.model import NO_REQUEST, VENDOR_NVIDIA, Constraint, Request
from testbed.stack.placement.effective import Kind
from testbed.stack.placement.quantities import INT32_MAX, container_name, quantity

_ANY_CARD = Constraint()
_TEXTS = frozenset((str, type(None)))


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRequest:
    """A pod's requests, one entry for each container, init containers first."""

    containers: tuple[Request, ...]
    kinds: tuple[Kind, ...]
    constraint: Constraint = field(default_factory=Constraint)
    node_policy: str = "binpack"
    card_policy: str = "spread"
    weights: policy.Weights = policy.EQUAL
    #: Whether any container asks for a card.
    asks: bool = field(init=False)
    #: The word of the cards that it asks for; a pod asks for those of one vendor.
    vendor: str = field(init=False)
    #: Its distinct requests, each with how many cards all containers take that live as long
    #: as the pod and ask for the same.
    together: Mapping[Request, int] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        words = [request.vendor for request in self.containers if request.count]
        object.__setattr__(self, "asks", bool(words))
        object.__setattr__(self, "vendor", words[0] if words else VENDOR_NVIDIA)
        together: dict[Request, int] = {}
        for request, kind in zip(self.containers, self.kinds, strict=True):
            if request.count:
                lasting = 0 if kind is Kind.INIT else request.count
                together[request] = together.get(request, 0) + lasting
        object.__setattr__(self, "together", together)


def pod_request(pod: Mapping[str, Any], config: DeviceConfig) -> PodRequest:
    """Return what the pod asks for; pods that say the same get the same object.

    Raises:
        InputError: a quantity, an annotation or the pod's shape cannot be used.
    """
    known = _known(config)
    said = _said(pod, known)
    try:
        found = known.pods.get(said) if said is not None else None
    except TypeError:
        said = found = None  # a list or a map where a text should be
    if found is not None:
        return found
    found = _pod_request(pod, config)
    # Only texts are kept: True would be found as 1.
    if said is not None and all(_TEXTS.issuperset(map(type, part)) for part in said):
        if len(known.pods) >= _KEPT:
            known.pods.clear()
        known.pods[said] = found
    return found


def _said(pod: Mapping[str, Any], known: _Known) -> _Said | None:
    """Return everything that a pod says of cards, container by container, its annotations
    last; None where it has not a pod's shape."""
    spec = pod.get("spec")
    if not isinstance(spec, dict):
        return None
    said: list[Any] = []
    for key in ("initContainers", "containers"):
        members = spec.get(key)
        if members is not None and not isinstance(members, list):
            return None
        for member in members or ():
            if not isinstance(member, dict):
                return None
            resources = member.get("resources")
            words = _key(resources, known.resources) if resources else ()
            if words is None:
                return None
            said.append((key, member.get("restartPolicy"), *words))
    annotations = _annotations(pod)
    said.append(tuple(map(annotations.get, known.annotations)) if annotations else ())
    return tuple(said)


def _pod_request(pod: Mapping[str, Any], config: DeviceConfig) -> PodRequest:
    members = list(located_containers(pod))
    annotations = _annotations(pod)
    requests = tuple(container_request(member, config, where) for where, _, member in members)
    if not annotations:
        _one_vendor(requests, config)
        return PodRequest(
            containers=requests,
            kinds=tuple(kind for _, kind, _ in members),
            constraint=_ANY_CARD,
            node_policy=config.nodeSchedulerPolicy,
            card_policy=config.gpuSchedulerPolicy,
        )
    _refuse_unsupported(annotations)
    vendor = _one_vendor(requests, config)
    return PodRequest(
        containers=requests,
        kinds=tuple(kind for _, kind, _ in members),
        constraint=Constraint(
            use_types=_words(annotations, vendor.use_type),
            nouse_types=_words(annotations, vendor.nouse_type),
            use_uuids=_words(annotations, vendor.use_uuid),
            nouse_uuids=_words(annotations, vendor.nouse_uuid),
            numa_bind=_yes(annotations, names.NUMA_BIND),
        ),
        node_policy=_node_policy(annotations, config),
        card_policy=_card_policy(annotations, config),
        weights=_weights(annotations),
    )


#: What HAMi takes for yes and no (Go, strconv.ParseBool), in any case.
_YES, _NO = ("true", "t", "1"), ("false", "f", "0", "")


def _yes(annotations: Mapping[str, Any], key: str) -> bool:
    word = str(annotations.get(key) or "").strip().lower()
    if word not in (*_YES, *_NO):
        raise InputError(
            f"annotation {key} {str(annotations[key])[:80]!r} is neither true nor false",
            hint="write true, or leave it out",
        )
    return word in _YES


def _one_vendor(requests: Sequence[Request], config: DeviceConfig) -> Vendor:
    words = {request.vendor: None for request in requests if request.count}
    if len(words) > 1:
        raise InputError(
            f"the pod asks for cards of two vendors, {' and '.join(words)}",
            hint="ask for them in two pods",
        )
    known = vendors(config)
    return next((vendor for vendor in known if vendor.word in words), known[0])


def initialised(pod: Mapping[str, Any]) -> bool:
    """Tell whether every plain init container of a pod has ended well."""
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    if not spec.get("initContainers"):
        return True
    states = {
        one.get("name"): (one.get("state") or {}).get("terminated") or {}
        for one in status.get("initContainerStatuses") or ()
    }
    return all(
        states.get(container.get("name"), {}).get("exitCode") == 0
        for container in spec.get("initContainers") or ()
        if container.get("restartPolicy") != "Always"
    )


def container_kinds(pod: Mapping[str, Any]) -> tuple[Kind, ...]:
    """Return the life of each container, init containers first."""
    return tuple(kind for kind, _ in containers(pod))


def containers(pod: Mapping[str, Any]) -> Iterator[tuple[Kind, dict[str, Any]]]:
    """Yield init containers, then app containers, as the annotations list them.

    Raises:
        InputError: the pod has not the shape of a pod.
    """
    for _, kind, member in located_containers(pod):
        yield kind, member


def located_containers(pod: Mapping[str, Any]) -> Iterator[tuple[str, Kind, dict[str, Any]]]:
    """Yield what ``containers`` does, each with its path, ``spec.containers[0]``."""
    spec = pod.get("spec")
    if not isinstance(spec, dict):
        raise InputError("the pod has no spec")
    for key in ("initContainers", "containers"):
        members = spec.get(key)
        if members is None:
            continue
        if not isinstance(members, list) or not all(isinstance(m, dict) for m in members):
            raise InputError(f"spec.{key} of the pod is not a list of containers")
        for position, member in enumerate(members):
            where = f"spec.{key}[{position}]"
            if key == "containers":
                yield where, Kind.APP, member
            elif member.get("restartPolicy") == "Always":
                yield where, Kind.SIDECAR, member
            else:
                yield where, Kind.INIT, member


def container_request(
    container: Mapping[str, Any], config: DeviceConfig, where: str = ""
) -> Request:
    """Return what one container asks for; ``NO_REQUEST`` where it names no card.

    Args:
        container: The raw object.
        config: Names the resources and their defaults.
        where: Path of the container in its pod, for errors.

    Raises:
        InputError: a quantity cannot be used, a share is asked of no card, or cards of
            two vendors are asked for.
    """
    resources = container.get("resources")
    if not resources:
        return NO_REQUEST
    known = _known(config)
    key = _key(resources, known.resources)
    try:
        found = known.containers.get(key) if key is not None else None
    except TypeError:
        found = None  # a list or a map where a number should be
    if found is not None:
        return found
    found = _container_request(container, config, where)
    # Only texts are kept: True would be found as 1.
    if key is not None and _TEXTS.issuperset(map(type, key)):
        if len(known.containers) >= _KEPT:
            known.containers.clear()
        known.containers[key] = found
    return found


def _container_request(container: Mapping[str, Any], config: DeviceConfig, where: str) -> Request:
    found = NO_REQUEST
    said = _names_said(container.get("resources"))
    for vendor in vendors(config):
        if said is not None and said.isdisjoint(vendor.resources):
            continue
        request = vendor_request(container, vendor, where)
        if not request.count:
            continue
        if found.count:
            raise InputError(
                f"{container_name(container)} asks for cards of two vendors",
                why=f"{found.vendor} and {request.vendor}",
                hint="ask for them in two pods",
            )
        found = request
    return found


@dataclass(slots=True)
class _Known:
    """Requests by what was written, of one configuration: the pods of a cluster say the same
    few things again."""

    config: DeviceConfig
    resources: tuple[str, ...]
    annotations: tuple[str, ...]
    containers: dict[tuple[str | None, ...], Request] = field(default_factory=dict)
    pods: dict[_Said, PodRequest] = field(default_factory=dict)


#: What containers and annotations say, part by part.
_Said = tuple[tuple[str | None, ...], ...]
_last: _Known | None = None  # of the configuration that was used last
_KEPT = 4096


def _known(config: DeviceConfig) -> _Known:
    global _last
    found = _last
    if found is None or found.config is not config:
        wishes = [
            key
            for vendor in vendors(config)
            for key in (vendor.use_type, vendor.nouse_type, vendor.use_uuid, vendor.nouse_uuid)
        ]
        wishes += (names.NUMA_BIND, names.NODE_POLICY, names.CARD_POLICY, names.CARD_WEIGHTS)
        wishes.append(names.VGPU_MODE)
        found = _last = _Known(config, resource_names(config), tuple(dict.fromkeys(wishes)))
    return found


def _key(resources: object, names_: tuple[str, ...]) -> tuple[str | None, ...] | None:
    """Return what a container says of cards; None where it is no map."""
    if not isinstance(resources, dict):
        return None
    said: list[Any] = []
    for part in ("limits", "requests"):
        values = resources.get(part) or {}
        if not isinstance(values, dict):
            return None
        said += map(values.get, names_)
    return tuple(said)


def _names_said(resources: object) -> set[str] | None:
    """Return the resources that a container names; None where it is no map."""
    if not isinstance(resources, dict):
        return None
    found: set[str] = set()
    for part in ("limits", "requests"):
        values = resources.get(part) or {}
        if not isinstance(values, dict):
            return None
        found.update(values)
    return found


def vendor_request(container: Mapping[str, Any], vendor: Vendor, where: str = "") -> Request:
    """Return what one container asks for of one vendor's cards.

    Raises:
        InputError: as ``container_request``.
    """
    count = quantity(container, vendor.count, where=where)
    mem = quantity(container, vendor.memory, where=where, mib=vendor.unit_mib == 1)
    mem_pct = cores = None
    if vendor.percentage:
        mem_pct = quantity(container, vendor.percentage, most=100, where=where)
    cores = quantity(container, vendor.cores, most=100, where=where)
    if vendor.priority:
        quantity(container, vendor.priority, most=1, where=where)
    if not count:
        if mem or mem_pct or cores:
            raise InputError(
                f"{container_name(container)} asks for a share of a card and for "
                f"{vendor.count} {count or 'nothing'}",
                why="without a count the node hands it no card",
                hint=f"set {vendor.count}: 1 in its limits",
            )
        return NO_REQUEST
    core_pct = vendor.default_cores if cores is None else cores
    if not mem and mem_pct:
        return Request(count=count, mem_pct=mem_pct, core_pct=core_pct, vendor=vendor.word)
    mem = mem or vendor.default_memory
    if not mem:
        return Request(count=count, mem_pct=100, core_pct=core_pct, vendor=vendor.word)
    mem_mib = mem * vendor.unit_mib
    if mem_mib > INT32_MAX:
        raise InputError(
            f"{container_name(container)}: {vendor.memory} {mem} is too large",
            why=f"it means {units.mib_text(mem_mib)}",
        )
    return Request(count=count, mem_mib=mem_mib, core_pct=core_pct, vendor=vendor.word)


def _annotations(pod: Mapping[str, Any]) -> dict[str, Any]:
    metadata = pod.get("metadata") or {}
    annotations = metadata.get("annotations") if isinstance(metadata, dict) else None
    return annotations if isinstance(annotations, dict) else {}


def _words(annotations: Mapping[str, Any], key: str) -> tuple[str, ...]:
    given = annotations.get(key)
    if not given:
        return ()
    return tuple(word.strip() for word in str(given).split(",") if word.strip())


def _node_policy(annotations: Mapping[str, Any], config: DeviceConfig) -> str:
    given = annotations.get(names.NODE_POLICY)
    if not given:
        return config.nodeSchedulerPolicy
    return policy.node_policy(str(given), f"annotation {names.NODE_POLICY}")


def _card_policy(annotations: Mapping[str, Any], config: DeviceConfig) -> str:
    given = annotations.get(names.CARD_POLICY)
    if not given:
        return config.gpuSchedulerPolicy
    return _card_words(str(given))


@lru_cache(maxsize=256)
def _card_words(given: str) -> str:
    return ",".join(policy.card_policy(given, f"annotation {names.CARD_POLICY}").words)


def _weights(annotations: Mapping[str, Any]) -> policy.Weights:
    given = annotations.get(names.CARD_WEIGHTS)
    if not given:
        return policy.EQUAL
    return policy.weights(str(given), f"annotation {names.CARD_WEIGHTS}")


def _refuse_unsupported(annotations: Mapping[str, Any]) -> None:
    # Each of these narrows where a pod may run: to ignore one would break a promise.
    mode = str(annotations.get(names.VGPU_MODE) or "hami-core")
    if mode != "hami-core":
        raise InputError(
            f"annotation {names.VGPU_MODE} {mode!r} is not supported", hint="use hami-core"
        )
