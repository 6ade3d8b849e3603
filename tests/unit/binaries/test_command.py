"""Programs end in time, and their last words reach the user."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from testbed.errors import FULL_HINT, MissingTool, TestbedError
from testbed.lab import command


def test_output_and_lines() -> None:
    told: list[str] = []
    text = command.run(
        ["sh", "-c", "echo one; echo; echo two >&2"], what="x", timeout_s=10, tell=told.append
    )
    assert text == "one\n\ntwo\n"
    assert told == ["one", "two"]


def test_failure_carries_the_end_of_the_output() -> None:
    with pytest.raises(TestbedError) as caught:
        command.run(["sh", "-c", "seq 100; exit 3"], what="cannot count", timeout_s=10, hint="less")
    assert caught.value.what == "cannot count"
    assert "exit code 3" in caught.value.why
    assert caught.value.why.endswith("99\n100")
    assert "\n1\n" not in caught.value.why
    assert caught.value.hint == "less"


def test_a_full_disk_is_told_what_helps() -> None:
    script = "echo 'write /layer.tar: no space left on device' >&2; exit 1"
    with pytest.raises(TestbedError) as caught:
        command.run(["sh", "-c", script], what="cannot load", timeout_s=10, hint="less")
    assert caught.value.hint == FULL_HINT


def test_a_missing_program_is_a_missing_tool() -> None:
    with pytest.raises(MissingTool, match="/no/such"):
        command.run(["/no/such"], what="cannot start it", timeout_s=10)


def test_too_slow_means_killed_with_its_children(tmp_path: Path) -> None:
    # The grandchild holds the pipe open: the call only returns if it is killed as well.
    script = f"sleep 1000 & echo $! > {tmp_path}/pid; echo begun; wait"
    with pytest.raises(TestbedError, match=r"no end within 0\.5 s\nbegun"):
        command.run(["sh", "-c", script], what="cannot wait", timeout_s=0.5)
    pid = int((tmp_path / "pid").read_text())
    assert not Path(f"/proc/{pid}/exe").exists(), "dead, at most not yet reaped"


def test_an_interruption_kills_the_program(tmp_path: Path) -> None:
    def interrupt(line: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        command.run(
            ["sh", "-c", "echo $$; exec sleep 1000"], what="x", timeout_s=60, tell=interrupt
        )
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_environment_and_folder(tmp_path: Path) -> None:
    text = command.run(
        [sys.executable, "-c", "import os; print(os.getcwd(), os.environ.get('A'))"],
        what="x",
        timeout_s=30,
        cwd=tmp_path,
        environ={"A": "b"},
    )
    assert text.split() == [str(tmp_path), "b"]
