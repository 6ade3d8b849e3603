"""A pod that is on its node, and what it was promised there."""

from __future__ import annotations

import logging
from typing import Any

import msgspec

from testbed.stack.config import DeviceConfig
from testbed.stack.extender.pods import PodView
from testbed.stack.model import PodKey, PodShares, Share
from testbed.stack.placement.effective import Kind
from testbed.stack.placement.ledger import Held

log = logging.getLogger(__name__)

_ONE_APP = (Kind.APP,)
#: A node and what is held of one card.
_ONE_CARD = 5


class Bound(msgspec.Struct, kw_only=True, gc=False):
    """A pod on its node, with what it was promised there."""

    # A hundred thousand of these: as objects that the collector knows they would need more.
    pod: PodKey
    node: str
    kinds: tuple[Kind, ...]
    initialised: bool
    priority: int = 0
    since: float = 0.0
    _shares: PodShares | None
    _held: Held = ()
    _vendor: str = ""

    def plain(self) -> Held:
        """Return what the ledger holds, where that says the same as the shares: of a pod
        with one container that lives as long as itself. Empty of others."""
        shares = self._shares
        if shares is None:
            return self._held
        if len(shares) != 1 or not shares[0] or self.kinds[:1] != _ONE_APP:
            return ()
        flat: list[Any] = [self.node]
        for share in shares[0]:
            flat += (share.uuid, 1, share.mem_mib, share.core_pct)
        if len(flat) > _ONE_CARD and len(set(flat[1::4])) < len(shares[0]):
            return ()  # twice the same card: the ledger holds the sum
        return tuple(flat)

    def slim(self, held: Held) -> None:
        """Keep what the ledger holds in place of the shares, where they are the same."""
        if self._shares is not None and held and self.plain() == held:
            self.keep(held)

    def keep(self, held: Held) -> None:
        """Keep what ``plain`` says in place of the shares."""
        if self._shares is not None:
            self._held, self._vendor = held, self._shares[0][0].vendor
            self._shares = None

    @property
    def counted(self) -> bool:
        """Whether its quota's use is ``amount``; ``Quotas`` remembers that of others."""
        return self._shares is None

    def amount(self) -> tuple[int, int]:
        """Return MiB and percent that a pod that is ``counted`` takes of all cards."""
        return sum(self._held[3::4]), sum(self._held[4::4])

    @property
    def vendor(self) -> str:
        """The word of the vendor of the cards of a pod that is ``plain``."""
        return self._vendor if self._shares is None else self._shares[0][0].vendor

    @property
    def shares(self) -> PodShares:
        """What each container was promised."""
        if self._shares is not None:
            return self._shares
        held, vendor = self._held, self._vendor
        return (
            tuple(
                Share(uuid=uuid, vendor=vendor, mem_mib=mem, core_pct=core)
                for uuid, mem, core in zip(held[1::4], held[3::4], held[4::4], strict=True)
            ),
        )


def adopt(view: PodView, config: DeviceConfig, since: float) -> Bound | None:
    """Return a pod that an earlier process bound: its annotations are all there is.

    Only what our own scheduler placed counts; what the pod's owner writes later is
    not looked at again.

    Args:
        view: The pod, on its node.
        config: Names the scheduler.
        since: When it was first seen there.
    """
    if view.scheduler != config.schedulerName or view.promised_node != view.node:
        return None
    if view.unreadable:
        log.warning("%s: %s", view.key, view.unreadable)
    shares = view.shares
    if shares is None or not any(shares):
        return None
    if tuple(map(len, shares)) != view.counts:
        log.warning("%s: what it was promised is not what it asks for", view.key)
        return None
    return Bound(
        pod=view.key,
        node=view.node,
        _shares=shares,
        kinds=view.kinds,
        initialised=view.initialised,
        priority=view.priority,
        since=since,
    )
