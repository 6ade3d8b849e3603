"""What only an emulated card can tell: it stands in the card's own state."""

from __future__ import annotations

from testbed.native import card
from testbed.stack.devices.driver_root import DriverRoot


def budget_hits(root: DriverRoot, uuid: str) -> int | None:
    """Return how often the host's memory budget refused something to a card.

    None on hardware, which has no such budget.

    Raises:
        CodecError, OSError: the card's state cannot be read.
    """
    if not root.emulated:
        return None
    # Beside the library, where this process sees the root.
    return card.read(root.nvml.parent.parent / "cards" / uuid / "state").budget_hits
