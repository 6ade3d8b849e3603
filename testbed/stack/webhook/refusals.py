"""What no pod that holds a share of a card may be or do."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping
from typing import Any

from testbed.errors import InputError
from testbed.stack import names
from testbed.stack.config import DeviceConfig
from testbed.stack.devices.vendor import vendors
from testbed.stack.placement.quantities import quantity
from testbed.stack.placement.request import containers

_LISTS = (
    ("init container", "initContainers"),
    ("container", "containers"),
    ("ephemeral container", "ephemeralContainers"),
)


def refuse_privileged(pod: Mapping[str, Any]) -> None:
    """Refuse a privileged container, whichever of the pod asks (HAMi #2139).

    Raises:
        InputError: there is one; the text names it.
    """
    for title, key in _LISTS:
        for container in _members(pod["spec"], key):
            if _privileged(container):
                raise InputError(_privileged_text(container, title))


def refuse_preset_node(pod: Mapping[str, Any]) -> None:
    """Refuse a pod that comes with its node: no scheduler would see it.

    Raises:
        InputError: it does.
    """
    node = pod["spec"].get("nodeName")
    if node:
        raise InputError(
            f"the pod is already assigned to node {str(node)[:253]!r}",
            why="a share of a card is handed out by the scheduler",
            hint="use spec.nodeSelector instead of spec.nodeName",
        )


def refuse_covering(container: Mapping[str, Any]) -> None:
    """Refuse a volume at one of our places.

    It is mounted after ours: the container would run without the library, or with a
    region that its processes do not share.

    Raises:
        InputError: there is one; the text names the container.
    """
    for key, field in (("volumeMounts", "mountPath"), ("volumeDevices", "devicePath")):
        for mount in _members(container, key):
            path = posixpath.normpath("/" + str(mount.get(field) or "").lstrip("/"))
            if path == names.CONTAINER_PRELOAD or f"{path}/".startswith(f"{names.CONTAINER_ROOT}/"):
                raise InputError(
                    f"container {str(container.get('name', ''))!r} mounts a volume at {path}",
                    why="that would cover what keeps the container to its share of a card",
                    hint="mount it elsewhere; libraries can be preloaded by LD_PRELOAD",
                )


def refuse_ephemeral(pod: Mapping[str, Any], config: DeviceConfig) -> None:
    """Refuse a privileged debug container in a pod that holds a share of a card.

    Raises:
        InputError: there is one; the text names it.
    """
    spec = pod.get("spec")
    if not isinstance(spec, dict) or spec.get("schedulerName") != config.schedulerName:
        return
    counts = [vendor.count for vendor in vendors(config)]
    if not any(quantity(c, count) for _, c in containers(pod) for count in counts):
        return
    for container in _members(spec, "ephemeralContainers"):
        if _privileged(container):
            raise InputError(_privileged_text(container, "ephemeral container"))


def _privileged_text(container: Mapping[str, Any], title: str) -> str:
    return (
        f"{title} {str(container.get('name', ''))!r} is privileged: it would see every card "
        "of the node, so no container of its pod may ask for a share of one"
    )


def _privileged(container: Mapping[str, Any]) -> bool:
    context = container.get("securityContext")
    return isinstance(context, dict) and context.get("privileged") is True


def _members(spec: Mapping[str, Any], key: str) -> Iterator[dict[str, Any]]:
    members = spec.get(key)
    if isinstance(members, list):
        yield from (member for member in members if isinstance(member, dict))
