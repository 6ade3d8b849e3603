"""What a launch is learned to cost when the same kernel begins to take much longer."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import shim_harness as harness

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="no C compiler")

PROGRAM = r"""
#include <stdio.h>
#include <stdlib.h>

#include "cost.h"

/* A kernel of 15 us, measured without gaps and so believed; then lone event pairs of it. */
int main(int argc, char **argv) {
    (void)argc;
    double pair_us = atof(argv[1]);
    static struct vgpu_costs costs;
    static struct vgpu_ledger ledger;
    static uint64_t paid;
    struct vgpu_budget budget = {.ledger = &ledger, .paid_until = &paid};
    struct vgpu_regime regime = {.limit = 0.6, .raw = atoi(argv[2]) != 0};
    struct vgpu_cost_entry *k = vgpu_cost_find(&costs, 1);
    struct vgpu_measure m = {.launches = 1, .previous = true};
    for (int i = 0; i < 100; i++) {
        m.now += VGPU_MS;
        m.elapsed = m.own = 15 * VGPU_US;
        m.predicted = k->estimate;
        vgpu_cost_learn(k, &m, &budget, &regime);
    }
    double booked = 0;
    m.previous = false;
    m.pair = true;
    for (int i = 0; i < 10; i++) {
        m.now += VGPU_SEC;
        m.elapsed = m.own = pair_us * VGPU_US;
        m.predicted = k->estimate;
        booked += vgpu_cost_learn(k, &m, &budget, &regime);
    }
    printf("{\"estimate_us\": %.3f, \"booked_us\": %.3f, \"suspended_us\": %.3f}\n",
           k->estimate / VGPU_US, booked / VGPU_US, (double)ledger.suspense_ns / VGPU_US);
}
"""


def learned(folder: Path, pair_us: float, *, nvml: bool) -> dict[str, float]:
    """Return what ten event pairs teach: the estimate, what was booked, what waits for NVML."""
    shim, source = harness.NATIVE / "shim", folder / "learn.c"
    source.write_text(PROGRAM)
    program = harness.compile_(
        folder / "learn",
        [source, shim / "cost.c", shim / "ledger.c"],
        *("-std=c11", "-O1", f"-I{shim}", f"-I{harness.NATIVE / 'include'}"),
        *("-Wl,--no-as-needed", "-lm"),
    )
    command = [str(program), str(pair_us), "0" if nvml else "1"]
    done = subprocess.run(command, capture_output=True, check=True, timeout=240)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def test_ten_long_kernels_are_held_against_the_budget(tmp_path: Path) -> None:
    """Else a container would have them for nothing, as long as they come one by one."""
    told = learned(tmp_path, 200_000, nvml=True)
    assert told["suspended_us"] == pytest.approx(10 * (200_000 - 15), rel=0.01)
    raw = learned(tmp_path, 200_000, nvml=False)
    assert raw["estimate_us"] > 100_000 and raw["booked_us"] > 200_000


def test_control_a_pair_says_nothing_of_a_tiny_kernel(tmp_path: Path) -> None:
    told = learned(tmp_path, 19, nvml=True)
    assert told["estimate_us"] == pytest.approx(15, rel=0.01)
    assert told["booked_us"] == told["suspended_us"] == 0
