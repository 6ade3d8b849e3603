"""The pod that is watched: it works flat out and now and then takes memory and frees it."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import deque
from typing import Any

from facts import RELEASE, emit, wait_for_release

#: A step: kernels of half a millisecond each, whatever the card is.
KERNELS, KERNEL_SECONDS = 4, 0.0005
DEPTH = 16
TELL_SECONDS = 0.25


class Victim:
    """Steps of known work on the first card, and the memory beside them."""

    def __init__(self, torch: Any, cycles: int, probe_mib: int) -> None:
        self._torch, self._cycles, self._probe = torch, cycles, probe_mib << 20
        self._queue: deque[Any] = deque()
        self.steps = self.asked = self.refused = 0

    def work(self, phase: str, uuid: str, seconds: float) -> None:
        """Work for some seconds; the queue is empty at the end."""
        deadline, told = time.monotonic() + seconds, 0.0
        while (now := time.monotonic()) < deadline:
            self._queue.append(self._step())
            while self._queue and (len(self._queue) >= DEPTH or self._queue[0].query()):
                self._count()
            if now - told >= TELL_SECONDS:
                told = now
                self._take_memory()
                emit("steps", phase=phase, uuid=uuid, steps=self.steps)
        while self._queue:
            self._count()
        emit("steps", phase=phase, uuid=uuid, steps=self.steps)

    def _count(self) -> None:
        self._queue.popleft().synchronize()
        self.steps += 1

    def _step(self) -> Any:
        for _ in range(KERNELS):
            self._torch.cuda._sleep(self._cycles)
        done = self._torch.cuda.Event(blocking=True)
        done.record()
        return done

    def _take_memory(self) -> None:
        self.asked += 1
        try:
            block = self._torch.empty(self._probe, dtype=self._torch.uint8, device="cuda")
        except self._torch.OutOfMemoryError:
            self.refused += 1
            return
        del block
        # Back to the card: the next one must be granted anew.
        self._torch.cuda.empty_cache()


def main(parameters: dict[str, Any]) -> int:
    """Work alone, then beside each kind of neighbour."""
    import pynvml as nvml
    import torch

    RELEASE.mkdir(parents=True, exist_ok=True)
    emit("started", pid=os.getpid())
    nvml.nvmlInit()
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    uuid = nvml.nvmlDeviceGetUUID(handle)
    hertz = 1e6 * nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM)
    emit("working", torch=torch.__version__, card=nvml.nvmlDeviceGetName(handle), uuid=uuid)
    victim = Victim(torch, round(hertz * KERNEL_SECONDS), int(parameters["probe_mib"]))
    torch.cuda._sleep(1000)
    torch.cuda.synchronize()
    for phase in parameters["phases"]:
        name = phase["name"]
        emit("holding", phase=name, index=phase["index"], ticks=1)
        in_time = wait_for_release(name, float(parameters["hold_seconds"]))
        emit("released", phase=name, in_time=in_time)
        victim.asked = victim.refused = 0
        victim.work(name, uuid, float(phase["seconds"]))
        emit("worked", phase=name, asked=victim.asked, refused=victim.refused)
    emit("finished", code=0)
    return 0


if __name__ == "__main__":
    sys.exit(main(json.loads(os.environ["WORKLOAD_PARAMETERS"])))
