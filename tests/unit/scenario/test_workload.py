"""What runs in the pods, on cards made up in memory."""

from __future__ import annotations

import importlib.util
import json
import sys
import threading
import time
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.lab.scenario.pods import SHARED
from testbed.units import MIB

from .conftest import ROOT

CONTEXT_MIB = 424
FOLDER = ROOT / "scenarios" / "co_location"


def load(name):
    """Import a file of the workload as it is in a pod: beside its helpers."""
    sys.path[:0] = [str(FOLDER), str(SHARED)]
    try:
        spec = importlib.util.spec_from_file_location(f"co_location_{name}", FOLDER / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(FOLDER))
        sys.path.remove(str(SHARED))
    return module


@pytest.fixture(scope="module")
def workload():
    return load("fill")


class OutOfMemoryError(RuntimeError):
    pass


class Card:
    """Refuses what would pass its limit; a context is on it already."""

    def __init__(self, limit_mib):
        self.limit, self.used = limit_mib * MIB, CONTEXT_MIB * MIB
        self.torch = SimpleNamespace(OutOfMemoryError=OutOfMemoryError, empty=self._empty, uint8=1)

    def _empty(self, size, *, dtype, device):
        if self.used + size > self.limit:
            raise OutOfMemoryError("CUDA out of memory")
        self.used += size
        return SimpleNamespace(zero_=lambda: None)


def fill(workload, card, ceiling_mib):
    return workload.fill(card.torch, lambda: card.used, ceiling_mib * MIB, [])


@given(cap=st.integers(1024, 81920), percent=st.integers(101, 200))
def test_a_cap_is_met_whatever_its_size(workload, cap, percent):
    """Also where the cap is small beside the first steps."""
    card = Card(cap)
    assert fill(workload, card, cap * percent // 100) == (True, "OutOfMemoryError")
    assert cap * MIB - card.used < 2 * MIB


@given(cap=st.integers(1024, 40000), percent=st.integers(101, 200))
def test_without_a_cap_it_stops_at_its_ceiling_above_it(workload, cap, percent):
    card = Card(81920)
    ceiling = cap * percent // 100
    assert fill(workload, card, ceiling) == (False, "")
    assert cap * MIB < card.used <= ceiling * MIB


def test_another_error_is_no_refusal(workload):
    card = Card(2048)

    def broken(size, **_):
        raise RuntimeError("an illegal memory access was encountered")

    card.torch.empty = broken
    with pytest.raises(RuntimeError, match="illegal"):
        fill(workload, card, 3000)


# --- compute ---------------------------------------------------------------------
class Queue:
    """A card on which each step takes a while of real time, one after the other."""

    def __init__(self, step_s=0.002, fails_at=None):
        self.free_at, self.step_s, self.most, self.open = 0.0, step_s, 0, 0
        self.fails_at, self.done, self.made = fails_at, 0, 0
        self.lock = threading.Lock()
        self.cuda = SimpleNamespace(
            set_device=lambda ordinal: None,
            _sleep=lambda cycles: None,
            Event=lambda blocking: self._event(),
        )

    def _event(self):
        queue = self

        class Event:
            def record(self):
                with queue.lock:
                    queue.free_at = max(queue.free_at, time.monotonic()) + queue.step_s
                    self.at = queue.free_at
                    queue.open += 1
                    queue.made += 1
                    queue.most = max(queue.most, queue.open)

            def query(self):
                return self.at <= time.monotonic()

            def synchronize(self):
                if queue.done == queue.fails_at:
                    raise RuntimeError("an illegal memory access was encountered")
                while (left := self.at - time.monotonic()) > 0:
                    time.sleep(left)
                with queue.lock:
                    queue.open -= 1
                    queue.done += 1

        return Event()

    def empty(self, *sizes, device):
        return SimpleNamespace(add=lambda number: self)

    def matmul(self, left, right, out):
        pass

    def relu_(self, values):
        pass


@pytest.fixture
def flat_out(tmp_path, monkeypatch):
    module = load("flat_out")
    facts = sys.modules[module.released.__module__]
    monkeypatch.setattr(facts, "RELEASE", tmp_path)
    module.RELEASE = tmp_path
    return module


def told(capsys, event):
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return [line for line in lines if line["event"] == event]


def test_steps_count_when_they_are_done_and_the_queue_stays_full(flat_out, capsys):
    queue = Queue(step_s=0.01)  # long beside what it takes to ask for one
    card = flat_out.Card(queue, 0, "GPU-1")
    flat_out.together([card], "alone-a", lambda: card.steps < 50)
    assert queue.most == flat_out.DEPTH
    assert card.steps == queue.done and queue.open == 0
    steps = [line["steps"] for line in told(capsys, "steps")]
    assert steps == sorted(steps) and steps[-1] == card.steps


def test_a_step_that_is_done_counts_at_once_also_while_launches_wait(flat_out, capsys):
    """As under a limiter: the card is ahead of the program, and the queue never full."""
    queue = Queue(step_s=0.0)
    card = flat_out.Card(queue, 0, "GPU-1")
    behind = []

    def goes_on():
        behind.append(queue.made - card.steps)
        return card.steps < 20

    card.work("alone-a", goes_on)
    assert max(behind) <= 1


def test_all_cards_work_at_once_and_are_counted_apart(flat_out, capsys):
    cards = [flat_out.Card(Queue(step_s), n, f"GPU-{n}") for n, step_s in enumerate((0.002, 0.05))]
    flat_out.together(cards, "together", lambda: cards[1].steps < 10)
    assert cards[0].steps > cards[1].steps
    assert {line["uuid"] for line in told(capsys, "steps")} == {"GPU-0", "GPU-1"}


def test_work_that_fails_on_one_card_ends_all_of_it(flat_out):
    cards = [flat_out.Card(Queue(fails_at=f), n, f"GPU-{n}") for n, f in enumerate((None, 5))]
    with pytest.raises(RuntimeError, match="illegal memory access"):
        flat_out.together(cards, "together", lambda: True)


def test_the_last_phase_is_held_at_work(flat_out, capsys):
    """Released in mid-work, it goes on for as long as it is told."""
    card = flat_out.Card(Queue(), 0, "GPU-1")
    goes_on = flat_out.until_released("kill", 60, 0.05)
    assert goes_on() and told(capsys, "released") == []
    (flat_out.RELEASE / "kill").touch()
    flat_out.together([card], "kill", goes_on)
    (event,) = told(capsys, "released")
    assert event["in_time"] and card.steps


def test_a_phase_that_nobody_releases_ends(flat_out, capsys):
    goes_on = flat_out.until_released("kill", 0.0, 0.0)
    while goes_on():
        pass
    (event,) = told(capsys, "released")
    assert not event["in_time"]
