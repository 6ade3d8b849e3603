"""The pod that is watched: it works flat out and now and then takes memory and frees it."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from facts import RELEASE, emit
from spin import TELL_SECONDS, Card, Queue, first_card, held

#: A step: kernels of half a millisecond each, whatever the card is.
KERNELS, KERNEL_SECONDS = 4, 0.0005
DEPTH = 16


class Memory:
    """Takes some memory and frees it.

    Attributes:
        asked: How often.
        refused: How often it did not get it.
    """

    def __init__(self, torch: Any, mib: int) -> None:
        self._torch, self._size = torch, mib << 20
        self.asked = self.refused = 0

    def take(self) -> None:
        """Take it once."""
        self.asked += 1
        try:
            block = self._torch.empty(self._size, dtype=self._torch.uint8, device="cuda")
        except self._torch.OutOfMemoryError:
            self.refused += 1
            return
        del block
        # Back to the card: the next one must be granted anew.
        self._torch.cuda.empty_cache()


def work(card: Card, phase: str, seconds: float, memory: Memory) -> None:
    """Work for some seconds; the queue is empty at the end."""
    cycles, queue = card.cycles(KERNEL_SECONDS), Queue(card, phase)
    deadline, took = time.monotonic() + seconds, 0.0
    queue.tell()
    while (now := time.monotonic()) < deadline:
        card.spin(cycles, KERNELS)
        queue.put(1)
        queue.wait(DEPTH - 1)
        if now - took >= TELL_SECONDS:
            took = now
            memory.take()
    queue.wait()
    queue.tell()


def main(parameters: dict[str, Any]) -> int:
    """Work alone, then beside each kind of neighbour."""
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
        memory = Memory(card.torch, int(parameters["probe_mib"]))
        work(card, name, float(phase["seconds"]), memory)
        emit("worked", phase=name, asked=memory.asked, refused=memory.refused)
    emit("finished", code=0)
    return 0


if __name__ == "__main__":
    sys.exit(main(json.loads(os.environ["WORKLOAD_PARAMETERS"])))
