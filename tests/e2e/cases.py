"""Cases that tests write themselves, and the command that runs them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec

from testbed.lab.scenario.record import Report

ROOT = Path(__file__).parents[2]


def called(testbed, *arguments, cwd=ROOT, timeout=300):
    """Call the command line as a user would."""
    return subprocess.run(
        [
            *(sys.executable, "-c", "from testbed.cli import main; main()"),
            *(arguments[0], "--name", testbed.name, *arguments[1:]),
        ],
        cwd=cwd,
        text=True,
        capture_output=True,
        timeout=timeout,
        check=False,
        env={**os.environ, "NO_COLOR": "1"},
    )


def run(testbed, tmp_path, *arguments, cwd=ROOT, timeout=600):
    """Call ``testbed run``; results go to the test's folder."""
    runs = str(tmp_path / "runs")
    return called(testbed, "run", "--runs", runs, *arguments, cwd=cwd, timeout=timeout)


def clone(folder, case, question="co_location"):
    """Make a clone's folders with one case of a question, ``own``; return them."""
    there = folder / "scenarios" / question
    there.mkdir(parents=True)
    for path in (ROOT / "scenarios" / question).glob("*.py"):
        (there / path.name).write_text(path.read_text())
    (there / "own.yaml").write_text(case)
    notebook = f"notebooks/{question}.ipynb"
    (folder / notebook).parent.mkdir()
    (folder / notebook).write_text((ROOT / notebook).read_text())
    return folder


def record_of(testbed, tmp_path, question, case):
    """Run a case of a question and return its record; there has to be one."""
    folder = clone(tmp_path, case, question)
    done = run(testbed, tmp_path, f"{question}/own", "-o", "json", cwd=folder)
    assert done.returncode in (0, 1), done.stdout[-3000:] + done.stderr[-3000:]
    [record] = msgspec.json.decode(done.stdout, type=Report).cases
    return record
