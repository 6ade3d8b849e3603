"""The vectorised ledger against an independent one of objects and loops.

Nothing here shares code with the product but the frozen values: the reference walks
cards one by one, as the rules are told to people.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from testbed.stack.model import Card, Constraint, Request
from testbed.stack.placement import Kind, PodRequest, fold
from testbed.stack.placement.decide import Offer, decide
from testbed.stack.placement.fit import may_fit, place
from testbed.stack.placement.ledger import Ledger
from testbed.stack.placement.reasons import explain


@dataclass
class RefCard:
    card: Card
    cordoned: bool
    slots: int = 0  # used
    mem: int = 0
    core: int = 0

    def accepts(self, request: Request, want: Constraint) -> bool:
        card = self.card
        if not card.healthy or self.cordoned or card.mode != "hami-core":
            return False
        model = card.model.lower()
        if want.use_types and not any(w.lower() in model for w in want.use_types):
            return False
        if any(w.lower() in model for w in want.nouse_types):
            return False
        if want.use_uuids and card.uuid not in want.use_uuids:
            return False
        if card.uuid in want.nouse_uuids:
            return False
        if self.slots >= card.slots:
            return False
        if self.mem + self.need(request) > card.mem_mib:
            return False
        if self.core + request.core_pct > card.core_pct:
            return False
        if request.core_pct >= 100 and self.slots > 0:
            return False
        return not (request.core_pct == 0 and self.core >= card.core_pct)

    def need(self, request: Request) -> int:
        if request.mem_mib is not None:
            return request.mem_mib
        return self.card.mem_mib * request.mem_pct // 100

    def fill(self, request: Request) -> float:
        return (
            (self.slots + 1) / self.card.slots
            + (self.mem + self.need(request)) / self.card.mem_mib
            + (self.core + request.core_pct) / self.card.core_pct
        )

    def take(self, slots: int, mem: int, core: int) -> None:
        self.slots += slots
        self.mem += mem
        self.core += core


@dataclass
class RefCluster:
    nodes: dict[str, list[RefCard]] = field(default_factory=dict)
    held: dict[str, tuple[str, dict[str, tuple[int, int, int]]]] = field(default_factory=dict)

    def place(self, node: str, pod: PodRequest) -> list[list[tuple[str, int, int]]] | None:
        cards = copy.deepcopy(self.nodes[node])
        placed = []
        for request, kind in zip(pod.containers, pod.kinds, strict=True):
            if not request.count:
                placed.append([])
                continue
            here = copy.deepcopy(cards) if kind is Kind.INIT else cards
            fitting = [c for c in here if c.accepts(request, pod.constraint)]
            if len(fitting) < request.count:
                return None
            sign = -1 if pod.card_policy == "binpack" else 1
            fitting.sort(key=lambda c: (sign * c.fill(request), c.card.index))
            chosen = sorted(fitting[: request.count], key=lambda c: c.card.index)
            placed.append([(c.card.uuid, c.need(request), request.core_pct) for c in chosen])
            for card in chosen:
                card.take(1, card.need(request), request.core_pct)
        return placed

    def score(self, node: str, pod: PodRequest) -> float:
        cards = self.nodes[node]
        lasting = [
            r
            for r, k in zip(pod.containers, pod.kinds, strict=True)
            if r.count and k is not Kind.INIT
        ] or [max(pod.containers, key=lambda r: r.count)]
        mem = sum(c.card.mem_mib for c in cards)
        wanted = 0.0
        for r in lasting:
            one = r.mem_mib if r.mem_mib is not None else mem / len(cards) * r.mem_pct / 100
            wanted += r.count * one
        slots = sum(c.slots for c in cards) + sum(r.count for r in lasting)
        core = sum(c.core for c in cards) + sum(r.count * r.core_pct for r in lasting)
        used_mem = sum(c.mem for c in cards) + wanted
        return 10 * (
            slots / sum(c.card.slots for c in cards)
            + used_mem / mem
            + core / sum(c.card.core_pct for c in cards)
        )

    def promise(self, uid: str, node: str, pod: PodRequest, placed: list) -> None:
        """Charge the most that is in use at one time, step by step through the pod's life."""
        uuids = {uuid for container in placed for uuid, _, _ in container}
        charges = {}
        for uuid in uuids:
            most = [0, 0, 0]
            running = [0, 0, 0]

            def use(container, uuid=uuid):
                own = [x for x in container if x[0] == uuid]
                return [len(own), sum(x[1] for x in own), sum(x[2] for x in own)]

            for kind, container in zip(pod.kinds, placed, strict=True):
                now = [a + b for a, b in zip(running, use(container), strict=True)]
                if kind is not Kind.INIT:
                    running = now
                most = [max(a, b) for a, b in zip(most, now, strict=True)]
            charges[uuid] = tuple(most)
        self.held[uid] = (node, charges)
        for card in self.nodes[node]:
            card.take(*charges.get(card.card.uuid, (0, 0, 0)))

    def release(self, uid: str) -> None:
        node, charges = self.held.pop(uid)
        for card in self.nodes[node]:
            slots, mem, core = charges.get(card.card.uuid, (0, 0, 0))
            card.take(-slots, -mem, -core)


