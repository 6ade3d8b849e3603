"""Who gets progress, who takes the testbed down: a person, papermill, `testbed run`."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from testbed.lab import session
from testbed.lab.cluster.protocol import ClusterSpec
from testbed.lab.live import LiveProgress
from testbed.lab.scenario.run import PROGRESS

from .test_kernel import ended, shell


class Double:
    """A testbed that notes what is asked of it."""

    name = "double"

    def __init__(self, state: str) -> None:
        self.state = state
        self.notes: list[str] = []
        self.joined = False
        self.cluster = SimpleNamespace(status=lambda: SimpleNamespace(state=self.state))

    @contextmanager
    def use(self, command: str, progress: Any, **_: Any) -> Any:
        yield SimpleNamespace(
            joined=self.joined, note=lambda temporary: self.notes.append(f"{temporary=}")
        )

    def ensure(self, spec: Any, progress: Any, *, as_it_is: bool) -> str:
        self.notes.append(f"ensure {spec is not None} {as_it_is}")
        return "info"

    def down(self, progress: Any) -> None:
        self.notes.append("down")


@pytest.fixture
def reaped(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    notes: list[str] = []

    def start(name: str) -> Any:
        notes.append(f"watches {name}")
        return SimpleNamespace(
            terminate=lambda: notes.append("ended"), wait=lambda seconds: notes.append("gone")
        )

    monkeypatch.setattr(session, "reaper", SimpleNamespace(start=start))
    return notes


def test_papermill_takes_down_what_it_brought_up_once(reaped: list[str]) -> None:
    found, double, told = shell(False), Double("absent"), []
    made = session.Session(found, {})
    made.guard(told.append)
    assert made.bring_up(double, ClusterSpec()) == "info"  # type: ignore[arg-type,comparison-overlap]
    assert double.notes == ["temporary=True", "ensure True False"]
    (hook,) = found.hooks
    hook(ended(ValueError("on fire")))
    assert told == ["ValueError: on fire"]
    made.finish()
    assert double.notes[2:] == ["down"]
    assert reaped == ["watches double", "ended", "gone"]
    assert found.hooks == []


@pytest.mark.parametrize(
    ("allow_stdin", "state", "ruled"),
    [(False, "up", False), (True, "absent", False), (False, "absent", True)],
)
def test_what_was_up_what_a_person_sees_and_what_a_run_has_stays(
    reaped: list[str], tmp_path: Any, allow_stdin: bool, state: str, ruled: bool
) -> None:
    environ = {PROGRESS: str(tmp_path / "log")} if ruled else {}
    double = Double(state)
    double.joined = ruled
    made = session.Session(shell(allow_stdin), environ)
    made.bring_up(double, ClusterSpec())  # type: ignore[arg-type]
    made.finish()
    assert double.notes == [f"ensure {state == 'absent'} {ruled}"] and reaped == []


def test_a_person_may_mend_a_cell_and_sees_it_live() -> None:
    found = shell(True)
    made = session.Session(found, {})
    made.guard(pytest.fail)
    assert found.hooks == []
    assert isinstance(made.progress, LiveProgress) and made.live is made.progress


def test_a_run_gets_the_steps_through_its_file_and_the_cell_none(
    tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "progress.log"
    made = session.Session(shell(False), {PROGRESS: str(path)})
    with made.progress.step("one ✓"):
        pass
    assert path.read_text(encoding="utf-8").startswith("✓ one ✓  0.")
    assert capsys.readouterr().out == ""
    assert made.live is None


def test_papermill_gets_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    made = session.Session(shell(False), {})
    with made.progress.step("one"):
        pass
    assert "one  0.0s" in capsys.readouterr().out
