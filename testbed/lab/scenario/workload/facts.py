"""How a workload speaks: one JSON line a fact, and waiting where it is told to.

It judges nothing. Every fact carries the node's time (``time.time()``), and the
testbed compares it with what the card itself counted.
"""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

RELEASE = Path("/tmp/release")

_one_line = threading.Lock()


def emit(event: str, **fields: object) -> None:
    """Print one fact as a JSON line."""
    line = json.dumps({"event": event, "time": time.time(), **fields})
    with _one_line:
        print(line, flush=True)  # noqa: T201


def released(phase: str) -> bool:
    """Tell whether the testbed lets this phase go on."""
    return (RELEASE / phase).exists()


def wait_for_release(phase: str, seconds: float) -> bool:
    """Wait until it does; False where nobody released it in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if released(phase):
            return True
        time.sleep(0.02)
    return False
