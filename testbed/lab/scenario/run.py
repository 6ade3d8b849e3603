"""Run cases by papermill, strictly: the record decides, never the exit code.

papermill 2.7 answers 0 when a cell calls ``sys.exit(0)``, when a shell line fails,
when a parameter's name is unknown, and when the notebook has no parameters cell.
So parameters are checked before anything runs, the whole run has one deadline, and
a case whose last cell wrote no record is an error.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from testbed.errors import InputError
from testbed.lab.scenario.cases import Case, checked_parameters, load_parameters, load_question
from testbed.lab.scenario.record import (
    Environment,
    Record,
    Report,
    read_record,
    worst,
    write_json,
)

#: Parameters that the runner itself hands to every notebook.
RUNNER_PARAMETERS = ("case", "testbed", "run_folder")


def notebook_parameters(notebook: Path) -> set[str]:
    """Return the names that the notebook's parameters cell assigns.

    Raises:
        InputError: not a notebook, or one without such a cell.
    """
    try:
        document = json.loads(notebook.read_text())
        cells = document["cells"]
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{notebook} is not a notebook", why=str(error)) from error
    for cell in cells:
        if "parameters" in cell.get("metadata", {}).get("tags", []):
            source = "".join(cell["source"])
            return {
                line.split("=")[0].strip()
                for line in source.splitlines()
                if "=" in line and not line.startswith((" ", "#"))
            }
    raise InputError(
        f"{notebook} has no parameters cell",
        why="papermill would run it with its defaults and say nothing",
        hint="tag the cell that holds them with `parameters`",
    )


def check_case(case: Case, notebook: Path) -> dict[str, Any]:
    """Return a case's parameters, checked against question and notebook.

    Raises:
        InputError: before anything runs.
    """
    question = load_question(case.folder)
    values = load_parameters(case.path)
    checked_parameters(question, values)
    known = notebook_parameters(notebook)
    missing = sorted({*values, *RUNNER_PARAMETERS} - known)
    if missing:
        raise InputError(
            f"{notebook} does not know the parameters {', '.join(missing)}",
            hint="declare them in the notebook's parameters cell",
        )
    return values


def run_case(
    case: Case,
    *,
    notebook: Path,
    testbed: str,
    folder: Path,
    timeout_seconds: float,
    show: Callable[[str], None],
) -> Record:
    """Execute a case's notebook and return the record that it wrote.

    Args:
        case: Parameter file and question.
        notebook: The question's notebook.
        testbed: Name of the testbed to run on.
        folder: Where record, executed notebook and logs go.
        timeout_seconds: Deadline for everything.
        show: Called with each line that the notebook prints.
    """
    values = check_case(case, notebook)
    folder.mkdir(parents=True, exist_ok=True)
    record_path = folder / "record.json"
    record_path.unlink(missing_ok=True)
    started = datetime.now(UTC)
    begin = time.monotonic()
    why, code = _papermill(case, values, notebook, testbed, folder, timeout_seconds, show)
    if record_path.exists() and code == 0:
        return read_record(record_path)
    reason = why or f"the notebook ended with status {code} and without a record"
    record = Record(
        case=str(case),
        verdict="error",
        asserts_limit=load_question(case.folder).asserts_limit,
        checks=(),
        control=None,
        environment=Environment(provider="", card="", kubernetes="", torch="", stack="", shim=""),
        started=started.isoformat(timespec="seconds"),
        seconds=round(time.monotonic() - begin, 1),
        artifacts={
            "notebook": str(folder / "notebook.ipynb"),
            "log": str(folder / "papermill.log"),
        },
        parameters=values,
        reason=reason,
    )
    write_json(record_path, record)
    return record


def _papermill(
    case: Case,
    values: dict[str, Any],
    notebook: Path,
    testbed: str,
    folder: Path,
    timeout_seconds: float,
    show: Callable[[str], None],
) -> tuple[str, int]:
    parameters = {
        **values,
        "case": str(case),
        "testbed": testbed,
        "run_folder": str(folder.absolute()),
    }
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", dir=folder) as file:
        yaml.safe_dump(parameters, file)
        file.flush()
        argv = [
            sys.executable,
            "-m",
            "papermill",
            str(notebook),
            str(folder / "notebook.ipynb"),
            "--parameters_file",
            file.name,
            "--kernel",
            "python3",
            "--no-progress-bar",
            "--no-log-output",
            "--stdout-file",
            "-",
        ]
        env = {**os.environ, "PYTHONUNBUFFERED": "1", "PYDEVD_DISABLE_FILE_VALIDATION": "1"}
        with (folder / "papermill.log").open("w") as log:
            process = subprocess.Popen(
                argv,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=env,
                cwd=notebook.parent,
                start_new_session=True,
            )
            code, timed_out = _follow(process, timeout_seconds, show)
    if timed_out:
        return f"no verdict within {timeout_seconds:.0f} s", code
    if code:
        return _last_error(folder / "papermill.log") or f"papermill ended with {code}", code
    return "", code


def _follow(
    process: subprocess.Popen[str], timeout_seconds: float, show: Callable[[str], None]
) -> tuple[int, bool]:
    """Relay the notebook's lines until it ends or its time is up."""
    assert process.stdout is not None
    stream = process.stdout

    def relay() -> None:
        for line in stream:
            if line.strip():
                show(line.rstrip())

    thread = threading.Thread(target=relay, daemon=True)
    thread.start()
    try:
        return process.wait(timeout_seconds), False
    except subprocess.TimeoutExpired:
        _end(process)
        return process.wait(), True
    except BaseException:
        # Ctrl-C reaches only us: the notebook runs in a session of its own.
        _end(process)
        raise
    finally:
        thread.join(5)  # a kernel that outlives papermill may keep the pipe open a moment
        if not thread.is_alive():
            stream.close()


def _end(process: subprocess.Popen[str]) -> None:
    for sign, grace in ((signal.SIGINT, 5.0), (signal.SIGKILL, 5.0)):
        try:
            os.killpg(process.pid, sign)
        except ProcessLookupError:
            return
        try:
            process.wait(grace)
            return
        except subprocess.TimeoutExpired:
            continue


def _last_error(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else ""


def run_cases(
    cases: tuple[Case, ...],
    *,
    notebooks: Path,
    testbed: str,
    runs: Path,
    timeout_seconds: float,
    show: Callable[[str], None],
    after_error: Callable[[], None],
) -> tuple[Report, Path]:
    """Run cases one after the other and write ``runs/<time>/report.json``.

    Args:
        after_error: Called when a case ended without a verdict, to put the testbed
            back in order before the next one.
    """
    for case in cases:
        check_case(case, notebooks / f"{case.question}.ipynb")
    folder = runs / datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    records = []
    for case in cases:
        record = run_case(
            case,
            notebook=notebooks / f"{case.question}.ipynb",
            testbed=testbed,
            folder=folder / case.question / case.name,
            timeout_seconds=timeout_seconds,
            show=show,
        )
        records.append(record)
        if record.verdict == "error":
            after_error()
    report = Report(verdict=worst([r.verdict for r in records]), cases=tuple(records))
    write_json(folder / "report.json", report)
    latest = runs / "latest"
    temporary = runs / ".latest"
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(folder.name)
    temporary.replace(latest)
    return report, folder
