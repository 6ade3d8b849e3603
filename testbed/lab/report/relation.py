"""One quantity against another: what was asked for on one axis, what was got on the other."""

from __future__ import annotations

import msgspec


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """One series of points, joined in the order of ``xs``.

    Attributes:
        label: What it is of; a curve and its control have the same.
        control: Whether it is of the run without the limiter.
        xs: Rising.
        ys: One for each; None where nothing is known.
    """

    label: str
    control: bool = False
    xs: tuple[float, ...]
    ys: tuple[float | None, ...]


class Relation(msgspec.Struct, frozen=True, kw_only=True):
    """Curves in one picture, with the line on which got is asked.

    Attributes:
        title: What is shown.
        x_title: Of the horizontal axis.
        y_title: Of the vertical one.
        unit: Of both.
        band: Half the width of the band round the ideal line, 0 for none.
    """

    title: str
    x_title: str
    y_title: str
    unit: str
    curves: tuple[Curve, ...]
    band: float = 0.0

    @property
    def right(self) -> float:
        """The largest x, 0 where there is none."""
        return max((x for curve in self.curves for x in curve.xs), default=0.0)

    @property
    def top(self) -> float:
        """The largest value that is to be seen: of a curve, or of the band's upper edge."""
        known = [y for curve in self.curves for y in curve.ys if y is not None]
        return max([*known, self.right + self.band])

    def labels(self) -> tuple[str, ...]:
        """Return the labels of all curves in the order of their first appearance."""
        return tuple(dict.fromkeys(curve.label for curve in self.curves))
