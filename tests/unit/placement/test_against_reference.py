"""The vectorised ledger against an independent one of objects and loops.

``Reference`` shares no code with the product but the frozen values: it walks cards one
by one, as the rules are told to people.
"""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from testbed.lab.bench.reference import Reference, Slot
from testbed.stack.model import Card, Constraint, Request
from testbed.stack.placement import Kind, PodRequest, fold
from testbed.stack.placement import decide as decide_module
from testbed.stack.placement import offer as offer_module
from testbed.stack.placement.decide import Offer, decide
from testbed.stack.placement.fit import may_fit, place
from testbed.stack.placement.ledger import Ledger
from testbed.stack.placement.quota import UNBOUNDED, Amount
from testbed.stack.placement.reasons import explain
from testbed.stack.policy import Weights

MODELS = ("NVIDIA A100", "NVIDIA H100", "NVIDIA-Tesla T4")
POLICIES = (
    "binpack",
    "spread",
    "mutex",
    "numa",
    "topology-aware",
    "mutex,binpack,numa",
    "numa,binpack",
    "spread,numa",
    "topology-aware,binpack",
    "numa,topology-aware,spread",
    "topology-aware,numa",
)


@st.composite
def clusters(draw, wide=True):
    nodes = {}
    sizes = (1, 1, 2, 3, 8, 9, 17) if wide else (1, 2, 3, 4, 8)
    for i in range(draw(st.integers(1, 5))):
        alike = draw(st.booleans())  # equal cards make ties
        one = draw(st.sampled_from((16384, 24577, 81920)))
        cards = [
            Card(
                uuid=f"GPU-{i}-{j}",
                index=j,
                slots=10 if alike else draw(st.sampled_from((1, 2, 4, 10))),
                mem_mib=one if alike else draw(st.sampled_from((16384, 24577, 40960, 81920))),
                core_pct=100 if alike else draw(st.sampled_from((100, 100, 200))),
                model=draw(st.sampled_from(MODELS)),
                numa=draw(st.integers(0, 2)),
                mode=draw(st.sampled_from(("hami-core",) * 9 + ("mig",))),
                healthy=draw(st.sampled_from((True,) * 9 + (False,))),
            )
            for j in range(draw(st.sampled_from(sizes)))
        ]
        cordoned = {c.uuid for c in cards if draw(st.integers(0, 19)) == 0}
        links = {}
        if draw(st.booleans()):
            for a in cards:
                links[a.uuid] = {
                    b.uuid: draw(st.sampled_from((0, 10, 100, 200)))
                    for b in cards
                    if a is not b and draw(st.integers(0, 3))
                }
        nodes[f"node-{i}"] = (cards, cordoned, links)
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
def pods(draw, uuids, policies):
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
            numa_bind=draw(rarely),
        ),
        node_policy=draw(st.sampled_from(("binpack", "spread"))),
        card_policy=draw(st.sampled_from(policies)),
        weights=draw(st.sampled_from((Weights(), Weights(slot=0, core=500, memory=3000)))),
    )


quotas = st.one_of(
    st.none(),
    st.builds(
        Amount,
        mem_mib=st.sampled_from((None, 0, 8000, 40000, 100_000)),
        core_pct=st.sampled_from((None, 0, 60, 200)),
    ),
)


def flat(shares):
    return [[(s.uuid, s.mem_mib, s.core_pct) for s in container] for container in shares]


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), wide=st.booleans())
def test_ledger_decides_as_the_reference(data, wide):
    """On nodes of more than 16 cards the best-linked cards are found step by step, which
    the reference does not do: there no policy looks at links."""
    cluster = data.draw(clusters(wide))
    linked = not wide
    policies = [p for p in POLICIES if linked or "topology" not in p]
    ledger, reference = Ledger(rows=1), Reference()
    names = list(cluster)
    uuids = [card.uuid for cards, _, _ in cluster.values() for card in cards]
    for name, (cards, cordoned, links) in cluster.items():
        ledger.set_node(name, list(reversed(cards)), cordoned, links)
        reference.nodes[name] = [Slot(c, c.uuid in cordoned) for c in cards]
        reference.links[name] = links
    live = []
    for step in range(data.draw(st.integers(30, 60))):
        if live and data.draw(st.integers(0, 3)) == 0:
            uid = live.pop(data.draw(st.integers(0, len(live) - 1)))
            assert ledger.release(uid)
            reference.release(uid)
        else:
            pod = data.draw(pods(uuids, policies))
            offered = data.draw(st.lists(st.sampled_from(names), unique=True, min_size=1))
            uid = f"uid-{step}"
            room = data.draw(quotas) or UNBOUNDED
            if decide_both(ledger, reference, pod, [*offered, "no-such-node"], uid, room):
                live.append(uid)
        if data.draw(st.integers(0, 4)) == 0:
            # A node that registers again changes nothing; nor does adding it all up.
            ledger.set_node(*again(data.draw(st.sampled_from(names)), cluster))
            if data.draw(st.booleans()):
                ledger.close_books()
                ledger.open_books()
        same_usage(ledger, reference)
    for uid in live:
        ledger.release(uid)
    assert not ledger.used.any()
    assert (ledger.mem_free == ledger.mem_total).all()