MODELS = ("NVIDIA A100", "NVIDIA H100", "NVIDIA-Tesla T4")


@st.composite
def clusters(draw):
    nodes = {}
    for i in range(draw(st.integers(1, 5))):
        count = draw(st.sampled_from((1, 1, 2, 3, 8, 9, 17)))
        cards = [
            Card(
                uuid=f"GPU-{i}-{j}",
                index=j,
                slots=draw(st.sampled_from((1, 2, 4, 10))),
                mem_mib=draw(st.sampled_from((16384, 24577, 40960, 81920))),
                core_pct=draw(st.sampled_from((100, 100, 200))),
                model=draw(st.sampled_from(MODELS)),
                mode=draw(st.sampled_from(("hami-core",) * 9 + ("mig",))),
                healthy=draw(st.sampled_from((True,) * 9 + (False,))),
            )
            for j in range(count)
        ]
        cordoned = {c.uuid for c in cards if draw(st.integers(0, 19)) == 0}
        nodes[f"node-{i}"] = (cards, cordoned)
    return nodes


requests = st.one_of(
    st.just(Request(count=0, mem_mib=0)),
    st.builds(
        Request,
        count=st.sampled_from((1, 1, 1, 2, 3, 20)),
        mem_mib=st.sampled_from((1, 1000, 4096, 8000, 20000, 40960)),
        core_pct=st.sampled_from((0, 0, 10, 30, 50, 100)),
    ),
    st.builds(
        Request,
        count=st.sampled_from((1, 1, 2)),
        mem_mib=st.none(),
        mem_pct=st.sampled_from((1, 10, 33, 50, 100)),
        core_pct=st.sampled_from((0, 0, 10, 30, 50, 100)),
    ),
)


@st.composite
def pods(draw, uuids):
    inits = draw(st.lists(st.sampled_from((Kind.INIT, Kind.SIDECAR)), max_size=2))
    kinds = (*inits, *[Kind.APP] * draw(st.integers(1, 3)))
    containers = tuple(draw(requests) for _ in kinds)
    if not any(r.count for r in containers):
        containers = (*containers[:-1], Request(count=1, mem_mib=1000))
    some = st.lists(st.sampled_from(uuids), max_size=2, unique=True).map(tuple)
    rarely = st.sampled_from((False,) * 4 + (True,))
    return PodRequest(
        containers=containers,
        kinds=kinds,
        constraint=Constraint(
            use_types=draw(st.sampled_from(((), (), (), ("a100",), ("H100", "t4")))),
            nouse_types=draw(st.sampled_from(((), (), (), ("T4",)))),
            use_uuids=draw(some) if draw(rarely) else (),
            nouse_uuids=draw(some) if draw(rarely) else (),
        ),
        node_policy=draw(st.sampled_from(("binpack", "spread"))),
        card_policy=draw(st.sampled_from(("binpack", "spread"))),
    )


