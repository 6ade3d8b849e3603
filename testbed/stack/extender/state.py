"""What the extender knows: nodes, promises, turns; fed by watch events.

One event loop owns it. Filter decides and reserves in one go, without an await, so
two filters can never see the same free slot (HAMi #2470).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from testbed.errors import CodecError, InputError
from testbed.stack import names
from testbed.stack.codec import decode_pod_shares, decode_register, encode_pod_shares
from testbed.stack.config import DeviceConfig
from testbed.stack.extender.pods import PodView, view_of
from testbed.stack.extender.reservations import Reservation, Reservations, Stage
from testbed.stack.extender.turns import Turns
from testbed.stack.extender.waiting import Waiting
from testbed.stack.model import PodKey, PodShares
from testbed.stack.placement.decide import Choice
from testbed.stack.placement.effective import Kind, fold
from testbed.stack.placement.ledger import Ledger
from testbed.units import quantity

log = logging.getLogger(__name__)


def _offers(node: Mapping[str, Any], resource: str) -> bool:
    """Tell whether a node's kubelet hands out a resource."""
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    try:
        return quantity(allocatable.get(resource, 0)) > 0
    except InputError:
        return False


@dataclass(slots=True, kw_only=True)
class Bound:
    """A pod on its node, with what it was promised there."""

    pod: PodKey
    node: str
    shares: PodShares
    kinds: tuple[Kind, ...]
    initialised: bool