@pytest.mark.timeout(400)
@pytest.mark.parametrize("part", range(4))
def test_thousands_of_decisions_are_those_of_the_reference(part, monkeypatch):
    """The same without shrinking, many times as fast: 5,000 decisions in all. Clusters are
    small, so the ways of large ones are taken by force: many rows at once instead of one
    by one, all names' rows by their bytes."""
    tries, chunk, misses, few = ((8, 32, 8, 64), (0, 1, 8, 0), (1, 2, 0, 0), (0, 32, 1, 64))[part]
    monkeypatch.setattr(decide_module, "_TRIES", tries)
    monkeypatch.setattr(decide_module, "_CHUNK", chunk)
    monkeypatch.setattr(decide_module, "_MISSES", misses)
    monkeypatch.setattr(offer_module, "_FEW", few)
    made = 0
    seed = 1000 * part
    while made < 1250:
        seed += 1
        made += some_decisions(random.Random(seed))


def some_decisions(rng):
    wide = rng.random() < 0.5
    policies = [p for p in POLICIES if not wide or "topology" not in p]
    ledger, reference = Ledger(rows=1), Reference()
    for i in range(rng.randint(1, 5)):
        name, alike, one = f"node-{i}", rng.random() < 0.5, rng.choice((16384, 24577, 81920))
        cards = [
            Card(
                uuid=f"GPU-{i}-{j}",
                index=j,
                slots=10 if alike else rng.choice((1, 2, 4, 10)),
                mem_mib=one if alike else rng.choice((16384, 24577, 40960, 81920)),
                core_pct=100 if alike else rng.choice((100, 200)),
                model=rng.choice(MODELS),
                numa=rng.randint(0, 2),
                mode=rng.choice(("hami-core",) * 9 + ("mig",)),
                healthy=rng.random() > 0.1,
            )
            for j in range(rng.choice((1, 2, 3, 8, 9, 17) if wide else (1, 2, 3, 4, 8)))
        ]
        cordoned = {c.uuid for c in cards if rng.random() < 0.05}
        links = {}
        if rng.random() < 0.5:
            links = {
                a.uuid: {b.uuid: rng.choice((0, 10, 100, 200)) for b in cards if a is not b}
                for a in cards
            }
        ledger.set_node(name, cards, cordoned, links)
        reference.nodes[name] = [Slot(c, c.uuid in cordoned) for c in cards]
        reference.links[name] = links
    uuids = [slot.card.uuid for slots in reference.nodes.values() for slot in slots]
    live, made = [], 0
    for step in range(40):
        if live and rng.random() < 0.25:
            uid = live.pop(rng.randrange(len(live)))
            ledger.release(uid)
            reference.release(uid)
            continue
        offer = [*rng.sample(list(reference.nodes), rng.randint(1, len(reference.nodes))), "none"]
        room = UNBOUNDED
        if rng.random() < 0.3:
            room = Amount(
                mem_mib=rng.choice((None, 0, 8000, 40000, 100_000)),
                core_pct=rng.choice((None, 0, 60, 200)),
            )
        made += 1
        if decide_both(ledger, reference, some_pod(rng, uuids, policies), offer, f"u{step}", room):
            live.append(f"u{step}")
        same_usage(ledger, reference)
    return made


