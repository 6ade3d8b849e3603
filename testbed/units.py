"""Units: MiB, percent and Kubernetes quantities.

The unit is in every name: ``_mib`` (2**20 bytes), ``_bytes``, ``_pct`` (0..100).
"""

from __future__ import annotations

import re
from decimal import Context, Decimal, InvalidOperation

from testbed.errors import InputError

MIB = 1 << 20
GIB = 1 << 30

#: Suffixes of a quantity (Kubernetes API conventions, "Quantity").
_SUFFIX: dict[str, Decimal] = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "": Decimal(1),
    "k": Decimal(10**3),
    "M": Decimal(10**6),
    "G": Decimal(10**9),
    "T": Decimal(10**12),
    "P": Decimal(10**15),
    "E": Decimal(10**18),
    "Ki": Decimal(2**10),
    "Mi": Decimal(2**20),
    "Gi": Decimal(2**30),
    "Ti": Decimal(2**40),
    "Pi": Decimal(2**50),
    "Ei": Decimal(2**60),
}
_QUANTITY = re.compile(
    r"(?P<number>[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))"
    r"(?:(?P<exp>[eE][+-]?[0-9]{1,3})|(?P<suffix>[numkMGTPE]|[KMGTPE]i)?)"
)
#: Longer texts are nobody's quantity, and would cost time and memory without bound.
_LONGEST = 64
#: Enough digits for every text of that length, so that nothing is rounded.
_EXACT = Context(prec=2048)


def quantity(text: str | int | float) -> Decimal:
    """Return a Kubernetes quantity as an exact number.

    Raises:
        InputError: the text is not a quantity.
    """
    raw = str(text).strip()
    match = _QUANTITY.fullmatch(raw) if len(raw) <= _LONGEST else None
    if match is None:
        raise InputError(
            f"{raw[:_LONGEST]!r} is not a Kubernetes quantity", hint="write a number such as 3000"
        )
    try:
        number = Decimal(match["number"] + (match["exp"] or ""))
    except InvalidOperation as error:  # pragma: no cover - the pattern admits numbers only
        raise InputError(f"{raw!r} is not a number") from error
    return _EXACT.multiply(number, _SUFFIX[match["suffix"] or ""])


def whole(text: str | int | float) -> int | None:
    """Return a quantity as an integer, or None where it is not a whole number."""
    value = quantity(text)
    return int(value) if value == value.to_integral_value(context=_EXACT) else None


def mib_text(mib: float) -> str:
    """Return MiB for people: ``30,720 MiB``."""
    return f"{mib:,.0f} MiB"
