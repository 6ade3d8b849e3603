"""pytest-kind in a folder of its own, for sessions of tests that have it on their path.

It is GPL-3.0+; nothing here imports it, and the development environment does not have it.
"""

from __future__ import annotations

from pathlib import Path

from testbed.lab import cache, packages
from testbed.lab.progress import QuietProgress

#: Its last release, and the client that it imports; their other needs are here anyway.
PINS = """\
pykube-ng==23.6.0 \\
    --hash=sha256:46de8e17ed87c1a1014667d60e7d94a1f3fa2b8037b41e67d32c28b5869af35d \\
    --hash=sha256:63f20f634bfcd83966edec32f892286f75dffb817a2c097434ecc039e558ec8f
pytest-kind==22.11.1 \\
    --hash=sha256:35fd99e4f94e0374834b5893ee4a95e33ad5dc1c18080356f01fadf21224e830 \\
    --hash=sha256:ae7a4c753fcbbf9e44a0cc587d5219a0b8b2b1e7bcc9cbe14234f745dd5db681
"""


def site() -> Path:
    """Return the folder, made first where it is missing."""

    def make(folder, step):
        pins = folder / "pins.txt"
        pins.write_text(PINS)
        packages.install(
            [],
            what="pytest-kind cannot be installed",
            tell=step.update,
            target=folder,
            options=["--no-deps", "--require-hashes", "-r", pins],
        )

    key = cache.key_of(PINS)
    return cache.obtain("pytest-kind", key, make, QuietProgress(), "install pytest-kind")
