"""The throttle's own code on a model of a card, in virtual time: exact on a busy machine.

``model/card.c`` is the card, ``model/tenants.c`` does in virtual time what ``throttle.c``
does around ledger, cost, meter, gate and presence. The bounds are those that the library promises
(issue: "Compute"): where demand reaches the limit, ±(1 + kernel length in percent of 10 s)
points alone, ±(2 + the same) beside a neighbour.
"""

from __future__ import annotations

import functools
import json
import math
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import shim_harness as harness

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="no C compiler")

CLOCKS = ("slices", "sharing")
PURE = ("ledger.c", "cost.c", "gate.c", "meter.c", "presence.c", "turns.c")
#: Named before the sources that need it.
MATHS = ("-Wl,--no-as-needed", "-lm")
LENGTHS_US = (5, 100, 5_000, 50_000, 200_000)
LONGEST_MIX_US = 50_000


@functools.cache
def program() -> Path:
    model = harness.HERE / "model"
    shim = harness.NATIVE / "shim"
    sources = [model / "card.c", model / "tenants.c", *(shim / name for name in PURE)]
    flags = ("-std=c11", "-O2", "-g", "-Wall", "-Wextra", "-Werror", *MATHS)
    includes = (f"-I{model}", f"-I{shim}", f"-I{harness.NATIVE / 'include'}")
    return harness.compile_(Path("tenants"), sources, *flags, *includes)


def run(**scenario: object) -> dict[str, Any]:
    """Run a scenario; ``tenants`` has a share (percent of the device) for each container."""
    command = [str(program()), *(f"{key}={value}" for key, value in scenario.items())]
    done = subprocess.run(command, capture_output=True, check=True, timeout=120)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def shares(**scenario: object) -> list[float]:
    return [tenant["share"] for tenant in run(**scenario)["tenants"]]


def length_us(kernel: object) -> float:
    return LONGEST_MIX_US if kernel == "mix" else float(str(kernel))


def off(tenant: dict[str, Any], limit: float, window: str) -> float:
    least, most = tenant[window]
    return max(abs(least - limit), abs(most - limit))


# --- alone ---------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", ["deep", "sync"])
@pytest.mark.parametrize("kernel", [*LENGTHS_US, "mix"])
@pytest.mark.parametrize("limit", [5, 10, 25, 30, 50, 75, 90])
def test_alone(limit: int, kernel: object, pattern: str) -> None:
    (tenant,) = run(limit=limit, kernel=kernel, pattern=pattern)["tenants"]
    if kernel == 5 and pattern == "sync" and limit > 41:  # what the card gives such a program
        assert 40 < tenant["share"] < limit
        return
    assert off(tenant, limit, "ten") <= 1 + length_us(kernel) / 100_000
    if length_us(kernel) <= 10_000:
        assert off(tenant, limit, "one") <= 3
    else:
        assert off(tenant, limit, "one") <= 3 + length_us(kernel) / 10_000


@pytest.mark.parametrize("kernel", LENGTHS_US)
def test_alone_without_nvml(kernel: int) -> None:
    (tenant,) = run(limit=30, kernel=kernel, nvml=0)["tenants"]
    assert off(tenant, 30, "ten") <= 1 + kernel / 100_000
    (tenant,) = run(limit=30, kernel=kernel, nvml=0, page=0)["tenants"]
    assert off(tenant, 30, "ten") <= 1 + kernel / 100_000
    assert tenant["degraded"]


@pytest.mark.parametrize("nvml", [0, 1])
@pytest.mark.parametrize("limit", [5, 10, 25, 30, 50, 75, 90])
def test_tiny_kernels_whose_start_events_lie(limit: int, nvml: int) -> None:
    """Up to 6 us pass unseen between event and launch: 5 us seem 8. Its queue tells better
    (10 % were 7.9 with NVML's help and 6.4 without while a burst was one batch)."""
    (tenant,) = run(limit=limit, kernel=5, blur_us=6, nvml=nvml)["tenants"]
    assert off(tenant, limit, "ten") <= 0.5
    assert off(tenant, limit, "one") <= 1.5


