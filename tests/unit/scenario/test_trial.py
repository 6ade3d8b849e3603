"""The trial driver, against a cluster made up in memory with a clock of its own."""

from __future__ import annotations

import json

import pytest

from testbed.errors import InputError, WaitTimeout
from testbed.lab import deploy
from testbed.lab.scenario.trial import TICKS, parse_events, run_trial
from testbed.units import MIB

PHASES = ("one", "two")


class FakeAccess:
    """Two pods that go through their phases as they are released; a tick a poll."""

    def __init__(self, *, slow=(), dies=(), phases=PHASES):
        self.now = 1000.0
        self.phases = phases
        self.slow, self.dies = set(slow), set(dies)
        self.lines = {}
        self.releases = []
        self.started = False
        self.hits = 7  # of the card's earlier life

    def clock(self):
        return self.now

    def pause(self, seconds):
        self.now += seconds

    def _say(self, name, event, phase=""):
        self.lines[name].append(json.dumps({"event": event, "time": self.now, "phase": phase}))

    def start(self, manifests):
        self.started = True
        for manifest in manifests:
            name = manifest["metadata"]["name"]
            self.lines[name] = []
            self._say(name, "started")
            if name not in self.slow:
                self._say(name, "holding", self.phases[0])

    def pod(self, namespace, name):
        if not self.started:
            return None
        done = any('"finished"' in line for line in self.lines[name])
        phase = "Failed" if name in self.dies else "Succeeded" if done else "Running"
        return {
            "metadata": {"uid": f"uid-{name}"},
            "spec": {"nodeName": "n"},
            "status": {"phase": phase},
        }

    def log(self, namespace, name):
        return "\n".join([*self.lines[name], "some library's warning"])

    def release(self, namespace, name, phase):
        self.releases.append((name, phase, self.now))
        self._say(name, "released", phase)
        position = self.phases.index(phase) + 1
        if position < len(self.phases):
            self._say(name, "holding", self.phases[position])
        else:
            self._say(name, "finished")

    def cards(self, since):
        from_time = since if isinstance(since, float) else since["n"]
        sample = deploy.Sample(
            time=self.now - 0.01, uuid="G", pid=1, pod_uid="uid-a", container="main", bytes=MIB
        )
        fresh = (sample,) if sample.time > from_time else ()
        card = deploy.CardInfo(uuid="G", name="", index=0, memory_bytes=1, budget_hits=self.hits)
        return deploy.Reading(now={"n": self.now}, source="emulated", cards=(card,), samples=fresh)

    def registered(self):
        return {"n": ()}

    def ledger(self):
        return {"pods": {"uid-a": "x"}}

    def why(self, namespace, name):
        return "0/1 nodes are available"


def go(access, deadline=60.0):
    pods = [{"kind": "Pod", "metadata": {"name": n}} for n in ("a", "b")]
    return run_trial(
        access,
        "ns",
        pods,
        enforcement="on",
        deadline_seconds=deadline,
        clock=access.clock,
        pause=access.pause,
    )


def test_what_the_budget_refused_meanwhile_is_counted():
    """Also what it refused last, after the pods were seen to run for the last time."""
    access = FakeAccess()
    assert go(access).budget_hits == 0
    access = FakeAccess()
    release = access.release

    def refuse(namespace, name, phase):
        release(namespace, name, phase)
        access.hits += phase == PHASES[-1]

    access.release = refuse
    assert go(access).budget_hits == 2


def test_pods_are_released_together_after_enough_samples():
    access = FakeAccess()
    trial = go(access)
    assert [(n, p) for n, p, _ in access.releases] == [
        ("a", "one"),
        ("b", "one"),
        ("a", "two"),
        ("b", "two"),
    ]
    for phase in PHASES:
        holding = max(t.event("holding", phase)["time"] for t in trial.pods.values())
        release = min(at for _, p, at in access.releases if p == phase)
        assert len({s.time for s in trial.samples if holding < s.time <= release}) >= TICKS
    assert trial.ledger == {"pods": {"uid-a": "x"}}
    assert trial.pods["a"].problem == ""


def test_a_pod_that_is_not_there_yet_holds_the_others():
    access = FakeAccess(slow={"b"})
    with pytest.raises(WaitTimeout, match="b: started"):
        go(access, deadline=10)
    assert access.releases == []


def test_a_dead_pod_does_not_hold_the_others_and_is_named():
    access = FakeAccess(slow={"b"}, dies={"b"})
    trial = go(access)
    assert {n for n, _, _ in access.releases} == {"a"}
    assert "Failed" in trial.pods["b"].problem


def test_the_deadline_names_where_each_pod_stood():
    access = FakeAccess(slow={"a", "b"})
    with pytest.raises(WaitTimeout) as caught:
        go(access, deadline=5)
    assert "a: started" in caught.value.why and "0/1 nodes" in caught.value.why
    assert access.now < 1010


@pytest.mark.parametrize(
    ("log", "events", "noise"),
    [
        ("", 0, 0),
        ('{"event": "x", "time": 1}\n', 1, 0),
        ('{"event": "x"}\n[1]\n17\nnot json\n\n', 0, 4),
        ('{"event": "x", "time": 1}\n{"event": "x", "ti', 1, 1),
    ],
)
def test_facts_and_noise_are_told_apart(log, events, noise):
    found, rest = parse_events(log)
    assert (len(found), len(rest)) == (events, noise)


REFUSED = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}


def refuse(access, moments, message=""):
    """Let pod b be Pending, refused by the scheduler at some seconds of the trial."""
    pod = access.pod

    def pending(namespace, name):
        found = pod(namespace, name)
        second = int(access.now - 1000)
        if found is not None and name == "b" and second < max(moments):
            found["status"]["phase"] = "Pending"
            if second in moments:
                found["status"]["conditions"] = [{**REFUSED, "message": message}]
        return found

    access.pod = pending


def test_a_pod_that_finds_no_place_is_told_long_before_the_deadline():
    access = FakeAccess(slow=("b",))
    refuse(access, range(3000), "0/1 nodes: CardInsufficientMemory")
    with pytest.raises(InputError, match=r"pod b finds no place: .*CardInsufficientMemory"):
        go(access, deadline=3000.0)
    assert 30 < access.now - 1000 < 40


def test_a_pod_that_is_placed_after_a_while_is_waited_for():
    access = FakeAccess()
    refuse(access, [*range(20), *range(22, 42)])
    assert go(access, deadline=3000.0).pods["b"].problem == ""
    assert access.now - 1000 > 40
