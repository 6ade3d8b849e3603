"""Kernels of one length in one pattern, turn by turn, in one process.

It says when a turn began and ended and how many kernels it did; what share of the card
that was, the card's own count tells.
"""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from typing import Any

from facts import emit, wait_for_release

#: Kernels of a graph, and of a batch whose end is waited for when a queue is kept full.
GRAPH = 8
#: What is queued at least, in time of the card at work, seconds, and in batches.
AHEAD_SECONDS, AHEAD = 0.02, 3


class Work:
    """Kernels that take a known time, on the first card."""

    def __init__(self, torch: Any, hertz: float) -> None:
        self._torch, self._hertz = torch, hertz

    def turn(self, kernel_us: int, pattern: str, seconds: float) -> int:
        """Run for some seconds and return how many kernels were done."""
        torch = self._torch
        cycles = max(1, round(kernel_us * 1e-6 * self._hertz))
        batch = 1 if pattern == "sync" else GRAPH
        if pattern == "deep":
            batch = max(1, min(64, round(AHEAD_SECONDS / 2 / (kernel_us * 1e-6))))
        graph = self._captured(cycles) if pattern == "graph" else None
        ahead = 0 if pattern == "sync" else AHEAD
        queue: deque[Any] = deque()
        done, deadline = 0, time.monotonic() + seconds
        while time.monotonic() < deadline:
            if graph is not None:
                graph.replay()
            else:
                for _ in range(batch):
                    torch.cuda._sleep(cycles)
            event = torch.cuda.Event(blocking=pattern != "sync")
            event.record()
            queue.append(event)
            while len(queue) > ahead:
                queue.popleft().synchronize()
                done += batch
        torch.cuda.synchronize()
        return done + batch * len(queue)

    def _captured(self, cycles: int) -> Any:
        torch = self._torch
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(GRAPH):
                torch.cuda._sleep(cycles)
        return graph


def main(parameters: dict[str, Any]) -> int:
    """Go through this pod's turns."""
    import pynvml as nvml
    import torch

    nvml.nvmlInit()
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    hertz = 1e6 * nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM)
    uuid = nvml.nvmlDeviceGetUUID(handle)
    emit("working", torch=torch.__version__, card=nvml.nvmlDeviceGetName(handle), uuid=uuid)
    work = Work(torch, hertz)
    # No kernel to warm up: the limiter would learn that this function is done at once.
    torch.empty(1, device="cuda")
    for turn in parameters["turns"]:
        name = turn["name"]
        emit("holding", phase=name, index=turn["index"], ticks=1)
        in_time = wait_for_release(name, float(parameters["hold_seconds"]))
        emit("released", phase=name, in_time=in_time)
        kernels = work.turn(int(turn["kernel_us"]), turn["pattern"], float(parameters["seconds"]))
        emit("worked", phase=name, kernels=kernels)
    return 0


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
