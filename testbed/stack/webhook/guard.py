"""Annotations and labels that only the stack may write.

Kubelets hand out cards by them, so whoever could write them could give himself any card
(HAMi #3042, #3074). A pod or node that is created with them loses them; a later change
is refused. The same rule is with the API server itself, as a ValidatingAdmissionPolicy
(``lab.deploy.policy``), for the times when nobody answers here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from testbed.errors import InputError
from testbed.stack.devices.vendor import stack_keys, stack_node_keys

_PARTS = ("annotations", "labels")

pod_keys = stack_keys
node_keys = stack_node_keys


def stripped(found: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    """Return the object without the keys; the object itself is left as it is."""
    metadata = found.get("metadata")
    if not isinstance(metadata, dict):
        return dict(found)
    kept = dict(metadata)
    for part in _PARTS:
        values = metadata.get(part)
        if isinstance(values, dict):
            kept[part] = {key: value for key, value in values.items() if key not in keys}
    return {**found, "metadata": kept}


def refuse_changes(before: object, after: Mapping[str, Any], keys: Sequence[str]) -> None:
    """Refuse an object in which one of the keys is another than before.

    Raises:
        InputError: names the key.
    """
    for part in _PARTS:
        old, new = _values(before, part), _values(after, part)
        for key in keys:
            if old.get(key) != new.get(key) or (key in old) != (key in new):
                raise InputError(
                    f"{part.removesuffix('s')} {key} is written by the stack alone",
                    why="cards are handed out by it",
                    hint="leave it as it is",
                )


def _values(found: object, part: str) -> Mapping[str, Any]:
    metadata = found.get("metadata") if isinstance(found, dict) else None
    values = metadata.get(part) if isinstance(metadata, dict) else None
    return values if isinstance(values, dict) else {}


__all__ = ["node_keys", "pod_keys", "refuse_changes", "stripped"]