def test_a_launch_that_is_interrupted_makes_no_kernel_short() -> None:
    """What the host loses after the driver has the launch is no part of the kernel's delay."""
    (tenant,) = run(limit=30, kernel=5, pattern="sync", nvml=0, stall_us=10)["tenants"]
    assert off(tenant, 30, "ten") <= 1.5


@pytest.mark.parametrize("nvml", [0, 1])
@pytest.mark.parametrize("limit", [10, 30])
def test_a_host_that_is_slow_behind_a_sleep_makes_no_kernel_long(limit: int, nvml: int) -> None:
    """Up to 10 us pass unseen between event and launch where its budget let it sleep before (30 %
    were 15 without NVML, and seconds of 26 to 33 with it, when the first launch was measured)."""
    (tenant,) = run(limit=limit, kernel=5, pattern="sync", cold_us=10, nvml=nvml)["tenants"]
    assert off(tenant, limit, "ten") <= 0.5
    assert off(tenant, limit, "one") <= 1


def test_who_pauses_before_every_launch_is_measured_too() -> None:
    """There is no other launch to tell that the kernel takes longer from some moment on."""
    grown = {"kernel": 10, "later": 15, "later_at": 2}
    (tenant,) = run(limit=5, pattern="sync", think=60, nvml=0, **grown)["tenants"]
    assert off(tenant, 5, "ten") <= 0.5


@pytest.mark.parametrize(
    "scenario",
    [
        {"limit": 30, "kernel": 5},
        {"limit": 75, "kernel": 100},
        {"limit": 30, "kernel": "mix"},
        {"limit": 30, "kernel": 5, "streams": 4},
        {"limit": 30, "kernel": 5, "nvml": 0},
        {"limit": 30, "kernel": 5, "burst": 50, "pattern": "sync"},
        {"limit0": 30, "limit1": 70, "tenants": 2, "kernel": 5, "clock": "sharing"},
        {"limit0": 30, "limit1": 70, "tenants": 2, "kernel": 5},
    ],
)
def test_the_short_way_is_the_long_one(scenario: dict[str, Any]) -> None:
    """A launch like the one before it passes in few steps: to the last digit as it would have."""
    short, long = run(**scenario), run(**scenario, repeats=0)
    tenants = list(zip(short["tenants"], long["tenants"], strict=True))
    often = sum(tenant.pop("repeats") for tenant, _ in tenants)
    assert sum(tenant.pop("repeats") for _, tenant in tenants) == 0
    assert short == long
    turns = scenario.get("tenants") == 2 and scenario.get("clock") != "sharing"
    if scenario["kernel"] == 5 and scenario.get("streams", 1) == 1 and not turns:
        assert often > 0.8 * sum(tenant["launches"] for tenant, _ in tenants)


def test_control_alone() -> None:
    assert shares(limit=30, kernel=100, bare=1) == pytest.approx([100])


# --- beside a neighbour -----------------------------------------------------------------

#: Kernels and patterns whose demand reaches the limit beside a neighbour of the same kind.
DEEP = [(kernel, "deep") for kernel in (*LENGTHS_US, "mix")]
SYNC = [(5_000, "sync"), (50_000, "sync"), (200_000, "sync"), ("mix", "sync")]


@pytest.mark.parametrize(("kernel", "pattern"), DEEP + SYNC)
@pytest.mark.parametrize("pair", [(30, 70), (10, 90), (30, 60), (45, 45)])
@pytest.mark.parametrize("clock", CLOCKS)
def test_pairs(clock: str, pair: tuple[int, int], kernel: object, pattern: str) -> None:
    result = run(
        tenants=2,
        limit0=pair[0],
        limit1=pair[1],
        clock=clock,
        kernel=kernel,
        pattern=pattern,
        seconds=23 if kernel == 5 else 43,
        # Two that meet unknown to each other: a kernel of 200 ms is measured five times a second.
        warm=5 if kernel == 200_000 else 3,
    )
    first, second = result["tenants"]
    bound = 2 + length_us(kernel) / 100_000
    assert off(first, pair[0], "ten") <= bound
    assert second["ten"][1] <= pair[1] + bound
    # Changes of turns cost about 2.4 %, which the larger one pays where limits sum to 100; a
    # tenant that synchronises cannot use the rest of its turns, and has less than its limit.
    # (The worst ten seconds of 60 % in kernels of 200 ms miss the promise by 0.3 on the card
    # that shares its processors: three such kernels are all that a second holds.)
    if sum(pair) < 100:
        missed = 0.5 if kernel == 200_000 and clock == "sharing" else 0
        assert second["ten"][0] >= pair[1] - bound - missed
    elif pattern == "deep":
        assert second["ten"][0] >= pair[1] - bound - 2.5
    # Over forty seconds the length of a kernel hardly matters any more.
    assert first["share"] == pytest.approx(pair[0], abs=2)
    if pair == (30, 70) and pattern == "deep":
        assert second["share"] / first["share"] == pytest.approx(70 / 30, rel=0.06)
        assert result["busy_pct"] >= 93


