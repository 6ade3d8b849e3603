"""What a profile is made of: figures, each with its source and how sure it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

#: ``measured``: by us, on such a card, with the command that the source names.
#: ``documented``: the vendor's papers say so. ``reported``: seen on such cards by others,
#: in public logs. ``assumed``: plausible, chosen by us.
Confidence = Literal["measured", "documented", "reported", "assumed"]

Figures = dict[str, "Figure"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A value in the unit of its field in ``testbed.native.card.CardDescription``."""

    value: int
    source: str
    confidence: Confidence


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A model of card.

    Args:
        name: How users name it.
        model: What driver API and NVML report.
        figures: By field of ``testbed.native.card.CardDescription``.
    """

    name: str
    model: str
    figures: Mapping[str, Figure]


def _all(confidence: Confidence, source: str, values: Mapping[str, int]) -> Figures:
    return {k: Figure(value=v, source=source, confidence=confidence) for k, v in values.items()}


def measured(source: str, **values: int) -> Figures:
    return _all("measured", source, values)


def documented(source: str, **values: int) -> Figures:
    return _all("documented", source, values)


def reported(source: str, **values: int) -> Figures:
    return _all("reported", source, values)


def assumed(source: str, **values: int) -> Figures:
    return _all("assumed", source, values)
