"""Runs that are struck at fifty moments: an answer or a recovery, and nothing is left.

``make test`` strikes a few, others every day; ``make test-soak`` all of them
(``VGPU_TESTBED_POINTS=50``). ``VGPU_TESTBED_SEED`` repeats a round.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path

import pytest

from testbed.lab import binaries, images
from testbed.lab.progress import ConsoleProgress

from . import traces
from .evidence import check_bundle
from .interruptions import (
    END_S,
    POINTS,
    STAGES,
    Point,
    chosen,
    notebooks,
    owning,
    strike,
    wait_until_gone,
)

COUNT = int(os.environ.get("VGPU_TESTBED_POINTS", "6"))
SEED = int(os.environ.get("VGPU_TESTBED_SEED", "0")) or int(time.time() // 86400)

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module", autouse=True)
def made() -> None:
    """What is made once is there: to be struck is a run, not a download."""
    progress = ConsoleProgress(sys.__stderr__)
    binaries.ensure(progress)
    images.prepare(progress)


@pytest.mark.parametrize("point", chosen(COUNT, SEED), ids=str)
def test_a_run_that_is_struck_leaves_nothing(point: Point, tmp_path: Path) -> None:
    print(f"VGPU_TESTBED_SEED={SEED}")
    with owning(tmp_path / "home", f"i{os.getpid()}") as owner:
        before = traces.listing(owner.name, owner.home)
        run = owner.run()
        struck = strike(run, point, SEED)
        spaces = traces.spaces(owner.name, owner.home)
        code = run.end(END_S)
        print(f"struck: {struck}, exit status {code}\n{run.err}")
        assert "Traceback" not in run.err
        if point.victim == "command" and struck and point.sign == "KILL":
            assert code == -9
            wait_until_gone(lambda: notebooks(owner), "notebooks that go on")
            # Whatever state it is in is told, soon.
            status = owner.do("status", "-o", "json", timeout_s=60)
            assert json.loads(status.out)["state"] in ("absent", "broken", "up"), status.err
        else:
            _check_answer(point, struck, run)
            # What a run brought up it takes down, struck or not.
            wait_until_gone(lambda: traces.alive(owner.name, owner.home), "processes of the run")
        down = owner.do("down")
        assert down.code == 0, down.err
        wait_until_gone(lambda: traces.held(spaces), "namespaces that are held")
        _forget_results(owner.clone)
        after = traces.listing(owner.name, owner.home)
        assert traces.difference(before, after) == ""


def _check_answer(point: Point, struck: bool, run) -> None:
    """A run that could answer did: with a verdict, or with why there is none."""
    if point.stage == "start" and run.code == -2 and run.out == "":
        return  # the shell that starts Python was there still
    document = json.loads(run.out)
    if point.victim == "command" and struck and run.code != 0:
        assert run.code == 2 and run.last == "interrupted", run.err
        assert document["error"]["what"] == "interrupted"
        return
    # A check that fails would be a claim about the limiter, which nothing has struck.
    assert run.code in (0, 2), run.out
    if run.code == 0:
        assert document["verdict"] == "pass"
    else:
        check_bundle(run)


def _forget_results(clone: Path) -> None:
    """What a run is for stays: its results are not something left."""
    shutil.rmtree(clone / "runs", ignore_errors=True)


def test_the_fifty_points_are_of_every_stage_and_part() -> None:
    assert len(POINTS) == len(set(POINTS)) == 50
    assert {point.stage for point in POINTS} == set(STAGES)
    assert {point.sign for point in POINTS} == {"INT", "TERM", "HUP", "KILL"}
    days = [chosen(6, day) for day in range(20786, 20800)]
    assert all(len(day) == 6 for day in days)
    assert {point for day in days for point in day} == set(POINTS) == set(chosen(50, 1))