@pytest.mark.parametrize("pair", [(10, 90), (30, 70)])
def test_long_kernels_synchronised_on_a_card_that_shares(pair: tuple[int, int]) -> None:
    """A kernel that ran beside the other's took twice its time: the budget of that time is for
    the next one (the larger of them had 85 of 90 without)."""
    scenario = {"tenants": 2, "limit0": pair[0], "limit1": pair[1], "kernel": 200_000}
    first, second = run(**scenario, pattern="sync", clock="sharing", seconds=43)["tenants"]
    assert first["share"] == pytest.approx(pair[0], abs=1.5)
    assert second["share"] == pytest.approx(pair[1], abs=2)
    assert second["ten"][1] <= pair[1] + 1 + 2


@pytest.mark.parametrize(("kernel", "pattern"), DEEP + SYNC)
@pytest.mark.parametrize("clock", CLOCKS)
def test_pairs_without_nvml_stay_below(clock: str, kernel: object, pattern: str) -> None:
    result = run(
        tenants=2,
        limit0=30,
        limit1=70,
        clock=clock,
        nvml=0,
        kernel=kernel,
        pattern=pattern,
        seconds=43,
    )
    for tenant, limit in zip(result["tenants"], (30, 70), strict=True):
        assert tenant["ten"][1] <= limit + 1 + length_us(kernel) / 100_000
        assert tenant["share"] > limit / 2
        assert tenant["degraded"]


@pytest.mark.parametrize("clock", CLOCKS)
@pytest.mark.parametrize("kernel", [100, 5_000, 50_000])
def test_control_of_pairs(kernel: int, clock: str) -> None:
    """Without the throttle the card divides equally: the checks above would fail."""
    first, second = run(tenants=2, limit0=30, limit1=70, kernel=kernel, bare=1, clock=clock)[
        "tenants"
    ]
    assert off(first, 30, "ten") > 10
    assert second["share"] / first["share"] == pytest.approx(1, rel=0.02)


@pytest.mark.parametrize("clock", CLOCKS)
@pytest.mark.parametrize("kernel", [5, 100, 5_000])
def test_beside_a_program_without_the_library(kernel: int, clock: str) -> None:
    """Only NVML tells of it: it is not on the card's page."""
    first, second = shares(
        tenants=2, limit0=30, limit1=70, kernel=kernel, bare1=1, clock=clock, seconds=23
    )
    assert first == pytest.approx(30, abs=2)
    assert second > 60


@pytest.mark.parametrize("clock", CLOCKS)
@pytest.mark.parametrize("kernel", [5, 100, 5_000, 50_000])
@pytest.mark.parametrize(("on", "rest"), [(2500, 2500), (300, 1500), (50, 50)])
def test_a_neighbour_that_comes_and_goes(on: int, rest: int, kernel: int, clock: str) -> None:
    """What was learned beside it must not be believed alone, nor the other way round."""
    (first, _) = run(
        tenants=2,
        limit0=30,
        limit1=70,
        on1=on,
        off1=rest,
        clock=clock,
        kernel=kernel,
        seconds=43,
        warm=5,
    )["tenants"]
    assert off(first, 30, "ten") <= 2 + kernel / 100_000


