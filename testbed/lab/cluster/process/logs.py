"""Logs of a cluster, copied for people to read: whole, but for what could be a secret."""

from __future__ import annotations

from pathlib import Path

from testbed.lab.redact import redact

_LIMIT = 8 << 20


def collect(source: Path, target: Path) -> None:
    """Copy a folder of logs; of a very long one its end."""
    for path in sorted(source.rglob("*")):
        if path.is_symlink() or not path.is_file():
            continue
        place = target / path.relative_to(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            with path.open("rb") as file:
                file.seek(max(0, path.stat().st_size - _LIMIT))
                place.write_bytes(redact(file.read()))
        except OSError as error:  # a log that went in between is no reason to lose the others
            place.write_text(f"could not be copied: {error}\n")
