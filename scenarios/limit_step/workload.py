"""What runs in the pod: kernels without end, while its limits are changed.

A thread keeps the card's queue full; the main one goes from step to step, says when each
begins and waits there until the testbed has changed the limit. At last it says what becomes
of memory when its limit falls below what is held.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import Any

from facts import RELEASE, emit
from spin import Card, Queue, first_card, held

MIB = 1 << 20
#: What is queued, in time of the card at work, seconds, and in batches.
AHEAD_SECONDS, AHEAD = 0.02, 3
BLOCK_MIB = 128


class Work(threading.Thread):
    """Kernels that take a known time on the first card, until told to stop."""

    def __init__(self, card: Card, kernel_us: int) -> None:
        super().__init__(daemon=True)
        self._card = card
        self._cycles = card.cycles(kernel_us * 1e-6)
        self._batch = max(1, min(64, round(AHEAD_SECONDS / 2 / (kernel_us * 1e-6))))
        self._ending = threading.Event()

    def run(self) -> None:
        """Keep the queue full."""
        queue = Queue(self._card, "")
        while not self._ending.is_set():
            self._card.spin(self._cycles, self._batch)
            queue.put(self._batch)
            queue.wait(AHEAD)
        queue.wait()

    def end(self) -> None:
        """Stop and wait for the last kernel."""
        self._ending.set()
        self.join()


def blocks_of(torch: Any, mib: int) -> list[Any]:
    """Return memory in blocks; fewer where it is refused."""
    blocks: list[Any] = []
    while len(blocks) * BLOCK_MIB < mib:
        try:
            blocks.append(torch.empty(BLOCK_MIB * MIB, dtype=torch.uint8, device="cuda"))
        except torch.OutOfMemoryError:
            break
    return blocks


def lowered(torch: Any, blocks: list[Any]) -> None:
    """Say what becomes of memory whose limit fell below what is held."""
    granted = bool(blocks_of(torch, BLOCK_MIB))
    try:
        for block in blocks:
            block.zero_()
        torch.cuda.synchronize()
        kept = True
    except RuntimeError:
        kept = False
    # All but one block, so that a context and one more fit below half.
    del blocks[1:]
    torch.cuda.empty_cache()
    again = bool(blocks_of(torch, BLOCK_MIB))
    total = torch.cuda.mem_get_info()[1]
    emit("lowered", granted=granted, kept=kept, again=again, total=total)


def main(parameters: dict[str, Any]) -> int:
    """Work through all steps."""
    import pynvml as nvml
    import torch

    RELEASE.mkdir(parents=True, exist_ok=True)
    emit("started", pid=os.getpid())
    card = first_card(torch, nvml)
    torch.empty(1, device="cuda")  # makes the context; no kernel that teaches a wrong cost
    memory = blocks_of(torch, int(parameters["held_mib"]))
    work = Work(card, int(parameters["kernel_us"]))
    work.start()
    for phase in parameters["phases"]:
        name = phase["name"]
        if name == "memory":
            work.end()
        held(name, phase["index"], float(parameters["hold_seconds"]), phase["ticks"])
        if name == "memory":
            lowered(torch, memory)
    if work.is_alive():
        work.end()
    emit("finished", code=0)
    return 0


if __name__ == "__main__":
    sys.exit(main(json.loads(os.environ["WORKLOAD_PARAMETERS"])))