@pytest.mark.parametrize("clock", CLOCKS)
@pytest.mark.parametrize("kernels", [(5, 50_000), (50_000, 5), (100, "mix"), ("bi", "many")])
def test_neighbours_of_another_kind(kernels: tuple[object, object], clock: str) -> None:
    (first, second) = run(
        tenants=2,
        limit0=30,
        limit1=60,
        clock=clock,
        seconds=43,
        kernel0=kernels[0],
        kernel1=kernels[1],
    )["tenants"]
    assert off(first, 30, "ten") <= 2.5
    assert off(second, 60, "ten") <= 2.5


@pytest.mark.parametrize("pattern", ["deep", "sync"])
@pytest.mark.parametrize("pair", [(60, 20), (70, 30), (80, 10), (30, 60)])
@pytest.mark.parametrize("kernels", [(200_000, 5), (200_000, 1_000), (100_000, 20_000)])
def test_short_kernels_beside_long_ones(
    kernels: tuple[int, int], pair: tuple[int, int], pattern: str
) -> None:
    """Who waits for the end of a long kernel loses what he would have had (14 of 20, 5 of 10)."""
    first, second = run(
        tenants=2,
        limit0=pair[0],
        limit1=pair[1],
        kernel0=kernels[0],
        kernel1=kernels[1],
        pattern0=pattern,
        seconds=33,
    )["tenants"]
    assert off(first, pair[0], "ten") <= 2 + kernels[0] / 100_000
    assert second["ten"][1] <= pair[1] + 2
    # Where hardly anything is left over, what the card's switching costs is lacking.
    assert second["ten"][0] >= pair[1] - (2 if sum(pair) < 90 else 3.5)
    assert first["share"] == pytest.approx(pair[0], abs=2)


@pytest.mark.parametrize("clock", CLOCKS)
def test_three_tenants(clock: str) -> None:
    got = shares(tenants=3, limit0=20, limit1=30, limit2=40, kernel="mix", clock=clock, seconds=43)
    assert got == pytest.approx([20, 30, 40], abs=2)


def test_the_figures_of_a_real_card() -> None:
    """Turns of 2.09 ms with 150 us lost at each change, and events of 2.07 us, as measured
    on an H200: 7 % of the card are lost beside a neighbour, and nothing else changes."""
    card = {"slice_us": 2090, "change_us": 153, "event_ns": 2065}
    for kernel in (5, 100, 5_000, 50_000):
        first, second = shares(tenants=2, limit0=30, limit1=60, kernel=kernel, seconds=23, **card)
        assert (first, second) == (pytest.approx(30, abs=2), pytest.approx(60, abs=2.5))
        assert shares(limit=30, kernel=kernel, **card) == pytest.approx([30], abs=1)


# --- turns ----------------------------------------------------------------------------------

H200 = {"slice_us": 2090, "change_us": 153, "event_ns": 2065}


@pytest.mark.parametrize("nvml", [1, 0])
@pytest.mark.parametrize(
    ("kernel", "pattern"), [(5, "deep"), (100, "deep"), (5_000, "deep"), (50_000, "sync")]
)
def test_turns_save_what_switches_cost(kernel: int, pattern: str, nvml: int) -> None:
    """On the real card's figures: 30 beside 70 as promised, and without NVML no worse."""
    scenario = {"tenants": 2, "limit0": 30, "limit1": 70, "kernel": kernel, "pattern": pattern}
    scenario |= {"nvml": nvml, "seconds": 23, **H200}
    result = run(**scenario)
    first, second = (tenant["share"] for tenant in result["tenants"])
    assert first == pytest.approx(30, abs=2)
    assert second / first == pytest.approx(70 / 30, rel=0.06)
    assert result["busy_pct"] >= 95.5
    control = run(**scenario, turns=0)
    first, second = (tenant["share"] for tenant in control["tenants"])
    assert first < 25 or second / first < 70 / 30 * 0.94
    assert control["busy_pct"] < result["busy_pct"] - 1


