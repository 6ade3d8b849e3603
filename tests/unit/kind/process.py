"""What tests of this folder ask of a process."""

from __future__ import annotations

from pathlib import Path


def alive(pid: int) -> bool:
    """Tell whether a process runs; what nobody has reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
