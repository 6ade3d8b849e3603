"""What the extender knows: nodes, promises, turns; fed by watch events.

One event loop owns it. Filter decides and reserves in one go, without an await, so
two filters can never see the same free slot (HAMi #2470).
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from testbed.errors import CodecError, InputError
from testbed.stack import names
from testbed.stack.codec.links import decode_links
from testbed.stack.config import DeviceConfig
from testbed.stack.devices.vendor import vendors
from testbed.stack.extender.bound import (
    Bound,
    BoundPods,
    BoundToOne,
    BoundToSeveral,
    adopt,
    bound_pod,
)
from testbed.stack.extender.histogram import Histogram
from testbed.stack.extender.nominations import Nomination, Nominations
from testbed.stack.extender.pods import PodView, view_of
from testbed.stack.extender.registers import Registers
from testbed.stack.extender.reservations import Reservation, Reservations, Stage
from testbed.stack.extender.turns import Turns
from testbed.stack.extender.waiting import Waiting
from testbed.stack.model import VENDOR_NVIDIA, PodKey, PodShares
from testbed.stack.placement.decide import Choice
from testbed.stack.placement.effective import Charge, Kind, fold
from testbed.stack.placement.ledger import Ledger
from testbed.stack.placement.preempt import Plan
from testbed.stack.placement.quota import Amount, Quotas
from testbed.units import quantity

log = logging.getLogger(__name__)


class State:
    """Ledger, quotas, reservations, bound pods and turns, consistent with each other."""

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
        self.ledger.close_books()  # until everything is read
        self.quotas = Quotas()
        self.reservations = Reservations()
        self.turns = Turns()
        self.waiting = Waiting()
        self.nominations = Nominations()
        self.bound = BoundPods(self.ledger)
        self._leads: Callable[[], bool] = lambda: True
        self.leader = ""
        self._nodes_synced = False
        self._pods_synced = False
        self.quotas_synced = True
        self.times = Histogram()
        self.connections: Counter[str] = Counter()  # taken by the scheduler's port
        self.load_s: float | None = None
        self._registered: dict[str, bytes] = {}  # digest of what was last read, by node
        self._priorities: Counter[int] = Counter()
        self._begun: float | None = None

    @property
    def synced(self) -> bool:
        """Whether everything was read, so that decisions can be made."""
        return self._nodes_synced and self._pods_synced and self.quotas_synced

    @property
    def leads(self) -> bool:
        """Whether this extender may promise now."""
        return self._leads()

    def follow(self, leads: Callable[[], bool]) -> None:
        """Ask a function, from now on, whether this extender may promise."""
        self._leads = leads

    def stand_by(self) -> None:
        """Forget the promises to pending pods: whoever leads now makes its own."""
        for nomination in self.nominations:
            self.unnominate(nomination.pod.uid)
        for reservation in self.reservations:
            if reservation.stage is Stage.RESERVED:
                self.release(reservation.pod.uid)

    @property
    def nodes_synced(self) -> bool:
        return self._nodes_synced

    @nodes_synced.setter
    def nodes_synced(self, read: bool) -> None:
        self._nodes_synced = read
        self._open()

    @property
    def pods_synced(self) -> bool:
        return self._pods_synced

    @pods_synced.setter
    def pods_synced(self, read: bool) -> None:
        self._pods_synced = read
        self._open()

    def _open(self) -> None:
        if self._nodes_synced and self._pods_synced:
            self.ledger.open_books()

    # --- nodes -----------------------------------------------------------

    def node_changed(self, node: Mapping[str, Any]) -> None:
        """Take a node's cards from its annotations; unchanged ones cost nothing.

        A node whose kubelet offers no card (its plugin is away) keeps its cards and
        its pods, and takes no new ones: there a kubelet would fail them for good.
        kube-scheduler must not judge that (``ignoredByScheduler``), since it never
        wakes a pod that it rejected for a resource beside ignored ones.
        """
        name = (node.get("metadata") or {}).get("name") or ""
        seen = Registers.of(node, self.config)
        digest = seen.digest()
        if self._registered.get(name) == digest:
            return
        self._registered[name] = digest
        try:
            cards = seen.cards(self.config)
        except CodecError as error:
            # The cards last read stay: a bad write must not free what pods hold.
            log.warning("node %s: %s", name, error.text())
            return
        try:
            links = decode_links(seen.links)
        except CodecError as error:
            log.warning("node %s: %s", name, error.text())
            links = {}
        self.ledger.set_node(name, cards, seen.cordoned(), links)
        self.waiting.room_made()
        if cards:
            log.log(
                logging.INFO if self.synced else logging.DEBUG,
                "node %s registers %d cards",
                name,
                len(cards),
            )

    def node_gone(self, name: str) -> None:
        if self._registered.pop(name, None) is not None:
            self.ledger.remove_node(name)

    def known_nodes(self) -> list[str]:
        """Return the names of the nodes that were told."""
        return list(self._registered)

    # --- quotas ----------------------------------------------------------

    def quota_changed(self, quota: Mapping[str, Any]) -> None:
        """Take a namespace's quota; one with scopes is for pods of a kind, and not ours."""
        metadata, spec = quota.get("metadata") or {}, quota.get("spec") or {}
        hard = spec.get("hard") or {}
        key = (str(metadata.get("namespace")), str(metadata.get("name")))
        before = self._bounds(*key)
        if spec.get("scopes") or spec.get("scopeSelector"):
            hard = {}
        for vendor in vendors(self.config):
            try:
                mem = self._bound_of(hard, vendor.memory)
                core = self._bound_of(hard, vendor.cores)
            except InputError as error:
                log.warning("quota %s/%s: %s", *key, error.text())
                continue
            mem = None if mem is None else mem * vendor.unit_mib
            self.quotas.set(*key, Amount(mem_mib=mem, core_pct=core), vendor.word)
        # Most changes are of what is used, by Kubernetes' own count.
        if self._bounds(*key) != before:
            self.waiting.room_made(unheard=True)

    def quota_gone(self, key: str) -> None:
        """Forget a quota, named ``namespace/name``."""
        namespace, _, name = key.partition("/")
        self.quotas.remove(namespace, name)
        self.waiting.room_made(unheard=True)

    def _bounds(self, namespace: str, name: str) -> list[Amount | None]:
        hard = self.quotas.hard()
        scopes = [(namespace, vendor.word) for vendor in vendors(self.config)]
        return [hard.get(scope, {}).get(name) for scope in scopes]

    def known_quotas(self) -> list[str]:
        """Return the quotas that bound anything, as ``quota_gone`` names them."""
        hard = self.quotas.hard().items()
        return [f"{namespace}/{name}" for (namespace, _), quotas in hard for name in quotas]

    @staticmethod
    def _bound_of(hard: Mapping[str, Any], resource: str) -> int | None:
        text = hard.get(f"limits.{resource}")
        return None if text is None else int(quantity(text))

    # --- pods ------------------------------------------------------------

    def pod_changed(self, pod: Mapping[str, Any]) -> None:
        """Follow a pod: bound ones hold their shares, ended ones nothing."""
        try:
            view = view_of(pod, self.config)
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
            ours = view.scheduler == self.config.schedulerName
            if ours and not self.synced and self.waiting.get(uid) is None:
                self.waiting.found_asleep(view.key)

    def pod_gone(self, uid: str) -> None:
        """Forget a pod that was deleted or has ended: reservation, shares, turn."""
        held = self.reservations.drop(uid) is not None
        bound = self.bound.get(uid)
        if bound is not None:
            self._count(bound, -1)
        self._give_back(uid)
        self.unnominate(uid)
        self.turns.end(uid, self.clock())
        self.waiting.forget(uid)
        # Whoever waits for its end may be told long after it was refused.
        for pod in self.nominations.victim_gone(uid):
            self.waiting.refused(pod, self.clock())
        if held or bound is not None:
            self.waiting.room_made()

    def known_pods(self) -> set[str]:
        """Return the uids of the pods of which anything is kept: a cluster has many more."""
        return {
            *self.bound,
            *(reservation.pod.uid for reservation in self.reservations),
            *(nomination.pod.uid for nomination in self.nominations),
            *self.waiting.uids(),
            *self.turns.uids(),
        }

    def _promise(
        self, pod: PodKey, node: str, shares: PodShares, charges: Mapping[str, Charge]
    ) -> None:
        self.ledger.promise(pod.uid, node, charges)
        # A pod's cards are of one vendor.
        if shares and shares[0]:
            vendor = shares[0][0].vendor
        else:
            vendor = next((share.vendor for each in shares for share in each), VENDOR_NVIDIA)
        self.quotas.charge(pod.uid, pod.namespace, charges.values(), vendor)

    def _give_back(self, uid: str) -> None:
        self.ledger.release(uid)
        self.quotas.release(uid)

    def _arrive(self, bound: BoundToOne | BoundToSeveral) -> None:
        """Charge a pod that is on its node, and remember it by that."""
        self.ledger.hold(bound.uid, bound)
        self._count(bound, +1)

    def _count(self, bound: Bound, sign: int) -> None:
        mem, core = bound.amount()
        sort = bound.sort
        self.quotas.add(sort.namespace, sign * mem, sign * core, sort.vendor)
        count = self._priorities[sort.priority] + sign
        if count:
            self._priorities[sort.priority] = count
        else:
            del self._priorities[sort.priority]

    def lowest_priority(self) -> int | None:
        """Return the lowest priority of the bound pods; None if there are none."""
        return min(self._priorities, default=None)

    def _pod_bound(self, view: PodView) -> None:
        uid = view.key.uid
        reservation = self.reservations.get(uid)
        if reservation is not None:
            if reservation.node == view.node and reservation.shares == view.shares:
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
            self._count(known, -1)
            self._arrive(
                bound_pod(
                    view.key,
                    known.node,
                    known.shares,
                    known.kinds,
                    initialised=view.initialised,
                    priority=known.priority,
                    since=known.since,
                )
            )
            self.waiting.room_made()  # its init containers' peak is over
        if view.bind_phase == names.PHASE_ALLOCATING:
            self.turns.hold(known.node, uid, self.clock(), view.left)
        else:
            self.turns.end(uid, self.clock())

    def _adopt(self, view: PodView) -> Bound | None:
        bound = adopt(view, self.config, self._adopted_at())
        if bound is None:
            return None
        self._arrive(bound)
        unknown = self.ledger.unknown_cards(view.key.uid) if self.synced else ()
        if unknown:
            log.warning("%s holds cards that %s lacks: %s", view.key, view.node, unknown)
        return bound

    def _adopted_at(self) -> float:
        """Return the time, the same for all pods of a first list: they were there before."""
        if self.synced:
            return self.clock()
        if self._begun is None:
            self._begun = self.clock()
        return self._begun

    # --- promises --------------------------------------------------------

    def reserve(
        self, pod: PodKey, choice: Choice, kinds: tuple[Kind, ...], priority: int = 0
    ) -> Reservation:
        """Promise a choice to a pod, in place of what was reserved for it before."""
        reservation = Reservation(
            pod=pod,
            node=choice.node,
            shares=choice.shares,
            kinds=kinds,
            created=self.clock(),
            created_unix=int(self.wall()),
            priority=priority,
        )
        self.reservations.add(reservation)
        self.waiting.forget(pod.uid)
        self._promise(pod, choice.node, choice.shares, fold(choice.shares, kinds))
        return reservation

    def nominate(
        self, pod: PodKey, plan: Plan, kinds: tuple[Kind, ...], priority: int
    ) -> Nomination:
        """Keep for a pod what its victims will leave, so that nobody else takes it."""
        nomination = Nomination(
            pod=pod,
            node=plan.node,
            shares=plan.shares,
            kinds=kinds,
            priority=priority,
            victims={victim.uid for victim in plan.victims},
            created=self.clock(),
        )
        self.renominate(nomination)
        return nomination

    def renominate(self, nomination: Nomination) -> None:
        """Book a nomination (again)."""
        self.nominations.add(nomination)
        charges = fold(nomination.shares, nomination.kinds)
        self.ledger.promise(nomination.booked_as, nomination.node, charges)

    def unnominate(self, uid: str) -> Nomination | None:
        """Give back what is kept for a pod, and return it."""
        nomination = self.nominations.drop(uid)
        if nomination is not None:
            self.ledger.release(nomination.booked_as)
        return nomination

    def release(self, uid: str) -> None:
        """Give a reservation and its turn back; bound pods keep what they have."""
        if self.reservations.drop(uid) is not None:
            self._give_back(uid)
            self.waiting.room_made()
        if uid not in self.bound:
            self.turns.end(uid, self.clock())

    def confirm(self, reservation: Reservation) -> None:
        """Turn a reservation into a bound pod's shares (once)."""
        uid = reservation.pod.uid
        if self.reservations.drop(uid) is None:
            return
        bound = bound_pod(
            reservation.pod,
            reservation.node,
            reservation.shares,
            reservation.kinds,
            initialised=Kind.INIT not in reservation.kinds,
            priority=reservation.priority,
            since=self.clock(),
        )
        self.ledger.keep(uid, bound)
        self.quotas.release(uid)
        self._count(bound, +1)

    def drop_expired(self) -> list[Reservation]:
        """Give back the reservations whose time is up, and return them."""
        now = self.clock()
        over = [r for r in self.reservations if r.stage is Stage.RESERVED and r.over(now)]
        for reservation in over:
            log.info("%s: reservation on %s has expired", reservation.pod, reservation.node)
            self.release(reservation.pod.uid)
        late = self.nominations.over(now)
        for nomination in late:
            log.info("%s: what was kept on %s has expired", nomination.pod, nomination.node)
            self.unnominate(nomination.pod.uid)
        if over or late:
            self.waiting.room_made(unheard=True)
        return over
