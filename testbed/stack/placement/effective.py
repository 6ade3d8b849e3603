"""What a pod takes from each card, over the containers that run at one time.

Init containers run one after another, each beside the sidecars (init containers
with ``restartPolicy: Always``) started before it; then the app containers run
beside all sidecars. So a card must hold the larger of the init peak and the sum
of apps and sidecars (HAMi #1773, #2723), and only that sum once the init
containers are through.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

import msgspec

from testbed.stack.model import PodShares


class Kind(StrEnum):
    """The three lives that a container can have."""

    INIT = "init"
    SIDECAR = "sidecar"
    APP = "app"


class Charge(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What is taken from one card."""

    slots: int = 0
    mem_mib: int = 0
    core_pct: int = 0

    def __add__(self, other: Charge) -> Charge:
        return Charge(
            slots=self.slots + other.slots,
            mem_mib=self.mem_mib + other.mem_mib,
            core_pct=self.core_pct + other.core_pct,
        )

    def peak(self, other: Charge) -> Charge:
        """Return the larger of both, quantity by quantity."""
        return Charge(
            slots=max(self.slots, other.slots),
            mem_mib=max(self.mem_mib, other.mem_mib),
            core_pct=max(self.core_pct, other.core_pct),
        )


NOTHING = Charge()


def fold(
    shares: PodShares, kinds: Sequence[Kind], *, initialised: bool = False
) -> Mapping[str, Charge]:
    """Return what the pod takes from each card, by uuid.

    Args:
        shares: One entry for each container, init containers first.
        kinds: The container's life, in the same order; containers beyond its end
            count as apps (nobody is charged less for a list that does not match).
        initialised: True once every plain init container has ended well.
    """
    if len(shares) == 1 and len(shares[0]) == 1 and not (initialised and Kind.INIT in kinds[:1]):
        (share,) = shares[0]
        return {share.uuid: Charge(slots=1, mem_mib=share.mem_mib, core_pct=share.core_pct)}
    running: dict[str, Charge] = {}  # sidecars so far, then apps as well
    peak: dict[str, Charge] = {}
    for position, container in enumerate(shares):
        kind = kinds[position] if position < len(kinds) else Kind.APP
        if kind is Kind.INIT and initialised:
            continue
        own: dict[str, Charge] = {}
        for share in container:
            charge = Charge(slots=1, mem_mib=share.mem_mib, core_pct=share.core_pct)
            own[share.uuid] = own.get(share.uuid, NOTHING) + charge
        for uuid, charge in own.items():
            beside = running.get(uuid, NOTHING) + charge
            if kind is Kind.INIT:
                peak[uuid] = peak.get(uuid, NOTHING).peak(beside)
            else:
                running[uuid] = beside
    for uuid, charge in peak.items():
        running[uuid] = running.get(uuid, NOTHING).peak(charge)
    return running
