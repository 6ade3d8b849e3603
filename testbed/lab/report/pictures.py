"""A chart's pictures with their legend, as HTML for the report's page and for a notebook."""

from __future__ import annotations

from html import escape
from importlib.resources import files

from testbed.lab.report.chart import Chart
from testbed.lab.report.svg import panel_svg, series_class
from testbed.lab.report.svg_relation import relation_figure


def style() -> str:
    """Return the style sheet of the pictures; it touches nothing else of a page."""
    return (files(__package__) / "chart.css").read_text()


def pictures(chart: Chart) -> str:
    """Return the legend and a picture for each panel, trials side by side where there is room."""
    legend = "".join(
        f'<li><svg viewBox="0 0 26 10" aria-hidden="true"><path class="line {series_class(number)}"'
        f' d="M0 5H26"/></svg>{escape(label)}</li>'
        for number, label in enumerate(chart.labels())
    )
    legend += (
        '<li><svg viewBox="0 0 26 10" aria-hidden="true"><path class="cap axis" d="M0 5H26"/></svg>'
        "what it asked for</li>"
    )
    figures = []
    rows = max((len(side.panels) for side in chart.sides), default=0)
    for row in range(rows):
        for side in chart.sides:
            if row < len(side.panels):
                panel = side.panels[row]
                figures.append(
                    f"<figure><figcaption>{escape(side.title)}"
                    f' <span class="soft">– {escape(panel.title)}, {escape(panel.unit)}</span>'
                    f"</figcaption>{panel_svg(chart, side, panel)}</figure>"
                )
    relations = "".join(relation_figure(relation) for relation in chart.relations)
    return (
        f'<div class="vgpu-chart"><ul class="legend">{legend}</ul>'
        f'<div class="pictures">{"".join(figures)}</div>{relations}</div>'
    )
