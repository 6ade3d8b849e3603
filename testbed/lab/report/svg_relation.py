"""A relation (asked against got) as inline SVG, in the colours of the page's style sheet."""

from __future__ import annotations

from html import escape

from testbed.lab.report.relation import Curve, Relation
from testbed.lab.report.svg import HEIGHT, WIDTH, Place, axes, series_class


def relation_svg(relation: Relation) -> str:
    """Return the picture: band, ideal line, controls thin and dashed, curves with their points."""
    place = Place((relation.right or 1.0) * 1.06, (relation.top or 1.0) * 1.06)
    number = {label: position for position, label in enumerate(relation.labels())}
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(_spoken(relation))}">',
        *axes(place, f"{relation.x_title}, {relation.unit}", relation.unit),
        _ideal(place, relation),
    ]
    for curve in sorted(relation.curves, key=lambda each: not each.control):
        parts.append(_curve(curve, number[curve.label], place, relation.unit))
    parts.append("</svg>")
    return "".join(parts)


def relation_figure(relation: Relation) -> str:
    """Return the picture with its legend and caption."""
    legend = "".join(
        f'<li><svg viewBox="0 0 26 10" aria-hidden="true"><path class="line {series_class(n)}"'
        f' d="M0 5H26"/></svg>{escape(label)}</li>'
        for n, label in enumerate(relation.labels())
    )
    ideal = "what was asked for"
    if relation.band:
        ideal += f", ± {relation.band:g} {escape(relation.unit)}"
    legend += (
        '<li><svg viewBox="0 0 26 10" aria-hidden="true"><path class="axis" d="M0 5H26"/></svg>'
        f"{ideal}</li>"
    )
    if any(curve.control for curve in relation.curves):
        legend += (
            '<li><svg viewBox="0 0 26 10" aria-hidden="true"><path class="cap axis" d="M0 5H26"/>'
            "</svg>without the limiter</li>"
        )
    return (
        f'<ul class="legend">{legend}</ul><div class="pictures"><figure>'
        f"<figcaption>{escape(relation.title)}"
        f' <span class="soft">– {escape(relation.y_title)}, {escape(relation.unit)}</span>'
        f"</figcaption>{relation_svg(relation)}</figure></div>"
    )


def _ideal(place: Place, relation: Relation) -> str:
    right, band = relation.right or 1.0, relation.band
    line = f'<path class="axis" d="M{place.x(0)} {place.y(0)}L{place.x(right)} {place.y(right)}"/>'
    if not band:
        return line
    corners = [(0.0, band), (right, right + band), (right, right - band), (0.0, -band)]
    points = " ".join(f"{place.x(x)},{place.y(y)}" for x, y in corners)
    return f'<polygon class="band" points="{points}"/>{line}'


def _curve(curve: Curve, number: int, place: Place, unit: str) -> str:
    known = [(x, y) for x, y in zip(curve.xs, curve.ys, strict=True) if y is not None]
    path = "L".join(f"{place.x(x)} {place.y(y)}" for x, y in known)
    told = ", ".join(f"{x:g} → {y:g}" for x, y in known)
    title = f"{curve.label}{' (control)' if curve.control else ''}: {told} {unit}"
    parts = [f"<g><title>{escape(title)}</title>"]
    if path:
        kind = "cap" if curve.control else "line"
        parts.append(f'<path class="{kind} {series_class(number)}" d="M{path}"/>')
    if not curve.control:
        parts += [
            f'<circle class="point {series_class(number)}" cx="{place.x(x)}" cy="{place.y(y)}"'
            ' r="3"/>'
            for x, y in known
        ]
    return "".join([*parts, "</g>"])


def _spoken(relation: Relation) -> str:
    """Return what the picture shows, for those who do not see it."""
    parts = []
    for curve in relation.curves:
        points = [
            f"{x:g} gives {y:g}" for x, y in zip(curve.xs, curve.ys, strict=True) if y is not None
        ]
        who = f"{curve.label}, without the limiter" if curve.control else curve.label
        parts.append(f"{who}: {', '.join(points) or 'nothing is known'}")
    return f"{relation.title}: " + "; ".join(parts)
