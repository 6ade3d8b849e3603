"""The namespace's quota, told when a pod is created instead of when it waits.

The scheduler's own arithmetic (``placement.quota``, ``placement.effective``) over what is
known of a pod before it has a card: a percentage of memory is counted later, since it
depends on the card. So nothing is refused here that the scheduler would place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from testbed.errors import CodecError, InputError
from testbed.stack.config import DeviceConfig
from testbed.stack.devices.vendor import Vendor, read_shares
from testbed.stack.placement.effective import NOTHING, Charge, Kind, fold
from testbed.stack.placement.quota import UNBOUNDED, Amount, Quotas
from testbed.stack.placement.request import PodRequest, container_kinds, initialised
from testbed.units import mib_text, quantity

_TERMINAL = ("Succeeded", "Failed")


def refuse_beyond(asked: PodRequest, room: Amount) -> None:
    """Refuse a pod that needs more than its namespace has left.

    Raises:
        InputError: says of what, how much is asked and how much is left.
    """
    if room.unbounded:
        return
    least = least_charge(asked)
    for what, need, left, text in (
        ("gpumem", least.mem_mib, room.mem_mib, mib_text),
        ("gpucores", least.core_pct, room.core_pct, _percent),
    ):
        if left is not None and need > left:
            raise InputError(
                f"exceeding resource quota of {what}: the pod needs {text(need)} and the"
                f" namespace has {text(max(left, 0))} left",
                hint="ask for less, or end pods of the namespace",
            )


def least_charge(asked: PodRequest) -> Charge:
    """Return the least that a pod takes of all cards together, over its whole life."""
    running = peak = NOTHING
    for request, kind in zip(asked.containers, asked.kinds, strict=True):
        own = Charge(
            slots=request.count,
            mem_mib=request.count * (request.mem_mib or 0),
            core_pct=request.count * request.core_pct,
        )
        if kind is Kind.INIT:
            peak = peak.peak(running + own)
        else:
            running = running + own
    return running.peak(peak)


def room_of(
    quotas: Sequence[Mapping[str, Any]],
    pods: Sequence[Mapping[str, Any]],
    namespace: str,
    config: DeviceConfig,
    vendor: Vendor,
) -> Amount:
    """Return what a namespace's quotas leave of a vendor's cards beside its pods' promises.

    Args:
        quotas: Its ResourceQuota objects, as the API server tells them.
        pods: Its pods, likewise.
        namespace: Its name.
        config: Names scheduler and annotations.
        vendor: Names the resources.
    """
    book = Quotas()
    for quota in quotas:
        book.set(namespace, quota["metadata"]["name"], hard_of(quota, vendor), vendor.word)
    for pod in pods:
        charges = _charges(pod, config, vendor)
        if charges:
            book.charge(pod["metadata"]["uid"], namespace, charges, vendor.word)
    return book.room(namespace, vendor.word)


def hard_of(quota: Mapping[str, Any], vendor: Vendor) -> Amount:
    """Return the bounds of a ResourceQuota on a vendor's cards, as the extender reads them.

    One with scopes is for pods of a kind, and not ours.
    """
    spec = quota.get("spec") or {}
    if spec.get("scopes") or spec.get("scopeSelector"):
        return UNBOUNDED
    hard = spec.get("hard") or {}
    memory = _number(hard.get(f"limits.{vendor.memory}"))
    return Amount(
        mem_mib=None if memory is None else memory * vendor.unit_mib,
        core_pct=_number(hard.get(f"limits.{vendor.cores}")),
    )


def _charges(pod: Mapping[str, Any], config: DeviceConfig, vendor: Vendor) -> list[Charge]:
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    if spec.get("schedulerName") != config.schedulerName or status.get("phase") in _TERMINAL:
        return []
    annotations = pod["metadata"].get("annotations") or {}
    try:
        kinds = container_kinds(pod)
        shares = read_shares(annotations, len(kinds), config)
    except (InputError, CodecError):
        return []  # the scheduler counts it no more than we do
    if shares is None or any(s.vendor != vendor.word for each in shares for s in each):
        return []
    return list(fold(shares, kinds, initialised=initialised(pod)).values())


def _number(text: object) -> int | None:
    if text is None:
        return None
    try:
        return int(quantity(str(text)))
    except InputError:
        return None


def _percent(value: float) -> str:
    return f"{value:,.0f} % of a card"
