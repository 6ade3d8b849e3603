"""The trial driver, against a cluster made up in memory with a clock of its own."""

from __future__ import annotations

import json

import pytest

from testbed.errors import ClusterError, DeployError, InputError, WaitTimeout
from testbed.lab import deploy
from testbed.lab.kubetypes import ApiError, Unreachable
from testbed.lab.scenario.patience import BLIP_SECONDS
from testbed.lab.scenario.question import LimitChange
from testbed.lab.scenario.trial import TICKS, run_trial
from testbed.lab.scenario.watched import parse_events
from testbed.units import MIB

PHASES = ("one", "two")
BLIPS = (
    Unreachable("the API server does not answer"),
    ApiError("no", status=503, reason="", message="etcd is away"),
    DeployError("the monitor gives no figures"),
)


class FakeAccess:
    """Pods that go through their phases as they are released; a tick a poll.

    ``phases[pod]`` names the phases of a pod's containers in order; the index of a
    phase is its place in ``order``.
    """

    def __init__(self, *, slow=(), dies=(), phases=PHASES, of=None, order=None, ahead=0.0):
        self.now = 1000.0
        self.order = list(order or phases)
        self.of = {name: list((of or {}).get(name, phases)) for name in ("a", "b")}
        self.slow, self.dies = set(slow), set(dies)
        self.lines = {}
        self.releases = []
        self.deletions = []
        self.changes = []
        self.refuses = None  # what a change of limits meets
        self.started = False
        self.hits = 7  # of the card's earlier life
        self.ahead = ahead  # the node's clock before ours
        self.set = 0.0  # what our clock was set by meanwhile
        self.blips = {}  # call -> errors still to come

    def clock(self):
        return self.now + self.set

    def steady(self):
        return self.now

    def pause(self, seconds):
        self.now += seconds

    def _blip(self, call):
        if self.blips.get(call):
            raise self.blips[call].pop(0)

    def _say(self, key, event, phase="", **fields):
        told = {"event": event, "time": self.now + self.ahead, "phase": phase, **fields}
        self.lines[key].append(json.dumps(told))

    def _hold(self, key, phase):
        self._say(key, "holding", phase, index=self.order.index(phase))

    def start(self, manifests):
        self._blip("start")
        self.started = True
        for manifest in manifests:
            name = manifest["metadata"]["name"]
            for container in manifest["spec"]["containers"]:
                key = (name, container["name"])
                self.lines[key] = []
                self._say(key, "started")
                if name not in self.slow and self.of[name]:
                    self._hold(key, self.of[name][0])

    def unenforced(self):
        self._blip("unenforced")
        return {("uid-a", "main"): "no-region"} if self.releases else {}

    def pod(self, namespace, name):
        self._blip("pod")
        if not self.started or name in self.deletions:
            return None
        members = [lines for (pod, _), lines in self.lines.items() if pod == name]
        done = [any('"finished"' in line for line in lines) for lines in members]
        phase = "Failed" if name in self.dies else "Succeeded" if all(done) else "Running"
        return {
            "metadata": {"uid": f"uid-{name}"},
            "spec": {"nodeName": "n"},
            "status": {
                "phase": phase,
                "containerStatuses": [
                    {"name": c, "state": {"terminated": {"exitCode": 0}} if end else {}}
                    for (pod, c), end in zip(
                        [k for k in self.lines if k[0] == name], done, strict=True
                    )
                    if pod == name
                ],
            },
        }

    def log(self, namespace, name, container):
        self._blip("log")
        lines = self.lines[name, container]
        return "\n".join([*lines, "some library's warning"])

    def release(self, namespace, name, container, phase):
        self._blip("release")
        self.releases.append((name, phase, self.now))
        key = (name, container)
        self._say(key, "released", phase)
        position = self.of[name].index(phase) + 1
        if position < len(self.of[name]):
            self._hold(key, self.of[name][position])
        else:
            self._say(key, "finished")
        return True

    def delete(self, namespace, name):
        self._blip("delete")
        self.deletions.append(name)

    def set_limits(self, namespace, name, change):
        self._blip("set_limits")
        if self.refuses is not None:
            raise self.refuses
        self.changes.append((name, change, self.now))
        self.now += 0.5  # it takes its time

    def cards(self, since):
        self._blip("cards")
        now = self.now + self.ahead
        from_time = since if isinstance(since, float) else since["n"]
        sample = deploy.Sample(
            time=now - 0.01, uuid="G", pid=1, pod_uid="uid-a", container="main", bytes=MIB
        )
        fresh = (sample,) if sample.time > from_time else ()
        card = deploy.CardInfo(uuid="G", name="", index=0, memory_bytes=1, budget_hits=self.hits)
        return deploy.Reading(now={"n": now}, source="emulated", cards=(card,), samples=fresh)

    def registered(self):
        self._blip("registered")
        return {"n": ()}

    def ledger(self):
        self._blip("ledger")
        return {"pods": {"uid-a": "x"}}

    def why(self, namespace, name):
        return "0/1 nodes are available"


