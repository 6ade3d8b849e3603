"""Kubernetes quantities, exactly."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed import units
from testbed.errors import InputError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0), ("1", 1), (7, 7), ("+5", 5), ("-5", -5), ("1k", 1000), ("3M", 3_000_000),
        ("1Ki", 1024), ("16Gi", 17179869184), ("1e3", 1000), ("1E3", 1000), ("1E", 10**18),
        ("1.5Gi", 1610612736), (".5k", 500), ("5.", 5), ("100m", Decimal("0.1")),
        ("1n", Decimal("1e-9")), ("1e-3", Decimal("0.001")), (" 5 ", 5), (1.5, Decimal("1.5")),
    ],
)  # fmt: skip
def test_quantity(text, value):
    assert units.quantity(text) == value


@pytest.mark.parametrize(
    "text",
    ["", "x", "1.2.3", "1 k", "k", "1kk", "1Kib", "0x5", "1e", "--1", "1,5", "٣", "inf", "nan",
     "1e1000", "1" * 65, True],
)  # fmt: skip
def test_what_is_no_quantity_is_refused(text):
    with pytest.raises(InputError, match="not a Kubernetes quantity"):
        units.quantity(text)


@pytest.mark.parametrize(
    ("text", "value"), [("3k", 3000), ("1.5", None), ("1500m", None), ("2000m", 2), ("1e-1", None)]
)
def test_whole(text, value):
    assert units.whole(text) == value


@given(st.integers(-(10**60), 10**60))
def test_every_integer_is_exact(number):
    assert units.whole(str(number)) == number


@given(st.decimals(allow_nan=False, allow_infinity=False, places=9, min_value=0, max_value=10**12))
def test_no_digit_is_lost(number):
    assert Fraction(units.quantity(f"{number:f}Gi")) == Fraction(number) * 2**30


def test_text_for_people():
    assert units.mib_text(30720) == "30,720 MiB"
