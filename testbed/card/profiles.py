"""Models of cards as data: each figure with its source and how sure it is."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from testbed.card.profiles_figure import Confidence, Figure, Profile
from testbed.card.profiles_models import ALL
from testbed.errors import InputError, known_hint

__all__ = ["PROFILES", "Confidence", "Figure", "Profile", "load"]

PROFILES: Mapping[str, Profile] = MappingProxyType({profile.name: profile for profile in ALL})


def load(name: str) -> Profile:
    """Return a profile by name.

    Raises:
        InputError: there is none of that name.
    """
    if name not in PROFILES:
        raise InputError(f"unknown card {name!r}", hint=known_hint(name, PROFILES))
    return PROFILES[name]
