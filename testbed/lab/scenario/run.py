"""Run cases by papermill, strictly: the record decides, never the exit code.

papermill 2.7 answers 0 when a cell calls ``sys.exit(0)``, when a shell line fails,
when a parameter's name is unknown, and when the notebook has no parameters cell.
So parameters are checked before anything runs, the whole run has one deadline, and
a case whose last cell wrote no record is an error.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import yaml

from testbed.errors import InputError, TestbedError
from testbed.lab import cache, use
from testbed.lab.command import leashed, uninterrupted
from testbed.lab.report.files import write_all
from testbed.lab.scenario.cases import Case, checked_parameters, load_parameters, load_question
from testbed.lab.scenario.failure import last_error
from testbed.lab.scenario.record import (
    Record,
    Report,
    no_verdict,
    plain,
    read_record,
    worst,
    write_json,
)

#: Names a file that the notebook's steps are written to, instead of into its cells.
PROGRESS = "VGPU_TESTBED_PROGRESS"
_TAIL_S = 0.1

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
    """Return a case's parameters, checked against question and notebook, all of them.

    What a case leaves out has the question's default, whatever the notebook's cell says
    for those who run it by hand.

    Raises:
        InputError: before anything runs.
    """
    question = load_question(case.folder)
    values = load_parameters(case.path)
    try:
        whole = plain(checked_parameters(question, values))
    except InputError as error:  # of which of perhaps many cases
        what = f"{case.path}: {error.what}"
        raise InputError(what, why=error.why, hint=error.hint) from error
    known = notebook_parameters(notebook)
    missing = sorted({*values, *RUNNER_PARAMETERS} - known)
    if missing:
        raise InputError(
            f"{notebook} does not know the parameters {', '.join(missing)}",
            hint="declare them in the notebook's parameters cell",
        )
    return {name: value for name, value in whole.items() if name in known}


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
    if code == 0 and not why:
        try:
            return _own_record(record_path, case)
        except InputError as error:
            why = f"the notebook ended without a record of this case: {error.text()}"
    record = _no_record(case, values, why or f"the notebook ended with status {code}")
    record = msgspec.structs.replace(
        record,
        started=started.isoformat(timespec="seconds"),
        seconds=round(time.monotonic() - begin, 1),
        artifacts={
            "notebook": str(folder / "notebook.ipynb"),
            "log": str(folder / "papermill.log"),
        },
    )
    write_json(record_path, record)
    return record


def _own_record(path: Path, case: Case) -> Record:
    """Return the record that a notebook wrote, if it is one of this case."""
    record = read_record(path)
    if record.case != str(case):
        raise InputError(f"{path} is the record of {record.case!r}")
    if record.verdict == "pass" and not record.checks:
        raise InputError(f"{path} says pass and holds no check")
    return record


def _no_record(case: Case, values: dict[str, Any], reason: str) -> Record:
    """Return the record of a case that came to no verdict."""
    asserts_limit = load_question(case.folder).asserts_limit
    return no_verdict(str(case), reason, asserts_limit=asserts_limit, parameters=values)


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
    # What a killed notebook leaves, its connection's key among it, stays within the run.
    with (
        tempfile.TemporaryDirectory(prefix="tmp-", dir=folder, ignore_cleanup_errors=True) as tmp,
        tempfile.NamedTemporaryFile("w", suffix=".yaml", dir=tmp) as file,
    ):
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
        # Killed with us, however we end: a notebook that went on alone would disturb the
        # next run. The kernel ends by itself when papermill does.
        argv = leashed(*argv)
        env = {
            **os.environ,
            "PYTHONUNBUFFERED": "1",
            "PYDEVD_DISABLE_FILE_VALIDATION": "1",
            use.VARIABLE: str(os.getpid()),
            "TMPDIR": tmp,
            PROGRESS: str((folder / "progress.log").absolute()),
            # A person's profile must not change a run, nor a run leave things in a home folder.
            "IPYTHONDIR": str(cache.root() / "ipython"),
            "MPLCONFIGDIR": str(cache.root() / "matplotlib"),
        }
        with (folder / "papermill.log").open("w") as log, _tail(folder / "progress.log", show):
            process: subprocess.Popen[str] | None = None
            try:
                with uninterrupted():
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
            except BaseException:
                # Ctrl-C reaches only us: the notebook runs in a session of its own.
                if process is not None and process.returncode is None:
                    _end(process)
                raise
    if timed_out:
        return f"no verdict within {timeout_seconds:.0f} s", code
    if code:
        log_text = (folder / "papermill.log").read_text(errors="replace")
        return last_error(log_text) or f"papermill ended with {code}", code
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
    finally:
        if process.returncode is None:
            _end(process)  # whose pipe the thread reads
        thread.join(5)  # a kernel that outlives papermill may keep the pipe open a moment
        if not thread.is_alive():
            stream.close()


@contextlib.contextmanager
def _tail(path: Path, show: Callable[[str], None]) -> Iterator[None]:
    """Show each line that is written to a file while the body runs."""
    path.write_text("")
    ended = threading.Event()

    def follow() -> None:
        with path.open(errors="replace") as file:
            line = ""
            while True:
                last = ended.wait(_TAIL_S)  # asked before the read: nothing comes after it
                while part := file.readline():
                    line += part
                    if line.endswith("\n"):
                        show(line.rstrip())
                        line = ""
                if last:
                    return

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(5)


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


def run_cases(
    cases: tuple[Case, ...],
    *,
    notebooks: Path,
    testbed: str,
    folder: Path,
    timeout_seconds: float,
    show: Callable[[str], None],
    after_error: Callable[[], None],
    repeat: int = 1,
    began: Callable[[Case, int], None] | None = None,
    reproduce: str = "",
) -> Report:
    """Run cases one after the other and write the report into the run's folder.

    Args:
        folder: The run's own, from ``run_folder``; ``latest`` beside it will lead to it.
        repeat: How often all of them are run, in rounds; the worst verdict counts.
        began: Told each case and its round, from 1, before it runs.
        after_error: Called when a case ended without a verdict, to put the testbed
            back in order before the next one.
        reproduce: The command that runs the same again, for the report.
    """
    for case in cases:
        check_case(case, notebooks / f"{case.question}.ipynb")
    started, begin = datetime.now(UTC), time.monotonic()
    records: list[Record] = []
    rounds = [(case, number) for number in range(1, repeat + 1) for case in cases]
    for case, number in rounds:
        if began is not None:
            began(case, number)
        name = case.name if number == 1 else f"{case.name}-{number}"
        record = run_case(
            case,
            notebook=notebooks / f"{case.question}.ipynb",
            testbed=testbed,
            folder=folder / case.question / name,
            timeout_seconds=timeout_seconds,
            show=show,
        )
        records.append(record)
        if record.verdict == "error":
            try:
                after_error()
            except TestbedError as error:
                text = f"not run: the testbed could not be put in order: {error.text()}"
                records += [_no_record(rest, {}, text) for rest, _ in rounds[len(records) :]]
                break
    report = Report(
        verdict=worst([r.verdict for r in records]),
        cases=tuple(records),
        started=started.isoformat(timespec="seconds"),
        seconds=round(time.monotonic() - begin, 1),
        reproduce=reproduce or command_for(cases, repeat),
    )
    finish(report, folder)
    return report


def command_for(
    cases: tuple[Case, ...], repeat: int = 1, options: Mapping[str, object] | None = None
) -> str:
    """Return the command that runs cases again, with those options that were given."""
    words = ["testbed", "run", *(str(case) for case in cases)]
    given = {"repeat": repeat if repeat > 1 else None, **(options or {})}
    words += [f"--{name}={value}" for name, value in given.items() if value]
    return shlex.join(words)


def finish(report: Report, folder: Path) -> None:
    """Write a run's report in all its forms, and let ``latest`` lead to its folder."""
    write_all(report, folder)
    latest = folder.with_name("latest")
    temporary = folder.with_name(f".latest-{folder.name}")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(folder.name)
    temporary.replace(latest)


def run_folder(runs: Path) -> Path:
    """Make the folder of a run that begins now, for it alone.

    Raises:
        InputError: nothing can be written there.
    """
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    try:
        runs.mkdir(parents=True, exist_ok=True)
        for number in itertools.count(1):
            folder = runs / (stamp if number == 1 else f"{stamp}-{number}")
            try:
                folder.mkdir()
            except FileExistsError:  # of another run that began in the same second
                continue
            return folder
    except OSError as error:
        raise InputError(
            f"results cannot be written to {runs}",
            why=error.strerror or str(error),
            hint="name a folder of yours with --runs",
        ) from error
    raise AssertionError("unreachable")
