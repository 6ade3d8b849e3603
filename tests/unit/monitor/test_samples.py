"""Ring and answer of /v1/cards."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest

from testbed.stack.devices import CardBook, CardReading, Device, ProcessBytes
from testbed.stack.model import PodKey
from testbed.stack.monitor.samples import Ring, Sample, answer, samples_of
from testbed.stack.monitor.utilization import Window
from testbed.stack.monitor.whose import Owner


def sample(number: int) -> tuple[Sample, ...]:
    return (Sample(uuid="GPU-a", pid=number, pod_uid="u", container="c", bytes=number),)


class Clock:
    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def test_one_sample_for_each_process_and_one_for_an_idle_card() -> None:
    readings = [
        CardReading(
            uuid="GPU-a",
            used_bytes=30,
            processes=(ProcessBytes(pid=7, bytes=10), ProcessBytes(pid=8, bytes=20)),
        ),
        CardReading(uuid="GPU-b"),
        CardReading(uuid="GPU-c", error="GPU is lost"),
    ]
    found = samples_of(readings, {7: Owner(pod_uid="u", container="c")})
    assert [(s.uuid, s.pid, s.pod_uid, s.container, s.bytes) for s in found] == [
        ("GPU-a", 7, "u", "c", 10),
        ("GPU-a", 8, "unknown", "", 20),
        ("GPU-b", 0, "", "", 0),
    ]


def test_use_of_the_card_by_both_books() -> None:
    readings = [
        CardReading(
            uuid=uuid,
            processes=(ProcessBytes(pid=7, bytes=1), ProcessBytes(pid=8, bytes=2)),
        )
        for uuid in ("GPU-a", "GPU-b")
    ]
    window = Window(stamp_ns=1, interval_ns=1, sm_pct={7: 40}, card_pct=40)
    book = CardBook(
        clock="slices", lapped=0, budget_hits=0, busy_ns={7: 5000}, swapped_bytes={7: 9}
    )
    found = samples_of(readings, {}, windows={"GPU-a": window}, books={"GPU-a": book})
    assert [(s.uuid, s.pid, s.utilization_pct, s.busy_ns, s.swapped_bytes) for s in found] == [
        ("GPU-a", 7, 40, 5000, 9),
        ("GPU-a", 8, 0, None, None),
        ("GPU-b", 7, None, None, None),
        ("GPU-b", 8, None, None, None),
    ]


def test_since_misses_nothing_and_gives_nothing_twice() -> None:
    """Also while the clock stands still."""
    clock = Clock(100.0)
    ring = Ring(keep_s=600, clock=clock, steady=clock)
    got: list[int] = []
    since = 0.0
    for number in range(1, 6):
        ring.add(sample(number))
        if number % 2:
            since, ticks = ring.since(since)
            got += [s.pid for tick in ticks for s in tick.samples]
    _, ticks = ring.since(since)
    assert got + [s.pid for tick in ticks for s in tick.samples] == [1, 2, 3, 4, 5]
    times = [tick.time for tick in ring.since(0)[1]]
    assert [tick.time for tick in ring.since(times[2])[1]] == times[3:], "after, not from"
    assert times == sorted(set(times))


@pytest.mark.parametrize("jump", [3600.0, -3600.0, 0.5, -0.5])
def test_a_clock_that_is_set_makes_no_span_that_never_was(jump: float) -> None:
    """Two samples a quarter of a second apart stay so, whatever the clock says."""
    wall, steady = Clock(10_000.0), Clock(5.0)
    ring = Ring(keep_s=600, clock=wall, steady=steady)
    since = 0.0
    for number in range(1, 9):
        if number == 5:
            wall.now += jump
        ring.add(sample(number))
        since, ticks = ring.since(since)
        assert [s.pid for tick in ticks for s in tick.samples] == [number] or (
            # Who asks by the clock of before is told from the next answer on.
            number == 5 and jump < 0 and not ticks
        )
        wall.now += 0.25
        steady.now += 0.25
    kept = [tick.time for tick in ring.since(0)[1]]
    assert len(kept) == 4, "what was before is forgotten"
    assert [b - a for a, b in pairwise(kept)] == pytest.approx([0.25] * 3)
    assert ring.since(0)[0] == pytest.approx(wall.now), "the node's clock of now"


def test_a_clock_that_wanders_is_no_clock_that_was_set() -> None:
    wall, steady = Clock(1000.0), Clock(5.0)
    ring = Ring(keep_s=600, clock=wall, steady=steady)
    for number in range(40):
        ring.add(sample(number))
        steady.now += 0.25
        wall.now += 0.255
    assert len(ring.since(0)[1]) == 40


def test_who_is_kept_from_running_between_two_looks_sees_no_jump() -> None:
    wall = Clock(1000.0)

    class Slow(Clock):
        def __call__(self) -> float:
            self.now += 0.4
            wall.now += 0.4
            return self.now

    ring = Ring(keep_s=600, clock=wall, steady=Slow(5.0))
    ring.add(sample(1))
    ring.add(sample(2))
    assert len(ring.since(0)[1]) == 2


def test_ring_forgets() -> None:
    clock = Clock(0.0)
    ring = Ring(keep_s=10, clock=clock, steady=clock)
    for second in range(1000):
        clock.now = float(second)
        ring.add(sample(second))
    kept = ring.since(0)[1]
    assert kept[-1].time == 999
    assert 11 <= len(kept) <= 120
    last = ring.last()
    assert last is not None and last.samples == sample(999)


def test_answer_is_the_contract() -> None:
    ring = Ring(keep_s=10, clock=Clock(1790000000.5), steady=Clock(1.0))
    ring.add(sample(4711))
    now, ticks = ring.since(0)
    document = answer(
        node="n1",
        source="emulated",
        devices=[Device(uuid="GPU-a", index=0, name="NVIDIA A100", memory_bytes=85899345920)],
        readings={"GPU-a": CardReading(uuid="GPU-a", used_bytes=77, utilization_pct=93)},
        books={"GPU-a": CardBook(clock="sharing", lapped=4, budget_hits=2, busy_ns={})},
        process_samples={"GPU-a": True},
        now=now,
        ticks=ticks,
        key={"u": PodKey(namespace="ns", name="p", uid="u")}.get,
    )
    assert json.loads(json.dumps(document)) == {
        "node": "n1",
        "now": now,
        "source": "emulated",
        "cards": [
            {
                "uuid": "GPU-a",
                "name": "NVIDIA A100",
                "index": 0,
                "memory_bytes": 85899345920,
                "used_bytes": 77,
                "utilization_pct": 93,
                "process_samples": True,
                "clock": "sharing",
                "lapped": 4,
                "budget_hits": 2,
            }
        ],
        "samples": [
            {
                "time": 1790000000.5,
                "uuid": "GPU-a",
                "pid": 4711,
                "pod_uid": "u",
                "namespace": "ns",
                "pod": "p",
                "container": "c",
                "bytes": 4711,
                "utilization_pct": None,
                "busy_ns": None,
                "swapped_bytes": None,
            }
        ],
    }


def test_answer_tells_a_card_that_cannot_be_read() -> None:
    document = answer(
        node="n1",
        source="nvml",
        devices=[Device(uuid="GPU-a", index=0, name="X", memory_bytes=1)],
        readings={"GPU-a": CardReading(uuid="GPU-a", error="GPU is lost")},
        books={},
        process_samples={},
        now=1.0,
        ticks=[],
        key=lambda uid: None,
    )
    (card,) = document["cards"]  # type: ignore[misc]
    assert card["error"] == "GPU is lost"
    assert (card["clock"], card["lapped"], card["utilization_pct"]) == (None, None, None)
    assert card["used_bytes"] is None
    assert "budget_hits" not in card, "hardware has none"
