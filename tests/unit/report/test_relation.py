"""Asked against got: what is drawn, in the page and in the notebook."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import msgspec

from testbed.lab.report.chart import Chart
from testbed.lab.report.pictures import pictures
from testbed.lab.report.plot import draw
from testbed.lab.report.relation import Curve, Relation
from testbed.lab.report.svg_relation import relation_svg

from .conftest import made_chart

RELATION = Relation(
    title="share <of> time",
    x_title="asked for",
    y_title="got",
    unit="%",
    band=2.0,
    curves=(
        Curve(label="deep", xs=(10.0, 30.0, 60.0), ys=(10.1, 29.9, 60.0)),
        Curve(label="sync", xs=(10.0, 30.0, 60.0), ys=(10.0, None, 44.0)),
        Curve(label="deep", control=True, xs=(10.0, 30.0, 60.0), ys=(99.0, 99.0, 99.0)),
    ),
)
WITH = msgspec.structs.replace(made_chart(), relations=(RELATION,))


def parsed(relation: Relation) -> ElementTree.Element:
    return ElementTree.fromstring(relation_svg(relation))


def places(element: ElementTree.Element) -> list[tuple[float, float]]:
    numbers = re.findall(r"[ML]([\d.]+) ([\d.]+)", element.get("d", ""))
    return [(float(x), float(y)) for x, y in numbers]


def test_a_curve_and_its_control_have_one_colour_and_differ() -> None:
    root = parsed(RELATION)
    lines = [e for e in root.iter("path") if e.get("class", "").startswith("line ")]
    controls = [e for e in root.iter("path") if e.get("class", "").startswith("cap ")]
    assert [e.get("class") for e in lines] == ["line s0", "line s1"]
    assert [e.get("class") for e in controls] == ["cap s0"]
    # What is not known is left out.
    assert [len(places(e)) for e in (*lines, *controls)] == [3, 2, 3]
    assert len(list(root.iter("circle"))) == 5


def test_who_gets_what_was_asked_lies_on_the_line_and_the_control_above() -> None:
    exact = Curve(label="deep", xs=(10.0, 60.0), ys=(10.0, 60.0))
    root = parsed(msgspec.structs.replace(RELATION, curves=(exact, RELATION.curves[2])))
    (line,) = [e for e in root.iter("path") if e.get("class", "").startswith("line ")]
    (control,) = [e for e in root.iter("path") if e.get("class", "").startswith("cap ")]
    ideal = next(e for e in root.iter("path") if "L" in e.get("d", "") and e is not line)
    (left, low), (right, high) = places(ideal)
    for x, y in places(line):
        assert abs(y - (low + (high - low) * (x - left) / (right - left))) < 0.5
    assert max(y for _, y in places(control)) < high  # downwards is more


def test_it_is_in_the_page_and_told_to_those_who_do_not_see_it() -> None:
    page = pictures(WITH)
    assert page.count("<figure>") == pictures(made_chart()).count("<figure>") + 1
    assert "share &lt;of&gt; time" in page
    assert "without the limiter" in page and "± 2 %" in page
    said = parsed(RELATION).get("aria-label", "")
    assert "deep: 10 gives 10.1" in said and "deep, without the limiter: 10 gives 99" in said


def test_the_notebooks_picture_has_it_below() -> None:
    figure = draw(WITH)
    assert len(figure.axes) == len(draw(made_chart()).axes) + 1
    (axis,) = [axis for axis in figure.axes if axis.get_xlabel() == "asked for, %"]
    labels = [line.get_label() for line in axis.lines]
    assert labels == ["what was asked for", "deep", "sync", "deep, no limiter"]
    assert axis.get_ylim()[1] > 99


def test_nothing_known_can_be_drawn() -> None:
    empty = msgspec.structs.replace(RELATION, curves=(), band=0.0)
    unknown = Curve(label="deep", xs=(10.0,), ys=(None,))
    for relation in (empty, msgspec.structs.replace(RELATION, curves=(unknown,))):
        parsed(relation)
        draw(msgspec.structs.replace(WITH, relations=(relation,)))


def test_a_stored_chart_without_it_is_still_read() -> None:
    data = msgspec.to_builtins(made_chart())
    del data["relations"]
    assert msgspec.convert(data, Chart).relations == ()
    assert msgspec.json.decode(msgspec.json.encode(WITH), type=Chart) == WITH