@pytest.mark.parametrize("nvml", [1, 0])
@pytest.mark.parametrize("pair", [(30, 70), (25, 75), (50, 50)])
def test_turns_of_whole_launches(pair: tuple[int, int], nvml: int) -> None:
    """Of 5 ms, waited for one by one, a turn holds two or three: what it is too short or too
    long the next one makes good, and the change comes when the last of them ends."""
    scenario = {"tenants": 2, "limit0": pair[0], "limit1": pair[1], "kernel": 5_000, **H200}
    scenario |= {"pattern": "sync", "nvml": nvml, "seconds": 23}
    result = run(**scenario)
    first, second = (tenant["share"] for tenant in result["tenants"])
    assert first == pytest.approx(pair[0], abs=2)
    assert second / first == pytest.approx(pair[1] / pair[0], rel=0.06)
    assert result["busy_pct"] >= 97.5
    assert run(**scenario, turns=0)["busy_pct"] < 96


@pytest.mark.parametrize("pair", [(30, 70), (25, 75)])
def test_turns_of_long_kernels(pair: tuple[int, int]) -> None:
    """One of 200 ms is a turn; who waits for it does not lose patience before it has ended."""
    scenario = {"tenants": 2, "limit0": pair[0], "limit1": pair[1], "kernel": 200_000, **H200}
    result = run(**scenario, seconds=43)
    first, second = (tenant["share"] for tenant in result["tenants"])
    assert second / first == pytest.approx(pair[1] / pair[0], rel=0.06)
    assert result["busy_pct"] >= 98
    assert run(**scenario, seconds=43, turns=0)["busy_pct"] < 97


def test_turns_do_not_coincide() -> None:
    """Two that hold the card at a time and take their next turns at the same instant lost three
    fifths of it: each switches to the other in every pause."""
    scenario = {"tenants": 2, "limit0": 50, "limit1": 50, "kernel": 100, "pattern": "sync"}
    assert run(**scenario, **H200)["busy_pct"] >= 90
    assert run(**scenario, **H200, turns=0)["busy_pct"] < 50


@pytest.mark.parametrize("kernel", [100, 5_000, 50_000])
def test_a_host_that_is_interrupted_takes_turns_again(kernel: int) -> None:
    """One sleep that ends 15 ms late is no slow node. Who took no turns for it slept no more, and
    took none ever: of two that synchronise 100 µs both had 20."""
    scenario = {"tenants": 2, "limit0": 30, "limit1": 70, "kernel": kernel, "pattern": "sync"}
    clock = {"slice_us": 2000, "change_us": 146, "seconds": 23}
    quiet = run(**scenario, **clock)
    stalled = run(**scenario, **clock, stall_ms=15, stall_every=2)
    assert stalled["busy_pct"] == pytest.approx(quiet["busy_pct"], abs=3)
    for tenant, limit in zip(stalled["tenants"], (30, 70), strict=True):
        assert tenant["share"] == pytest.approx(limit, abs=2 if kernel > 100 else 8)


def test_turns_of_programs_that_synchronize() -> None:
    """They have gaps of their own, and no longer wait for a slice of the other's in each."""
    for kernel, least in ((5, 9), (100, 25)):
        scenario = {"tenants": 2, "limit0": 30, "limit1": 70, "kernel": kernel, "pattern": "sync"}
        first, second = shares(**scenario, **H200)
        control = shares(**scenario, **H200, turns=0)
        assert first > least and second > 2 * first
        assert control[0] < first - 5 and control[1] < second - 20


#: Kernels of 100 us, so many before each synchronisation, and a pause (us) after it.
LITTLE = [(1, 100), (1, 200), (1, 2_000), (10, 4_000), (10, 10_000)]


@pytest.mark.parametrize("nvml", [1, 0])
@pytest.mark.parametrize(("burst", "think"), LITTLE)
def test_who_has_little_to_do_waits_for_no_turn(burst: int, think: int, nvml: int) -> None:
    """Beside one that never rests it is served as soon as by the card's own switching."""
    scenario = {"tenants": 2, "limit0": 30, "limit1": 70, "kernel": 100, "pattern0": "sync"}
    scenario |= {"burst0": burst, "think0": think, "nvml": nvml, "seconds": 23, **H200}
    first, control = (run(**scenario, turns=turns)["tenants"][0] for turns in (1, 0))
    assert first["latency_us"]["p99"] <= 1.15 * control["latency_us"]["p99"]
    assert first["share"] >= 0.75 * control["share"]


