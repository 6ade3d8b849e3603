"""The cluster's times: each step timed, everything taken down whatever happens."""

from __future__ import annotations

import json
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from testbed.cli.bench_cluster import document, text
from testbed.cli.main import app
from testbed.errors import ClusterError
from testbed.lab.bench import cluster as bench
from testbed.lab.cluster.protocol import ClusterSpec
from testbed.lab.progress import QuietProgress

KEYS = ["ready_s", "stack_s", "first_pod_s", "down_s"]


class FakeTestbed:
    """Takes as long as it is told, by the bench's own clock."""

    def __init__(self, *, state="absent", inherited=False, breaks=""):
        self.state, self.inherited, self.breaks = state, inherited, breaks
        self.now, self.log = 0.0, []
        self.cluster = SimpleNamespace(
            status=lambda: SimpleNamespace(state=self.state), prepare=lambda progress: {}
        )
        self.kube = self

    def does(self, what, seconds):
        self.log.append(what)
        self.now += seconds
        if what == self.breaks:
            raise ClusterError(f"{what} broke")

    @contextmanager
    def use(self, command, progress, *, wait_s):
        yield SimpleNamespace(inherited=self.inherited, note=lambda **_: None)

    def up(self, spec, progress, *, prepared):
        self.does("up", 4 + 2 * self.log.count("up"))

    def deploy(self, progress, *, prepared):
        self.does("deploy", 3)

    def down(self, progress):
        self.does("down", 1 if self.log else 0)

    def create(self, pod):
        self.does("pod", 0.5)

    def get(self, *_):
        return {"status": {"phase": "Running"}}


@pytest.fixture
def world(monkeypatch):
    def build(**fields):
        found = FakeTestbed(**fields)
        images = SimpleNamespace(
            prepare=lambda progress: (), find=lambda *_: SimpleNamespace(reference="i:1")
        )
        monkeypatch.setattr(bench, "Testbed", lambda name, provider: found)
        monkeypatch.setattr(bench, "images", images)
        monkeypatch.setattr(bench.time, "monotonic", lambda: found.now)
        return found

    return build


def measured(repeat=3, provider="process"):
    return bench.measure(
        QuietProgress(), name="bench", provider=provider, spec=ClusterSpec(nodes=2), repeat=repeat
    )


def test_medians_of_all_rounds(world):
    found = world()
    result = measured()
    assert found.log == ["down", *(["up", "deploy", "pod", "down"] * 3)]
    values = {figure.key: figure.value for figure in result.figures}
    assert values == {"ready_s": 6, "stack_s": 3, "first_pod_s": 0.5, "down_s": 1}
    assert result.held
    shown = json.loads(json.dumps(document(result), default=str))
    assert [shown["process"][key] for key in KEYS] == [6, 3, 0.5, 1]
    assert "✓   from nothing to all nodes Ready" in text(result)
    assert "6 s      10 s   4 to 8 of 3" in text(result)
    assert "process, 2 nodes, on " in text(result)


@pytest.mark.parametrize(("provider", "aim"), [("process", 10.0), ("kind", 30.0)])
def test_each_kind_of_cluster_has_its_own_aim(world, provider, aim):
    world()
    result = measured(provider=provider)
    aims = {figure.key: figure.aim for figure in result.figures}
    assert aims == {"ready_s": aim, "stack_s": None, "first_pod_s": None, "down_s": None}


def test_an_aim_that_is_missed(world):
    world()
    result = measured(repeat=7)  # rounds of 4, 6, … 16 s: the median is 10
    assert result.held and measured(repeat=9).held is False


@pytest.mark.parametrize("step", ["up", "deploy", "pod"])
def test_a_step_that_breaks_takes_everything_down(world, step):
    found = world(breaks=step)
    with pytest.raises(ClusterError, match=f"{step} broke"):
        measured()
    assert found.log[-1] == "down"


def test_somebody_s_testbed_is_left_alone(world):
    found = world(state="up")
    with pytest.raises(ClusterError, match="is up"):
        measured()
    assert found.log == []


def test_what_a_killed_bench_left_goes(world):
    found = world(state="up", inherited=True)
    measured(repeat=1)
    assert found.log[0] == "down"


def test_the_command_answers_with_one_document(world):
    world()
    done = CliRunner().invoke(app, ["bench", "cluster", "--repeat", "1", "-o", "json"])
    assert done.exit_code == 0
    assert set(KEYS) <= set(json.loads(done.stdout)["process"])
