"""Errors of every kind: their exit code, their one document, and no traceback."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from testbed.cli.output import Format, errors_as_exit_codes
from testbed.errors import CheckFailed, InputError

ERRORS = [
    (InputError("no", why="because", hint="this", artifacts=Path("/b")), 2, "no"),
    (CheckFailed("does not hold"), 1, "does not hold"),
    (OSError(30, "Read-only file system", "/state"), 2, "/state: Read-only file system"),
    (OSError(28, "No space left on device", "/a", None, "/b"), 2, "/b: No space left on device"),
    (ZeroDivisionError("by zero"), 2, "unexpected ZeroDivisionError"),
    (KeyboardInterrupt(), 2, "interrupted"),
]


@pytest.mark.parametrize(("error", "code", "what"), ERRORS)
@pytest.mark.parametrize("output", list(Format))
def test_an_error_is_an_exit_code_and_one_document(
    error: BaseException,
    code: int,
    what: str,
    output: Format,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(typer.Exit) as ended, errors_as_exit_codes(output):
        raise error
    assert ended.value.exit_code == code
    shown = capsys.readouterr()
    if output is Format.json:
        document = json.loads(shown.out)
        assert document["error"]["what"] == what
        assert set(document) == {"error", "artifacts"}
    else:
        assert shown.out == ""
    assert what in shown.err and "Traceback" not in shown.err
    if "unexpected" in what:
        # Where it happened is kept, and named last.
        [kept] = tmp_path.iterdir()
        assert shown.err.splitlines()[-1].endswith(str(kept))
        assert "Traceback" in kept.read_text()


PROGRAM = """
import signal, sys, time
from testbed.cli import signals
# nohup and a shell's background jobs hand on ignored signals, which stay so on purpose.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signals.install()
try:
    print("ready", flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    print("cleaning", flush=True)
    sys.stdin.readline()
    print("clean", flush=True)
"""


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_second_signal_does_not_stop_the_cleaning_up(first: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin and process.stdout and process.stderr
        assert process.stdout.readline() == "ready\n"
        process.send_signal(first)
        assert process.stdout.readline() == "cleaning\n"
        process.send_signal(signal.SIGINT)
        assert any("already ending" in line for line in process.stderr)
        process.send_signal(signal.SIGTERM)
        process.stdin.write("go on\n")
        process.stdin.flush()
        assert process.stdout.readline() == "clean\n"
    assert process.returncode == 0


HELD = """
import signal, sys, time
from testbed.cli import signals
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signals.install()
try:
    with signals.held():
        print("cleaning", flush=True)
        sys.stdin.readline()
        print("clean", flush=True)
    print("not reached", flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
try:
    with signals.held():
        pass
    print("still once only", flush=True)
    signal.raise_signal(signal.SIGINT)
    print("ended", flush=True)
except KeyboardInterrupt:
    print("interrupted again", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_clean_up_comes_to_its_end_before_a_signal_counts(number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HELD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin and process.stdout and process.stderr
        assert process.stdout.readline() == "cleaning\n"
        process.send_signal(number)
        assert "already ending" in process.stderr.readline()
        process.stdin.write("go on\n")
        process.stdin.flush()
        words = ["clean", "interrupted", "still once only", "ended"]
        assert process.stdout.read().split("\n") == [*words, ""]
    assert process.returncode == 0


def test_a_reader_that_goes_away_is_no_traceback() -> None:
    read, write = os.pipe()
    os.close(read)
    program = """
from testbed.cli.output import Format, emit, errors_as_exit_codes
with errors_as_exit_codes():
    emit(None, "x" * 100000, Format.table)
"""
    done = subprocess.run(
        [sys.executable, "-c", f"import typer\ntry:{_indented(program)}\nexcept typer.Exit: pass"],
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        timeout=120,
        check=False,
    )
    os.close(write)
    assert done.stderr == "" and done.returncode == 0


def _indented(text: str) -> str:
    return text.replace("\n", "\n    ")


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "-o", "json", "--nonsense"],
        ["up", "--name", "Bad Name", "--json"],
    ],
)
def test_bad_input_is_one_document_and_exit_code_2(arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from testbed.cli import main; main()", *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert json.loads(done.stdout)["error"]["what"]
    assert "Traceback" not in done.stderr
