"""Programs end in time, and their last words reach the user."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed.errors import FULL_HINT, MissingTool, TestbedError
from testbed.lab import command, shell


def test_output_and_lines() -> None:
    told: list[str] = []
    text = command.run(
        ["sh", "-c", "echo one; echo; echo two >&2"], what="x", timeout_s=60, tell=told.append
    )
    assert text == "one\n\ntwo\n"
    assert told == ["one", "two"]


def test_failure_carries_the_end_of_the_output() -> None:
    with pytest.raises(TestbedError) as caught:
        command.run(["sh", "-c", "seq 100; exit 3"], what="cannot count", timeout_s=60, hint="less")
    assert caught.value.what == "cannot count"
    assert "exit code 3" in caught.value.why
    assert caught.value.why.endswith("99\n100")
    assert "\n1\n" not in caught.value.why
    assert caught.value.hint == "less"


def test_a_full_disk_is_told_what_helps() -> None:
    script = "echo 'write /layer.tar: no space left on device' >&2; exit 1"
    with pytest.raises(TestbedError) as caught:
        command.run(["sh", "-c", script], what="cannot load", timeout_s=60, hint="less")
    assert caught.value.hint == FULL_HINT


def test_a_missing_program_is_a_missing_tool() -> None:
    with pytest.raises(MissingTool, match="/no/such"):
        command.run(["/no/such"], what="cannot start it", timeout_s=60)


def test_too_slow_means_killed_with_its_children(tmp_path: Path) -> None:
    # The grandchild holds the pipe open: the call only returns if it is killed as well.
    script = f"sleep 1000 & echo $! > {tmp_path}/pid; echo begun; wait"
    for timeout_s in (0.5, 5.0, 50.0):  # on a busy machine it may have to begin first
        with pytest.raises(TestbedError) as caught:
            command.run(["sh", "-c", script], what="cannot wait", timeout_s=timeout_s)
        if "begun" in caught.value.why:
            break
    assert f"no end within {timeout_s:g} s\nbegun" in caught.value.why
    pid = int((tmp_path / "pid").read_text())
    assert not Path(f"/proc/{pid}/exe").exists(), "dead, at most not yet reaped"


@pytest.fixture
def struck(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[subprocess.Popen[str]]]:
    """Every program runs when the signal comes, and ``Popen`` has not yet returned."""

    def end(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(request.param, end)
    made: list[subprocess.Popen[str]] = []

    class Struck(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            made.append(self)
            signal.raise_signal(request.param)

    monkeypatch.setattr(subprocess, "Popen", Struck)
    yield made
    signal.signal(request.param, before)
    for process in made:
        if process.returncode is None:
            process.kill()
            process.wait()


@pytest.mark.parametrize("struck", [signal.SIGINT, signal.SIGTERM], indirect=True)
def test_an_interruption_of_the_start_kills_the_program(
    struck: list[subprocess.Popen[str]],
) -> None:
    with pytest.raises(KeyboardInterrupt):
        command.run(["sleep", "1000"], what="cannot wait", timeout_s=60)
    (process,) = struck
    assert process.returncode == -signal.SIGKILL


@pytest.mark.parametrize("struck", [signal.SIGTERM], indirect=True)
def test_a_session_that_is_ended_as_its_command_starts_ends_it(
    struck: list[subprocess.Popen[str]],
) -> None:
    with pytest.raises(KeyboardInterrupt):
        shell.run(["sleep", "1000"], os.environ)
    (process,) = struck
    assert process.returncode == -signal.SIGTERM


def test_an_interruption_kills_the_program(tmp_path: Path) -> None:
    told: list[str] = []

    def interrupt(line: str) -> None:
        told.append(line)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        command.run(
            ["sh", "-c", "echo $$; exec sleep 1000"], what="x", timeout_s=60, tell=interrupt
        )
    (pid,) = map(int, told)
    with pytest.raises(ChildProcessError):  # killed, and taken
        os.waitpid(pid, os.WNOHANG)


def test_environment_and_folder(tmp_path: Path) -> None:
    text = command.run(
        [sys.executable, "-c", "import os; print(os.getcwd(), os.environ.get('A'))"],
        what="x",
        timeout_s=60,
        cwd=tmp_path,
        environ={"A": "b"},
    )
    assert text.split() == [str(tmp_path), "b"]


#: Starts a program with and one without a leash; each says in its pipe that it is there.
_MIDDLE = """
import subprocess, sys
from testbed.lab.command import leashed
for make, pipe in ((leashed, sys.argv[1]), (lambda *all: list(all), sys.argv[2])):
    says = f"import os, sys; os.write({pipe}, b'x'); sys.stdin.read()"
    subprocess.Popen(make(sys.executable, "-c", says), pass_fds=[int(pipe)])
sys.stdin.read()
"""


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv")
def test_what_is_leashed_ends_with_who_started_it() -> None:
    leash, alone = os.pipe(), os.pipe()

    def heard(pipe: tuple[int, int], within_s: float) -> bytes | None:
        """Return what came: nothing when nobody holds the other end any more."""
        return os.read(pipe[0], 1) if select.select([pipe[0]], [], [], within_s)[0] else None

    theirs = [leash[1], alone[1]]
    try:
        middle = subprocess.Popen(
            [sys.executable, "-c", _MIDDLE, *map(str, theirs)],
            stdin=subprocess.PIPE,
            pass_fds=theirs,
        )
    finally:
        for end in theirs:
            os.close(end)
    with middle:
        try:
            assert (heard(leash, 60), heard(alone, 60)) == (b"x", b"x")
            middle.kill()
            assert heard(leash, 60) == b""
            assert heard(alone, 0) is None
        finally:
            middle.kill()
    # Its standard input has ended now.
    assert heard(alone, 60) == b""
    os.close(leash[0])
    os.close(alone[0])