def go(access, deadline=60.0, containers=("main",), enforcement="on", **options):
    pods = [
        {
            "kind": "Pod",
            "metadata": {"name": n},
            "spec": {"containers": [{"name": c} for c in containers]},
        }
        for n in ("a", "b")
    ]
    return run_trial(
        access,
        "ns",
        pods,
        enforcement=enforcement,
        deadline_seconds=deadline,
        clock=access.clock,
        steady=access.steady,
        pause=access.pause,
        **options,
    )


def released(access):
    return [(name, phase) for name, phase, _ in access.releases]


@pytest.mark.parametrize("jump", [86_400.0, -86_400.0])
def test_a_clock_that_is_set_ends_no_trial(jump):
    access = FakeAccess()
    release = access.release

    def meddle(namespace, name, container, phase):
        access.set = jump
        return release(namespace, name, container, phase)

    access.release = meddle
    assert go(access).pods["a"].problem == ""
    stuck = FakeAccess(slow=("a",))
    stuck.set = jump
    with pytest.raises(WaitTimeout):
        go(stuck)


def test_what_the_budget_refused_meanwhile_is_counted():
    """Also what it refused last, after the pods were seen to run for the last time."""
    access = FakeAccess()
    assert go(access).budget_hits == 0
    access = FakeAccess()
    release = access.release

    def refuse(namespace, name, container, phase):
        access.hits += phase == PHASES[-1]
        return release(namespace, name, container, phase)

    access.release = refuse
    assert go(access).budget_hits == 2


def test_pods_are_released_together_after_enough_samples():
    access = FakeAccess()
    trial = go(access)
    assert sorted(released(access)[:2]) == [("a", "one"), ("b", "one")]
    assert sorted(released(access)[2:]) == [("a", "two"), ("b", "two")]
    for phase in PHASES:
        holding = max(t.containers[0].event("holding", phase)["time"] for t in trial.pods.values())
        release = min(at for _, p, at in access.releases if p == phase)
        assert len({s.time for s in trial.samples if holding < s.time <= release}) >= TICKS
    assert trial.ledger == {"pods": {"uid-a": "x"}}
    assert trial.unenforced == {("uid-a", "main"): "no-region"}
    assert trial.pods["a"].problem == ""


def test_a_pod_that_has_nothing_to_do_in_a_phase_waits_in_the_next():
    """One after the other alone, then both."""
    access = FakeAccess(
        of={"a": ["alone-a", "both"], "b": ["alone-b", "both"]},
        order=["alone-a", "alone-b", "both"],
    )
    go(access)
    assert released(access)[:2] == [("a", "alone-a"), ("b", "alone-b")]
    assert sorted(released(access)[2:]) == [("a", "both"), ("b", "both")]


def test_containers_of_a_pod_are_taken_through_their_phases_like_pods():
    access = FakeAccess()
    trial = go(access, containers=("main", "side"))
    assert released(access).count(("a", "one")) == 2
    for pod in trial.pods.values():
        assert [c.name for c in pod.containers] == ["main", "side"]
        assert all(c.event("finished") and not c.problem for c in pod.containers)


@pytest.mark.parametrize("ahead", [0.0, 3600.0])
def test_a_pod_is_deleted_where_the_others_are_released(ahead):
    access = FakeAccess(ahead=ahead)
    trial = go(access, deletions={"a": "two"})
    assert access.deletions == ["a"]
    assert released(access)[-1] == ("b", "two") and ("a", "two") not in released(access)
    pod = trial.pods["a"]
    # By the node's clock, as its samples are.
    assert pod.deleted == pytest.approx(1000 + ahead, abs=60)
    assert pod.gone >= pod.deleted and pod.problem == ""
    assert pod.uid == "uid-a" and trial.pods["b"].deleted is None


LESS = LimitChange(gpucores_pct=20)


@pytest.mark.parametrize("ahead", [0.0, 3600.0])
def test_limits_are_changed_before_a_pod_is_released(ahead):
    access = FakeAccess(ahead=ahead)
    trial = go(access, changes={"a": {"one": LESS}})
    ((name, change, when),) = access.changes
    assert (name, change) == ("a", LESS)
    let_go = next(at for pod, phase, at in access.releases if (pod, phase) == ("a", "one"))
    told = trial.pods["a"].changes["one"]
    # By the node's clock, as its samples are.
    assert (told.asked, told.why) == (pytest.approx(when + ahead), "")
    assert told.asked < told.done <= let_go + ahead
    assert trial.pods["b"].changes == {}


def test_a_change_that_is_refused_is_told_and_the_pod_goes_on():
    access = FakeAccess()
    access.refuses = InputError("--gpucores 90 is too much", why="30 % was promised")
    trial = go(access, changes={"a": {"one": LESS}})
    assert trial.pods["a"].changes["one"].why == "30 % was promised"
    assert trial.pods["a"].problem == ""


