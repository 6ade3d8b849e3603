"""What is asked for: which cards a node shall carry."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CardSpec:
    """A card that a node shall carry: a profile's name and how many of it."""

    profile: str = "a100-80gb"
    count: int = 1