def test_control_of_little_to_do() -> None:
    """One that has more to do than its share waits for its turns, and gets more for it."""
    scenario = {"tenants": 2, "limit0": 30, "limit1": 70, "kernel": 100, "pattern0": "sync"}
    first, control = (
        run(**scenario, turns=turns, seconds=23, **H200)["tenants"][0] for turns in (1, 0)
    )
    assert first["latency_us"]["p99"] > 4 * control["latency_us"]["p99"]
    assert first["latency_us"]["p50"] <= control["latency_us"]["p50"]
    assert first["share"] > 1.5 * control["share"]


@pytest.mark.parametrize("nvml", [1, 0])
@pytest.mark.parametrize(("kernel", "think"), [(5, 10), (20, 30)])
def test_turns_of_a_program_whose_host_is_slow(kernel: int, think: int, nvml: int) -> None:
    """It fills no turn, and must be able to queue while its neighbour has the card: in turns
    only it had 12 (kernels of 5 us) and 18 (20 us) of the 30 that the card's switching gives."""
    scenario = {"tenants": 2, "limit0": 30, "limit1": 70, "kernel0": kernel, "think0": think}
    scenario |= {"kernel1": 100, "nvml": nvml, "seconds": 23, **H200}
    first, second = shares(**scenario)
    assert first == pytest.approx(30, abs=2)
    assert 58 < second <= 71
    # One that waits for each of its kernels needs turns more than it needs to queue.
    assert shares(**scenario, pattern0="sync")[0] < 15


@pytest.mark.parametrize("clock", CLOCKS)
@pytest.mark.parametrize("kernel", [100, 5_000, 50_000])
def test_turns_break_no_ceiling(kernel: int, clock: str) -> None:
    """Nor on a card that shares its processors, where the library takes none."""
    for nvml in (0, 1):
        result = run(
            tenants=2,
            limit0=30,
            limit1=70,
            clock=clock,
            nvml=nvml,
            kernel=kernel,
            turns=1,
            seconds=23,
        )
        for tenant, limit in zip(result["tenants"], (30, 70), strict=True):
            assert tenant["ten"][1] <= limit + 1 + kernel / 100_000


@pytest.mark.parametrize("kernel", [100, 5_000])
def test_one_that_lies_about_its_turn(kernel: int) -> None:
    """It costs a wait now and then, not the share."""
    (share,) = shares(limit=30, kernel=kernel, liar=1, nvml=0, seconds=23)
    assert share == pytest.approx(30, abs=2)


@pytest.mark.parametrize("kernel", [200_000, 300_000, 1_500_000])
@pytest.mark.parametrize("pattern", ["deep", "sync"])
def test_kernels_that_last_longer_than_any_turn(pattern: str, kernel: int) -> None:
    """Nobody asks again and again, without a pause, for a turn that he cannot have: in the
    model, where asking takes no time, that never ended."""
    scenario = {"tenants": 2, "limit0": 50, "limit1": 50, "kernel": kernel, "pattern": pattern}
    got = shares(**scenario, seconds=43)
    assert got == pytest.approx([50, 50], abs=3 + kernel / 100_000)


@pytest.mark.parametrize("kernel", [100, 5_000])
def test_no_turns_where_sleeps_end_too_late(kernel: int) -> None:
    """On a node whose processors are short the card's own switching loses less."""
    scenario = {"tenants": 2, "limit0": 30, "limit1": 60, "kernel": kernel, "slack_us": 3000}
    assert shares(**scenario, seconds=23) == pytest.approx([30, 60], abs=2)
    late = run(**scenario, seconds=23)
    without = run(**scenario, seconds=23, turns=0)
    assert late["busy_pct"] == pytest.approx(without["busy_pct"], abs=2)


# --- policy, priority, changes --------------------------------------------------------------


@pytest.mark.parametrize("clock", CLOCKS)
@pytest.mark.parametrize("kernel", [5, 100, 5_000, 50_000, "mix"])
def test_default_alone_is_free(kernel: object, clock: str) -> None:
    assert shares(policy="default", limit=30, kernel=kernel, clock=clock)[0] >= 99
    assert shares(policy="disable", limit=30, kernel=kernel, clock=clock)[0] >= 99


