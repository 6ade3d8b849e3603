"""Shares and bytes from what monitors sampled."""

from types import SimpleNamespace

import pytest

from testbed.errors import ClusterError, WaitTimeout
from testbed.lab import deploy
from testbed.lab.deploy import CardInfo, Reading, Sample
from testbed.lab.pytest_plugin import cards

NOW = {"n1": 100.0}


def sample(time, uuid="G", pod="p", pid=1, busy=None, count=5, container="main", pct=None):
    return Sample(
        time=time,
        uuid=uuid,
        pid=pid,
        pod_uid=pod,
        namespace="s",
        pod=pod,
        container=container,
        bytes=count,
        busy_ns=busy,
        utilization_pct=pct,
        node="n1",
    )


def reading(*samples, uuids=("G",), source="emulated", now=NOW):
    known = tuple(
        CardInfo(uuid=u, name="A100", index=i, memory_bytes=80 << 30, node="n1")
        for i, u in enumerate(uuids)
    )
    return Reading(now=now, source=source, cards=known, samples=samples)


def ticks(rate, *, pod="p", container="main", pid=1):
    """Samples five times a second for ten seconds, with that share of the time."""
    return [
        sample(100 + i / 5, pod=pod, container=container, pid=pid, busy=int(rate * i / 5 * 1e9))
        for i in range(51)
    ]


def share(samples, **more):
    return cards.over(reading(), samples, "p", "G", 100, 110, **more)


def test_a_share_is_the_growth_of_device_time_over_time():
    assert share(ticks(0.3) + ticks(0.6, pod="other", pid=2)) == pytest.approx(30)


def test_what_was_read_twice_counts_once_and_containers_add_up():
    twice = ticks(0.3) + ticks(0.3)
    assert share(twice) == pytest.approx(30)
    both = ticks(0.3) + ticks(0.1, container="side", pid=2)
    assert share(both) == pytest.approx(40)
    assert share(both, container="side") == pytest.approx(10)


def test_a_pod_that_did_nothing_has_no_share():
    assert share(ticks(0.6, pod="other")) == 0.0


def test_a_card_that_does_not_tell_is_an_error():
    silent = [sample(100 + i / 5) for i in range(51)]
    with pytest.raises(ClusterError, match="none by process"):
        cards.over(reading(source="nvml"), silent, "p", "G", 100, 110)
    with pytest.raises(ClusterError, match="too few samples"):
        share(ticks(0.3)[:4])


def test_nvmls_utilisation_where_there_is_no_book():
    told = [sample(100 + i / 5, pct=40.0) for i in range(51)]
    assert share(told) == pytest.approx(40)


def test_what_a_card_counts_now_is_its_next_tick(monkeypatch):
    """Not what was sampled before the question, and of no tick the half."""
    answers = [
        reading(uuids=("G", "H")),
        reading(sample(101, count=7), uuids=("G", "H")),
        reading(
            sample(101, count=7),
            sample(101.1, uuid="H", pod="", pid=0, count=0),
            sample(101.2, count=9),
            uuids=("G", "H"),
        ),
    ]
    asked = []

    def tell(kube, since):
        asked.append(since)
        return answers[len(asked) - 1]

    monkeypatch.setattr(deploy, "cards", tell)
    found = cards.fresh(SimpleNamespace())
    assert [(s.uuid, s.bytes) for s in found] == [("G", 7), ("H", 0)]
    assert asked[1:] == [NOW, NOW]


def test_a_monitor_that_does_not_sample_is_not_waited_for_without_end(monkeypatch):
    monkeypatch.setattr(deploy, "cards", lambda kube, since: reading())
    monkeypatch.setattr(cards, "FRESH_S", 1e-9)
    with pytest.raises(WaitTimeout, match="sampled once more"):
        cards.fresh(SimpleNamespace())


def test_cards_and_whose_their_bytes_are(monkeypatch):
    told = reading(sample(101, count=7), sample(101, pid=2, count=1), sample(101, pod="q", count=3))
    monkeypatch.setattr(deploy, "cards", lambda kube, since: told)
    [card] = cards.all_cards(SimpleNamespace())
    assert (card.model, card.node, card.memory_mib) == ("A100", "n1", 81920)
    assert card.pods() == {"s/p": 8, "s/q": 3}
    assert card.used_bytes() == 11
