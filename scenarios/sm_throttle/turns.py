"""Kernels of one length in one pattern, turn by turn, in one process.

It says when a turn began and ended and how many kernels were done so far; what share of the
card that was, the card's own count tells.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from facts import emit
from spin import Card, Queue, first_card, held

#: Kernels of a graph.
GRAPH = 8
#: What is queued at least, in time of the card at work, seconds, and in batches.
AHEAD_SECONDS, AHEAD = 0.02, 3


def turn(card: Card, name: str, kernel_us: int, pattern: str, seconds: float) -> int:
    """Run for some seconds and return how many kernels were done."""
    cycles = card.cycles(kernel_us * 1e-6)
    batch = {"sync": 1, "graph": GRAPH}.get(
        pattern, max(1, min(64, round(AHEAD_SECONDS / 2 / (kernel_us * 1e-6))))
    )
    graph = captured(card, cycles) if pattern == "graph" else None
    queue = Queue(card, name, blocking=pattern != "sync")
    ahead = 0 if pattern == "sync" else AHEAD
    queue.tell()
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if graph is not None:
            graph.replay()
        else:
            card.spin(cycles, batch)
        queue.put(batch)
        queue.wait(ahead)
    queue.wait()
    queue.tell()
    return queue.done


def captured(card: Card, cycles: int) -> Any:
    """Return a graph of some kernels, one after the other."""
    graph = card.torch.cuda.CUDAGraph()
    with card.torch.cuda.graph(graph):
        card.spin(cycles, GRAPH)
    return graph


def main(parameters: dict[str, Any]) -> int:
    """Go through this pod's turns."""
    import pynvml as nvml
    import torch

    card = first_card(torch, nvml)
    # No kernel to warm up: the limiter would learn that this function is done at once.
    torch.empty(1, device="cuda")
    for each in parameters["turns"]:
        name = each["name"]
        held(name, each["index"], float(parameters["hold_seconds"]))
        seconds = float(parameters["seconds"])
        kernels = turn(card, name, int(each["kernel_us"]), each["pattern"], seconds)
        emit("worked", phase=name, kernels=kernels)
    return 0


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
