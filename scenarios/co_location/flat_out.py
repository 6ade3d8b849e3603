"""Compute: work flat out on every card of the container, in phases, and count steps.

A step is a fixed amount of work, a small model's forward pass and a kernel that spins
for a known time; nothing that it computes is read back. Enough steps are queued that
the card never waits for this program, and a step counts when it is done. What is told
is the number of steps done so far, a few times a second: rates are the testbed's
business.

Phases are released by the testbed. In one of a container's own (``alone``) the others
wait; in the one that they have in common all work. The last one, ``kill``, goes on
from there without a pause: some pods are deleted in it, the others work on for a
while.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from facts import emit, released, wait_for_release

#: Steps in the queue of a card: some 70 ms of an A100 at work, so that a busy host is not felt.
DEPTH = 16
#: Width and batch of the model's layers, and how many there are.
SIZE, LAYERS = 2048, 4
#: About 1 ms of an A100's clock (1.41 GHz).
SPIN_CYCLES = 1_400_000
TELL_SECONDS = 0.25


class Card:
    """One card of the container and the work on it."""

    def __init__(self, torch: Any, ordinal: int, uuid: str) -> None:
        self._torch, self._ordinal, self.uuid = torch, ordinal, uuid
        device = f"cuda:{ordinal}"
        self._input = torch.empty(SIZE, SIZE, device=device)
        self._weights = [torch.empty(SIZE, SIZE, device=device) for _ in range(LAYERS)]
        self._out = torch.empty(SIZE, SIZE, device=device)
        self._queue: deque[Any] = deque()
        self.steps = 0

    def work(self, phase: str, goes_on: Callable[[], bool]) -> None:
        """Work flat out until told otherwise; the queue is empty at the end."""
        torch = self._torch
        torch.cuda.set_device(self._ordinal)  # of this thread
        told = 0.0
        while goes_on():
            self._queue.append(self._step())
            # Under a limiter the launch waits, and what is queued may be done already.
            while self._queue and (len(self._queue) >= DEPTH or self._queue[0].query()):
                self._count()
            if time.monotonic() - told >= TELL_SECONDS:
                told = time.monotonic()
                self.tell(phase)
        while self._queue:
            self._count()
        self.tell(phase)

    def _count(self) -> None:
        self._queue.popleft().synchronize()
        self.steps += 1

    def tell(self, phase: str) -> None:
        """Say how many steps are done; the warm-up is no phase, and not told."""
        if not phase:
            return
        emit("steps", phase=phase, uuid=self.uuid, steps=self.steps)

    def _step(self) -> Any:
        torch = self._torch
        values = self._input
        for weights in self._weights:
            torch.matmul(values, weights, out=self._out)
            torch.relu_(self._out)
            values = self._out.add(1.0)
        torch.cuda._sleep(SPIN_CYCLES)
        done = torch.cuda.Event(blocking=True)
        done.record()
        return done


def together(cards: list[Card], phase: str, goes_on: Callable[[], bool]) -> None:
    """Work on all cards at once.

    Raises:
        RuntimeError: the work on one of them failed.
    """
    failures: list[Exception] = []

    def work(card: Card) -> None:
        try:
            card.work(phase, lambda: goes_on() and not failures)
        except Exception as error:  # noqa: BLE001  raised again below, in the main thread
            failures.append(error)

    threads = [threading.Thread(target=work, args=(card,)) for card in cards]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise RuntimeError(f"the work failed: {failures[0]}") from failures[0]


def for_seconds(seconds: float) -> Callable[[], bool]:
    """Return a condition that holds for some seconds from now."""
    deadline = time.monotonic() + seconds
    return lambda: time.monotonic() < deadline


def until_released(phase: str, hold_seconds: float, after_seconds: float) -> Callable[[], bool]:
    """Return a condition that holds until some seconds after a phase's release."""
    given_up = time.monotonic() + hold_seconds
    last: list[float] = []  # when the work ends, once it is known
    looked = [0.0]
    lock = threading.Lock()

    def goes_on() -> bool:
        now = time.monotonic()
        with lock:
            if not last and now - looked[0] >= 0.02:
                looked[0] = now
                if released(phase) or now > given_up:
                    emit("released", phase=phase, in_time=now <= given_up)
                    last.append(now + after_seconds)
        return not last or now < last[0]

    return goes_on


def main(parameters: dict[str, Any]) -> None:
    """Go through the phases: those before the last are held in idle, it is held at work."""
    import pynvml as nvml
    import torch

    nvml.nvmlInit()
    hold = float(parameters["hold_seconds"])
    cards = []
    for ordinal in range(torch.cuda.device_count()):
        handle = nvml.nvmlDeviceGetHandleByIndex(ordinal)
        uuid = nvml.nvmlDeviceGetUUID(handle)
        emit(
            "working",
            torch=torch.__version__,
            card=nvml.nvmlDeviceGetName(handle),
            uuid=uuid,
        )
        cards.append(Card(torch, ordinal, uuid))
    together(cards, "", for_seconds(0.3))
    for phase in parameters["phases"]:
        name, after = phase["name"], float(phase["seconds"])
        if phase["at_work"]:
            emit("holding", phase=name, index=phase["index"], ticks=phase["ticks"])
            together(cards, name, until_released(name, hold, after))
        else:
            emit("holding", phase=name, index=phase["index"], ticks=phase["ticks"])
            in_time = wait_for_release(name, hold)
            emit("released", phase=name, in_time=in_time)
            together(cards, name, for_seconds(after))
        emit("worked", phase=name)


if __name__ == "__main__":
    main(json.loads(os.environ["WORKLOAD_PARAMETERS"]))
    sys.exit(0)
