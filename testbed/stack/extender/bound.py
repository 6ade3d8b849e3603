"""A pod that is on its node, and what it was promised there.

What the ledger holds for such a pod is the pod itself: of a hundred thousand nothing is
kept twice.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from testbed.stack.config import DeviceConfig
from testbed.stack.extender.pods import ONE_APP, PodView, same_kinds
from testbed.stack.model import VENDOR_NVIDIA, PodKey, PodShares, Share
from testbed.stack.placement.effective import Kind, fold
from testbed.stack.placement.ledger import Ledger, Several, Single, flattened

log = logging.getLogger(__name__)


class Sort(msgspec.Struct, frozen=True, gc=False):
    """What many pods have in common; kept once for all of them."""

    namespace: str
    kinds: tuple[Kind, ...]
    initialised: bool
    priority: int
    vendor: str


#: By the fields of a sort, its lives by the object: to hash those takes longer than all else.
_SORTS: dict[tuple[str, int, bool, int, str], Sort] = {}
_MOST_SORTS = 16384


class Bound:
    """A pod on its node: what the ledger holds for it, with what else is known of it.

    Attributes:
        since: When it was first seen there, by the extender's clock.
    """

    __slots__ = ()

    if TYPE_CHECKING:
        node: str
        uid: str
        name: str
        sort: Sort
        since: float

        @property
        def shares(self) -> PodShares:
            """What each container was promised."""

        def amount(self) -> tuple[int, int]:
            """Return MiB and percent of all its cards: its use of a quota."""

    @property
    def pod(self) -> PodKey:
        return PodKey(namespace=self.sort.namespace, name=self.name, uid=self.uid)

    @property
    def kinds(self) -> tuple[Kind, ...]:
        return self.sort.kinds

    @property
    def initialised(self) -> bool:
        return self.sort.initialised

    @property
    def priority(self) -> int:
        return self.sort.priority


class BoundToOne(Bound, Single, gc=False):
    """A pod of one container that has one card, as most are."""

    uid: str
    name: str
    sort: Sort
    since: float

    @property
    def shares(self) -> PodShares:
        share = Share(
            uuid=self.uuid,
            vendor=self.sort.vendor,
            mem_mib=self.mem_mib,
            core_pct=self.core_pct,
        )
        return ((share,),)

    def amount(self) -> tuple[int, int]:
        return self.mem_mib, self.core_pct


class BoundToSeveral(Bound, Several, gc=False):
    """Any other pod."""

    uid: str
    name: str
    sort: Sort
    since: float
    promised: PodShares | None  # None where ``taken`` says the same

    @property
    def shares(self) -> PodShares:
        if self.promised is not None:
            return self.promised
        vendor = self.sort.vendor
        return (
            tuple(
                Share(uuid=uuid, vendor=vendor, mem_mib=mem, core_pct=core)
                for uuid, _, mem, core in self.taken()
            ),
        )

    def amount(self) -> tuple[int, int]:
        return sum(self.flat[2::4]), sum(self.flat[3::4])


def bound_pod(
    pod: PodKey,
    node: str,
    shares: PodShares,
    kinds: tuple[Kind, ...],
    *,
    initialised: bool,
    priority: int,
    since: float,
) -> BoundToOne | BoundToSeveral:
    """Return a pod that is on its node, charged for what runs there at a time.

    Args:
        pod: Which one.
        node: Where it is.
        shares: What each container was promised.
        kinds: Their lives.
        initialised: Whether its init containers are through.
        priority: Its priority.
        since: When it was first seen there.
    """
    kinds, vendor = same_kinds(kinds), _vendor(shares)
    # The sort that is kept keeps its lives, too, so that no others have their identity.
    sort = _SORTS.get((pod.namespace, id(kinds), initialised, priority, vendor))
    if sort is None or sort.kinds is not kinds:
        sort = _new(Sort(pod.namespace, kinds, initialised, priority, vendor))
    plain = len(shares) == 1 and kinds[:1] == ONE_APP
    if plain and len(shares[0]) == 1:
        (share,) = shares[0]
        return BoundToOne(
            node, share.uuid, share.mem_mib, share.core_pct, pod.uid, pod.name, sort, since
        )
    charges = fold(shares, kinds, initialised=initialised)
    # Of twice the same card the charge is the sum.
    same = plain and len(charges) == len(shares[0])
    return BoundToSeveral(
        node, flattened(charges), pod.uid, pod.name, sort, since, None if same else shares
    )


def _vendor(shares: PodShares) -> str:
    """Return the word of the vendor of a pod's cards; they are of one."""
    for container in shares:
        for share in container:
            return share.vendor
    return VENDOR_NVIDIA


def _new(sort: Sort) -> Sort:
    if len(_SORTS) >= _MOST_SORTS:
        _SORTS.clear()
    _SORTS[sort.namespace, id(sort.kinds), sort.initialised, sort.priority, sort.vendor] = sort
    return sort


def adopt(view: PodView, config: DeviceConfig, since: float) -> BoundToOne | BoundToSeveral | None:
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
    return bound_pod(
        view.key,
        view.node,
        shares,
        view.kinds,
        initialised=view.initialised,
        priority=view.priority,
        since=since,
    )


class BoundPods(Mapping[str, Bound]):
    """The pods on their nodes by uid: those of the ledger's promises that are such pods."""

    def __init__(self, ledger: Ledger) -> None:
        self._held = ledger.all_held()

    def get(self, uid: str, default: Any = None) -> Any:
        # As the base class does it, an exception for each pod that is not there would take
        # longer than all else that is done with it.
        held = self._held.get(uid)
        return held if isinstance(held, Bound) else default

    def __getitem__(self, uid: str) -> Bound:
        held = self._held[uid]
        if not isinstance(held, Bound):
            raise KeyError(uid)
        return held

    def __iter__(self) -> Iterator[str]:
        return (uid for uid, held in self._held.items() if isinstance(held, Bound))

    def __len__(self) -> int:
        return sum(isinstance(held, Bound) for held in self._held.values())
