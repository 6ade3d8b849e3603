"""Runs that are ended half-way: nothing goes on, and the next run is not misled."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from testbed.lab.deploy import plugin_states, set_enforcement
from testbed.lab.progress import QuietProgress
from testbed.lab.scenario.pods import TRIAL_LABEL
from testbed.lab.wait import wait_until

from .conftest import ROOT

PODS_RUN = "pods with the limiter: a: "  # the trial's first line about its pods


@pytest.fixture
def clone(tmp_path):
    """A clone's folders with a small case, and one that goes on while others look."""
    folder = tmp_path / "scenarios" / "co_location"
    folder.mkdir(parents=True)
    for path in (ROOT / "scenarios/co_location").glob("*.py"):
        shutil.copy(path, folder)
    (folder / "small.yaml").write_text(
        "pods: {a: {gpumem: 4096}, b: {gpumem: 2048}}\nallocators: [native]\n"
    )
    (folder / "long.yaml").write_text("pods: {a: {gpumem: 4096}, b: {gpumem: 2048}}\n")
    (tmp_path / "notebooks").mkdir()
    shutil.copy(ROOT / "notebooks/co_location.ipynb", tmp_path / "notebooks")
    return tmp_path


def start(clone, testbed, *arguments):
    """Start the command line in a session of its own, as a shell does."""
    return subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from testbed.cli import main; main()",
            *arguments,
            "--name",
            testbed.name,
            "-o",
            "json",
        ],
        cwd=clone,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "NO_COLOR": "1"},
    )


def run(clone, testbed, case="small"):
    return start(clone, testbed, "run", f"co_location/{case}")


@contextlib.contextmanager
def going(clone, testbed):
    """A run that goes on until it is struck; it ends with the test whatever happens."""
    with run(clone, testbed, "long") as process:
        try:
            yield process
        finally:
            process.kill()


def until(process, text):
    """Read what a command says until a line holds the text."""
    said = []
    for line in process.stderr:
        said.append(line)
        if text in line:
            return
    raise AssertionError("".join(said))


def end(process):
    """Return exit code, the document on standard output, and the rest of what it said."""
    out, err = process.communicate(timeout=420)
    assert "Traceback" not in err
    return process.returncode, json.loads(out), err


def notebooks(clone):
    """Return the processes that work in a clone: papermill and kernels."""
    found = []
    for each in Path("/proc").glob("[0-9]*"):
        try:
            # A kernel names no notebook; it runs in the notebooks' folder.
            if (each / "cwd").resolve() == (clone / "notebooks").resolve():
                found.append((each / "cmdline").read_text(errors="replace"))
        except OSError:
            continue
    return found


def wait_no_notebook(clone):
    wait_until(
        "no notebook goes on",
        lambda: notebooks(clone),
        ready=lambda left: not left,
        timeout_s=60,
    )


def trials(testbed):
    return [
        each["metadata"]["name"]
        for each in testbed.kube.list("v1", "Namespace", labels=TRIAL_LABEL)
        if "deletionTimestamp" not in each["metadata"]
    ]


def test_a_killed_run_does_not_mislead_the_next(testbed, clone):
    with going(clone, testbed) as killed:
        until(killed, PODS_RUN)
        assert notebooks(clone)
        # Others are kept off while it runs.
        code, document, _ = end(start(clone, testbed, "down"))
        assert code == 2 and f"process {killed.pid}" in document["error"]["why"]
        killed.send_signal(signal.SIGKILL)
        wait_no_notebook(clone)
    assert trials(testbed)
    # Where a run that is killed in its control leaves it:
    set_enforcement(testbed.kube, "off", QuietProgress())
    code, report, err = end(run(clone, testbed))
    assert (code, report["verdict"]) == (0, "pass"), err
    assert trials(testbed) == []
    assert {state.enforcement for state in plugin_states(testbed.kube)} == {"on"}


def test_an_interrupted_run_leaves_the_testbed_in_order(testbed, clone):
    with going(clone, testbed) as interrupted:
        until(interrupted, PODS_RUN)
        os.killpg(interrupted.pid, signal.SIGINT)  # Ctrl-C
        code, document, err = end(interrupted)
    assert code == 2 and document["error"]["what"] == "interrupted"
    assert err.splitlines()[-1] == "interrupted"
    wait_no_notebook(clone)
    assert trials(testbed) == []
    assert testbed.cluster.status().state == "up"
