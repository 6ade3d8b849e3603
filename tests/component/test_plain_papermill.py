"""Plain papermill on the repository's notebook: what it passes over fails here.

The testbed is a double that notes what is asked of it; kernel, papermill, notebook
and everything between them are real.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from testbed.lab.scenario.record import Record, Report, read_record
from testbed.lab.wait import wait_until

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "notebooks/co_location.ipynb"
CASE = ROOT / "scenarios/co_location/a100-example.yaml"

#: Runs in the kernel before the notebook's first cell (IPython's startup folder).
DOUBLE = '''
import contextlib, json, os, types
from pathlib import Path
import testbed.lab.experiment as experiment, testbed.lab.notebook as notebook
import testbed.lab.reaper as reaper, testbed.lab.session as session
from testbed.lab.scenario.record import Check, Control
from testbed.lab.cluster.state import check_name

NOTES = Path(os.environ["DOUBLE_NOTES"])
def note(text):
    with NOTES.open("a") as file:
        print(text, file=file)

class Double:
    """Absent until it is brought up."""
    def __init__(self, name):
        self.name, self.state = check_name(name), os.environ["DOUBLE_STATE"]
        self.cluster = types.SimpleNamespace(status=lambda: types.SimpleNamespace(
            state=self.state, id_range=True, nodes=[types.SimpleNamespace(cards=["a", "b"])]))
        self.kube = types.SimpleNamespace(version=lambda: "v1")
    @contextlib.contextmanager
    def use(self, command, progress, **_):
        yield types.SimpleNamespace(joined=False, note=lambda temporary: note(f"{temporary=}"))
    def ensure(self, spec, progress, **_):
        with progress.step("double is up"):
            note(f"ensure {self.state}")
            self.state = "up"
        return types.SimpleNamespace(provider="double", stack="s", shim="l")
    def down(self, progress):
        note("down")
        self.state = "absent"

notebook.Testbed = Double
session.reaper = types.SimpleNamespace(start=lambda name: note("reaper") or types.SimpleNamespace(
    terminate=lambda: note("reaper ends"), wait=lambda s: None))

def run(self):
    with self._progress.step("the pods"):
        note("run")
    self._trial = types.SimpleNamespace(budget_hits=0, pods={}, source="double")
    self._checks = (Check(name="memory_cap", verdict=os.environ["DOUBLE_VERDICT"], reason="told"),)
def control(self):
    self._control_trial = types.SimpleNamespace(budget_hits=0)
    self._control = Control(verdict="pass", checks=(Check(name="memory_cap", verdict="fail"),))
from testbed.lab.report.chart import Chart
experiment.Experiment.run, experiment.Experiment.control = run, control
experiment.Experiment._chart = lambda self: Chart(sides=())
'''


class Run:
    """One papermill command in a folder of its own."""

    def __init__(self, folder: Path, fonts: Path) -> None:
        self.folder = folder
        self.notes_file = folder / "notes"
        self.notebook = folder / "notebooks/co_location.ipynb"
        self.notebook.parent.mkdir()
        self.notebook.write_text(NOTEBOOK.read_text())
        (folder / "scenarios").symlink_to(ROOT / "scenarios")
        startup = folder / "ipython/profile_default/startup/double.py"
        startup.parent.mkdir(parents=True)
        startup.write_text(DOUBLE)
        self.environ = {
            **{k: v for k, v in os.environ.items() if not k.startswith("VGPU_")},
            "IPYTHONDIR": str(folder / "ipython"),
            "MPLCONFIGDIR": str(fonts),
            "PYDEVD_DISABLE_FILE_VALIDATION": "1",
            "DOUBLE_NOTES": str(self.notes_file),
            "DOUBLE_STATE": "absent",
            "DOUBLE_VERDICT": "pass",
        }
        self.environ.pop("GITHUB_STEP_SUMMARY", None)

    def insert(self, after: str, source: str) -> None:
        """Put a cell behind the one that contains a text."""
        document = json.loads(self.notebook.read_text())
        cells = document["cells"]
        (place,) = [
            number
            for number, cell in enumerate(cells)
            if cell["cell_type"] == "code" and after in "".join(cell["source"])
        ]
        new = {**cells[place], "id": "inserted", "metadata": {}, "source": source}
        cells.insert(place + 1, new)
        self.notebook.write_text(json.dumps(document))

    def command(self, *arguments: str) -> list[str]:
        return [
            sys.executable, "-m", "papermill", "notebooks/co_location.ipynb", "out.ipynb",
            "-f", str(CASE), "-k", "python3", "--no-progress-bar", *arguments,
        ]  # fmt: skip

    def go(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments),
            cwd=self.folder,
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )

    @property
    def notes(self) -> list[str]:
        return self.notes_file.read_text().splitlines() if self.notes_file.exists() else []

    def record(self) -> Record:
        (path,) = (self.folder / "runs/latest").glob("*/*/record.json")
        report = json.loads((self.folder / "runs/latest/report.json").read_text())
        found = read_record(path)
        assert [case["verdict"] for case in report["cases"]] == [found.verdict]
        return found


@pytest.fixture(scope="module")
def fonts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where matplotlib keeps its list of fonts, which takes it seconds to make."""
    return tmp_path_factory.mktemp("matplotlib")


@pytest.fixture
def run(tmp_path: Path, fonts: Path) -> Run:
    return Run(tmp_path, fonts)


