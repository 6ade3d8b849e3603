"""The pod that misbehaves, in one way a phase."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from facts import RELEASE, emit
from spin import Card, Queue, first_card, held

MIB = 1 << 20
#: Of a storm: kernels of 20 µs, and how many lie between two looks at the clock.
TINY_SECONDS, BATCH = 20e-6, 200
LONG_SECONDS = 0.2
BLOCK_MIB = 512

Done = Callable[[], bool]


def launches(card: Card, kind: str, seconds: float, batch: int, done: Done) -> int:
    """Keep kernels of a length queued; return how many were done."""
    cycles, queue = card.cycles(seconds), Queue(card, kind)
    while not done():
        card.spin(cycles, batch)
        queue.put(batch)
        queue.wait(3)
    queue.wait()
    return queue.done


def hog(torch: Any, done: Done) -> int:
    """Take all that there is and keep at it; return how often it was refused."""
    blocks: list[Any] = []
    refused = 0
    while not done():
        try:
            block = torch.empty(BLOCK_MIB * MIB, dtype=torch.uint8, device="cuda")
            blocks.append(block)
            block[: 1 * MIB].zero_()
        except torch.OutOfMemoryError:
            refused += 1
            del blocks[-2:]
            torch.cuda.empty_cache()
            time.sleep(0.002)
    blocks.clear()
    torch.cuda.empty_cache()
    return refused


def processes(kind: str, done: Done) -> int:
    """Start processes that come and go; return how many there were."""
    script, count = str(Path(__file__).with_name("passer_by.py")), 0
    while not done():
        subprocess.run([sys.executable, script, kind], check=False, timeout=60)
        count += 1
    return count


def misbehave(card: Card, kind: str, done: Done) -> int:
    """Do one kind of harm until it is time; return how much of it was done."""
    if kind == "storm":
        return launches(card, kind, TINY_SECONDS, BATCH, done)
    if kind == "long":
        return launches(card, kind, LONG_SECONDS, 1, done)
    if kind == "memory":
        return hog(card.torch, done)
    return processes(kind, done)


def main(parameters: dict[str, Any]) -> int:
    """Go through the kinds."""
    import pynvml as nvml
    import torch

    RELEASE.mkdir(parents=True, exist_ok=True)
    emit("started", pid=os.getpid())
    card = first_card(torch, nvml)
    card.spin(1000)
    torch.cuda.synchronize()
    for phase in parameters["phases"]:
        name = phase["name"]
        held(name, phase["index"], float(parameters["hold_seconds"]))
        deadline = time.monotonic() + float(phase["seconds"])
        did = misbehave(card, name, lambda end=deadline: time.monotonic() >= end)
        emit("worked", phase=name, did=did)
    emit("finished", code=0)
    return 0


if __name__ == "__main__":
    sys.exit(main(json.loads(os.environ["WORKLOAD_PARAMETERS"])))
