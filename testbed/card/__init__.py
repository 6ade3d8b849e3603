"""The emulated card: what it is (profiles), where it lives (driver root)."""

from testbed.card.profiles import PROFILES, Figure, Profile
from testbed.card.spec import CardSpec

__all__ = ["PROFILES", "CardSpec", "Figure", "Profile"]
