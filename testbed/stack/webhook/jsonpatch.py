"""The difference of two JSON documents as a JSON patch (RFC 6902)."""

from __future__ import annotations

from typing import Any


def difference(old: Any, new: Any, path: str = "") -> list[dict[str, Any]]:
    """Return the operations that turn ``old`` into ``new``.

    Maps are compared by key and lists by position, so a map that was absent (labels
    of a pod without any) is added as a whole.
    """
    if isinstance(old, dict) and isinstance(new, dict):
        operations: list[dict[str, Any]] = []
        for key in old.keys() - new.keys():
            operations.append({"op": "remove", "path": f"{path}/{_escape(key)}"})
        for key, value in new.items():
            below = f"{path}/{_escape(key)}"
            if key not in old:
                operations.append({"op": "add", "path": below, "value": value})
            else:
                operations.extend(difference(old[key], value, below))
        return operations
    if isinstance(old, list) and isinstance(new, list):
        operations = []
        for position in range(min(len(old), len(new))):
            operations.extend(difference(old[position], new[position], f"{path}/{position}"))
        for position in range(len(old) - 1, len(new) - 1, -1):
            operations.append({"op": "remove", "path": f"{path}/{position}"})
        for value in new[len(old) :]:
            operations.append({"op": "add", "path": f"{path}/-", "value": value})
        return operations
    # 1 == True in Python, but not in JSON.
    if old == new and type(old) is type(new):
        return []
    return [{"op": "replace", "path": path, "value": new}]


def _escape(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
