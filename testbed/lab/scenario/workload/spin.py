"""Kernels that take a known time, on the first card of a container.

A kernel here spins for a number of the card's cycles and computes nothing. What was done
is counted once the card has done it, and told a few times a second: shares and rates are
the testbed's business.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any

from facts import emit, wait_for_release  # type: ignore[import-not-found]  # beside it in a pod

TELL_SECONDS = 0.25


class Card:
    """The container's first card.

    Attributes:
        torch: The module.
        uuid: The card's.
    """

    def __init__(self, torch: Any, uuid: str, hertz: float) -> None:
        self.torch, self.uuid, self._hertz = torch, uuid, hertz

    def cycles(self, seconds: float) -> int:
        """Return how many cycles a kernel of a length spins."""
        return max(1, round(self._hertz * seconds))

    def spin(self, cycles: int, kernels: int = 1) -> None:
        """Launch kernels."""
        for _ in range(kernels):
            self.torch.cuda._sleep(cycles)


def first_card(torch: Any, nvml: Any) -> Card:
    """Say which card there is, and return it.

    Args:
        torch: The module.
        nvml: ``pynvml``, likewise.
    """
    nvml.nvmlInit()
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    uuid = nvml.nvmlDeviceGetUUID(handle)
    emit("working", torch=torch.__version__, card=nvml.nvmlDeviceGetName(handle), uuid=uuid)
    hertz = 1e6 * nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM)
    return Card(torch, uuid, hertz)


class Queue:
    """What was launched and is not known to be done.

    Args:
        card: Where.
        phase: In which the count is told.
        blocking: Whether who waits sleeps meanwhile; else he spins.

    Attributes:
        done: How much was done, in the unit of ``put``.
    """

    def __init__(self, card: Card, phase: str, *, blocking: bool = True) -> None:
        self._card, self._phase, self._blocking = card, phase, blocking
        self._marks: deque[tuple[Any, int]] = deque()
        self._told = 0.0
        self.done = 0

    def put(self, amount: int) -> None:
        """Count an amount when all is done that was launched up to now."""
        event = self._card.torch.cuda.Event(blocking=self._blocking)
        event.record()
        self._marks.append((event, amount))

    def wait(self, ahead: int = 0) -> None:
        """Wait until at most so many marks are not reached yet, and tell the count at times."""
        # Under a limiter the launch waits, and what is queued may be done already.
        while self._marks and (len(self._marks) > ahead or self._marks[0][0].query()):
            event, amount = self._marks.popleft()
            event.synchronize()
            self.done += amount
        if time.monotonic() - self._told >= TELL_SECONDS:
            self.tell()

    def tell(self) -> None:
        """Say how much was done."""
        self._told = time.monotonic()
        emit("steps", phase=self._phase, uuid=self._card.uuid, steps=self.done)


def held(phase: str, index: int, hold_seconds: float, ticks: int = 1) -> None:
    """Wait for a phase's release, and say so."""
    emit("holding", phase=phase, index=index, ticks=ticks)
    emit("released", phase=phase, in_time=wait_for_release(phase, hold_seconds))
