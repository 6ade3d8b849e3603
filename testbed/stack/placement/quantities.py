"""The numbers in a container's limits and requests.

A quantity means what Kubernetes says that it means: ``3k`` is 3000, ``2Ki`` is 2048,
``1e3`` is 1000, ``3000000m`` is 3000. Resources of cards are whole numbers of MiB, cards
or percent; what is none, is out of range, or differs between limit and request is
refused with its field and the form that would do. A number that is read as "nothing"
would leave a pod without any limit (HAMi #2284).
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from functools import lru_cache
from typing import Any

from testbed import units
from testbed.errors import InputError

INT32_MAX = 2**31 - 1
#: Longer texts are nobody's quantity, and are not kept.
_LONGEST = 64
_BYTE_SUFFIXES = ("Ki", "Mi", "Gi", "Ti", "Pi", "Ei", "k", "M", "G", "T", "P", "E")


def quantity(
    container: Mapping[str, Any],
    key: str,
    most: int = INT32_MAX,
    *,
    where: str = "",
    mib: bool = False,
) -> int | None:
    """Return the whole number that a container gives for a resource, or None.

    Limits are looked at first, then requests; both count.

    Args:
        container: The raw object.
        key: Name of the resource.
        most: The largest number that can be meant.
        where: Path of the container in its pod, ``spec.containers[0]``, for the error.
        mib: It counts MiB: a value in bytes gets the number of MiB as its right form.

    Raises:
        InputError: it is no whole number from 0 to ``most``, or limit and request
            differ (Kubernetes cannot overcommit such resources).
    """
    resources = container.get("resources") or {}
    if not isinstance(resources, dict):
        raise InputError(f"{_at(container, where)}: resources is not a map")
    limits, requests = resources.get("limits"), resources.get("requests") or {}
    if isinstance(limits, dict) and isinstance(requests, dict):
        # As nearly all pods have it: what follows would take several times as long.
        limit, request = limits.get(key), requests.get(key)
        if limit is None and request is None:
            return None
        if isinstance(limit, str) and request in (None, limit):
            number = _whole(limit, most)
            if number is not None:
                return number
    found: int | None = None
    for part in ("limits", "requests"):
        values = resources.get(part)
        if not values:
            continue
        if not isinstance(values, dict):
            raise InputError(f"{_at(container, where)}: resources.{part} is not a map")
        raw = values.get(key)
        if raw is None:
            continue
        number = _whole(raw, most)
        if number is None:
            field = f"{where}.resources.{part}[{key}]" if where else f"resources.{part}[{key}]"
            raise _refusal(f"{container_name(container)}: {field}", raw, most, mib)
        if found is not None and found != number:
            raise InputError(
                f"{_at(container, where)}: {key} has limit {found} and request {number}",
                why="cards cannot be overcommitted by a request below the limit",
                hint="leave the request out",
            )
        found = number
    return found


def container_name(container: Mapping[str, Any]) -> str:
    """Return the container's name for a message."""
    return f"container {str(container.get('name', ''))[:80]!r}"


def _at(container: Mapping[str, Any], where: str) -> str:
    return f"{container_name(container)} ({where})" if where else container_name(container)


def _whole(raw: object, most: int) -> int | None:
    """Return the number, None where it is none that can be meant."""
    if isinstance(raw, bool) or not isinstance(raw, str | int | float):
        return None
    number = _number(str(raw)) if len(str(raw)) <= _LONGEST else None
    return number if number is not None and number <= most else None


@lru_cache(maxsize=4096)
def _number(text: str) -> int | None:
    """Return a text's whole number from 0 on; pods of a cluster say the same few again."""
    try:
        exact = units.quantity(text)
    except InputError:
        return None
    return int(exact) if exact >= 0 and exact == exact.to_integral_value() else None


def _refusal(where: str, raw: object, most: int, mib: bool) -> InputError:
    """Say what is wrong with a number and how it is written right."""
    what = f"{where}: {str(raw)[:80]!r}"
    plain = "write a whole number of MiB, such as 3000" if mib else "write a whole number"
    if most < INT32_MAX:
        plain += f" from 0 to {most}"
    try:
        if isinstance(raw, bool) or not isinstance(raw, str | int | float):
            raise InputError("neither text nor number")
        exact = units.quantity(raw)
    except InputError as error:
        return InputError(f"{what} is not a quantity", why=error.what, hint=plain)
    hint = plain
    if mib and exact > 0:
        hint = _in_mib(str(raw).strip(), exact) or plain
    if exact < 0:
        return InputError(f"{what} is negative", hint=plain)
    if exact > most:
        return InputError(f"{what} is too large", why=f"the most is {most}", hint=hint)
    return InputError(f"{what} is not a whole number", hint=hint)


def _in_mib(text: str, exact: Decimal) -> str:
    """Return the right form of a size in bytes, such as ``16Gi``; empty for none."""
    if not text.endswith(_BYTE_SUFFIXES):
        return ""
    whole = int(exact // units.MIB)
    if not whole:
        return ""
    about = "" if whole * units.MIB == exact else "about "
    return f"memory is counted in MiB: for {text} of memory write {about}{whole}"


def surprise(container: Mapping[str, Any], key: str, unit_mib: int, where: str) -> str:
    """Return a warning where an amount of memory is more than any card has, or nothing.

    It is used as it stands, so the pod will wait; most likely bytes were meant.
    """
    resources = container.get("resources") or {}
    for part in ("limits", "requests"):
        raw = (resources.get(part) or {}).get(key)
        if raw is None:
            continue
        exact = units.quantity(raw)
        if exact * unit_mib >= units.MIB:  # 1 TiB, counted in MiB
            much = units.mib_text(int(exact * unit_mib))
            means = f"{where}.resources.{part}[{key}]: {raw} means {much}"
            better = _in_mib(str(raw), exact)
            return f"{means}, which no card has" + (f" ({better})" if better else "")
    return ""