class State:
    """Ledger, reservations, bound pods and turns, consistent with each other."""

    def __init__(
        self,
        config: DeviceConfig,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.config = config
        self.clock = clock
        self.wall = wall
        self.ledger = Ledger()
        self.reservations = Reservations()
        self.turns = Turns()
        self.waiting = Waiting()
        self.bound: dict[str, Bound] = {}
        self.nodes_synced = False
        self.pods_synced = False
        #: Node -> annotations last read, and whether its kubelet offers cards.
        self._registered: dict[str, tuple[str, str, bool]] = {}

    @property
    def synced(self) -> bool:
        return self.nodes_synced and self.pods_synced

    # --- nodes -----------------------------------------------------------

    def node_changed(self, node: Mapping[str, Any]) -> None:
        """Take a node's cards from its annotations; unchanged ones cost nothing.

        A node whose kubelet offers no card (its plugin is away) keeps its cards and
        its pods, and takes no new ones: there a kubelet would fail them for good.
        kube-scheduler must not judge that (``ignoredByScheduler``), since it never
        wakes a pod that it rejected for a resource beside ignored ones.
        """
        metadata = node.get("metadata") or {}
        name = metadata.get("name") or ""
        annotations = metadata.get("annotations") or {}
        seen = (
            annotations.get(names.NODE_REGISTER) or "",
            annotations.get(names.DEVICE_CORDON) or "",
            _offers(node, self.config.resourceCountName),
        )
        if self._registered.get(name) == seen:
            return
        self._registered[name] = seen
        try:
            cards = decode_register(seen[0])
        except CodecError as error:
            # The cards last read stay: a bad write must not free what pods hold.
            log.warning("node %s: %s", name, error.text())
            return
        if not seen[2]:
            cards = tuple(replace(card, healthy=False) for card in cards)
        cordoned = [uuid.strip() for uuid in seen[1].split(",") if uuid.strip()]
        self.ledger.set_node(name, cards, cordoned)
        self.waiting.room_made()
        if cards:
            log.info("node %s registers %d cards", name, len(cards))

    def node_gone(self, name: str) -> None:
        if self._registered.pop(name, None) is not None:
            self.ledger.remove_node(name)

    # --- pods ------------------------------------------------------------

    def pod_changed(self, pod: Mapping[str, Any]) -> None:
        """Follow a pod: bound ones hold their shares, ended ones nothing."""
        try:
            view = view_of(pod, self.config.resourceCountName)
        except InputError as error:
            log.warning("a pod was skipped: %s", error.text())
            return
        uid = view.key.uid
        if view.terminal:
            self.pod_gone(uid)
        elif view.node:
            self._pod_bound(view)
        elif view.unschedulable:
            self.reservations.queued(uid, self.clock())

    def pod_gone(self, uid: str) -> None:
        """Forget a pod that was deleted or has ended: reservation, shares, turn."""
        held = self.reservations.drop(uid) is not None
        held = self.bound.pop(uid, None) is not None or held
        self.ledger.release(uid)
        self.turns.end(uid, self.clock())
        self.waiting.forget(uid)
        if held:
            self.waiting.room_made()

    def _pod_bound(self, view: PodView) -> None:
        uid = view.key.uid
        reservation = self.reservations.get(uid)
        if reservation is not None:
            if reservation.node == view.node and _text(reservation) == view.allocated:
                self.confirm(reservation)
            else:
                log.warning("%s was bound to %s behind our back", view.key, view.node)
                self.release(uid)
        known = self.bound.get(uid)
        if known is None:
            known = self._adopt(view)
        if known is None:
            return
        if known.initialised != view.initialised:
            known.initialised = view.initialised
            self._charge(known)
            self.waiting.room_made()  # its init containers' peak is over
        if view.bind_phase == names.PHASE_ALLOCATING:
            self.turns.hold(known.node, uid, self.clock())
        else:
            self.turns.end(uid, self.clock())

    def _adopt(self, view: PodView) -> Bound | None:
        """Take a pod that an earlier process bound: its annotations are all there is.

        Only what our own scheduler placed counts; what the pod's owner writes later is
        not looked at again.
        """
        if view.scheduler != self.config.schedulerName or view.promised_node != view.node:
            return None
        try:
            shares = decode_pod_shares(view.allocated, len(view.kinds))
        except CodecError as error:
            log.warning("%s: %s", view.key, error.text())
            return None
        if not any(shares):
            return None
        if tuple(map(len, shares)) != view.counts:
            log.warning("%s: %r is not what it asks for", view.key, view.allocated)
            return None
        bound = Bound(
            pod=view.key,
            node=view.node,
            shares=shares,
            kinds=view.kinds,
            initialised=view.initialised,
        )
        self._charge(bound)
        unknown = self.ledger.unknown_cards(view.key.uid)
        if unknown and self.nodes_synced:
            log.warning("%s holds cards that %s lacks: %s", view.key, view.node, unknown)
        return bound

    def _charge(self, bound: Bound) -> None:
        self.bound[bound.pod.uid] = bound
        charges = fold(bound.shares, bound.kinds, initialised=bound.initialised)
        self.ledger.promise(bound.pod.uid, bound.node, charges)

    # --- promises --------------------------------------------------------

    def reserve(self, pod: PodKey, choice: Choice, kinds: tuple[Kind, ...]) -> Reservation:
        """Promise a choice to a pod, in place of what was reserved for it before."""
        reservation = Reservation(
            pod=pod,
            node=choice.node,
            shares=choice.shares,
            kinds=kinds,
            created=self.clock(),
            created_unix=int(self.wall()),
        )
        self.reservations.add(reservation)
        self.waiting.forget(pod.uid)
        self.ledger.promise(pod.uid, choice.node, fold(choice.shares, kinds))
        return reservation

    def release(self, uid: str) -> None:
        """Give a reservation and its turn back; bound pods keep what they have."""
        if self.reservations.drop(uid) is not None:
            self.ledger.release(uid)
            self.waiting.room_made()
        if uid not in self.bound:
            self.turns.end(uid, self.clock())

    def confirm(self, reservation: Reservation) -> None:
        """Turn a reservation into a bound pod's shares (once)."""
        uid = reservation.pod.uid
        if self.reservations.drop(uid) is None:
            return
        self.bound[uid] = Bound(
            pod=reservation.pod,
            node=reservation.node,
            shares=reservation.shares,
            kinds=reservation.kinds,
            initialised=Kind.INIT not in reservation.kinds,
        )

    def drop_expired(self) -> list[Reservation]:
        """Give back the reservations whose time is up, and return them."""
        now = self.clock()
        over = [r for r in self.reservations if r.stage is Stage.RESERVED and r.over(now)]
        for reservation in over:
            log.info("%s: reservation on %s has expired", reservation.pod, reservation.node)
            self.release(reservation.pod.uid)
        return over


def _text(reservation: Reservation) -> str:
    return encode_pod_shares(reservation.shares)
