"""Waits for what comes about."""

from __future__ import annotations

import time
from collections.abc import Callable

DEADLINE_S = 90.0


def eventually(condition: Callable[[], bool], what: str, deadline_s: float = DEADLINE_S) -> None:
    """Wait until a condition holds; fail with what was waited for."""
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, f"not within the deadline: {what}"
        time.sleep(0.02)
