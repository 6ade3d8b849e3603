"""The two fields that HAMi's monitor writes into a region, by HAMi's rules. Pure.

HAMi-core's launches wait while ``recent_kernel`` is negative, and are limited under the
policy ``default`` while ``utilization_switch`` is set. Our library goes by the card page
and only shows these; they are kept for HAMi's tools.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

HIGH, LOW = 0, 1
#: As HAMi-core sets it at a launch, and as its monitor pauses a container.
RECENT, NOT_RECENT, PAUSED = 2, 0, -1

#: (pod uid, container)
ContainerId = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """One container.

    Attributes:
        priority: 0 high, 1 low.
        active: Whether it used each of its cards of late, by uuid.
    """

    priority: int
    active: Mapping[str, bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class HamiFields:
    """What is written into one container's region."""

    utilization_switch: int
    recent_kernel: int

    @property
    def paused(self) -> bool:
        return self.recent_kernel == PAUSED


def hami_fields(tenants: Mapping[ContainerId, Tenant]) -> dict[ContainerId, HamiFields]:
    """Return the fields of every container of a node.

    A container is paused while one of higher priority is active on a card that they
    share; it is limited then, and where another of its own priority is active.
    """
    found = {}
    for who, tenant in tenants.items():
        active = [
            other
            for other in tenants.values()
            if any(other.active.get(uuid, False) for uuid in tenant.active)
        ]
        above = any(other.priority < tenant.priority for other in active)
        beside = _crowded(tenant, active)
        found[who] = HamiFields(
            utilization_switch=int(above or beside),
            recent_kernel=PAUSED
            if above
            else (RECENT if any(tenant.active.values()) else NOT_RECENT),
        )
    return found


def _crowded(tenant: Tenant, active: Iterable[Tenant]) -> bool:
    """Whether more than one of the tenant's priority is active on one of its cards."""
    same = [other for other in active if other.priority == tenant.priority]
    return any(sum(other.active.get(uuid, False) for other in same) > 1 for uuid in tenant.active)