def test_a_change_at_a_bad_moment_is_made_again_once():
    access = FakeAccess()
    access.blips["set_limits"] = list(BLIPS[:2])
    trial = go(access, changes={"a": {"one": LESS}})
    assert len(access.changes) == 1 and not access.blips["set_limits"]
    assert trial.pods["a"].changes["one"].why == ""


def test_without_a_limiter_there_is_nothing_to_change():
    access = FakeAccess()
    trial = go(access, enforcement="off", changes={"a": {"one": LESS}})
    assert access.changes == []
    assert trial.pods["a"].changes["one"].why == "nothing limits it"


def test_a_pod_that_somebody_deletes_is_told():
    access = FakeAccess()
    release = access.release

    def meddle(namespace, name, container, phase):
        if phase == "two":
            access.deletions = ["a"]
        return release(namespace, name, container, phase)

    access.release = meddle
    access.of["a"] = ["one", "two", "two"]
    trial = go(access)
    assert trial.pods["a"].deleted is None
    assert "somebody deleted it" in trial.pods["a"].problem


def test_a_pod_that_is_not_there_yet_holds_the_others():
    access = FakeAccess(slow={"b"})
    with pytest.raises(WaitTimeout, match="b: started"):
        go(access, deadline=10)
    assert access.releases == []


def test_a_dead_pod_does_not_hold_the_others_and_is_named():
    access = FakeAccess(slow={"b"}, dies={"b"})
    trial = go(access)
    assert {n for n, _, _ in access.releases} == {"a"}
    problem = trial.pods["b"].problem
    assert "pod b Failed" in problem and "last lines: some library's warning" in problem


def test_the_deadline_names_where_each_pod_stood():
    access = FakeAccess(slow={"a", "b"})
    with pytest.raises(WaitTimeout) as caught:
        go(access, deadline=5)
    assert "a: started" in caught.value.why and "0/1 nodes" in caught.value.why
    assert "some library's warning" in caught.value.why
    assert access.now < 1010


@pytest.mark.parametrize("error", BLIPS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize(
    "call",
    ["start", "pod", "log", "release", "delete", "cards", "registered", "ledger", "unenforced"],
)
def test_a_blip_changes_nothing(call, error):
    access = FakeAccess()
    access.blips[call] = [error] * 3
    trial = go(access, deletions={"a": "two"})
    assert access.blips[call] == []
    assert trial.pods["b"].problem == "" and access.deletions == ["a"]
    assert sorted(released(access)) == [("a", "one"), ("b", "one"), ("b", "two")]


@pytest.mark.parametrize("error", [ApiError("no", status=403, reason="", message="rights")])
def test_what_will_not_pass_is_not_tried_again(error):
    access = FakeAccess()
    access.blips["pod"] = [error] * 2
    with pytest.raises(ApiError, match="rights"):
        go(access)
    assert len(access.blips["pod"]) == 1


def test_a_cluster_that_stays_silent_is_given_up():
    access = FakeAccess()
    access.blips["pod"] = [BLIPS[0]] * 100_000
    with pytest.raises(Unreachable):
        go(access, deadline=10_000)
    assert BLIP_SECONDS < access.now - 1000 < BLIP_SECONDS + 10


def test_a_log_that_a_node_loses_for_a_moment_is_not_forgotten():
    access = FakeAccess()
    log, calls = access.log, []

    def flicker(namespace, name, container):
        calls.append(name)
        return "" if len(calls) % 3 == 0 else log(namespace, name, container)

    access.log = flicker
    trial = go(access)
    assert all(pod.containers[0].event("finished") for pod in trial.pods.values())


@pytest.mark.parametrize(
    ("waiting", "word"),
    [
        ({"reason": "ErrImagePull", "message": "no such image"}, "ErrImagePull no such image"),
        ({"reason": "CreateContainerError", "message": "the front refuses"}, "the front refuses"),
    ],
)
def test_a_container_that_cannot_be_started_is_told_before_the_deadline(waiting, word):
    access = FakeAccess(slow={"b"})
    pod = access.pod

    def stuck(namespace, name):
        found = pod(namespace, name)
        if name == "b":
            status = {"name": "main", "state": {"waiting": waiting}}
            found["status"] = {"phase": "Pending", "containerStatuses": [status]}
        return found

    access.pod = stuck
    with pytest.raises(ClusterError, match="pod b does not start") as caught:
        go(access, deadline=3000)
    assert word in caught.value.why and access.now < 1060


def test_who_watches_sees_the_trial_grow():
    access = FakeAccess()
    seen = []
    last = go(access, watch=lambda trial: seen.append(len(trial.samples)))
    assert len(seen) > TICKS and seen == sorted(seen) and seen[-1] <= len(last.samples)


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