def some_pod(rng, uuids, policies):
    def request():
        cores = rng.choice((0, 0, 10, 30, 50, 100))
        kind = rng.random()
        if kind < 0.2:
            return Request(count=0, mem_mib=0)
        if kind < 0.7:
            mem = rng.choice((1, 1000, 4096, 8000, 20000, 40960))
            return Request(count=rng.choice((1, 1, 1, 2, 3, 20)), mem_mib=mem, core_pct=cores)
        percent = rng.choice((1, 10, 33, 50, 100))
        return Request(count=rng.choice((1, 1, 2)), mem_pct=percent, core_pct=cores)

    inits = [rng.choice((Kind.INIT, Kind.SIDECAR)) for _ in range(rng.randint(0, 2))]
    kinds = (*inits, *[Kind.APP] * rng.choice((1, 1, 1, 2, 3)))
    containers = tuple(request() for _ in kinds)
    if not any(r.count for r in containers):
        containers = (*containers[:-1], Request(count=1, mem_mib=1000))
    return PodRequest(
        containers=containers,
        kinds=kinds,
        constraint=Constraint(
            use_types=rng.choice(((), (), (), ("a100",), ("H100", "t4"))),
            nouse_types=rng.choice(((), (), (), ("T4",))),
            use_uuids=tuple(rng.sample(uuids, min(2, len(uuids)))) if rng.random() < 0.1 else (),
            nouse_uuids=tuple(rng.sample(uuids, 1)) if rng.random() < 0.2 else (),
            numa_bind=rng.random() < 0.2,
        ),
        node_policy=rng.choice(("binpack", "spread")),
        card_policy=rng.choice(policies),
        weights=rng.choice((Weights(), Weights(slot=0, core=500, memory=3000))),
    )


def again(name, cluster):
    return name, *cluster[name]


def decide_both(ledger, reference, pod, offer, uid, room):
    reference.mem_room, reference.core_room = None, None
    on_cards = reference.decide(pod, offer)
    reference.mem_room, reference.core_room = room.mem_mib, room.core_pct
    fitting = reference.decide(pod, offer)

    known = [n for n in offer if n in reference.nodes]
    rows = np.array(sorted(ledger.row_of(n) for n in known), np.int64)
    exact = place(ledger, pod, rows, room)
    named = [ledger.name_of(r) for r in rows]
    assert {n for n, f in zip(named, exact.fits, strict=True) if f} == set(on_cards)
    assert {n for n, f in zip(named, exact.good, strict=True) if f} == set(fitting)
    necessary = may_fit(ledger, pod)
    single = sum(1 for r in pod.containers if r.count) == 1
    for row in rows:
        fits = ledger.name_of(row) in on_cards
        assert necessary[row] == fits if single else necessary[row] >= fits

    choice = decide(ledger, pod, Offer.of(offer), room)
    if not fitting:
        assert choice is None
        reasons = explain(ledger, pod, offer, room)
        assert list(reasons.failed) == offer  # complete
        for name, text in reasons.failed.items():
            assert text
            assert ("ResourceQuotaNotFit" in text) == (name in on_cards)
            same_words(reference, pod, name, text)
        return False
    assert choice is not None
    assert choice.node in reference.best(pod, fitting)
    assert abs(choice.score - reference.score(choice.node, pod)) < 1e-9
    got = flat(choice.shares)
    assert got == fitting[choice.node]
    for container in got:
        assert len({uuid for uuid, _, _ in container}) == len(container)
    ledger.promise(uid, choice.node, fold(choice.shares, pod.kinds))
    reference.promise(uid, choice.node, pod.kinds, got)
    return True


def same_words(reference, pod, name, text):
    """Where one container asks, each card's word is the first that the reference finds."""
    asking = [r for r in pod.containers if r.count]
    if name not in reference.nodes or len(asking) != 1 or "Quota" in text:
        return
    (request,) = asking
    slots = reference.nodes[name]
    if request.count > len(slots):
        assert text == f"{len(slots)}/{len(slots)} NodeInsufficientDevice"
        return
    mutex = "mutex" in pod.card_policy
    words = [slot.refusal(request, pod.constraint, mutex) for slot in slots]
    if words.count("") >= request.count:
        assert pod.constraint.numa_bind
        words = [word or "NumaNotFit" for word in words]
    counts = {word: words.count(word) for word in words if word}
    assert text == ", ".join(sorted(f"{n}/{len(slots)} {word}" for word, n in counts.items()))


def same_usage(ledger, reference):
    for name, slots in reference.nodes.items():
        used = {card.uuid: charge for card, charge in ledger.usage(name)}
        for slot in slots:
            charge = used[slot.card.uuid]
            assert (charge.slots, charge.mem_mib, charge.core_pct) == (
                slot.slots,
                slot.mem,
                slot.core,
            )
            assert 0 <= slot.slots <= slot.card.slots
            assert 0 <= slot.mem <= slot.card.mem_mib
            assert 0 <= slot.core <= slot.card.core_pct