@pytest.mark.parametrize("clock", CLOCKS)
@pytest.mark.parametrize("nvml", [1, 0])
def test_default_beside_a_newcomer(clock: str, nvml: int) -> None:
    (first, _) = run(
        tenants=2,
        policy="default",
        limit0=30,
        limit1=70,
        kernel=5000,
        start1=8,
        stop1=16,
        seconds=22,
        clock=clock,
        nvml=nvml,
    )["tenants"]
    tenths = first["tenths"]
    assert min(tenths[30:80]) > 99
    # From half a second after it came. A tenth may hold four turns of two kernels (40 points), and
    # begin with the millisecond that the turns of who is behind are longer (1 point).
    assert max(tenths[85:160]) <= 41
    assert sum(tenths[85:160]) / 75 <= 31
    assert min(tenths[180:]) > 99  # two seconds after it went


@pytest.mark.parametrize("clock", CLOCKS)
def test_a_high_priority_goes_first(clock: str) -> None:
    scenario = {"tenants": 2, "policy": "disable", "kernel": 5000, "clock": clock, "seconds": 13}
    high, low = run(**scenario, priority0=0, priority1=1)["tenants"]
    assert high["share"] >= 98 and low["share"] <= 1
    high, low = run(**scenario, priority0=0, priority1=1, floor1=10)["tenants"]
    assert low["share"] == pytest.approx(10, abs=1.5)
    # In its pauses the low one has the card, and gives it back within 50 ms.
    high, low = run(**scenario, priority0=0, priority1=1, on0=500, off0=500)["tenants"]
    assert high["share"] > 45 and low["share"] > 40
    for tenth in range(40, 120, 10):
        assert high["tenths"][tenth] > 50
        assert min(high["tenths"][tenth + 1 : tenth + 4]) > 99
    control = run(**scenario, priority0=1, priority1=1)["tenants"]
    assert control[1]["share"] > 45


@pytest.mark.parametrize("clock", CLOCKS)
@pytest.mark.parametrize("streams", [1, 4])
@pytest.mark.parametrize("kernel", [5, 100, 1_000])
def test_a_queue_from_before_measuring_is_held_against_nobody(
    kernel: int, streams: int, clock: str
) -> None:
    """A program without a limit, alone, is not measured, and queues a thousand kernels. When a
    high one comes, NVML sees them run for seconds, and no ledger does."""
    scenario: dict[str, object] = {"tenants": 2, "policy": "disable", "kernel": kernel}
    scenario |= {"clock": clock, "streams1": streams, "seconds": 23}
    scenario |= {"priority0": 0, "priority1": 1, "floor1": 20, "start0": 2}
    queued_s = 1024 * streams * kernel / 1e6  # which run at half speed
    settled = 4 + math.ceil(2 * queued_s)
    low = run(**scenario)["tenants"][1]
    assert low["seconds"][settled:] == pytest.approx([20] * (23 - settled), abs=3)
    if kernel > 5:  # it is the length of the queue that does the harm
        control = run(**scenario, settling=0)["tenants"][1]
        assert min(control["seconds"][settled:]) < 20 - 3


@pytest.mark.parametrize(
    ("kernel", "later", "pattern"),
    [
        (15, 2_000, "sync"),
        (15, 200_000, "sync"),
        (200, 20_000, "deep"),
        (20_000, 200, "deep"),
    ],
)
def test_a_kernel_that_begins_to_take_another_time(kernel: int, later: int, pattern: str) -> None:
    """What it costs is known by function and geometry; its parameters may make it longer."""
    (tenant,) = run(limit=60, kernel=kernel, later=later, later_at=6, pattern=pattern, seconds=17)[
        "tenants"
    ]
    assert tenant["seconds"][3:6] == pytest.approx([60] * 3, abs=4)
    # Five seconds to learn it.
    assert tenant["seconds"][11:] == pytest.approx([60] * 6, abs=4)


