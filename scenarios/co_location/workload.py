"""What runs in each container: memory with each allocator, then compute.

Each part is a process of its own: PyTorch chooses its allocator at import, and a part
that dies takes no other with it; its failure is reported as an event.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from facts import RELEASE, emit
from fill import ALLOCATORS

FOLDER = Path(__file__).parent


def run(phase: str, script: str, *arguments: str, env: dict[str, str] | None = None) -> bool:
    """Run one part to its end; tell its last words where it failed."""
    child = subprocess.run(
        [sys.executable, str(FOLDER / script), *arguments],
        env={**os.environ, **(env or {})},
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        check=False,
    )
    if child.returncode:
        tail = child.stderr.strip().splitlines()[-12:]
        emit("error", phase=phase, code=child.returncode, text="\n".join(tail))
    return child.returncode == 0


def main() -> int:
    """Run all parts one after the other."""
    parameters = json.loads(os.environ["WORKLOAD_PARAMETERS"])
    RELEASE.mkdir(parents=True, exist_ok=True)
    emit("started", pid=os.getpid())
    good = True
    for index, allocator in enumerate(parameters["allocators"]):
        good &= run(allocator, "fill.py", allocator, str(index), env=ALLOCATORS[allocator])
    if parameters["phases"]:
        good &= run("compute", "flat_out.py")
    emit("finished", code=0 if good else 1)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
