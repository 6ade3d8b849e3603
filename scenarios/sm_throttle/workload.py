"""What runs in each pod: its turns, those of each length of kernels in a process of their own.

A limiter learns what a kernel costs by its function and geometry. Here one function is to
take 200 µs in one turn and 50 ms in another, which programs do not do; a process does not.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import groupby
from pathlib import Path

from facts import RELEASE, emit

TURNS = Path(__file__).with_name("turns.py")


def main() -> int:
    """Run all turns."""
    parameters = json.loads(os.environ["WORKLOAD_PARAMETERS"])
    RELEASE.mkdir(parents=True, exist_ok=True)
    emit("started", pid=os.getpid())
    for _, turns in groupby(parameters["turns"], key=lambda turn: turn["kernel_us"]):
        own = {**parameters, "turns": list(turns)}
        child = subprocess.run(
            [sys.executable, "-u", str(TURNS), json.dumps(own)],
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            check=False,
        )
        if child.returncode:
            tail = child.stderr.strip().splitlines()[-12:]
            emit("error", phase="", code=child.returncode, text="\n".join(tail))
            return 1
    emit("finished", code=0)
    return 0


if __name__ == "__main__":
    sys.exit(main())
