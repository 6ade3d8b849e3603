"""How the workload fills a card, on a card made up in memory."""

from __future__ import annotations

import importlib.util
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.units import MIB

from .conftest import ROOT

CONTEXT_MIB = 424


@pytest.fixture(scope="module")
def workload():
    path = ROOT / "scenarios" / "co_location" / "workload.py"
    spec = importlib.util.spec_from_file_location("co_location_workload", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class OutOfMemoryError(RuntimeError):
    pass


class Card:
    """Refuses what would pass its limit; a context is on it already."""

    def __init__(self, limit_mib):
        self.limit, self.used = limit_mib * MIB, CONTEXT_MIB * MIB
        self.torch = SimpleNamespace(OutOfMemoryError=OutOfMemoryError, empty=self._empty, uint8=1)

    def _empty(self, size, *, dtype, device):
        if self.used + size > self.limit:
            raise OutOfMemoryError("CUDA out of memory")
        self.used += size
        return SimpleNamespace(zero_=lambda: None)


def fill(workload, card, ceiling_mib):
    return workload.fill(card.torch, lambda: card.used, ceiling_mib * MIB, [])


@given(cap=st.integers(1024, 81920), percent=st.integers(101, 200))
def test_a_cap_is_met_whatever_its_size(workload, cap, percent):
    """Also where the cap is small beside the first steps."""
    card = Card(cap)
    assert fill(workload, card, cap * percent // 100) == (True, "OutOfMemoryError")
    assert cap * MIB - card.used < 2 * MIB


@given(cap=st.integers(1024, 40000), percent=st.integers(101, 200))
def test_without_a_cap_it_stops_at_its_ceiling_above_it(workload, cap, percent):
    card = Card(81920)
    ceiling = cap * percent // 100
    assert fill(workload, card, ceiling) == (False, "")
    assert cap * MIB < card.used <= ceiling * MIB


def test_another_error_is_no_refusal(workload):
    card = Card(2048)

    def broken(size, **_):
        raise RuntimeError("an illegal memory access was encountered")

    card.torch.empty = broken
    with pytest.raises(RuntimeError, match="illegal"):
        fill(workload, card, 3000)
