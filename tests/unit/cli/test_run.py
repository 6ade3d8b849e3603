"""``testbed run``: which cases, on which cards, how often, and what becomes of the testbed."""

from __future__ import annotations

import json
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from testbed.cli.main import app
from testbed.errors import ClusterError
from testbed.lab import testbed as lab
from testbed.lab.cluster.protocol import ClusterSpec, NodeStatus
from testbed.lab.scenario import leftovers, run
from testbed.lab.scenario.record import Report, write_json

from ..scenario.conftest import ROOT


class FakeTestbed:
    """A testbed of so many cards; remembers what was asked of it."""

    def __init__(self, state="absent", cards=1):
        self.name, self.kube = "t", None
        self.log, self.ran = [], []
        self.state, self.cards = state, cards
        self.cluster = SimpleNamespace(status=self.status)
        self.inherited, self.temporary = False, None
        self.fails = None

    def status(self):
        nodes = (NodeStatus(name="n1", ready=True, cards=("GPU",) * self.cards),)
        return SimpleNamespace(
            state=self.state,
            nodes=nodes if self.state == "up" else (),
            notes=("a note",),
            reach=("how to reach it",),
            problems=("a problem",),
        )

    @contextmanager
    def use(self, command, progress, *, wait_s):
        def note(*, temporary):
            self.temporary = temporary

        yield SimpleNamespace(inherited=self.inherited, note=note)

    def wish(self, cards, nodes, *, default):
        return lab.cluster_spec(default if cards is None else cards, nodes)

    def up(self, spec, progress):
        self.log.append(("up", spec))

    def ensure(self, spec, progress):
        self.log.append(("ensure", spec))
        if self.fails:
            raise self.fails
        if self.state == "absent":
            self.cards = sum(card.count for card in (spec or ClusterSpec()).by_node()[0])
        self.state = "up"

    def down(self, progress):
        self.log.append(("down", None))
        self.state = "absent"

    def bundle(self, folder):
        return folder

    def did(self):
        return [what for what, _ in self.log]


@pytest.fixture
def world(monkeypatch, tmp_path):
    """Runs the command on a fake testbed; ``verdict`` is what its cases come to."""
    # Where an unexpected error is kept.
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def build(*, state="absent", cards=1, verdict="pass"):
        found = FakeTestbed(state, cards)

        def run_cases(cases, *, folder, repeat, **_):
            found.ran = [str(case) for case in cases] * repeat
            report = Report(verdict=verdict, cases=())
            write_json(folder / "report.json", report)
            return report

        monkeypatch.setenv("VGPU_TESTBED_SCENARIOS", str(ROOT / "scenarios"))
        monkeypatch.setattr(lab, "Testbed", lambda name, provider: found)
        monkeypatch.setattr(run, "run_cases", run_cases)
        monkeypatch.setattr(leftovers, "tidy", lambda kube, progress: found.log.append(("tidy", 0)))
        return found

    return build


def call(tmp_path, *arguments):
    runs = ["--runs", str(tmp_path / "runs")]
    return CliRunner().invoke(app, ["run", *arguments, *runs, "-o", "json"])


def test_a_testbed_that_was_not_there_goes_again(world, tmp_path):
    found = world()
    done = call(tmp_path, "co_location/a100-example")
    assert done.exit_code == 0 and json.loads(done.stdout)["verdict"] == "pass"
    assert found.did() == ["ensure", "down"] and found.temporary is True
    assert found.ran == ["co_location/a100-example"]
    assert "note: a note" in done.stderr
    assert "reach" not in done.stderr, "of no use for what goes with the run"


@pytest.mark.parametrize(("state", "options"), [("up", ()), ("absent", ("--keep",))])
def test_a_testbed_that_stays(world, tmp_path, state, options):
    found = world(state=state)
    done = call(tmp_path, "co_location/a100-example", *options)
    assert done.exit_code == 0 and "note: how to reach it" in done.stderr
    assert "down" not in found.did() and found.temporary is False


def test_what_a_killed_run_left_goes(world, tmp_path):
    found = world(state="up")
    found.inherited = True
    call(tmp_path, "co_location/a100-example")
    assert found.did()[-1] == "down"