def test_a_case_that_holds_leaves_record_report_and_nothing_up(run: Run) -> None:
    done = run.go()
    assert done.returncode == 0, done.stderr
    record = run.record()
    assert (record.case, record.verdict) == ("co_location/a100-example", "pass")
    assert {p.name for p in (run.folder / "runs/latest").iterdir() if p.is_file()} == {
        "report.json", "report.html", "report.xml", "summary.md"
    }  # fmt: skip
    assert run.notes == [
        "reaper", "temporary=True", "ensure absent", "run", "down", "reaper ends"
    ]  # fmt: skip


def test_a_testbed_that_was_up_stays_up(run: Run) -> None:
    run.environ["DOUBLE_STATE"] = "up"
    assert run.go().returncode == 0
    assert run.notes == ["ensure up", "run"]


@pytest.mark.parametrize("verdict", ["fail", "error"])
def test_a_check_that_does_not_hold_fails_papermill_too(run: Run, verdict: str) -> None:
    run.environ["DOUBLE_VERDICT"] = verdict
    done = run.go()
    assert done.returncode == 1
    assert f"co_location/a100-example: {verdict}" in done.stderr
    assert run.record().verdict == verdict
    assert run.notes[-2:] == ["down", "reaper ends"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("-p", "allocator", "native"), ["allocator", "did you mean allocators?"]),
        (("-p", "ceiling_pct", "50"), ["ceiling_pct is 50"]),
        (("-y", "pods: {a: {gpumen: 2048}}"), ["gpumen"]),
        (("-p", "policy", "forced"), ["'forced'", "policy {default | disable | force}"]),
        (("-p", "testbed", "A B"), ["'A B' cannot name a testbed"]),
    ],
)
def test_a_parameter_that_is_none_stops_it_before_anything_runs(
    run: Run, arguments: tuple[str, ...], words: list[str]
) -> None:
    done = run.go(*arguments)
    assert done.returncode == 1
    assert all(word in done.stderr for word in words), done.stderr
    assert run.notes == [] and not (run.folder / "runs").exists()


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        ("import sys; sys.exit(0)", "sys.exit(0)"),
        ("!false\n!true", "`!false` ended with status 1"),
        ("raise RuntimeError('the card is on fire')", "the card is on fire"),
    ],
)
def test_an_end_before_the_verdict_is_a_failure(run: Run, cell: str, words: str) -> None:
    run.insert("open_case(", cell)
    done = run.go()
    record = run.record()
    assert record.verdict == "error"
    assert done.returncode == 1, done.stderr
    assert words in record.reason and words in done.stderr
    assert "run" not in run.notes and run.notes[-2:] == ["down", "reaper ends"]


def test_a_shell_line_that_failed_before_the_case_was_opened_counts(run: Run) -> None:
    run.insert("allocators =", "!false")
    assert run.go().returncode == 1
    assert "ensure absent" not in run.notes


@pytest.mark.parametrize("cell", ["import os; os.kill(os.getpid(), 9)", "exit()"])
def test_a_killed_kernel_leaves_a_record_that_says_so(run: Run, cell: str) -> None:
    run.insert("open_case(", cell)
    done = run.go()
    assert done.returncode not in (0, 1)
    assert run.record().verdict == "error"
    assert "last cell" in run.record().reason
    # Whoever waits for the kernel's end takes it down: see the reaper's own test.
    assert run.notes[:3] == ["reaper", "temporary=True", "ensure absent"]
    assert "reaper ends" not in run.notes


def test_the_label_follows_the_parameters(run: Run) -> None:
    assert run.go("-p", "ceiling_pct", "120").returncode == 0
    assert run.record().case == "co_location/custom"
    report = Report(**json.loads((run.folder / "runs/latest/report.json").read_text()))
    assert "papermill notebooks/co_location.ipynb" in report.reproduce
    assert "parameters.yaml" in report.reproduce


def test_the_executed_notebook_has_no_stray_output(run: Run) -> None:
    assert run.go().returncode == 0
    document = json.loads((run.folder / "out.ipynb").read_text())
    outputs: list[dict[str, Any]] = [o for c in document["cells"] for o in c.get("outputs", ())]
    assert {o["name"] for o in outputs if o["output_type"] == "stream"} == {"stdout"}
    for output in outputs:
        if output["output_type"] == "stream":
            for line in output["text"]:
                assert line.startswith("✓ "), line


def pidfds(pid: int) -> int:
    """Return how many processes another one watches."""
    found = 0
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed since it was listed
            found += "pidfd" in str(each.readlink())
    return found


def test_whoever_waits_for_the_kernel_ends_when_it_does() -> None:
    idle = [sys.executable, "-c", "input()"]
    with subprocess.Popen(idle, stdin=subprocess.PIPE) as kernel:
        code = f"from testbed.lab.reaper import wait_for_end; wait_for_end({kernel.pid})"
        with subprocess.Popen([sys.executable, "-c", code]) as waiting:
            try:
                wait_until(
                    "the kernel is watched",
                    lambda: pidfds(waiting.pid),
                    ready=lambda found: found == 1,
                    timeout_s=120,
                )
                assert waiting.poll() is None
                kernel.send_signal(signal.SIGKILL)
                assert waiting.wait(120) == 0
            finally:
                kernel.kill()
                waiting.kill()
