"""Progress that is redrawn in place: steps, chart, new output for a new cell."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from testbed.lab.live import REDRAW_S, Drawing, LiveProgress
from testbed.lab.report.chart import Cap, Chart, Line, Panel, Side


class Cell:
    """Remembers what each output showed, in order."""

    def __init__(self) -> None:
        self.outputs: list[list[Drawing]] = []

    def show(self, drawing: Drawing) -> Callable[[Drawing], None]:
        shown = [drawing]
        self.outputs.append(shown)
        return shown.append


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def chart() -> Chart:
    line = Line(label="a", times=(0.0, 1.0), values=(0.0, 2.0))
    panel = Panel(
        quantity="memory", title="memory", unit="GiB", lines=(line,),
        caps=(Cap(label="a", value=3.0),),
    )  # fmt: skip
    return Chart(sides=(Side(title="t", control=False, seconds=2.0, panels=(panel,)),))


def test_steps_of_one_cell_share_an_output_and_end_as_lines() -> None:
    cell, clock = Cell(), Clock()
    count = 1
    progress = LiveProgress(cell.show, cell=lambda: count, clock=clock)
    with progress.step("outer"):
        with progress.step("inner") as inner:
            clock.now += 2
            inner.update("half\nway")
        clock.now += 1
    with progress.step("after"):
        pass
    (output,) = cell.outputs
    texts = [repr(drawing) for drawing in output]
    assert texts[0] == "… outer  0s"
    assert "… outer  2s\n  … inner  2s  half way" in texts
    assert texts[-1] == "✓ outer  3.0s\n  ✓ inner  2.0s\n✓ after  0.0s"
    # The next cell has an output of its own.
    count = 2
    with pytest.raises(ValueError), progress.step("next <b>"):
        raise ValueError
    assert len(cell.outputs) == 2
    assert repr(cell.outputs[1][-1]) == "✗ next <b>  0.0s"
    assert "&lt;b&gt;" in cell.outputs[1][-1]._repr_html_()


def test_updates_are_drawn_at_a_bounded_rate() -> None:
    cell, clock = Cell(), Clock()
    progress = LiveProgress(cell.show, clock=clock)
    with progress.step("long") as step:
        for _ in range(100):
            clock.now += REDRAW_S / 10
            step.update("x")
    (output,) = cell.outputs
    assert 10 <= len(output) <= 2 + 10  # first, last, and one each half second


def test_a_chart_is_due_however_often_the_steps_are_updated() -> None:
    cell, clock = Cell(), Clock()
    count = 1
    progress = LiveProgress(cell.show, cell=lambda: count, clock=clock)
    drawn = 0
    with progress.step("long") as step:
        for _ in range(100):
            clock.now += REDRAW_S / 10
            step.update("x")
            if progress.due():
                progress.draw(chart())
                drawn += 1
    assert 9 <= drawn <= 11
    page = cell.outputs[0][-1]._repr_html_()
    assert "<svg" in page and "a: asked 3 GiB" in page and ".vgpu-chart" in page
    count = 2
    with progress.step("another"):
        pass
    assert "<svg" not in cell.outputs[1][-1]._repr_html_()