@pytest.mark.parametrize(("verdict", "code"), [("pass", 0), ("fail", 1), ("error", 2)])
def test_the_verdict_is_the_exit_status(world, tmp_path, verdict, code):
    world(verdict=verdict)
    done = call(tmp_path, "co_location/a100-example")
    assert done.exit_code == code
    last = done.stderr.splitlines()[-1]
    assert last.startswith("bundle ") is (verdict != "pass")
    assert ("bundle " in done.stderr) is (verdict != "pass")
    assert ("problem: a problem" in done.stderr) is (verdict == "error")


def test_patterns_are_joined_and_each_case_runs_once_a_round(world, tmp_path):
    found = world()
    call(tmp_path, "co_location/two-*", "co_location/two-cards", "--repeat", "2")
    assert found.ran == ["co_location/two-cards", "co_location/two-containers"] * 2


def test_cards_are_as_many_as_the_cases_need(world, tmp_path):
    found = world()
    call(tmp_path, "co_location/two-cards", "co_location/a100-example")
    ((_, spec), _) = found.log
    assert [(card.profile, card.count) for card in spec.by_node()[0]] == [("a100-80gb", 2)]


def test_cards_and_nodes_that_are_wished_for(world, tmp_path):
    found = world()
    call(tmp_path, "co_location/a100-example", "--cards", "a100-40gb:2", "--nodes", "3")
    ((_, spec), _) = found.log
    assert spec.nodes == 3 and spec.cards[0].profile == "a100-40gb"
    # A testbed that is up is asked, and refuses where it has others.
    found = world(state="up")
    call(tmp_path, "co_location/a100-example", "--cards", "a100-40gb:2")
    assert found.did() == ["up", "ensure"]


def test_a_testbed_with_too_few_cards_is_refused_before_anything_runs(world, tmp_path):
    found = world(state="up", cards=1)
    done = call(tmp_path, "co_location/two-cards")
    assert done.exit_code == 2
    assert "co_location/two-cards needs 2 cards on a node" in done.stdout
    assert found.ran == [] and "down" not in found.did()


def test_a_testbed_that_does_not_come_up_names_its_bundle_and_goes(world, tmp_path):
    found = world()
    found.fails = ClusterError("no node came")
    done = call(tmp_path, "co_location/a100-example")
    assert done.exit_code == 2
    document = json.loads(done.stdout)
    assert document["error"]["what"] == "no node came"
    assert document["artifacts"].endswith("/bundle")
    assert found.did()[-1] == "down"


def test_an_unexpected_error_names_its_bundle_too(world, tmp_path):
    found = world()
    found.fails = OSError(28, "No space left on device", "/state/x")
    done = call(tmp_path, "co_location/a100-example")
    assert done.exit_code == 2
    document = json.loads(done.stdout)
    assert document["error"]["what"] == "/state/x: No space left on device"
    assert "XDG_STATE_HOME" in document["error"]["hint"]
    assert document["artifacts"].endswith("/bundle")
    assert done.stderr.splitlines()[-1].endswith("/bundle")
    assert found.did()[-1] == "down"


def test_what_was_typed_wrongly_is_no_failure_with_a_bundle(world, tmp_path):
    world(state="up", cards=1)
    done = call(tmp_path, "co_location/two-cards")
    assert json.loads(done.stdout)["artifacts"] == ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("co_location/a100-exampel",), "did you mean co_location/a100-example"),
        (("co_location/a100-example", "--cards", "a100-80g"), "did you mean a100-80gb"),
        (("co_location/a100-example", "--cards", "a100-80gb;a100-40gb", "--nodes", "3"), "2 nodes"),
        (("co_location/a100-example", "--name", "Bad Name"), "cannot name a testbed"),
    ],
)
def test_bad_input_starts_nothing(world, tmp_path, arguments, words):
    found = world()
    done = call(tmp_path, *arguments)
    assert done.exit_code == 2
    assert words in done.stdout
    assert found.log == [] and not (tmp_path / "runs").exists()
