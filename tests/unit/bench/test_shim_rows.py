"""Rows of the library's benchmark: which are run, how they are judged, what is said of them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable

import msgspec
import pytest

from testbed.cli.bench_shim import document, table
from testbed.errors import InputError
from testbed.lab.bench import shim, shim_ground
from testbed.lab.bench.figures import Environment
from testbed.lab.bench.shim_rows import (
    KERNELS_US,
    LIMITS,
    PATTERNS,
    LimitStep,
    Pair,
    Row,
    Run,
    Shares,
    bare_runs,
    bounds,
    demand,
    judge,
    near,
    pair_of,
    runs,
    settled,
    shares_between,
)

PAIR = Run(limits=(30, 70), kernel_us=100, sync=False, judged=(0, 1))
LONE = Run(limits=(30,), kernel_us=100, sync=False)


def shares(*mean: float, off: float = 0.0, seconds: float = 10.0) -> Shares:
    """Shares whose first second is off by some points."""
    windows = tuple((share + off, *(share,) * 9) for share in mean)
    return Shares(mean=mean, windows=windows, seconds=seconds)


def rows_of(wanted: tuple[Run, ...]) -> list[tuple[int, int, str]]:
    return [(run.limits[i], run.kernel_us, run.pattern) for run in wanted for i in run.judged]


def test_every_row_of_the_list() -> None:
    wanted = rows_of(runs((), (), (), quick=False))
    every = {(limit, us, each) for limit in LIMITS for us in KERNELS_US for each in PATTERNS}
    assert set(wanted) == every
    # Each once, but for those of two tenants with the same limit.
    assert len(wanted) == len(every) + 2 * len(KERNELS_US)


def test_quick_is_the_corners() -> None:
    wanted = rows_of(runs((), (), (), quick=True))
    assert {limit for limit, _, pattern in wanted if pattern == "lone-deep"} == {10, 30, 75}
    assert {limit for limit, _, pattern in wanted if pattern == "pair-sync"} == {30, 70}
    assert max(us for _, us, _ in wanted) == 50_000


@pytest.mark.parametrize(
    "given", [((0,), (), ()), ((100,), (), ()), ((), (0,), ()), ((), (), ("pairs",))]
)
def test_what_cannot_be(given: tuple[tuple[int, ...], tuple[int, ...], tuple[str, ...]]) -> None:
    with pytest.raises(InputError):
        runs(*given, quick=False)


def test_bare_runs_are_made_once() -> None:
    other = Run(limits=(10,), kernel_us=100, sync=False)
    found = list(bare_runs((PAIR, LONE, other)))
    assert [run.limits for run in found] == [(0,), (0, 0)]


@pytest.mark.parametrize(
    ("kernel_us", "pair", "clock", "seconds", "expected"),
    [
        (5, False, "slices", 10, (1.0, 1.0, 3.0)),
        (50_000, False, "slices", 10, (1.5, 1.5, 8.0)),
        (200_000, True, "slices", 10, (4.0, 4.0, 43.0)),
        (200_000, True, "slices", 60, (2.0, 2.0, 43.0)),
        (50_000, True, "sharing", 10, (2.5, 1.5, 13.0)),
        (10_000, True, "slices", 60, (2.0, 2.0, 3.0)),
    ],
)
def test_bounds(
    kernel_us: int, pair: bool, clock: str, seconds: float, expected: tuple[float, float, float]
) -> None:
    found = bounds(kernel_us, pair=pair, clock=clock, seconds=seconds)
    assert (found.below, found.above, found.second) == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize(
    ("share", "off", "most", "ok", "ceiling"),
    [
        (30.4, 0.0, 100.0, True, False),
        (31.2, 0.0, 100.0, False, False),
        (28.8, 0.0, 100.0, False, False),
        (30.0, -3.5, 100.0, False, False),
        (30.0, 3.5, 100.0, False, False),
        (12.0, 0.0, 12.0, True, True),  # it cannot have more
        (12.0, -9.0, 12.0, True, True),
        (31.2, 0.0, 12.0, False, True),  # a ceiling is one all the same
        (12.0, 22.0, 12.0, False, True),
    ],
)
def test_judged(share: float, off: float, most: float, ok: bool, ceiling: bool) -> None:
    row = judge(LONE, 0, shares(share, off=off), demand_pct=most, clock="slices")
    assert (row.ok, row.ceiling) == (ok, ceiling)


def test_demand() -> None:
    bare, lone = shares(46.6, 46.6), shares(100.0)
    # Both were to have more than the card gives: the smaller had what it asked for.
    assert demand(PAIR, 0, shares(29.9, 63.3), bare, lone) == pytest.approx(46.6)
    assert demand(PAIR, 1, shares(29.9, 63.3), bare, lone) == pytest.approx(63.3)
    assert demand(PAIR, 1, shares(10.0, 70.0), bare, shares(52.0)) == pytest.approx(52.0)
    assert demand(LONE, 0, shares(30.0), shares(51.0), shares(51.0)) == pytest.approx(51.0)


def test_pair() -> None:
    good = pair_of(PAIR, shares(29.0, 65.0))
    assert good is not None and good.ok
    even = pair_of(PAIR, shares(46.5, 46.5))
    assert even is not None and not even.ok and not near(even.ratio)
    idle = pair_of(PAIR, shares(27.0, 63.0))
    assert idle is not None and not idle.ok and near(idle.ratio)
    assert pair_of(LONE, shares(30.0)) is None
    starved = pair_of(PAIR, shares(0.0, 93.0))
    assert starved is not None and not starved.ok


def test_shares_between() -> None:
    looks = [(0, {1: 10}), (10**9, {1: 10 + 3 * 10**8, 2: 10**8}), (2 * 10**9, {1: 10 + 10**9})]
    found = shares_between(looks, (1, 2))
    assert found.mean == pytest.approx((50.0, 0.0))
    assert found.windows[0] == pytest.approx((30.0, 70.0))
    assert found.seconds == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("shares_at", "expected"),
    [
        (lambda t: 60.0, 0.0),
        (lambda t: 20.0 if t < 1.0 else 60.0, 1.0),
        (lambda t: 20.0, None),
        (lambda t: 60.0 if t < 2.5 else 20.0, None),  # not for good
        (lambda t: 90.0 if t < 0.5 else 60.0, 0.5),
    ],
)
def test_settled(shares_at: Callable[[float], float], expected: float | None) -> None:
    busy, looks = 0, []
    for tick in range(80):
        looks.append((tick * 50_000_000, {7: busy}))
        busy += round(shares_at(tick * 0.05) / 100 * 50_000_000)
    found = settled(looks, 7, 0, 60)
    assert found == (None if expected is None else pytest.approx(expected, abs=0.06))


# --- the result ----------------------------------------------------------------------


def added(ns: float, bound: float) -> shim.Added:
    return shim.Added(bare_ns=100, added_ns=ns, low_ns=ns - 5, high_ns=ns + 5, bound_ns=bound)


def test_what_a_call_costs_more() -> None:
    bare = [100.0, 200.0, 100.0, 100.0, 100.0]
    found = shim._added(bare, [160.0, 270.0, 150.0, 900.0, 155.0], 60.0)  # one was disturbed
    assert (found.added_ns, found.low_ns, found.high_ns) == (60, 55, 70)


def test_the_order_of_a_round() -> None:
    assert [shim.turned(("bare", "with"), n)[0] for n in range(4)] == ["bare", "with"] * 2


def race(passed: int, refused: int = 1000) -> shim.Race:
    return shim.Race(
        rounds=1000, processes=8, passed_cap=passed, most_mib=3880, cap_mib=3880, refused=refused
    )


def bench(
    *,
    ns: float = 50.0,
    row: Row | None = None,
    ratio: float = 2.3,
    bare: float = 1.0,
    passed: int = 0,
    refused: int = 1000,
    bare_passed: int = 100,
    took: float | None = 0.4,
    unchanged: float | None = None,
) -> shim.ShimBench:
    rows = (row or judge(PAIR, 0, shares(30.0, 63.0), demand_pct=46.0, clock="slices"),)

    def pair(value: float) -> Pair:
        return Pair(kernel_us=100, ratio=value, busy_pct=93.5, ok=near(value))

    return shim.ShimBench(
        library="libvgpu.so",
        clock="slices",
        calls={"unlimited": added(ns, 60.0), "alloc": added(900.0, 1000.0)},
        rows=rows,
        pairs=(pair(ratio),),
        bare_pairs=(pair(bare),),
        steps=(LimitStep(from_pct=20, to_pct=60, settled_s=took, control_s=unchanged),),
        race=race(passed, refused),
        bare_race=race(bare_passed),
        environment=Environment(
            cpu="CPU", cores=2, kernel="6.1", python="3.11", load_before=3.0, load_after=0.3
        ),
    )


def test_held() -> None:
    assert bench().held


@pytest.mark.parametrize(
    "found",
    [
        bench(ns=61.0),
        bench(row=judge(LONE, 0, shares(33.0), demand_pct=100, clock="slices")),
        bench(ratio=2.1),
        bench(bare=2.3),  # the control holds as well
        bench(passed=1),
        bench(refused=0),
        bench(bare_passed=0),
        bench(took=2.1),
        bench(took=None),
        bench(unchanged=0.0),
    ],
)
def test_missed(found: shim.ShimBench) -> None:
    assert not found.held
    assert len(found.missed) + len(found.control_failed) == 1
    assert "✗" in table(found)


def test_document() -> None:
    found = json.loads(msgspec.json.encode(document(bench())))
    assert found["launch_added_ns"]["unlimited"] == 50.0
    assert found["launch_added_ns"]["limited"] is None  # was not measured
    assert found["pair_30_70_ratio"] == 2.3
    assert found["control"]["pair_30_70_ratio"] == 1.0
    assert found["cap_race"]["rounds"] == 1000 and found["cap_race"]["passed_cap"] == 0
    assert found["environment"]["busy"] is True
    (row,) = found["accuracy"]
    wanted = "limit_pct kernel_us pattern clock seconds demand_pct mean_error_pp bound_pp ok"
    assert set(wanted.split()) <= set(row)
    assert "other processes were busy" in table(bench())


@pytest.mark.parametrize(
    ("waited_ns", "told"), [((), None), ((100_000_000,), 1.0), ((4_000_000_000,), 40.0)]
)
def test_a_tenant_that_waited_for_a_processor(
    waited_ns: tuple[int, ...], told: float | None
) -> None:
    looks = [(second * 10**9, {7: second * 2 * 10**8}) for second in range(11)]
    got = shares_between(looks, [7], waited_ns)
    row = judge(LONE, 0, got, demand_pct=100, clock="slices")
    assert row.starved_pct == told and not row.ok
    found = bench(row=row)
    texts = (table(found), "".join(found.missed))
    assert all(("waited 40 % of the time" in text) == (told == 40.0) for text in texts)


def test_how_long_a_process_waited() -> None:
    waited = shim_ground._waited_ns(os.getpid())
    assert waited is None or waited >= 0
    assert shim_ground._waited_ns(2**22 + 1) is None  # no pid is so high


def test_options() -> None:
    with pytest.raises(InputError, match="part"):
        shim.Options(parts=("all",))
    with pytest.raises(InputError, match="clock"):
        shim.Options(clock="wall")
    with pytest.raises(InputError, match="seconds"):
        shim.Options(seconds=0.5)
