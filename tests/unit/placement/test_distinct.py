"""Kinds of rows, held against numpy's own and without what that loads."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from testbed.stack.placement import arrays
from testbed.stack.placement.arrays import distinct, numa_nodes


@pytest.mark.parametrize("columns", [1, 2, 3])
@pytest.mark.parametrize("rows", [0, 1, 7, 1000])
def test_kinds_are_those_of_numpy(rows, columns):
    values = np.random.default_rng(rows).integers(0, 4, (rows, columns)).astype(np.uint64)
    first, kinds = distinct(values)
    assert np.array_equal(values[first][kinds], values)
    assert len(first) == len(np.unique(values, axis=0))
    for kind in range(len(first)):
        assert first[kind] == np.flatnonzero(kinds == kind)[0]


@pytest.mark.parametrize("kinds", [1, 2, 50, 1000])
def test_kinds_of_many_values_are_those_of_numpy(kinds):
    rng = np.random.default_rng(kinds)
    values = rng.integers(-(2**62), 2**62, kinds)[rng.integers(0, kinds, 1000)]
    known, first, which = np.unique(values, return_index=True, return_inverse=True)
    assert [found.tolist() for found in distinct(values)] == [first.tolist(), which.tolist()]
    assert values[distinct(values)[0]].tolist() == known.tolist()


def test_two_kinds_at_one_place_of_the_table_are_told_apart(monkeypatch):
    monkeypatch.setattr(arrays, "_SLOT_BITS", 1)
    values = np.arange(1000) % 3
    assert arrays._few_kinds(values) is None
    first, kinds = distinct(values)
    assert first.tolist() == [0, 1, 2]
    assert kinds.tolist() == values.tolist()


def test_numa_nodes_of_few_cards_and_of_many():
    for rows, nodes in ((3, 5), (40, 5), (500, 5), (500, 17), (500, 300)):
        rng = np.random.default_rng(rows)
        numa = rng.integers(-1, 2**31, (rows, 8)) % nodes - 1
        cards = rng.random((rows, 8)) < 0.5
        assert numa_nodes(numa, cards) == sorted(set(numa[cards].tolist()))


def test_decisions_load_nothing():
    """Not even the first one: a module that is loaded then holds up the scheduler."""
    code = """
import random, sys
import testbed.stack.extender.__main__
from testbed.stack.config import DeviceConfig
from testbed.stack.extender.handler import filter_pods
from testbed.stack.extender.state import State
from testbed.stack.extender.wire import decode_filter, encode
from testbed.lab.bench import madeup
from testbed.lab.bench.extender import _body
import msgspec
rng = random.Random(1)
cluster = madeup.make(20, 8, 100, rng)
state = State(DeviceConfig())
for raw in cluster.nodes:
    state.node_changed(msgspec.json.decode(raw))
for raw in cluster.pods:
    state.pod_changed(msgspec.json.decode(raw))
state.nodes_synced = state.pods_synced = True
before = set(sys.modules)
assert "numpy.ma" not in before
outcomes = set()
for case, make in madeup.CASES.items():
    for number in range(60):
        body = _body(make(number, rng), cluster.names)
        result = filter_pods(state, decode_filter(body)).result
        encode(result)
        outcomes.add(bool(result.NodeNames))
assert outcomes == {True, False}
print(sorted(set(sys.modules) - before))
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
