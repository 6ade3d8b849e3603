"""Step lines: one line a step with its time.

On a terminal the running step has a spinner and its latest update; elsewhere (CI,
a file) only plain lines appear: updates of long steps at a bounded rate, then the
finished step. ``NO_COLOR`` and ``TERM=dumb`` are honoured.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TextIO

_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_FRAMES_ASCII = "|/-\\"
_REDRAW_S = 0.1
#: A log of a long step gets a line this often, so that nobody thinks it hangs.
PLAIN_EVERY_S = 5.0


class ConsoleProgress:
    """Writes steps to a stream (standard error, so that output stays parseable).

    Args:
        stream: Where lines go.
        tty: Whether lines may be redrawn; by default what the stream says.
        environ: Read for ``NO_COLOR`` and ``TERM``.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        *,
        tty: bool | None = None,
        environ: dict[str, str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        env = dict(os.environ) if environ is None else environ
        self._stream = stream if stream is not None else sys.stderr
        dumb = env.get("TERM") == "dumb"
        self._tty = (self._stream.isatty() and not dumb) if tty is None else tty
        # https://no-color.org: any non-empty value turns colour off.
        self._color = self._tty and not env.get("NO_COLOR")
        self._unicode = _can_encode(self._stream, "✓✗…" + _FRAMES)
        self._clock = clock
        self._lock = threading.RLock()
        self._stack: list[ConsoleStep] = []
        self._painter: threading.Thread | None = None
        self._wake = threading.Event()

    def step(self, text: str) -> ConsoleStep:
        """Begin a step; its time counts from entering it as a context."""
        return ConsoleStep(self, text)

    # --- called by the steps ---------------------------------------------------
    def now(self) -> float:
        return self._clock()

    def began(self, step: ConsoleStep) -> None:
        with self._lock:
            step.depth = len(self._stack)
            self._stack.append(step)
            if self._tty:
                self._draw(0)
                self._start_painter()

    def updated(self, step: ConsoleStep) -> None:
        with self._lock:
            if self._tty or step not in self._stack:
                return  # the painter shows it within a tenth of a second
            now = self._clock()
            if now - step.told >= PLAIN_EVERY_S:
                step.told = now
                mark = "…" if self._unicode else "..."
                self._line(f"{'  ' * step.depth}{mark} {step.text}: {step.status}")

    def ended(self, step: ConsoleStep, seconds: float, failed: bool) -> None:
        with self._lock:
            if step in self._stack:
                self._stack.remove(step)
            self._erase()
            self._line(f"{'  ' * step.depth}{self._mark(failed)} {step.text}  {seconds:.1f}s")
            if self._stack and self._tty:
                self._draw(0)
            if not self._stack:
                self._wake.set()  # lets the painter end

    # --- drawing ---------------------------------------------------------------
    def _mark(self, failed: bool) -> str:
        good, bad = ("✓", "✗") if self._unicode else ("ok", "FAILED")
        mark = bad if failed else good
        if not self._color:
            return mark
        return f"\x1b[{31 if failed else 32}m{mark}\x1b[0m"

    def _line(self, text: str) -> None:
        print(_encodable(self._stream, text), file=self._stream, flush=True)

    def _erase(self) -> None:
        if self._tty:
            self._stream.write("\r\x1b[2K")

    def _draw(self, tick: int) -> None:
        step = self._stack[-1]
        frames = _FRAMES if self._unicode else _FRAMES_ASCII
        text = f"{'  ' * step.depth}{frames[tick % len(frames)]} {step.text}"
        seconds = self._clock() - step.started
        if seconds >= 1:
            text += f"  {seconds:.0f}s"
        if step.status:
            text += f"  {step.status}"
        # A line longer than the terminal would wrap and leave its head behind.
        width = shutil.get_terminal_size((80, 24)).columns
        self._erase()
        self._stream.write(_encodable(self._stream, text.replace("\n", " "))[: width - 1])
        self._stream.flush()

    def _start_painter(self) -> None:
        if self._painter is None or not self._painter.is_alive():
            self._wake.clear()
            self._painter = threading.Thread(target=self._paint, name="progress", daemon=True)
            self._painter.start()

    def _paint(self) -> None:
        tick = 0
        while True:
            self._wake.wait(_REDRAW_S)
            with self._lock:
                if not self._stack:
                    # Cleared under the lock: a step that begins now starts a new painter.
                    self._painter = None
                    return
                self._wake.clear()
                tick += 1
                self._draw(tick)


class ConsoleStep:
    """One step of a ``ConsoleProgress``."""

    def __init__(self, progress: ConsoleProgress, text: str) -> None:
        self._progress = progress
        self.text = text
        self.status = ""
        self.depth = 0
        self.started = self.told = progress.now()

    def update(self, text: str) -> None:
        """Tell what is going on inside the step."""
        self.status = text
        self._progress.updated(self)

    def __enter__(self) -> ConsoleStep:
        self.started = self.told = self._progress.now()
        self._progress.began(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        seconds = self._progress.now() - self.started
        self._progress.ended(self, seconds, failed=kind is not None)


class QuietProgress:
    """Reports nothing: for library use and for tests."""

    def step(self, text: str) -> QuietProgress:
        del text
        return self

    def update(self, text: str) -> None:
        del text

    def __enter__(self) -> QuietProgress:
        return self

    def __exit__(self, *exc: object) -> None:
        return None


def _can_encode(stream: TextIO, text: str) -> bool:
    try:
        text.encode(stream.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _encodable(stream: TextIO, text: str) -> str:
    encoding = stream.encoding or "utf-8"
    return text.encode(encoding, errors="replace").decode(encoding)
