"""What the monitor can know of a card: run its own reader while processes keep it busy.

``python3 tests/gpu/watch.py [--driver-root ROOT] [FILE]`` from the
repository's root, with this package's requirements ``nvidia-ml-py``, ``msgspec`` and
``PyYAML``, and gcc. Prints JSON: for a lone process and a pair, NVML's windows as the
monitor would pass them on, and what it tells of errors and recovery. Exit status 1 if a
window says something that cannot be (the sum above the card, a stamp of the future).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from testbed.stack.devices import Nvml, find_driver_root
from testbed.stack.monitor.utilization import Sampler, Window

HERE = Path(__file__).parent
WATCH_S = 4.0


def windows(nvml: Nvml, uuid: str) -> tuple[list[tuple[Window, int]], dict[str, Any]]:
    """Return the windows of some seconds, each with the time of its arrival."""
    sampler, found, asked, spent = Sampler(), [], 0, 0
    end = time.monotonic() + WATCH_S
    while time.monotonic() < end:
        began = time.monotonic_ns()
        reading = nvml.utilization(uuid, sampler.since_us, sampler.card_since_us)
        now = time.monotonic_ns()
        asked, spent = asked + 1, spent + now - began
        window = sampler.take(reading, now_ns=now, real_ns=time.time_ns())
        if window is not None:
            found.append((window, now))
        time.sleep(max(0.0, (sampler.due_ns - time.monotonic_ns()) / 1e9))
    return found, {
        "process_samples": sampler.process_samples,
        "period_ms": sampler.period_ns / 1e6,
        "questions": asked,
        "question_us": spent / asked / 1e3,
    }


def judged(seen: list[tuple[Window, int]]) -> dict[str, Any]:
    """Return figures of windows, and which of them cannot be."""
    impossible = [
        f"{window.stamp_ns}: {dict(window.sm_pct)}"
        for window, at in seen
        # Each process is rounded, hence a point of slack for each.
        if window.stamp_ns > at or sum(window.sm_pct.values()) > 100 + len(window.sm_pct)
    ]
    ages = [(at - window.stamp_ns) / 1e6 for window, at in seen]
    return {
        "windows": len(seen),
        "by_process": sum(window.by_process for window, _ in seen),
        "age_ms": round(statistics.median(ages), 1) if ages else None,
        "interval_ms": sorted({round(window.interval_ns / 1e6) for window, _ in seen}),
        "sm_pct": [dict(window.sm_pct) for window, _ in seen][-6:],
        "card_pct": [window.card_pct for window, _ in seen][-6:],
        "impossible": impossible,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--driver-root")
    parser.add_argument("file", nargs="?", type=Path)
    given = parser.parse_args()
    nvml = Nvml(find_driver_root(given.driver_root))
    result: dict[str, Any] = {}
    try:
        (card, *_) = nvml.devices()
        result["card"] = card.name
        result["tells_errors"] = nvml.watch_errors()
        result["idle"] = judged(windows(nvml, card.uuid)[0])
        with tempfile.TemporaryDirectory() as folder:
            probe = Path(folder) / "probe"
            compile_it = ["gcc", "-O2", "-o", str(probe), str(HERE / "probe.c"), "-ldl"]
            subprocess.run(compile_it, check=True, timeout=60)
            for name, count in (("lone", 1), ("pair", 2)):
                hogs = [
                    subprocess.Popen(
                        [str(probe), "hog", "1000", str(WATCH_S + 4), "deep"],
                        stdout=subprocess.DEVNULL,
                        env={"PROBE_TURNS_PER_US": "400", **os.environ},
                    )
                    for _ in range(count)
                ]
                try:
                    time.sleep(2.0)  # context, and NVML's lag: a figure, not a check
                    seen, how = windows(nvml, card.uuid)
                    read = nvml.read(card.uuid)
                finally:
                    for hog in hogs:
                        hog.kill()
                        hog.wait()
                held = {process.pid: process.bytes for process in read.processes}
                result[name] = {**judged(seen), **how, "processes": held}
        result["errors"] = nvml.errors()
        result["recovery_actions"] = list(nvml.recovery_actions().values())
        nvml.reopen()
        result["well_after_reopening"] = not nvml.unhealthy()
    finally:
        nvml.close()
    text = json.dumps(result, indent=1)
    if given.file:
        given.file.write_text(text + "\n")
    print(text)
    wrong = [name for name in ("idle", "lone", "pair") if result[name]["impossible"]]
    return int(bool(wrong) or not result["well_after_reopening"])


if __name__ == "__main__":
    sys.exit(main())
