"""What could be a secret is cut out of whatever leaves the machine in a bundle."""

from __future__ import annotations

import base64
import re
from typing import Any

CUT = "[redacted]"
#: Tokens (three parts of base64 with a JSON head; the middle one is left out where what is signed
#: lies beside it, as in kubeadm's cluster-info), private keys, and what a header carries.
_SECRET = re.compile(
    rb"eyJ[\w-]{8,}\.(?:[\w-]{8,})?\.[\w-]{8,}"
    rb"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?-----END [A-Z ]*PRIVATE KEY-----"
    rb"|(?<=(?i:bearer ))[\w.~+/-]{16,}=*",
    re.DOTALL,
)
#: What begins like a key or a certificate, in base64, as Secrets and kubeconfigs hold them.
_ENCODED = re.compile(rb"LS0tLS1CRUdJTi[A-Za-z0-9+/]+=*")
#: Names of variables and keys whose value nobody else should read.
_NAMED = re.compile(r"token|passw|secret|credential|private|api.?key|access.?key", re.IGNORECASE)
#: Objects as somebody typed them, with everything that is cut elsewhere.
_COPIES = ("kubectl.kubernetes.io/last-applied-configuration",)


def redact(text: bytes) -> bytes:
    """Return a text without tokens and keys."""
    return _ENCODED.sub(_without_key, _SECRET.sub(CUT.encode(), text))


def _without_key(found: re.Match[bytes]) -> bytes:
    text = found[0]
    whole = base64.b64decode(text[: len(text) // 4 * 4])
    return CUT.encode() if b"PRIVATE KEY" in whole else text


def redacted(value: Any) -> Any:
    """Return a JSON-like value without tokens, keys, and values of variables named so.

    References to a secret (``secretKeyRef``, ``secretName``) name it and stay.
    """
    if isinstance(value, dict):
        if isinstance(value.get("name"), str) and isinstance(value.get("value"), str):
            named = _NAMED.search(value["name"])
            return {**value, "value": CUT if named else redacted(value["value"])}
        return {
            key: CUT if _hidden(key, item) else redacted(item)
            for key, item in value.items()
            if key not in _COPIES
        }
    if isinstance(value, list):
        return [redacted(item) for item in value]
    if isinstance(value, str):
        return redact(value.encode()).decode()
    return value


def _hidden(key: str, item: Any) -> bool:
    # Names of objects are no secrets.
    if not isinstance(item, str) or key.endswith(("Name", "name", "Path", "path")):
        return False
    return bool(_NAMED.search(key))
