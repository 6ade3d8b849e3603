"""Figures of a benchmark: how they are summed up, judged and shown."""

from __future__ import annotations

import json

import msgspec
import pytest

from testbed.cli.bench import document, text
from testbed.errors import TestbedError
from testbed.lab.bench import card
from testbed.lab.bench.figures import Environment, Figure, spread

WHERE = Environment(
    cpu="CPU", cores=2, kernel="6.1", python="3.11.7", load_before=0.2, load_after=0.3
)


def bench(*figures: Figure) -> card.CardBench:
    sizes = {2 << 20: spread([0.6, 0.7])}
    return card.CardBench(figures=figures, allocations=sizes, profile="t4", environment=WHERE)


def figure(*values: float, aim: float | None = 2.0, reason: str = "") -> Figure:
    found = spread(values) if values else None
    return Figure(key="alloc_free_us", text="allocation", aim=aim, spread=found, reason=reason)


def test_spread() -> None:
    found = spread([3.0, 1.0, 9.0])
    assert (found.median, found.low, found.high, found.repeats) == (3.0, 1.0, 9.0, 3)
    with pytest.raises(ValueError, match="nothing"):
        spread([])


@pytest.mark.parametrize(
    ("found", "held"),
    [
        (figure(1.0, 1.0, 50.0), True),  # by the median
        (figure(3.0, 1.0, 2.5), False),
        (figure(reason="no PyTorch"), None),
        (figure(9.0, aim=None), None),
    ],
)
def test_aims(found: Figure, held: bool | None) -> None:
    assert found.held is held
    assert bench(found).held is (held is True)


def test_error_of_time_is_the_worse_one() -> None:
    run = card.parse_time("1000000000 1001000000 1020000000\n")
    assert run.error_pct == pytest.approx(2.0)
    assert not run.timeless
    assert card.parse_time("1000000000 0 5000000\n").timeless
    assert card.parse_time("1000 980 1001").error_pct == pytest.approx(2.0)


@pytest.mark.parametrize("output", ["", "a b c", "1 2", "1 2 3 4"])
def test_times_that_are_none(output: str) -> None:
    with pytest.raises(TestbedError, match="printed no times"):
        card.parse_time(output)


def test_document_begins_with_the_medians() -> None:
    keys = list(card._FIGURES)
    figures = [Figure(key=key, text="x", aim=1.0, spread=spread([0.5])) for key in keys]
    figures[4] = Figure(key=keys[4], text="x", aim=1.0, reason="because")
    told = json.loads(msgspec.json.encode(document(bench(*figures))))
    assert (
        list(told)[:5]
        == keys
        == [
            "runtime_launch_us",
            "driver_launch_us",
            "alloc_free_us",
            "first_tensor_s",
            "time_error_pct",
        ]
    )
    assert told["driver_launch_us"] == 0.5
    assert told["time_error_pct"] is None
    assert told["figures"][4]["reason"] == "because"
    assert told["held"] is False  # not measured is not held
    assert told["environment"]["cores"] == 2


def test_table() -> None:
    shown = text(bench(figure(1.234, 1.0, 9.0), figure(reason="no PyTorch")))
    assert "✓" in shown and "1.23 µs" in shown and "1 to 9 of 3" in shown
    assert "no PyTorch" in shown
    assert "busy" not in shown
