"""Profiles: complete, in the card's granules, and consistent with each other."""

from __future__ import annotations

from dataclasses import MISSING, fields

import pytest

from testbed.card import PROFILES, profiles
from testbed.errors import InputError
from testbed.native import card

#: Given by the driver root, not by a model.
OF_THE_CARD = {"uuid", "name", "pci_bus_id", "index", "minor", "driver_text"}


@pytest.mark.parametrize("name", PROFILES)
def test_complete(name: str) -> None:
    figures = profiles.load(name).figures
    needed = {f.name for f in fields(card.CardDescription) if f.default is MISSING} - OF_THE_CARD
    assert set(figures) == needed
    for field, figure in figures.items():
        assert figure.value > 0 or field == "compute_minor"
        assert figure.source
        assert figure.confidence in ("documented", "reported", "assumed")


@pytest.mark.parametrize("name", PROFILES)
def test_sizes_are_granules(name: str) -> None:
    figures = profiles.load(name).figures
    memory, reserved = figures["memory_bytes"].value, figures["reserved_bytes"].value
    assert figures["context_bytes"].value % card.GRANULE_BYTES == 0
    assert (memory - reserved) % card.GRANULE_BYTES == 0
    assert reserved < memory // 10


def test_known_by_what_users_see() -> None:
    a100 = profiles.load("a100-80gb").figures
    usable = a100["memory_bytes"].value - a100["reserved_bytes"].value
    assert f"{usable / 2**30:.2f} GiB" == "79.15 GiB"
    small = profiles.load("a100-40gb").figures
    usable = small["memory_bytes"].value - small["reserved_bytes"].value
    assert f"{usable / 2**30:.2f} GiB" == "39.59 GiB"


def test_unknown() -> None:
    with pytest.raises(InputError, match="unknown card 'b300'") as caught:
        profiles.load("b300")
    assert "a100-80gb" in caught.value.hint
