"""papermill says 0 in many ways in which nothing was checked; the runner must not."""

from __future__ import annotations

import json

import pytest

from testbed.errors import InputError
from testbed.lab.scenario.cases import Case
from testbed.lab.scenario.record import read_record
from testbed.lab.scenario.run import check_case, notebook_parameters, run_case

PARAMETERS = """pods = {}
allocators = []
case = ""
testbed = ""
run_folder = ""
"""
GOOD_RECORD = """
from pathlib import Path
from testbed.lab.scenario.record import Check, Environment, Record, write_json
write_json(Path(run_folder) / "record.json", Record(
    case=case, verdict="VERDICT", asserts_limit=True,
    checks=(Check(name="memory_cap", verdict="VERDICT"),), control=None,
    environment=Environment(provider="", card="", kubernetes="", torch="", stack="", shim=""),
    started="2026-01-01T00:00:00Z", seconds=1.0))
"""
CASE = """pods: {a: {gpumem: 2048}}
allocators: [native]
"""


def write_notebook(path, *cells, tag="parameters"):
    """Write a notebook with a parameters cell and the given code cells."""
    document = {
        "cells": [
            {
                "cell_type": "code",
                "id": f"c{number}",
                "metadata": {"tags": [tag]} if number == 0 else {},
                "source": source,
                "outputs": [],
                "execution_count": None,
            }
            for number, source in enumerate((PARAMETERS, *cells))
        ],
        "metadata": {"kernelspec": {"name": "python3", "display_name": "", "language": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    path.write_text(json.dumps(document))
    return path


@pytest.fixture
def case(tmp_path, request):
    """A case of the co-location question in a folder of its own."""
    folder = tmp_path / "scenarios" / "co_location"
    folder.mkdir(parents=True)
    for real in (request.config.rootpath / "scenarios" / "co_location").glob("*.py"):
        (folder / real.name).write_text(real.read_text())
    path = folder / "small.yaml"
    path.write_text(CASE)
    return Case(question="co_location", name="small", path=path)


def go(case, tmp_path, *cells, timeout=240.0):
    lines = []
    notebook = write_notebook(tmp_path / "n.ipynb", *cells)
    record = run_case(
        case,
        notebook=notebook,
        testbed="none",
        folder=tmp_path / "run",
        timeout_seconds=timeout,
        show=lines.append,
    )
    assert read_record(tmp_path / "run" / "record.json") == record
    return record, lines


@pytest.mark.parametrize("verdict", ["pass", "fail"])
def test_the_record_is_the_verdict(case, tmp_path, verdict):
    record, lines = go(
        case, tmp_path, "print('hello from a cell')", GOOD_RECORD.replace("VERDICT", verdict)
    )
    assert record.verdict == verdict
    assert record.case == "co_location/small"
    assert "hello from a cell" in lines


@pytest.mark.parametrize(
    ("cell", "word"),
    [
        ("import sys; sys.exit(0)", "without a record"),
        ("!false", "without a record"),
        ("raise RuntimeError('the card is on fire')", "the card is on fire"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "ernel died"),
    ],
)
def test_a_run_without_a_record_is_an_error(case, tmp_path, cell, word):
    record, _ = go(case, tmp_path, cell)
    assert record.verdict == "error"
    assert word in record.reason


def test_a_run_neither_reads_nor_writes_a_home_folder(case, tmp_path, monkeypatch):
    home = tmp_path / "home"
    startup = home / ".ipython/profile_default/startup/mine.py"
    startup.parent.mkdir(parents=True)
    startup.write_text("raise SystemExit('a startup file of the person who runs this')")
    before = sorted(home.rglob("*"))
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for variable in ("XDG_CONFIG_HOME", "IPYTHONDIR", "MPLCONFIGDIR"):
        monkeypatch.delenv(variable, raising=False)
    good = GOOD_RECORD.replace("VERDICT", "pass")
    record, _ = go(case, tmp_path, "import matplotlib.pyplot", good)
    assert record.verdict == "pass", record.reason
    assert sorted(home.rglob("*")) == before


def test_a_record_of_an_earlier_run_does_not_count(case, tmp_path):
    go(case, tmp_path, GOOD_RECORD.replace("VERDICT", "pass"))
    record, _ = go(case, tmp_path, "pass")
    assert record.verdict == "error"


def test_a_cell_after_the_record_that_fails_makes_it_an_error(case, tmp_path):
    record, _ = go(case, tmp_path, GOOD_RECORD.replace("VERDICT", "pass"), "1 / 0")
    assert record.verdict == "error"


def test_a_notebook_that_hangs_is_ended_at_the_deadline(case, tmp_path):
    record, _ = go(case, tmp_path, "import time; time.sleep(600)", timeout=8.0)
    assert record.verdict == "error" and "within 8 s" in record.reason


def test_unknown_parameters_are_refused_before_anything_runs(case, tmp_path):
    notebook = write_notebook(tmp_path / "n.ipynb")
    case.path.write_text("pods: {a: {gpumem: 2048}}\nallocator: [native]\n")
    with pytest.raises(InputError, match="allocator") as refused:
        check_case(case, notebook)
    assert refused.value.what.startswith(f"{case.path}: ")  # one of many that are run together
    case.path.write_text("pods: {a: {gpumem: 2048}}\nceiling_pct: 120\n")
    with pytest.raises(InputError, match="ceiling_pct"):
        check_case(case, notebook)  # the question knows it, the notebook does not


def test_a_notebook_without_a_parameters_cell_is_refused(case, tmp_path):
    notebook = write_notebook(tmp_path / "n.ipynb", tag="other")
    with pytest.raises(InputError, match="no parameters cell"):
        notebook_parameters(notebook)
    (tmp_path / "x.ipynb").write_text("no json")
    with pytest.raises(InputError, match="not a notebook"):
        notebook_parameters(tmp_path / "x.ipynb")
