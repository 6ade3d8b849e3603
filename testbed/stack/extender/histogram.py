"""How long answers take, as Prometheus counts it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

#: Seconds; from a tenth of a millisecond to the scheduler's patience.
BOUNDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5, 10.0, 30.0)


class Histogram:
    """How long something took, by outcome."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], list[int]] = {}
        self._sums: dict[tuple[str, str], float] = {}

    def add(self, verb: str, outcome: str, seconds: float) -> None:
        key = (verb, outcome)
        counts = self._counts.get(key)
        if counts is None:
            counts = self._counts[key] = [0] * (len(BOUNDS) + 1)
            self._sums[key] = 0.0
        counts[bisect_left(BOUNDS, seconds)] += 1
        self._sums[key] += seconds

    def lines(self, name: str) -> Iterator[str]:
        for (verb, outcome), counts in sorted(self._counts.items()):
            labels = f'verb="{verb}",outcome="{outcome}"'
            total = 0
            for bound, count in zip(BOUNDS, counts, strict=False):
                total += count
                yield f'{name}_bucket{{{labels},le="{bound:g}"}} {total}'
            total += counts[-1]
            yield f'{name}_bucket{{{labels},le="+Inf"}} {total}'
            yield f"{name}_sum{{{labels}}} {self._sums[verb, outcome]:.6f}"
            yield f"{name}_count{{{labels}}} {total}"
