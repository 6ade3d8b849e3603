"""Run the probe on the machine's own card and print what it found as JSON.

``python3 tests/gpu/probe.py [FILE]``: needs gcc, a card and nothing of this package. The
figures feed card profiles (confidence "measured") and the time model.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


class Probe:
    """The compiled probe and the calibration that its runs share."""

    def __init__(self, folder: Path) -> None:
        self.program = folder / "probe"
        subprocess.run(
            ["gcc", "-O2", "-o", self.program, HERE / "probe.c", "-ldl"], check=True, timeout=60
        )
        self.env = dict(os.environ)

    def start(self, *arguments: object) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(self.program), *map(str, arguments)],
            stdout=subprocess.PIPE,
            text=True,
            env=self.env,
        )

    def together(self, *each: tuple[object, ...], seconds: float = 60) -> list[Any]:
        """Run modes side by side and return what each printed."""
        running = [self.start(*arguments) for arguments in each]
        answers = []
        for process in running:
            try:
                text, _ = process.communicate(timeout=seconds)
                answers.append(json.loads(text))
            except (subprocess.TimeoutExpired, json.JSONDecodeError) as error:
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(signal.SIGKILL)
                answers.append({"error": str(error)})
        return answers


def utilisation(watched: dict[str, Any]) -> dict[str, Any]:
    """Return period, lag and level of a watch's samples, by process."""
    by_pid: dict[int, list[dict[str, Any]]] = {}
    for sample in watched.get("samples", []):
        if "pid" in sample:
            by_pid.setdefault(sample["pid"], []).append(sample)
    found: dict[str, Any] = {
        key: watched.get(key) for key in ("call_us", "infos", "rates", "device")
    }
    for pid, samples in by_pid.items():
        stamps = [s["stamp"] for s in samples]
        steps = [b - a for a, b in itertools.pairwise(stamps)]
        inner = samples[2:-2] or samples
        found[str(pid)] = {
            "samples": len(samples),
            "period_us": statistics.median(steps) if steps else None,
            "age_us": statistics.median(s["at"] - s["stamp"] for s in samples),
            "sm": [s["sm"] for s in samples][:60],
            "sm_mean": statistics.mean(s["sm"] for s in inner),
        }
    return found


def main() -> int:
    result: dict[str, Any] = {"time": time.time()}
    with tempfile.TemporaryDirectory() as folder:
        probe = Probe(Path(folder))
        (result["facts"],) = probe.together(("facts",), seconds=90)
        probe.env["PROBE_TURNS_PER_US"] = str(result["facts"].get("turns_per_us", 400))
        for name, other in (("lone", None), ("beside_100us", 100), ("beside_50ms", 50000)):
            modes: list[tuple[object, ...]] = [("slices", 3)]
            if other:
                modes.append(("hog", other, 4, "deep"))
            result[f"slices_{name}"] = probe.together(*modes)
        for name, lengths, pattern in (
            ("5_50000", (5, 50000), "deep"),
            ("100_100", (100, 100), "deep"),
            ("100_5000", (100, 5000), "deep"),
            ("100_100_sync", (100, 100), "sync"),
            ("three", (100, 100, 5000), "deep"),
        ):
            runs = [("hog", us, 4, pattern) for us in lengths]
            *shares, watched = probe.together(*runs, ("watch", 4))
            result[f"pair_{name}"] = {"shares": shares, "nvml": utilisation(watched)}
        (result["nvml_lag"],) = probe.together(("lag",))
        for percent in (10, 50, 90):
            duty, watched = probe.together(("duty", percent, 20, 4), ("watch", 6))
            result[f"duty_{percent}"] = {"duty": duty, "nvml": utilisation(watched)}
        duty, other, watched = probe.together(
            ("duty", 30, 20, 4), ("hog", 1000, 4, "deep"), ("watch", 4)
        )
        result["duty_beside_hog"] = {"shares": [duty, other], "nvml": utilisation(watched)}
    text = json.dumps(result, indent=1)
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(text + "\n")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
