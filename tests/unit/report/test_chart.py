"""From samples to the lines of a plot: memory and shares, phases, both pictures."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast
from xml.etree import ElementTree

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.errors import InputError
from testbed.lab.report.chart import (
    Cap,
    Panel,
    caption,
    label_at_end,
    make_chart,
    memory_panel,
    phases,
    read_chart,
    share_panel,
)
from testbed.lab.report.plot import draw
from testbed.lab.report.svg import panel_svg, ticks
from testbed.lab.scenario.question import Sample, Trial

from .conftest import made_chart

GIB = 1024**3
START = 1000.0


def sample(time: float, pod: str, *, pid: int = 7, **fields: Any) -> Sample:
    base: dict[str, Any] = {"uuid": "GPU-1", "container": "main", "bytes": 0}
    uid = f"uid-{pod}" if pod else ""
    return Sample(time=START + time, pid=pid, pod_uid=uid, **{**base, **fields})


def trial(*samples: Sample, events: Mapping[str, list[dict[str, Any]]] | None = None) -> Trial:
    found = {"a": [], "b": [], **(events or {})}
    pods = {
        name: SimpleNamespace(name=name, uid=f"uid-{name}", events=each)
        for name, each in found.items()
    }
    return cast(Trial, SimpleNamespace(samples=samples, pods=pods, started=START, ended=START + 10))


def key(one: Sample) -> str:
    return one.pod_uid.removeprefix("uid-")


def test_memory_is_the_sum_of_a_pods_processes_and_zero_when_they_are_gone() -> None:
    found = trial(
        sample(1, "a", bytes=GIB),
        sample(1, "a", pid=8, bytes=2 * GIB),
        sample(1, "b", bytes=GIB),
        sample(2, "b", bytes=4 * GIB),
        sample(2, "stranger", bytes=9 * GIB),
    )
    panel = memory_panel(found, {"a": 4096.0, "b": 0.0}, key)
    assert {line.label: (line.times, line.values) for line in panel.lines} == {
        "a": ((1.0, 2.0), (3.0, 0.0)),
        "b": ((1.0, 2.0), (1.0, 4.0)),
    }
    # A pod without a cap has none drawn.
    assert [(cap.label, cap.value) for cap in panel.caps] == [("a", 4.0)]


def test_a_share_is_the_growth_of_all_counters_over_the_window() -> None:
    half, third = 500_000_000, 300_000_000
    samples = []
    for tick in range(9):
        time = tick / 2
        samples.append(sample(time, "a", pid=1, busy_ns=tick * half // 2))
        if tick >= 4:  # a second process of the pod begins at 2 s
            samples.append(sample(time, "a", pid=2, busy_ns=(tick - 4) * third // 2))
    (line,) = share_panel(trial(*samples), {"a": 50.0}, key).lines
    values = dict(zip(line.times, line.values, strict=True))
    assert values[0.0] is None
    assert values[2.0] == pytest.approx(50.0)
    assert values[4.0] == pytest.approx(80.0)


def test_a_counter_that_begins_again_is_another_process() -> None:
    samples = [sample(0, "a", busy_ns=9 * 10**9), sample(1, "a", busy_ns=250_000_000)]
    (line,) = share_panel(trial(*samples), {"a": 50.0}, key).lines
    assert line.values == (None, 25.0)


@given(
    st.lists(st.tuples(st.floats(0.05, 0.8), st.floats(0, 1)), min_size=8, max_size=40),
)
def test_a_share_is_never_more_than_what_was_granted(steps: list[tuple[float, float]]) -> None:
    time, busy, samples = 0.0, 0, [sample(0, "a", busy_ns=0)]
    for length, load in steps:
        time += length
        busy += int(length * load * 1e9)
        samples.append(sample(time, "a", busy_ns=busy))
    (line,) = share_panel(trial(*samples), {"a": 1.0}, key).lines
    known = [value for value in line.values if value is not None]
    assert len(known) == len(steps)
    loads = [load * 100 for _, load in steps]
    assert min(loads) - 0.1 <= min(known) and max(known) <= max(loads) + 0.1


def test_hardware_tells_utilisation_instead() -> None:
    found = trial(sample(1, "a", utilization_pct=40.0), sample(2, "a"), sample(2, "b"))
    panel = share_panel(found, {"a": 50.0, "b": 30.0}, key)
    assert "NVML" in panel.title
    assert [line.values for line in panel.lines] == [(40.0, None), (None, None)]


def test_phases_span_all_pods_in_the_order_of_their_begin() -> None:
    found = trial(
        events={
            "a": [
                {"event": "holding", "phase": "two", "time": START + 5},
                {"event": "released", "phase": "two", "time": START + 6},
                {"event": "finished", "time": START + 9},
            ],
            "b": [
                {"event": "holding", "phase": "one", "time": START + 1},
                {"event": "released", "phase": "one", "time": START + 2},
                {"event": "released", "phase": "two", "time": START + 7},
            ],
        }
    )
    assert [(p.name, p.begin, p.end) for p in phases(found)] == [("one", 1, 2), ("two", 5, 7)]


def test_a_pod_that_waits_for_its_turn_begins_its_phase_when_the_other_ends() -> None:
    turns = {"a": [("alone-a", 2), ("alone-a", 4)], "b": [("alone-b", 1), ("alone-b", 9)]}
    found = trial(
        events={
            pod: [{"event": "x", "phase": phase, "time": START + time} for phase, time in each]
            for pod, each in turns.items()
        }
    )
    assert [(p.name, p.begin, p.end) for p in phases(found)] == [
        ("alone-a", 2, 4), ("alone-b", 4, 9)
    ]  # fmt: skip


@pytest.mark.parametrize(("busy", "late"), [(range(3), True), (range(7, 10), False), ((), False)])
def test_a_caps_name_stands_where_no_line_crosses_it(busy: Any, late: bool) -> None:
    times = tuple(map(float, range(10)))
    values = tuple(10.0 if time in busy else 0.0 for time in range(10))
    line = msgspec.structs.replace(
        made_chart(("a",)).sides[0].panels[0].lines[0], times=times, values=values
    )
    panel = msgspec.structs.replace(made_chart(("a",)).sides[0].panels[0], lines=(line,))
    assert label_at_end(panel, panel.caps[0], 9.0, 11.0) is late


def test_a_chart_has_its_control_beside_it_and_survives_its_file(tmp_path: Any) -> None:
    one = trial(sample(1, "a", bytes=GIB, busy_ns=1))
    made = make_chart(one, trial(), memory={"a": 1024.0}, compute={"a": 50.0})
    assert [(side.control, [p.quantity for p in side.panels]) for side in made.sides] == [
        (False, ["memory", "compute"]),
        (True, ["memory", "compute"]),
    ]
    (tmp_path / "chart.json").write_bytes(msgspec.json.encode(made))
    assert read_chart(tmp_path / "chart.json") == made
    assert read_chart(tmp_path / "none.json") is None
    (tmp_path / "chart.json").write_text("{}")
    with pytest.raises(InputError, match="not a chart"):
        read_chart(tmp_path / "chart.json")


@given(st.floats(1e-6, 1e9))
def test_ticks_are_few_round_and_reach_the_top(top: float) -> None:
    found = ticks(top)
    assert found[0] == 0 and found[-1] <= top * 1.0001
    assert 3 <= len(found) <= 8
    step = found[1]
    assert top - found[-1] <= step * 1.0001
    assert f"{step:.0e}"[0] in "1235" and float(f"{step:.1e}") == pytest.approx(step)


@pytest.mark.parametrize("top", [0.0, -1.0, float("nan"), float("inf")])
def test_nothing_to_scale_has_one_tick(top: float) -> None:
    assert ticks(top) == [0.0]


@pytest.mark.parametrize("pods", [("a", "b"), tuple("abcdefgh"), ()])
def test_the_svg_shows_each_pod_its_cap_and_the_phases(pods: tuple[str, ...]) -> None:
    made = made_chart(pods)
    for side in made.sides:
        for panel in side.panels:
            root = ElementTree.fromstring(panel_svg(made, side, panel))
            lines = [e for e in root.iter("path") if "line" in e.get("class", "").split()]
            caps = [e for e in root.iter("path") if "cap" in e.get("class", "").split()]
            assert len(lines) == len(caps) == len(pods)
            assert len({e.get("class") for e in lines}) == len(pods)  # told apart
            said = " ".join(root.itertext())
            assert panel.unit in said and "native" in said
            for cap in panel.caps:
                assert f"{cap.label}: asked {cap.value:g} {panel.unit}" in said
            labels = [e for e in root.iter("text") if "label" in e.get("class", "").split()]
            heights = sorted(float(e.get("y", "0")) for e in labels)
            assert all(b - a >= 10 for a, b in pairwise(heights))


def test_a_pod_above_its_cap_is_drawn_above_the_line() -> None:
    made = made_chart(("a",))
    side = made.sides[1]
    root = ElementTree.fromstring(panel_svg(made, side, side.panels[0]))
    paths = {e.get("class", "").split()[0]: e.get("d", "") for e in root.iter("path")}
    cap = float(re.findall(r"M[\d.]+ ([\d.]+)", paths["cap"])[0])
    heights = [float(y) for y in re.findall(r"(?:V|M[\d.]+ )([\d.]+)", paths["line"])]
    assert min(heights) < cap  # downwards is more
    # What is unknown is a gap and not a line.
    assert paths["line"].count("M") == 2


def test_names_that_lie_on_each_other_are_moved_apart() -> None:
    made = made_chart(("a", "b"))
    close = tuple(
        msgspec.structs.replace(cap, value=20 + number / 10)
        for number, cap in enumerate(made.sides[0].panels[0].caps)
    )
    panel = msgspec.structs.replace(made.sides[0].panels[0], caps=close)
    root = ElementTree.fromstring(panel_svg(made, made.sides[0], panel))
    labels = [e for e in root.iter("text") if "label" in e.get("class", "").split()]
    first, second = sorted(float(e.get("y", "0")) for e in labels)
    assert second - first >= 10


def test_the_notebooks_picture_has_caps_and_names(chart: Any) -> None:
    figure = draw(chart)
    assert len(figure.axes) == 4
    texts = {text.get_text() for axis in figure.axes for text in axis.texts}
    assert {"a: asked 10 GiB", "b: asked 20 GiB", "native"} <= texts
    # One scale in a row.
    assert figure.axes[0].get_ylim() == figure.axes[1].get_ylim()


def test_an_empty_chart_can_be_drawn() -> None:
    draw(made_chart(()))
    draw(msgspec.structs.replace(made_chart(), sides=()))


@pytest.mark.parametrize(
    ("caps", "said"),
    [
        ({"a": 4.0, "b": 2.0}, ["a: asked 4 GiB", "b: asked 2 GiB"]),
        ({"a": 4.0, "b": 4.0, "c": 2.0}, ["a, b: asked 4 GiB", "", "c: asked 2 GiB"]),
        ({"a": 4.0, "b": 4.0, "c": 4.0}, ["each of 3: asked 4 GiB", "", ""]),
    ],
)
def test_a_line_that_several_share_is_named_once(caps: dict[str, float], said: list[str]) -> None:
    made = tuple(Cap(label=label, value=value) for label, value in caps.items())
    panel = Panel(quantity="memory", title="", unit="GiB", lines=(), caps=made)
    assert [caption(panel, cap) for cap in made] == said
