"""A pod as the plugin sees it: what it asks for, what it was promised, what has started."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from testbed.errors import InputError
from testbed.stack import names
from testbed.stack.config import DeviceConfig
from testbed.stack.model import PodKey
from testbed.units import whole

_TRUE = {"true", "1", "t"}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeContainer:
    """One container, at its position among init and app containers.

    Attributes:
        count: Devices that it asks for, 0 for none.
        plain_init: An init container that ends before the next one starts; kubelet's
            PodResources does not list these.
        started: The runtime has made it, so kubelet has had its devices.
        control_disabled: Its environment says ``CUDA_DISABLE_CONTROL=true``.
        priority: 0 high, 1 low, which is also what a container without the resource has.
        core_policy: ``GPU_CORE_UTILIZATION_POLICY`` of its environment, empty without.
    """

    name: str
    position: int
    count: int = 0
    plain_init: bool = False
    started: bool = False
    control_disabled: bool = False
    priority: int = 1
    core_policy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePod:
    """One pod of the node, with its annotations as they stand."""

    key: PodKey
    resource_version: str = ""
    finished: bool = False
    bind_phase: str = ""
    bind_time: str = ""
    to_allocate: str = ""
    allocated: str = ""
    labelled_node: bool = True
    containers: tuple[NodeContainer, ...]


def node_pods(items: list[dict[str, Any]], config: DeviceConfig) -> tuple[NodePod, ...]:
    """Return the pods of a node that ask for our devices."""
    pods = (node_pod(item, config) for item in items)
    return tuple(pod for pod in pods if any(c.count for c in pod.containers))


def node_pod(item: dict[str, Any], config: DeviceConfig) -> NodePod:
    """Return what the plugin needs of a raw pod."""
    metadata, spec, status = item["metadata"], item["spec"], item.get("status") or {}
    annotations = metadata.get("annotations") or {}
    return NodePod(
        key=PodKey(namespace=metadata["namespace"], name=metadata["name"], uid=metadata["uid"]),
        resource_version=metadata.get("resourceVersion", ""),
        finished=status.get("phase") in ("Succeeded", "Failed"),
        bind_phase=annotations.get(names.POD_BIND_PHASE, ""),
        bind_time=annotations.get(names.POD_BIND_TIME, ""),
        to_allocate=annotations.get(names.POD_TO_ALLOCATE, ""),
        allocated=annotations.get(names.POD_ALLOCATED, ""),
        labelled_node=names.POD_NODE in (metadata.get("labels") or {}),
        containers=tuple(_containers(spec, status, config)),
    )


def _containers(
    spec: dict[str, Any], status: dict[str, Any], config: DeviceConfig
) -> Iterator[NodeContainer]:
    started = {
        state["name"]
        for key in ("initContainerStatuses", "containerStatuses")
        for state in status.get(key) or ()
        if state.get("containerID")
    }
    inits = spec.get("initContainers") or []
    for position, container in enumerate([*inits, *spec["containers"]]):
        resources = container.get("resources") or {}
        asked = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
        yield NodeContainer(
            name=container["name"],
            position=position,
            count=_number(asked.get(config.resourceCountName)),
            plain_init=position < len(inits) and container.get("restartPolicy") != "Always",
            started=container["name"] in started,
            control_disabled=_variable(container, names.ENV_DISABLE_CONTROL) in _TRUE,
            priority=_number(asked.get(config.resourcePriorityName, 1)),
            core_policy=_variable(container, names.ENV_CORE_POLICY),
        )


def _variable(container: dict[str, Any], name: str) -> str:
    """Return a variable of a container's own environment; the last of a name counts."""
    values = [
        str(entry.get("value") or "").lower()
        for entry in container.get("env") or ()
        if entry["name"] == name
    ]
    return values[-1] if values else ""


def _number(text: object) -> int:
    """Return a quantity as a number; what is none counts as 0 (kubelet would not ask)."""
    try:
        return whole(str(text)) or 0 if text is not None else 0
    except InputError:
        return 0
