"""What a failure must show: the path of a bundle, last, and no secret in it."""

from __future__ import annotations

import base64
import re
from pathlib import Path

#: What no bundle may hold, as bytes: keys, tokens, and what a header or a kubeconfig carries.
SECRETS = (
    rb"PRIVATE KEY",
    rb"eyJ[\w-]{8,}\.[\w-]{8,}\.",
    rb"client-key-data",
    rb"(?i:bearer) [\w.~+/-]{16,}",
)
#: "-----BEGIN" in base64, as Secrets and kubeconfigs hold keys and certificates.
ENCODED = rb"LS0tLS1CRUdJTi[A-Za-z0-9+/]+"


def bundle_of(text: str) -> Path:
    """Return the path that is the last thing said.

    Raises:
        AssertionError: there is none, or nothing is there.
    """
    last = next(reversed(text.strip().splitlines()), "")
    path = Path(last.split()[-1]) if last else Path()
    assert path.is_absolute() and path.exists(), f"no bundle's path last:\n{text}"
    return path


def secrets_in(folder: Path) -> list[str]:
    """Return what looks like a secret, with the file that it is in."""
    found = []
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or path.is_symlink():
            continue
        data = path.read_bytes()
        found += [f"{path}: {each!r}" for each in SECRETS if re.search(each, data)]
        for each in re.findall(ENCODED, data):
            if b"PRIVATE KEY" in base64.b64decode(each[: len(each) // 4 * 4]):
                found.append(f"{path}: a key in base64")
    return found


def check_bundle(command) -> Path:
    """Return the bundle that a command named last; it holds no secret."""
    bundle = bundle_of(command.err)
    assert secrets_in(bundle) == []
    return bundle
