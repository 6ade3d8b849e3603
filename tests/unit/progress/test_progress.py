from __future__ import annotations

import io
import re
from collections.abc import Callable

import pytest

from testbed.lab.cluster.protocol import Progress
from testbed.lab.progress import PLAIN_EVERY_S, ConsoleProgress, QuietProgress


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Stream(io.StringIO):
    """A text stream with an encoding of our choice."""

    def __init__(self, encoding: str = "utf-8", tty: bool = False) -> None:
        super().__init__()
        self._encoding, self._tty = encoding, tty

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._encoding

    def isatty(self) -> bool:
        return self._tty


def make(
    stream: Stream, clock: Clock | None = None, environ: dict[str, str] | None = None
) -> ConsoleProgress:
    return ConsoleProgress(stream, environ=environ or {}, clock=clock or Clock())


def final(stream: Stream) -> list[str]:
    """Return what a terminal shows in the end: text after the last erase of each line."""
    return [line.rsplit("\x1b[2K", 1)[-1] for line in stream.getvalue().split("\n")[:-1]]


def test_both_are_progress() -> None:
    def use(progress: Progress) -> None:
        with progress.step("a") as step:
            step.update("b")

    use(QuietProgress())
    use(make(Stream()))


def test_plain_step_is_one_line_with_its_time() -> None:
    stream, clock = Stream(), Clock()
    with make(stream, clock).step("build etcd"):
        clock.now += 1.24
    assert stream.getvalue() == "✓ build etcd  1.2s\n"


def test_failed_step_is_marked_and_the_error_passes() -> None:
    stream = Stream()
    with pytest.raises(RuntimeError, match="boom"), make(stream).step("x"):
        raise RuntimeError("boom")
    assert stream.getvalue() == "✗ x  0.0s\n"


def test_plain_updates_come_at_a_bounded_rate() -> None:
    stream, clock = Stream(), Clock()
    with make(stream, clock).step("download") as step:
        for percent in range(101):
            step.update(f"{percent} %")
            clock.now += PLAIN_EVERY_S / 10
    lines = stream.getvalue().splitlines()
    assert lines[0] == "… download: 10 %"
    assert len(lines) == 11 and lines[-1].startswith("✓ download")


def test_short_step_tells_no_update() -> None:
    stream, clock = Stream(), Clock()
    with make(stream, clock).step("x") as step:
        step.update("detail")
        clock.now += 0.5
    assert "detail" not in stream.getvalue()


def test_inner_steps_are_indented() -> None:
    stream = Stream()
    progress = make(stream)
    with progress.step("outer"), progress.step("inner"):
        pass
    assert stream.getvalue().splitlines() == ["  ✓ inner  0.0s", "✓ outer  0.0s"]


def test_ascii_stream_gets_words() -> None:
    stream, clock = Stream("ascii"), Clock()
    with pytest.raises(ValueError, match="no"), make(stream, clock).step("naïve") as step:
        clock.now += PLAIN_EVERY_S
        step.update("half")
        raise ValueError("no")
    assert stream.getvalue() == "... na?ve: half\nFAILED na?ve  5.0s\n"


def test_terminal_shows_spinner_update_and_colour() -> None:
    stream = Stream(tty=True)
    with make(stream).step("wait") as step:
        step.update("n1 is not Ready")
        wait_for(lambda: "n1 is not Ready" in stream.getvalue())
    assert final(stream) == ["\x1b[32m✓\x1b[0m wait  0.0s"]


@pytest.mark.parametrize("environ", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_no_colour_where_none_is_wanted(environ: dict[str, str]) -> None:
    stream = Stream(tty=True)
    with make(stream, environ=environ).step("x"):
        pass
    assert final(stream)[-1] == "✓ x  0.0s"
    if "TERM" in environ:
        assert "\x1b" not in stream.getvalue()


def test_terminal_line_is_never_wider_than_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    stream = Stream(tty=True)
    with make(stream).step("s" * 100):
        pass
    drawn = re.split(r"\r\x1b\[2K", stream.getvalue())
    assert drawn[1] and len(drawn[1]) == 39


def test_step_after_step_on_a_terminal_keeps_spinning() -> None:
    stream = Stream(tty=True)
    progress = make(stream)
    for number in range(3):
        with progress.step(f"step {number}") as step:
            step.update(f"seen {number}")
            wait_for(lambda n=number: f"seen {n}" in stream.getvalue())  # type: ignore[misc]
    assert [line.rpartition("m ")[2] for line in final(stream)] == [
        f"step {n}  0.0s" for n in range(3)
    ]


def wait_for(condition: Callable[[], bool]) -> None:
    import threading

    tick = threading.Event()
    for _ in range(2400):
        if condition():
            return
        tick.wait(0.05)
    raise AssertionError("the condition did not come true in two minutes")
