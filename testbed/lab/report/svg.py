"""A panel of a chart as inline SVG, for a page that may be light or dark, wide or narrow.

Colours are classes (``s0``, ``s1``, …) that the page's style sheet fills in. One
picture a panel, small enough to be read on a phone as it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from testbed.lab.report.chart import Chart, Line, Panel, Phase, Side, caption, label_at_end

WIDTH, HEIGHT = 520, 250
LEFT, RIGHT, TOP, BOTTOM = 44, 10, 30, 36
#: Colours of the style sheet; further series begin again with another dash.
COLOURS = 6
#: Width of a letter of the pictures' type, which is 13 px on a narrow page.
_LETTER = 7.2
_LINE = 14.0


def panel_svg(chart: Chart, side: Side, panel: Panel) -> str:
    """Return one panel of one side, to the scale that all sides share."""
    span = max((each.seconds for each in chart.sides), default=0.0) or 1.0
    top = (chart.top(panel.quantity) or 1.0) * 1.06
    place = Place(span, top)
    number = {label: position for position, label in enumerate(chart.labels())}
    spoken = escape(_spoken(side, panel))
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{spoken}">']
    parts += _phases(side.phases, place)
    parts += axes(place, "seconds since the pods were created", panel.unit)
    parts += [_line(line, number.get(line.label, 0), place, panel.unit) for line in panel.lines]
    parts += _caps(panel, number, place, side)
    parts.append("</svg>")
    return "".join(parts)


def series_class(number: int) -> str:
    """Return the class of a series' colour (and of its dash, once colours are used up)."""
    return f"s{number % COLOURS}" + (" again" if number >= COLOURS else "")


def ticks(top: float, most: int = 6) -> list[float]:
    """Return round steps from 0 up to ``top``, at most ``most`` of them and one more."""
    if not top > 0 or not math.isfinite(top):
        return [0.0]
    raw = top / most
    scale = 10.0 ** math.floor(math.log10(raw))
    step = next(scale * each for each in (1, 2, 2.5, 5, 10) if scale * each >= raw * 0.999)
    return [step * number for number in range(int(top / step + 1e-9) + 1)]


class Place:
    """From values (``0`` to ``span``, ``0`` to ``top``) to the picture's coordinates."""

    def __init__(self, span: float, top: float) -> None:
        self.span, self.top = span, top

    def x(self, value: float) -> float:
        inside = min(max(value / self.span, 0.0), 1.0)
        return round(LEFT + inside * (WIDTH - LEFT - RIGHT), 1)

    def y(self, value: float) -> float:
        inside = min(max(value / self.top, 0.0), 1.0)
        return round(HEIGHT - BOTTOM - inside * (HEIGHT - TOP - BOTTOM), 1)


def axes(place: Place, below: str, unit: str) -> list[str]:
    """Return grid, ticks and titles; ``below`` says what runs from left to right."""
    bottom = HEIGHT - BOTTOM
    parts = []
    for value in ticks(place.top):
        y = place.y(value)
        parts.append(f'<path class="grid" d="M{LEFT} {y}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4}" text-anchor="end">{value:g}</text>')
    for value in ticks(place.span, 8):
        x = place.x(value)
        parts.append(f'<path class="axis" d="M{x} {bottom}v4"/>')
        parts.append(f'<text x="{x}" y="{bottom + 16}" text-anchor="middle">{value:g}</text>')
    parts.append(f'<path class="axis" d="M{LEFT} {bottom}H{WIDTH - RIGHT}"/>')
    parts.append(
        f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 5}" text-anchor="end">{escape(below)}</text>'
    )
    parts.append(f'<text class="unit" x="4" y="12">{escape(unit)}</text>')
    return parts


def _phases(phases: Sequence[Phase], place: Place) -> list[str]:
    parts = []
    for number, phase in enumerate(phases):
        left, right = place.x(phase.begin), place.x(phase.end)
        shade = "band" if number % 2 == 0 else "band none"
        parts.append(
            f"<g><title>{escape(phase.name)}: {phase.begin:.1f} s to {phase.end:.1f} s</title>"
            f'<rect class="{shade}" x="{left}" y="{TOP - 12}" width="{max(right - left, 0):.1f}"'
            f' height="{HEIGHT - BOTTOM - TOP + 12}"/>'
        )
        room = int((right - left) / _LETTER)
        if room >= 3:
            name = phase.name if len(phase.name) <= room else phase.name[: room - 1] + "…"
            parts.append(
                f'<text class="phase" x="{(left + right) / 2:.1f}" y="{TOP - 2}"'
                f' text-anchor="middle">{escape(name)}</text>'
            )
        parts.append("</g>")
    return parts


def _line(line: Line, number: int, place: Place, unit: str) -> str:
    """Draw steps: a value holds until the next is known; an unknown one is a gap."""
    path: list[str] = []
    y: float | None = None
    for time, value in zip(line.times, line.values, strict=True):
        x = place.x(time)
        if value is None:
            if y is not None:
                path.append(f"H{x}")
            y = None
            continue
        now = place.y(value)
        if y is None:
            path.append(f"M{x} {now}")
        elif now != y:
            path.append(f"H{x}V{now}")
        y = now
    if y is not None:
        path.append(f"H{place.x(line.times[-1])}")
    most = max((value for value in line.values if value is not None), default=0.0)
    return (
        f"<g><title>{escape(line.label)}: at most {most:g} {escape(unit)}</title>"
        f'<path class="line {series_class(number)}" d="{"".join(path)}"/></g>'
    )


def _caps(panel: Panel, number: Mapping[str, int], place: Place, side: Side) -> list[str]:
    parts = []
    taken: list[float] = []
    for cap in sorted(panel.caps, key=lambda each: each.value):
        colour = series_class(number.get(cap.label, 0))
        begin = 0.0 if cap.begin is None else cap.begin
        end = side.seconds if cap.end is None else cap.end
        y = place.y(cap.value)
        parts.append(f'<path class="cap {colour}" d="M{place.x(begin)} {y}H{place.x(end)}"/>')
        if not (words := caption(panel, cap)):
            continue
        # Above its line, and above a label that is there already.
        at = min([y - 4, *(other - _LINE for other in taken if abs(other - (y - 4)) < _LINE)])
        taken.append(at)
        late = label_at_end(panel, cap, place.span, place.top)
        x, anchor = (place.x(end) - 3, "end") if late else (place.x(begin) + 4, "start")
        parts.append(
            f'<text class="label {colour}" x="{x:.1f}" y="{at:.1f}" text-anchor="{anchor}">'
            f"{escape(words)}</text>"
        )
    return parts


def _spoken(side: Side, panel: Panel) -> str:
    """Return what the picture shows, for those who do not see it."""
    caps = {cap.label: cap.value for cap in panel.caps}
    parts = []
    for line in panel.lines:
        most = max((value for value in line.values if value is not None), default=0.0)
        text = f"{line.label} reaches {most:g} {panel.unit}"
        if line.label in caps:
            text += f", asked {caps[line.label]:g}"
        parts.append(text)
    return f"{panel.title}, {side.title}: " + ("; ".join(parts) or "nothing was sampled")
