"""A chart as a picture for notebooks: one column a trial, one row a quantity."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from testbed.lab.report.chart import Chart, Panel, Side, caption, label_at_end
from testbed.lab.report.relation import Relation

#: Okabe and Ito's colours for the colour-blind (jfly.uni-koeln.de/color), the darker
#: ones first; lines differ by their dash as well once the colours are used up.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#7a6a00", "#56b4e9")
#: Room above the highest value, for the names of phases and caps.
HEADROOM = 1.15
#: Names of pods beside each other in the legend.
LEGEND_COLUMNS = 6


def draw(chart: Chart) -> Any:
    """Return a matplotlib figure."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = max((len(side.panels) for side in chart.sides), default=1)
    columns = max(1, len(chart.sides))
    heights = [2.9 * rows + 0.3, *(3.6 for _ in chart.relations)]
    whole = Figure(figsize=(5.4 * columns, sum(heights)), dpi=110, layout="constrained")
    FigureCanvasAgg(whole)
    figure: Any = whole
    if chart.relations:
        parts: Any = whole.subfigures(len(heights), 1, height_ratios=heights)
        figure, *below = parts
        for part, relation in zip(below, chart.relations, strict=True):
            draw_relation(part, relation)
    axes = figure.subplots(rows, columns, sharex="col", sharey="row", squeeze=False)
    span = max([side.seconds for side in chart.sides] + [1.0])
    colours = dict(zip(chart.labels(), _cycle(len(chart.labels())), strict=True))
    for column, side in enumerate(chart.sides):
        axes[0][column].set_title(side.title, fontsize=10, fontweight="bold")
        for row, panel in enumerate(side.panels):
            # One scale in a row, so that what passes its cap is seen to.
            axis, top = axes[row][column], (chart.top(panel.quantity) or 1) * HEADROOM
            _draw_panel(axis, panel, side, colours, span=span, top=top, named=row == 0)
            axis.set_xlim(0, span)
            axis.set_ylim(0, top)
        axes[len(side.panels) - 1][column].set_xlabel("seconds since the pods were created")
    for row, panel in enumerate(chart.sides[0].panels if chart.sides else ()):
        axes[row][0].set_ylabel(f"{panel.title}, {panel.unit}", fontsize=9)
    handles, labels = axes[0][0].get_legend_handles_labels()
    if handles:
        beside = min(len(labels), LEGEND_COLUMNS)
        figure.legend(handles, labels, fontsize=8, loc="outside lower center", ncols=beside)
    return whole


def draw_relation(figure: Any, relation: Relation) -> None:
    """Draw asked against got: the ideal line with its band, the curves, their controls dashed."""
    axis = figure.subplots()
    right = relation.right or 1.0
    ideal = [0.0, right]
    if relation.band:
        low, high = ([value + side * relation.band for value in ideal] for side in (-1, 1))
        axis.fill_between(ideal, low, high, color="#000000", alpha=0.09, linewidth=0)
    axis.plot(ideal, ideal, color="#444444", linewidth=1, label="what was asked for")
    colours = dict(zip(relation.labels(), _cycle(len(relation.labels())), strict=True))
    for curve in relation.curves:
        axis.plot(
            curve.xs,
            [float("nan") if value is None else value for value in curve.ys],
            color=colours[curve.label],
            linestyle=":" if curve.control else "-",
            linewidth=1 if curve.control else 1.5,
            marker=None if curve.control else "o",
            markersize=4,
            label=f"{curve.label}, no limiter" if curve.control else curve.label,
        )
    axis.set_xlim(0, right * 1.06)
    axis.set_ylim(0, (relation.top or 1.0) * 1.06)
    axis.set_title(relation.title, fontsize=10, fontweight="bold")
    axis.set_xlabel(f"{relation.x_title}, {relation.unit}")
    axis.set_ylabel(f"{relation.y_title}, {relation.unit}", fontsize=9)
    axis.grid(alpha=0.2)
    axis.spines[["top", "right"]].set_visible(False)
    figure.legend(*axis.get_legend_handles_labels(), fontsize=7, loc="outside right upper")


def _cycle(count: int) -> list[str]:
    return [COLOURS[number % len(COLOURS)] for number in range(count)]


def _draw_panel(
    axis: Any,
    panel: Panel,
    side: Side,
    colours: dict[str, str],
    *,
    span: float,
    top: float,
    named: bool,
) -> None:
    for number, line in enumerate(panel.lines):
        axis.step(
            line.times,
            [float("nan") if value is None else value for value in line.values],
            where="post",
            color=colours[line.label],
            linestyle="-" if number < len(COLOURS) else "-.",
            label=f"pod {line.label}",
            linewidth=1.5,
        )
    for cap in panel.caps:
        begin, end = cap.begin or 0.0, side.seconds if cap.end is None else cap.end
        colour = colours.get(cap.label, "#444444")
        axis.plot([begin, end], [cap.value] * 2, color=colour, linestyle="--", linewidth=1)
        if not (words := caption(panel, cap)):
            continue
        late = label_at_end(panel, cap, span, top)
        axis.annotate(
            words,
            (end if late else begin, cap.value),
            xytext=(-3 if late else 3, 1),
            textcoords="offset points",
            ha="right" if late else "left",
            va="bottom",
            fontsize=7,
            color=colour,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.3},
        )
    for number, phase in enumerate(side.phases):
        if number % 2 == 0:
            axis.axvspan(phase.begin, phase.end, color="#000000", alpha=0.045, linewidth=0)
        # About 0.9 % of the picture a letter.
        if named and phase.end - phase.begin > len(phase.name) * span * 0.009:
            axis.annotate(
                phase.name,
                ((phase.begin + phase.end) / 2, 0.985),
                xycoords=("data", "axes fraction"),
                ha="center",
                va="top",
                fontsize=6.5,
                color="#555555",
            )
    for before, after in pairwise(side.phases):
        axis.axvline((before.end + after.begin) / 2, color="#000000", alpha=0.12, linewidth=0.6)
    axis.grid(alpha=0.2, axis="y")
    axis.spines[["top", "right"]].set_visible(False)
