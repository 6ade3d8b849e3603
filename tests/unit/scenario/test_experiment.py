"""What the notebook's cells do, on a testbed made up in memory."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from testbed.errors import InputError
from testbed.lab import experiment, host, notebook
from testbed.lab.scenario.record import read_record
from testbed.lab.scenario.run import PROGRESS
from testbed.lab.testbed import Info

from .conftest import ROOT, UUID, make_trial

AT_CAP = {"a": 30720, "b": 20480}
ABOVE = {"a": 33792, "b": 22528}


class FakeTestbed:
    """Is up, and remembers what was submitted."""

    def __init__(self, *, id_range=True):
        self.kube = MagicMock()
        self.kube.version.return_value = "v1.37.2"
        self.cluster = SimpleNamespace(
            status=lambda: SimpleNamespace(
                state="up", id_range=id_range, nodes=(SimpleNamespace(cards=("GPU-1",)),)
            )
        )

    @contextmanager
    def use(self, command, progress, **_):
        yield SimpleNamespace(joined=False)

    def ensure(self, spec, progress, *, as_it_is):
        return Info(
            provider="process",
            stack="s",
            shim="l",
            pytorch_image="i",
            base_image="b",
            scheduler_image="k",
        )


@pytest.fixture
def world(monkeypatch, tmp_path):
    """The example's experiment; ``trials`` are what its two runs find."""
    found = SimpleNamespace(testbed=FakeTestbed(), trials={}, manifests=[], modes=[], loads=[])
    monkeypatch.setattr(experiment, "load", lambda: found.loads.pop(0) if found.loads else 0.5)
    monkeypatch.setattr(host, "processors", lambda: 2)
    monkeypatch.setenv("VGPU_TESTBED_SCENARIOS", str(ROOT / "scenarios"))
    monkeypatch.setenv(PROGRESS, str(tmp_path / "progress.log"))
    monkeypatch.setattr(notebook, "Testbed", lambda name: found.testbed)

    def run_trial(access, namespace, manifests, *, enforcement, **_):
        found.manifests.append([m for m in manifests if m["kind"] == "Pod"])
        return found.trials[enforcement]

    @contextmanager
    def enforcement(kube, value, progress):
        found.modes.append(value)
        yield
        found.modes.append("restored")

    monkeypatch.setattr(experiment, "run_trial", run_trial)
    monkeypatch.setattr(experiment, "enforcement", enforcement)
    monkeypatch.setattr(experiment, "tidy", lambda kube, progress: found.modes.append("tidy"))

    def start(**pod):
        pods = {name: {"gpumem": mib, **pod} for name, mib in AT_CAP.items()}
        return notebook.open_case("co_location/x", run_folder=str(tmp_path), pods=pods)

    def go(on=AT_CAP, off=ABOVE, *, hits_on=0, hits_off=0):
        experiment = start()
        parameters = experiment._parameters
        found.trials["on"] = replace(make_trial(parameters, on), budget_hits=hits_on)
        found.trials["off"] = replace(make_trial(parameters, off, "off"), budget_hits=hits_off)
        experiment.run()
        experiment.control()
        experiment.record()
        return read_record(tmp_path / "record.json")

    found.start, found.go = start, go
    return found


def test_the_control_runs_the_same_pods_in_the_same_place(world):
    record = world.go()
    assert (record.verdict, record.reason) == ("pass", "")
    assert world.modes == ["tidy", "tidy", "off", "restored"]
    first, second = world.manifests
    for before, after in zip(first, second, strict=True):
        assert "nodeSelector" not in before["spec"]
        assert after["spec"].pop("nodeSelector") == {"kubernetes.io/hostname": "n1"}
        pinned = {**before["metadata"].pop("annotations"), "nvidia.com/use-gpuuuid": UUID}
        assert after["metadata"].pop("annotations") == pinned
        for pod in (before, after):
            del pod["metadata"]["namespace"]
        assert before == after


@pytest.mark.parametrize(
    ("on", "off", "verdict"),
    [(ABOVE, ABOVE, "fail"), (AT_CAP, AT_CAP, "error"), (ABOVE, AT_CAP, "error")],
)
def test_the_record_follows_run_and_control(world, on, off, verdict):
    assert world.go(on, off).verdict == verdict


@pytest.mark.parametrize("hits", [{"hits_on": 2}, {"hits_off": 1}])
def test_a_memory_budget_that_was_hit_makes_an_error(world, hits):
    record = world.go(**hits)
    assert record.verdict == "error"
    assert "VGPU_EMU_MEMORY_BUDGET" in record.reason


@pytest.mark.parametrize("loads", [[19.06, 1.0], [1.0, 19.06]])
def test_a_busy_machine_is_named_where_something_failed(world, loads):
    world.loads += loads
    record = world.go(on=ABOVE)
    assert record.reason.startswith("the machine was busy (load 19.1 on 2 CPUs)")
    assert (record.verdict, record.environment.load) == ("fail", "19.1 on 2 CPUs")
    world.loads += loads
    record = world.go(on=ABOVE, hits_on=1)
    assert "VGPU_EMU_MEMORY_BUDGET" in record.reason and "; the machine was busy" in record.reason


def test_a_busy_machine_is_no_reason_where_all_held(world):
    world.loads += [19.0, 19.0]
    record = world.go()
    assert (record.verdict, record.reason) == ("pass", "")
    assert record.environment.load == "19.0 on 2 CPUs"


def test_a_quiet_machine_is_no_excuse(world):
    world.loads += [3.9, 3.9]
    assert world.go(on=ABOVE).reason == ""


def test_another_user_is_refused_before_anything_is_submitted(world):
    world.start(run_as_user=1000)
    world.testbed = FakeTestbed(id_range=False)
    world.start(run_as_user=0)
    with pytest.raises(InputError, match="another user"):
        world.start(run_as_user=1000)
    world.testbed.kube.create.assert_not_called()


def test_cells_out_of_order_are_told(world):
    for cell in ("control", "plot", "checks", "record"):
        with pytest.raises(InputError, match="not run yet"):
            getattr(world.start(), cell)()
