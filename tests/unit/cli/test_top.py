"""`testbed top` on a terminal: it watches a cluster through an outage, and Ctrl-C leaves it."""

from __future__ import annotations

from typing import Any

import pytest

from testbed.cli import top as command
from testbed.errors import ClusterError
from testbed.lab import top as lab
from testbed.lab.top import View


def test_an_outage_is_shown_and_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = View(problems=("first",)), View(problems=("second",))
    answers: list[Any] = [first, ClusterError("GET failed", why="connection refused"), second]
    shown: list[tuple[View, str]] = []

    def gather(*_: Any, **__: Any) -> View:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, View)
        return answer

    def frame(
        look: View, *, width: int, title: str = "", problem: str = "", options: str = ""
    ) -> str:
        assert options == "--name mine"
        shown.append((look, problem))
        return ""

    def sleep(_: float) -> None:
        if not answers:
            raise KeyboardInterrupt

    monkeypatch.setattr(lab, "gather", gather)
    monkeypatch.setattr(lab, "frame", frame)
    monkeypatch.setattr(command.time, "sleep", sleep)
    command._live(None, "mine", "", 2.0, 5.0)  # type: ignore[arg-type]
    looks = [look for look, _ in shown]
    assert looks == [first, first, second, second], "the last one stays on the screen"
    assert [bool(problem) for _, problem in shown] == [False, True, False, False]
    assert "connection refused" in shown[1][1] and "s old" in shown[1][1]


def test_a_testbed_that_does_not_answer_at_first_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def gather(*_: Any, **__: Any) -> View:
        raise ClusterError("GET failed", why="connection refused")

    monkeypatch.setattr(lab, "gather", gather)
    with pytest.raises(ClusterError):
        command._live(None, "vgpu", "", 2.0, 5.0)  # type: ignore[arg-type]
