"""Progress in a notebook that somebody looks at: steps and a plot, redrawn in place."""

from __future__ import annotations

import time
from collections.abc import Callable
from html import escape
from types import TracebackType
from typing import Any

from testbed.lab.report.chart import Chart
from testbed.lab.report.pictures import pictures, style

#: Often enough to see a pod fill up, seldom enough for a slow browser.
REDRAW_S = 0.5


class Drawing:
    """What one output of a cell shows at a time: HTML, and text where there is none."""

    def __init__(self, html: str, text: str) -> None:
        self._html, self._text = html, text

    def __repr__(self) -> str:
        return self._text

    def _repr_html_(self) -> str:
        return self._html


class LiveProgress:
    """Implements ``Progress`` with one output of the cell that runs.

    Args:
        show: Shows a drawing in a new output and returns what replaces it there.
        cell: Returns what is another value in another cell: it gets another output.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        show: Callable[[Drawing], Callable[[Drawing], None]],
        *,
        cell: Callable[[], object] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._show = show
        self._cell = cell
        self._shown_in: object = None
        self._clock = clock
        self._replace: Callable[[Drawing], None] | None = None
        self._steps: list[LiveStep] = []
        self._chart: Chart | None = None
        self._drawn = self._charted = float("-inf")

    def step(self, text: str) -> LiveStep:
        """Begin a step; its time counts from entering it as a context."""
        return LiveStep(self, text)

    def due(self) -> bool:
        """Tell whether it is time for another chart: it is made only then."""
        return self._clock() - self._charted >= REDRAW_S

    def draw(self, chart: Chart) -> None:
        """Show a chart below the steps."""
        self._chart, self._charted = chart, self._clock()
        self._redraw()

    # --- called by the steps ---------------------------------------------------
    def now(self) -> float:
        return self._clock()

    def began(self, step: LiveStep) -> None:
        cell = self._cell()
        if cell != self._shown_in:
            self._shown_in = cell
            self._steps, self._replace, self._chart = [], None, None
        step.depth = sum(each.open for each in self._steps)
        step.open = True
        self._steps.append(step)
        self._redraw()

    def updated(self) -> None:
        if self._clock() - self._drawn >= REDRAW_S:
            self._redraw()

    def ended(self, step: LiveStep, failed: bool) -> None:
        step.open, step.failed = False, failed
        step.seconds = self._clock() - step.started
        self._redraw()

    def _redraw(self) -> None:
        self._drawn = self._clock()
        drawing = Drawing(self._html(), self._text())
        if self._replace is None:
            self._replace = self._show(drawing)
        else:
            self._replace(drawing)

    def _text(self) -> str:
        return "\n".join("  " * step.depth + step.line() for step in self._steps)

    def _html(self) -> str:
        lines = "".join(
            f"<div style='padding-left:{step.depth}.2em'>{escape(step.line())}</div>"
            for step in self._steps
        )
        chart = ""
        if self._chart is not None and self._chart.sides:
            chart = f"<style>{style()}</style>{pictures(self._chart)}"
        return f"<div>{lines}{chart}</div>"


class LiveStep:
    """One step of a ``LiveProgress``."""

    def __init__(self, progress: LiveProgress, text: str) -> None:
        self._progress = progress
        self.text = text
        self.status = ""
        self.depth = 0
        self.open = self.failed = False
        self.started = progress.now()
        self.seconds = 0.0

    def line(self) -> str:
        """Return the step as one line."""
        if self.open:
            seconds = self._progress.now() - self.started
            return f"… {self.text}  {seconds:.0f}s" + (f"  {self.status}" if self.status else "")
        return f"{'✗' if self.failed else '✓'} {self.text}  {self.seconds:.1f}s"

    def update(self, text: str) -> None:
        """Tell what is going on inside the step."""
        self.status = text.replace("\n", " ")
        self._progress.updated()

    def __enter__(self) -> LiveStep:
        self.started = self._progress.now()
        self._progress.began(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.ended(self, failed=kind is not None)


def in_cell(drawing: Drawing) -> Callable[[Drawing], None]:
    """Show a drawing in the running cell; return what replaces it."""
    from IPython.display import display

    handle: Any = display(drawing, display_id=True)  # type: ignore[no-untyped-call,unused-ignore]
    replace: Callable[[Drawing], None] = handle.update
    return replace
