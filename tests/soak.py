"""``make test-soak N=20``: the core set in a row with one verdict, then what users do to it.

    soak.py [--rounds N] [--points N] [--only PART] [--seed N] [--runs FOLDER] [CASE...]

Runs the cases N times on one testbed, then strikes fifty runs and puts others through full
disks, neighbours and sleep. Prints one JSON document; what goes on is on standard error.
Exit status: 0 everything held, 1 a check or a test failed, 2 there is no verdict.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
CORE = ("co_location/a100-example",)
NAME = f"soak{os.getpid()}"
TESTS = {
    "interruptions": "tests/e2e/test_fifty_interruptions.py",
    "hardship": "tests/e2e/test_hardship.py",
}
Document = dict[str, Any]


def rounds(cases: list[str], count: int, runs: Path) -> Document:
    """Run the cases so often on one testbed; return verdicts, counted by case."""
    began = time.monotonic()
    program = Path(sys.executable).with_name("testbed")
    done = subprocess.run(
        [
            *(str(program), "run", *cases, "--repeat", str(count)),
            *("--name", NAME, "--runs", str(runs), "-o", "json"),
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    found = document_of(done.stdout)
    counted: dict[str, Counter[str]] = {}
    for record in found.get("cases", ()):
        counted.setdefault(record["case"], Counter())[record["verdict"]] += 1
    return {
        "verdict": found.get("verdict", "error"),
        "asked": count,
        "cases": {case: dict(verdicts) for case, verdicts in counted.items()},
        "reasons": reasons(found.get("cases", ())),
        "error": found.get("error"),
        "exit_status": done.returncode,
        "seconds": round(time.monotonic() - began, 1),
        "runs": str(runs),
    }


def reasons(records: Iterable[Document]) -> dict[str, int]:
    """Return what did not hold, and in how many rounds; the most frequent first."""
    seen: Counter[str] = Counter()
    for record in records:
        if record["verdict"] == "pass":
            continue
        told = [record.get("reason") or ""]
        control = record.get("control") or {}
        if control.get("verdict", "pass") != "pass":
            told.append(f"control: {control['reason']}" if control.get("reason") else "control")
        for check in record["checks"]:
            if check["verdict"] in ("fail", "error"):
                details = " ".join(filter(None, (check["name"], check["pod"], check["variant"])))
                told.append(f"{details}: {check['reason'] or check['verdict']}")
        seen.update(set(filter(None, told)))
    return dict(seen.most_common())


def document_of(text: str) -> Document:
    """Return the one document that a command printed; nothing where it is none."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def tests(path: str, points: int, seed: int) -> Document:
    """Run tests, the long ones too; return what failed."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="testbed-soak-") as folder:
        result = Path(folder, "result.xml")
        done = subprocess.run(
            [sys.executable, "-m", "pytest", path, f"--junitxml={result}", "--color=no"],
            cwd=ROOT,
            stdout=sys.stderr,
            env={
                **os.environ,
                "VGPU_TESTBED_POINTS": str(points),
                "VGPU_TESTBED_SOAK": "1",
                "VGPU_TESTBED_SEED": str(seed),
            },
        )
        found = counted(result.read_text() if result.exists() else "")
    verdict = {0: "pass", 1: "fail"}.get(done.returncode, "error")
    return {
        "verdict": verdict if found["run"] else "error",
        **found,
        "seed": seed,
        "seconds": round(time.monotonic() - began, 1),
    }


def counted(xml: str) -> Document:
    """Return how many tests of a JUnit document ran and which did not pass."""
    cases = list(ET.fromstring(xml).iter("testcase")) if xml else []
    ends = {case.get("name", ""): {child.tag for child in case} for case in cases}
    skipped = [name for name, tags in ends.items() if "skipped" in tags]
    failed = [name for name, tags in ends.items() if tags & {"failure", "error"}]
    return {"run": len(ends) - len(skipped), "failed": failed, "skipped": skipped}


def verdict_of(parts: list[Document]) -> str:
    """Return the worst verdict: no verdict before a failure before a pass."""
    verdicts = {part["verdict"] for part in parts}
    return next((each for each in ("error", "fail") if each in verdicts), "pass")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", help="the core set by default")
    parser.add_argument("--rounds", type=int, default=20, help="of the cases; 20")
    parser.add_argument("--points", type=int, default=50, help="moments to strike at; all 50")
    parser.add_argument("--only", choices=("rounds", *TESTS), help="one part instead of all")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "soak")
    parser.add_argument("--seed", type=int, default=int(time.time() // 86400))
    asked = parser.parse_args()
    if min(asked.rounds, asked.points, asked.seed) < 1:
        parser.error("--rounds, --points and --seed must be 1 or more")
    began = time.monotonic()
    found: Document = {}
    if asked.only in (None, "rounds"):
        found["rounds"] = rounds(asked.cases or [*CORE], asked.rounds, asked.runs.absolute())
    for what, path in TESTS.items():
        if asked.only in (None, what):
            found[what] = tests(path, asked.points, asked.seed)
    verdict = verdict_of(list(found.values()))
    summary = {"verdict": verdict, **found, "seconds": round(time.monotonic() - began, 1)}
    print(json.dumps(summary, indent=2))
    return {"pass": 0, "fail": 1, "error": 2}[verdict]


if __name__ == "__main__":
    sys.exit(main())
