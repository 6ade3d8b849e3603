"""The shares of ``testbed bench shim``: measured side by side, judged, and again if missed."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from testbed.lab.bench.shim_beside import Taken, side_by_side
from testbed.lab.bench.shim_ground import Ground
from testbed.lab.bench.shim_rows import (
    Pair,
    Row,
    Run,
    Shares,
    bare_runs,
    demand,
    judge,
    pair_of,
)
from testbed.lab.cluster.protocol import Progress
from testbed.lab.host import processors

_BARE_SECONDS = 2.0


@dataclass(slots=True)
class Accuracy:
    """What shares were measured."""

    rows: list[Row] = field(default_factory=list)
    pairs: list[Pair] = field(default_factory=list)
    bare_pairs: list[Pair] = field(default_factory=list)


def accuracy(
    places: Sequence[Ground],
    progress: Progress,
    wanted: Sequence[Run],
    *,
    seconds: float,
    clock: str,
) -> Accuracy:
    """Measure the wanted runs, each without the library first.

    Args:
        places: A card for each run that may go at one time.
        progress: Told each step.
        wanted: The runs.
        seconds: Over how long a share is measured.
        clock: Of the cards.

    Raises:
        TestbedError: a tenant ended.
    """
    needed = tuple(bare_runs(wanted))
    text = f"without the library, {len(needed)} runs"
    without = _measure(places, progress, needed, text, seconds=_BARE_SECONDS, library=False)
    bare = {needed[number]: taken.got for number, taken in without.items()}
    text = f"with their limits, {len(wanted)} runs, up to {len(places)} at one time"
    found = _measure(places, progress, wanted, text, seconds=seconds, library=True)
    judged = {n: _judged(wanted[n], taken, bare, clock) for n, taken in found.items()}
    again = [
        number
        for number, (rows, pair) in sorted(judged.items())
        if found[number].beside and not (all(row.ok for row in rows) and (not pair or pair.ok))
    ]
    if again:
        text = f"once more alone, {len(again)} runs that missed beside others"
        missed = [wanted[number] for number in again]
        repeated = _measure(places[:1], progress, missed, text, seconds=seconds, library=True)
        for place, number in enumerate(again):
            alone = _judged(wanted[number], repeated[place], bare, clock)
            judged[number] = _with_earlier(alone, judged[number])
    result = Accuracy()
    for number, run in enumerate(wanted):
        rows, pair = judged[number]
        result.rows += rows
        if pair is not None:
            result.pairs.append(pair)
            control = pair_of(run, bare[run.bare])
            assert control is not None
            result.bare_pairs.append(control)
    return result


_Judged = tuple[tuple[Row, ...], Pair | None]


def _judged(run: Run, taken: Taken[Shares], bare: dict[Run, Shares], clock: str) -> _Judged:
    got = taken.got
    alone = bare[Run(limits=(0,), kernel_us=run.kernel_us, sync=run.sync)]
    rows = []
    for tenant in run.judged:
        most = demand(run, tenant, got, bare[run.bare], alone)
        row = judge(run, tenant, got, demand_pct=most, clock=clock)
        rows.append(replace(row, beside=taken.beside))
    return tuple(rows), pair_of(run, got)


def _with_earlier(alone: _Judged, earlier: _Judged) -> _Judged:
    """Return what counts, with what was measured beside others before."""
    rows = tuple(
        replace(row, earlier=before) for row, before in zip(alone[0], earlier[0], strict=True)
    )
    pair = alone[1] and replace(alone[1], earlier=earlier[1])
    return rows, pair


def _measure(
    places: Sequence[Ground],
    progress: Progress,
    wanted: Sequence[Run],
    text: str,
    *,
    seconds: float,
    library: bool,
) -> dict[int, Taken[Shares]]:
    """Return what each run gave, by its number."""
    stopping = threading.Event()

    def one(run: Run, place: Ground) -> Shares:
        return place.run(run, seconds=seconds, library=library, stopping=stopping)

    found: dict[int, Taken[Shares]] = {}
    with progress.step(text) as step:
        for taken in side_by_side(
            wanted,
            places,
            one,
            limited=library,
            processors=processors(),
            stopping=stopping,
        ):
            found[taken.number] = taken
            run = wanted[taken.number]
            limits = " beside ".join(f"{limit} %" for limit in run.limits)
            had = " and ".join(f"{share:.2f} %" for share in taken.got.mean)
            asked = f", {limits}" if library else ""
            step.update(
                f"{len(found)} of {len(wanted)}: {run.pattern}, {run.kernel_us} µs{asked}: {had}"
            )
    return found