def flat(shares):
    return [[(s.uuid, s.mem_mib, s.core_pct) for s in container] for container in shares]


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_ledger_decides_as_the_reference(data):
    cluster = data.draw(clusters())
    ledger, reference = Ledger(rows=1), RefCluster()
    names = list(cluster)
    uuids = [card.uuid for cards, _ in cluster.values() for card in cards]
    for name, (cards, cordoned) in cluster.items():
        ledger.set_node(name, list(reversed(cards)), cordoned)
        reference.nodes[name] = [RefCard(c, c.uuid in cordoned) for c in cards]
    live = []
    for step in range(data.draw(st.integers(1, 12))):
        if live and data.draw(st.integers(0, 3)) == 0:
            uid = live.pop(data.draw(st.integers(0, len(live) - 1)))
            assert ledger.release(uid)
            reference.release(uid)
        else:
            pod = data.draw(pods(uuids))
            offered = data.draw(st.lists(st.sampled_from(names), unique=True))
            offer = [*offered, "no-such-node"]
            uid = f"uid-{step}"
            if decide_both(ledger, reference, pod, offer, uid):
                live.append(uid)
        if data.draw(st.integers(0, 4)) == 0:
            # A node that registers again changes nothing.
            name = data.draw(st.sampled_from(names))
            ledger.set_node(name, *cluster[name])
        same_usage(ledger, reference)
    for uid in live:
        ledger.release(uid)
    assert not ledger.used.any()
    assert (ledger.mem_free == ledger.mem_total).all()


def decide_both(ledger, reference, pod, offer, uid):
    placed = {n: reference.place(n, pod) for n in offer if n in reference.nodes}
    fitting = {n for n, p in placed.items() if p is not None}

    rows = np.array(sorted(ledger.row_of(n) for n in placed), np.int64)
    exact = place(ledger, pod, rows)
    assert {ledger.name_of(r) for r, f in zip(rows, exact.fits, strict=True) if f} == fitting
    necessary = may_fit(ledger, pod)
    single = sum(1 for r in pod.containers if r.count) == 1
    for row in rows:
        fits = ledger.name_of(row) in fitting
        assert necessary[row] == fits if single else necessary[row] >= fits

    choice = decide(ledger, pod, Offer.of(offer))
    if not fitting:
        assert choice is None
        reasons = explain(ledger, pod, offer)
        assert list(reasons.failed) == offer  # complete
        assert all(reasons.failed.values())
        return False
    assert choice is not None
    sign = 1 if pod.node_policy == "binpack" else -1
    best = max(sign * reference.score(n, pod) for n in fitting)
    assert choice.node in fitting
    assert abs(choice.score - reference.score(choice.node, pod)) < 1e-9
    assert abs(sign * choice.score - best) < 1e-9
    # Ties between cards by rounding: same fill, another card. The charge must be equal.
    got = flat(choice.shares)
    assert got == placed[choice.node]
    ledger.promise(uid, choice.node, fold(choice.shares, pod.kinds))
    reference.promise(uid, choice.node, pod, got)
    return True


def same_usage(ledger, reference):
    for name, cards in reference.nodes.items():
        used = {card.uuid: charge for card, charge in ledger.usage(name)}
        for card in cards:
            charge = used[card.card.uuid]
            assert (charge.slots, charge.mem_mib, charge.core_pct) == (
                card.slots,
                card.mem,
                card.core,
            )
            assert 0 <= card.slots <= card.card.slots
            assert 0 <= card.mem <= card.card.mem_mib
            assert 0 <= card.core <= card.card.core_pct
