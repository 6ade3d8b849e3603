"""What links between a node's cards are worth, ``hami.io/node-nvidia-score``.

HAMi v2.10: ``[{"uuid":"GPU-a","score":{"GPU-b":200}}]``, written by plugins that look at
the topology.
"""

from __future__ import annotations

import json

from testbed.errors import CodecError


def decode_links(text: str) -> dict[str, dict[str, int]]:
    """Return the worth of each link, by uuid and uuid; empty text is no links.

    Raises:
        CodecError: it is no such list, or a worth is negative or no whole number.
    """
    if not text.strip():
        return {}
    try:
        return {
            str(entry["uuid"]): {str(k): _worth(v) for k, v in (entry.get("score") or {}).items()}
            for entry in json.loads(text)
        }
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise CodecError("link scores cannot be read", why=repr(error)) from error


def encode_links(links: dict[str, dict[str, int]]) -> str:
    """Return the annotation's text."""
    return json.dumps(
        [{"uuid": uuid, "score": score} for uuid, score in links.items()], separators=(",", ":")
    )


def _worth(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 31:
        raise ValueError(f"{value!r} is no worth of a link")
    return value