@pytest.mark.parametrize("clock", CLOCKS)
@pytest.mark.parametrize("kernel", [20, 2_000])
def test_a_kernel_that_grows_far_beside_a_neighbour(kernel: int, clock: str) -> None:
    """Three at a time, each waited for. A neighbour may lengthen a long kernel, and NVML's
    correction makes good three times its cost: not a hundred times (it had 80 of 60)."""
    scenario = {"tenants": 2, "limit0": 60, "limit1": 20, "clock": clock, "kernel1": 1_000}
    scenario |= {"kernel0": kernel, "pattern0": "sync", "burst0": 3, "seconds": 36}
    tenants = run(**scenario, later0=200_000, later_at0=6)["tenants"]
    grown = tenants[0]["seconds"]
    # Five seconds to learn it, and a kernel more or less in the ten that follow.
    assert sum(grown[11:21]) / 10 < 60 + 2 + 2
    assert sum(grown[21:]) / 15 < 60 + 2 + 2
    if clock == "sharing":
        assert sum(grown[11:]) / 25 > 60 - 4
        assert tenants[1]["share"] == pytest.approx(20, abs=1)


@pytest.mark.parametrize(("before", "after"), [(20, 60), (60, 10)])
@pytest.mark.parametrize("kernel", [100, 5_000, 50_000])
def test_a_change_of_the_limit_settles(before: int, after: int, kernel: int) -> None:
    (tenant,) = run(limit=before, relimit=after, relimit_at=6, kernel=kernel, seconds=12)["tenants"]
    slack = 3 + kernel / 10_000
    assert tenant["seconds"][3:6] == pytest.approx([before] * 3, abs=slack)
    assert tenant["seconds"][8:] == pytest.approx([after] * 4, abs=slack)


# --- many streams and processes ----------------------------------------------------------------


@pytest.mark.parametrize("clock", CLOCKS)
@pytest.mark.parametrize("kernel", [5, 100, 5_000])
@pytest.mark.parametrize("streams", [4, 16])
def test_streams(streams: int, kernel: int, clock: str) -> None:
    assert shares(limit=30, streams=streams, kernel=kernel, clock=clock) == pytest.approx(
        [30], abs=1
    )
    got = shares(
        tenants=2,
        limit0=30,
        limit1=60,
        streams0=streams,
        kernel=kernel,
        clock=clock,
        seconds=23,
    )
    assert got == pytest.approx([30, 60], abs=2)


@pytest.mark.parametrize("clock", CLOCKS)
@pytest.mark.parametrize("kernel", [5, 100, 5_000])
def test_processes_of_one_container_share_its_limit(kernel: int, clock: str) -> None:
    scenario = {"limit0": 40, "processes0": 2, "kernel": kernel, "clock": clock, "seconds": 23}
    assert shares(**scenario) == pytest.approx([40], abs=2)
    got = shares(**scenario, tenants=2, limit1=50)
    assert got == pytest.approx([40, 50], abs=2.5)


def test_a_program_bound_by_its_host() -> None:
    """Gaps between kernels are nobody's device time."""
    (share,) = shares(limit=20, kernel=5, think=10)
    assert share == pytest.approx(20, abs=1)


def test_the_page_helps_where_nvml_says_nothing() -> None:
    """The larger tenant is often alone on the card: what it measures then, it may believe."""
    for kernel in (100, 5_000):
        scenario = {"tenants": 2, "limit0": 30, "limit1": 70, "kernel": kernel, "nvml": 0}
        _, second = shares(**scenario, seconds=23)
        _, control = shares(**scenario, seconds=23, page=0)
        assert control + 4 < second <= 71


@pytest.mark.parametrize("clock", CLOCKS)
def test_a_cost_that_changes_is_not_believed_for_the_page(clock: str) -> None:
    for kernel in ("bi", "many"):
        got = run(tenants=2, limit0=30, limit1=70, kernel=kernel, nvml=0, clock=clock, seconds=23)[
            "tenants"
        ]
        assert got[0]["ten"][1] <= 31 and got[1]["ten"][1] <= 71


if __name__ == "__main__":  # one scenario, as JSON: `… limit0=30 limit1=70 tenants=2 turns=0`
    print(json.dumps(run(**dict(given.split("=", 1) for given in sys.argv[1:])), indent=1))
