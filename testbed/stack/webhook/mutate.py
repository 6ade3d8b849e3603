"""What becomes of a pod that is created: untouched, changed or refused.

In this order, as HAMi 2.10 has it (design 16): another scheduler's pod is its own
affair; defaults are filled in; a pod that asks gets our scheduler and is refused what
would break the promise; containers that did not ask see no card.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from testbed.errors import InputError
from testbed.stack import names
from testbed.stack.config import DeviceConfig
from testbed.stack.devices.vendor import Vendor, vendors
from testbed.stack.model import Request
from testbed.stack.placement.quantities import quantity, surprise
from testbed.stack.placement.quota import UNBOUNDED, Amount
from testbed.stack.placement.request import located_containers, pod_request
from testbed.stack.webhook import environment
from testbed.stack.webhook.quota import refuse_beyond
from testbed.stack.webhook.refusals import (
    refuse_covering,
    refuse_preset_node,
    refuse_privileged,
)

DEFAULT_SCHEDULER = "default-scheduler"


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """A pod as it shall be stored, and what its author is told."""

    pod: dict[str, Any]
    warnings: tuple[str, ...] = ()


def admit(
    pod: Mapping[str, Any],
    config: DeviceConfig,
    *,
    own_environment: bool = False,
    room: Amount = UNBOUNDED,
) -> Admitted:
    """Return the pod as it shall be admitted; the same pod again for its own answer.

    Args:
        pod: The raw object.
        config: The device configuration.
        own_environment: Leave the library's variables as the pod sets them.
        room: What its namespace's quota leaves.

    Raises:
        InputError: the pod is refused; the text names container and field.
    """
    changed: dict[str, Any] = copy.deepcopy(dict(pod))
    members = list(located_containers(changed))
    if not changed["spec"].get("containers"):
        raise InputError("the pod has no containers")
    if not _ours(changed, config):
        return Admitted(pod=changed)
    for where, _, container in members:
        for vendor in vendors(config):
            _apply_defaults(container, vendor, where)
    asked = pod_request(changed, config)
    if not asked.asks:
        if config.overwriteEnv:
            for _, _, container in members:
                environment.hide_cards(container)
        return Admitted(pod=changed)
    refuse_privileged(changed)
    refuse_preset_node(changed)
    refuse_beyond(asked, room)
    changed["spec"]["schedulerName"] = config.schedulerName
    if config.runtimeClassName and not changed["spec"].get("runtimeClassName"):
        changed["spec"]["runtimeClassName"] = config.runtimeClassName
    warnings = []
    for (where, _, container), own in zip(members, asked.containers, strict=True):
        if own.count:
            warnings += _asking(container, own, config, own_environment, where)
        elif config.overwriteEnv:
            environment.hide_cards(container)
    return Admitted(pod=changed, warnings=tuple(warnings))


def asks_for(pod: Mapping[str, Any], config: DeviceConfig) -> Vendor | None:
    """Return of which vendor's resources a pod names one, whatever it says of it."""
    try:
        members = list(located_containers(pod))
    except InputError:
        return None
    named: set[str] = set()
    for _, _, container in members:
        resources = container.get("resources")
        for part in ("limits", "requests"):
            values = resources.get(part) if isinstance(resources, dict) else None
            named.update(values if isinstance(values, dict) else ())
    return next((v for v in vendors(config) if not named.isdisjoint(v.resources)), None)


def _ours(pod: Mapping[str, Any], config: DeviceConfig) -> bool:
    """Tell whether a pod is for us to decide on.

    One that is to be ignored, by its label, is ours all the same if it names our
    scheduler: it would get a card.
    """
    scheduler = pod["spec"].get("schedulerName") or DEFAULT_SCHEDULER
    if scheduler == config.schedulerName:
        return True
    metadata = pod.get("metadata")
    labels = metadata.get("labels") if isinstance(metadata, dict) else None
    if isinstance(labels, dict) and labels.get(names.WEBHOOK_LABEL) == names.WEBHOOK_IGNORE:
        return False
    if scheduler == DEFAULT_SCHEDULER:
        return config.forceOverwriteDefaultScheduler
    # Another scheduler's pod; the device plugin serves none that our extender has not
    # promised anything (docs/architecture.md).
    return config.forceOverwriteScheduler


def _asking(
    container: dict[str, Any],
    own: Request,
    config: DeviceConfig,
    own_environment: bool,
    where: str,
) -> list[str]:
    """Complete one container that has a share, and return what to tell about it."""
    vendor = next(v for v in vendors(config) if v.word == own.vendor)
    if not vendor.library:
        return []
    refuse_covering(container)
    warnings = [surprise(container, vendor.memory, vendor.unit_mib, where)]
    ours: dict[str, str] = {}
    priority = quantity(container, vendor.priority, most=1, where=where)
    if priority is not None:
        ours[names.ENV_PRIORITY] = str(priority)
    if config.gpuCorePolicy != "default":
        ours[names.ENV_CORE_POLICY] = config.gpuCorePolicy
    if container.get("envFrom") and not own_environment:
        # What a ConfigMap or Secret sets is not seen here, and goes before what the plugin
        # sets; a variable of the container's own goes before both. This one would show
        # every card; limits come from the region, which no variable moves.
        ours[names.ENV_VISIBLE] = names.VISIBLE_VOID
    if not own_environment:
        taken = environment.take_away(container, ours, config)
        if taken:
            warnings.append(
                f"{where}.env: {', '.join(taken)} taken away; an administrator allows them by"
                f" the label {names.OWN_ENVIRONMENT_LABEL}={names.OWN_ENVIRONMENT_ALLOWED} on"
                " the namespace"
            )
    for name, value in ours.items():
        environment.set_variable(container, name, value)
    return [warning for warning in warnings if warning]


def _apply_defaults(container: dict[str, Any], vendor: Vendor, where: str) -> None:
    """Complete limits: the count, the cores of a whole card, what only requests name."""
    count = quantity(container, vendor.count, where=where)
    mem = quantity(container, vendor.memory, where=where, mib=vendor.unit_mib == 1)
    cores = quantity(container, vendor.cores, most=100, where=where)
    mem_pct = None
    if vendor.percentage:
        mem_pct = quantity(container, vendor.percentage, most=100, where=where)
    _copy_requests(container, vendor)
    if count is None and vendor.default_count and (mem or mem_pct or cores):
        count = vendor.default_count
        _set_limit(container, vendor.count, str(count))
    if not count or cores is not None or mem:
        return
    # The whole card's memory and no word on cores: nobody else could use the rest.
    if mem_pct == 100 or (not mem_pct and not vendor.default_memory):
        _set_limit(container, vendor.cores, "100")


def _copy_requests(container: dict[str, Any], vendor: Vendor) -> None:
    """The API server refuses a request of such a resource that has no limit."""
    resources = container.get("resources") or {}
    requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
    for name in vendor.resources:
        if requests.get(name) is not None and limits.get(name) is None:
            _set_limit(container, name, requests[name])


def _set_limit(container: dict[str, Any], key: str, value: object) -> None:
    resources = container.get("resources") or {}
    limits = dict(resources.get("limits") or {})
    limits[key] = value
    # The API server copies limits to requests where a key is missing there.
    container["resources"] = {**resources, "limits": limits}
