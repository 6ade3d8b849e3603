"""Figures of a benchmark: repeated, summed up, and held against an aim."""

from __future__ import annotations

import platform
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from testbed.lab.host import load, processors


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """What repeated measurements of one figure gave; all in the figure's own unit."""

    median: float
    low: float
    high: float
    repeats: int


def spread(values: Iterable[float]) -> Spread:
    """Sum measurements up.

    Raises:
        ValueError: there are none.
    """
    known = sorted(values)
    if not known:
        raise ValueError("nothing was measured")
    return Spread(median=statistics.median(known), low=known[0], high=known[-1], repeats=len(known))


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One line of a benchmark.

    Attributes:
        key: Its name in JSON; ends with the unit.
        text: What it is, for people.
        aim: What the median should stay below; None without one.
        spread: None where it could not be measured.
        reason: Why it could not.
    """

    key: str
    text: str
    aim: float | None
    spread: Spread | None = None
    reason: str = ""

    @property
    def value(self) -> float | None:
        """The median."""
        return self.spread.median if self.spread else None

    @property
    def held(self) -> bool | None:
        """Whether the aim is met; None where there is no aim or nothing was measured."""
        if self.aim is None or self.value is None:
            return None
        return self.value <= self.aim


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Where it was measured: the figures mean nothing without it."""

    cpu: str
    cores: int
    kernel: str
    python: str
    #: Runnable processes, averaged over a minute (first figure of /proc/loadavg).
    load_before: float
    load_after: float
    #: Digest of each library that was measured.
    builds: dict[str, str] = field(default_factory=dict)

    @property
    def busy(self) -> bool:
        """Whether others took so much of the machine that times are too long."""
        return self.load_before > self.cores / 2


def environment(load_before: float, builds: dict[str, str]) -> Environment:
    """Describe this machine."""
    return Environment(
        cpu=_cpu(Path("/proc/cpuinfo").read_text()),
        cores=processors(),
        kernel=platform.release(),
        python=platform.python_version(),
        load_before=load_before,
        load_after=load(),
        builds=builds,
    )


def _cpu(cpuinfo: str) -> str:
    names = [line.partition(":")[2] for line in cpuinfo.splitlines() if "model name" in line]
    return names[0].strip() if names else platform.machine()
