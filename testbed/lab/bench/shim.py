"""``testbed bench shim``: what a library between program and driver costs, and what it holds.

On an emulated card of its own, without a cluster; each figure beside the bare driver's in
the same run. The judge is the card's own book of the time and memory that it granted.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from testbed.errors import InputError, TestbedError
from testbed.lab import command
from testbed.lab.bench.figures import Environment, environment
from testbed.lab.bench.shim_accuracy import Accuracy, accuracy
from testbed.lab.bench.shim_beside import MOST, usual
from testbed.lab.bench.shim_ground import Ground, ground
from testbed.lab.bench.shim_rows import (
    LimitStep,
    Pair,
    Row,
    near,
    runs,
)
from testbed.lab.cluster.protocol import Progress
from testbed.lab.host import load, processors
from testbed.native import artifacts
from testbed.units import MIB

PARTS = ("calls", "race", "step", "accuracy")
CLOCKS = ("slices", "sharing")
#: ns: a launch without a limit, one that is limited and within its budget (kernels up to
#: 20 µs), a call that allocates or releases.
LAUNCH_UNLIMITED_NS, LAUNCH_LIMITED_NS, MEMORY_NS = 60.0, 200.0, 1000.0
#: Of a longer kernel's time, percent.
LONG_LAUNCH_PCT = 2.0

#: Short rounds, so that what the machine does meanwhile meets both ways of a round alike.
_ROUNDS = 21
_DEADLINE_S = 120.0
#: (batches, launches a batch, kernel ns, pause us) of short and of long kernels: a quarter
#: of the card's time, where the limit is half of it; a batch fits a stream's queue.
_SHORT = (16, 400, 5_000, 6_000)
_LONG = (12, 20, 200_000, 12_000)
_HALF = 50
_MEMORY = (16, 64, 2 * MIB)
#: Batches in which kernels are learned, not counted.
_WARM = 6

#: Changes of a limit while its tenant works, percent.
_STEPS = ((20, 60), (60, 20))

_RACERS = 8
RACE_ROUNDS = 10_000
#: Of the race: what there is beyond a context for each of the racers and one more, MiB; and what
#: there is at least without that one more. Of two blocks of more than half of that one fits, and
#: where no other is there it is far from the limit (256 MiB, ``shim/account.h``), so that the
#: library may charge it without a lock.
_ROOM_MIB, _LEAST_MIB = 64, 640


@dataclass(frozen=True, slots=True, kw_only=True)
class Added:
    """What a call costs more than without the library, ns.

    Attributes:
        bare_ns: The call without it.
        added_ns: Median of the rounds' differences.
        low_ns, high_ns: Their quartiles: half of the rounds lie between them.
        bound_ns: What it may be.
    """

    bare_ns: float
    added_ns: float
    low_ns: float
    high_ns: float
    bound_ns: float

    @property
    def ok(self) -> bool:
        return self.added_ns <= self.bound_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Race:
    """Processes that race for a cap.

    Attributes:
        passed_cap: Rounds in which more was granted than the cap.
        most_mib: The most that was granted in a round, with contexts.
        refused: Allocations that were refused.
    """

    rounds: int
    processes: int
    passed_cap: int
    most_mib: int
    cap_mib: int
    refused: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What is measured.

    Attributes:
        parts: Some of ``PARTS``.
        seconds: Over how long a share is measured.
        beside: How many shares are measured at one time at most; 0: by the processors.
    """

    parts: Sequence[str] = PARTS
    quick: bool = False
    clock: str = "slices"
    seconds: float = 10.0
    limits: Sequence[int] = ()
    kernels_us: Sequence[int] = ()
    patterns: Sequence[str] = ()
    rounds: int = RACE_ROUNDS
    beside: int = 0

    def __post_init__(self) -> None:
        if unknown := set(self.parts) - set(PARTS):
            raise InputError(
                f"there is no part {min(unknown)!r}", hint="one of " + ", ".join(PARTS)
            )
        if self.clock not in CLOCKS:
            raise InputError(
                f"there is no clock {self.clock!r}", hint="one of " + ", ".join(CLOCKS)
            )
        if not 2 <= self.seconds <= 600 or self.rounds < 1:
            raise InputError(
                f"{self.rounds} rounds, {self.seconds:g} s cannot be measured",
                hint="at least one round, 2 to 600 seconds",
            )
        if not 0 <= self.beside <= MOST:
            raise InputError(f"{self.beside} runs at one time", hint=f"1 to {MOST}; 0: by itself")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShimBench:
    """What was measured; a part that was left out is empty.

    Attributes:
        calls: By name: ``unlimited``, ``limited``, ``limited_200us``, ``alloc``, ``free``,
            and of stream-ordered memory ``alloc_async``, ``free_async``.
        rows: The shares.
        pairs: Those of 30 beside 70 with work queued.
        bare_pairs: The same without the library, for the control.
        steps: Limits that were changed while their tenants worked.
        race, bare_race: The race for the cap, and without the library.
        lapped: Points of the card's time that were interpolated meanwhile.
    """

    library: str
    clock: str
    calls: dict[str, Added] = field(default_factory=dict)
    rows: tuple[Row, ...] = ()
    pairs: tuple[Pair, ...] = ()
    bare_pairs: tuple[Pair, ...] = ()
    steps: tuple[LimitStep, ...] = ()
    race: Race | None = None
    bare_race: Race | None = None
    lapped: int = 0
    environment: Environment

    @property
    def missed(self) -> tuple[str, ...]:
        """What is outside its bounds, a line each."""
        found = [f"{name}: {a.added_ns:.0f} ns" for name, a in self.calls.items() if not a.ok]
        found += [
            f"{row.pattern} {row.kernel_us} µs at {row.limit_pct} %: {row.mean_error_pp:+.2f},"
            f" worst second {row.worst_1s_error_pp:+.2f}" + (f" ({row.note})" if row.note else "")
            for row in self.rows
            if not row.ok
        ]
        found += [
            f"30 beside 70, {pair.kernel_us} µs: {pair.ratio:.2f}, busy {pair.busy_pct:.1f} %"
            for pair in self.pairs
            if not pair.ok
        ]
        found += [
            f"from {step.from_pct} to {step.to_pct} %: "
            + ("never settled" if step.settled_s is None else f"settled in {step.settled_s:.1f} s")
            for step in self.steps
            if not step.ok
        ]
        if self.race and self.race.passed_cap:
            found.append(f"the cap was passed in {self.race.passed_cap} rounds")
        if self.race and not self.race.refused:
            found.append("nothing was refused: nobody raced for the cap")
        return tuple(found)

    @property
    def control_failed(self) -> tuple[str, ...]:
        """What the bare driver holds as well, so that nothing is proved by it."""
        found = [
            f"without the library 30 beside 70, {pair.kernel_us} µs, are {pair.ratio:.2f} too"
            for pair in self.bare_pairs
            if near(pair.ratio)
        ]
        found += [
            f"a limit of {step.from_pct} % that was not changed gives {step.to_pct} % too"
            for step in self.steps
            if step.control_s is not None
        ]
        if self.bare_race and not self.bare_race.passed_cap:
            found.append("without the library the cap was not passed either")
        return tuple(found)

    @property
    def held(self) -> bool:
        return not self.missed and not self.control_failed


def measure(progress: Progress, options: Options, *, library: Path | None = None) -> ShimBench:
    """Measure a library.

    Args:
        progress: Told each step.
        options: What.
        library: An interposer for LD_PRELOAD; the testbed's own where none is given.

    Raises:
        InputError: a file that is not there.
        MissingTool: something has not been built.
        TestbedError: a program failed.
    """
    wanted = runs(options.limits, options.kernels_us, options.patterns, quick=options.quick)
    measured = (library or artifacts.library("libvgpu.so")).absolute()
    if not measured.is_file():
        raise InputError(f"there is no library {measured}")
    before = load()
    calls: dict[str, Added] = {}
    race = bare_race = None
    steps: tuple[LimitStep, ...] = ()
    taken = Accuracy()
    with contextlib.ExitStack() as ending:
        place = ending.enter_context(ground(progress, library=measured, clock=options.clock))
        places = [place]
        if "calls" in options.parts:
            calls = _calls(place, progress)
        if "race" in options.parts:
            race = _race(place, progress, options.rounds, library=True)
            bare_race = _race(place, progress, max(1, options.rounds // 10), library=False)
        if "step" in options.parts:
            steps = tuple(_step(place, progress, *each) for each in _STEPS)
        if "accuracy" in options.parts:
            for _ in range(min(options.beside or usual(processors()), len(wanted)) - 1):
                more = ground(progress, library=measured, clock=options.clock)
                places.append(ending.enter_context(more))
            taken = accuracy(places, progress, wanted, seconds=options.seconds, clock=options.clock)
        lapped = sum(each.lapped() for each in places)
    builds = {
        measured.name: artifacts.build_of(measured.read_bytes()),
        "libcuda.so.1": artifacts.build_of(artifacts.library("libcuda.so.1").read_bytes()),
    }
    return ShimBench(
        library=str(library or measured.name),
        clock=options.clock,
        calls=calls,
        rows=tuple(taken.rows),
        pairs=tuple(taken.pairs),
        bare_pairs=tuple(taken.bare_pairs),
        steps=steps,
        race=race,
        bare_race=bare_race,
        lapped=lapped,
        environment=environment(before, builds),
    )


# --- a limit that changes -------------------------------------------------------------
def _step(place: Ground, progress: Progress, before_pct: int, after_pct: int) -> LimitStep:
    """Change a limit while its tenant works, and once more without changing it."""
    with progress.step(f"a limit of {before_pct} % becomes {after_pct} %") as step:
        took = place.step(before_pct, after_pct, change=True)
        step.update("never settled" if took is None else f"settled in {took:.2f} s")
        control = place.step(before_pct, after_pct, change=False)
    return LimitStep(
        from_pct=before_pct,
        to_pct=after_pct,
        settled_s=None if took is None else round(took, 2),
        control_s=control,
    )


# --- the cost of calls -----------------------------------------------------------------
def _calls(place: Ground, progress: Progress) -> dict[str, Added]:
    """Measure calls in rounds, bare and not in turns: what the machine does meets all.

    Which of the two is first changes from round to round.
    """
    ways = {
        "unlimited": (0, ("launch", *_SHORT), LAUNCH_UNLIMITED_NS),
        "limited": (_HALF, ("launch", *_SHORT), LAUNCH_LIMITED_NS),
        "limited_200us": (_HALF, ("launch", *_LONG), _LONG[2] * LONG_LAUNCH_PCT / 100),
    }
    bare: dict[str, list[float]] = {}
    with_it: dict[str, list[float]] = {}
    with progress.step(f"launches and allocations, {_ROUNDS} rounds") as step:
        for number in range(_ROUNDS):
            for name, (limit, arguments, _) in ways.items():
                for found, given in turned(((bare, None), (with_it, limit)), number):
                    took = [line[0] for line in _told(place, given, arguments)]
                    found.setdefault(name, []).append(statistics.median(took[_WARM:]))
            for found, mem_mib in turned(((bare, None), (with_it, 4096)), number):
                limit_pct = None if mem_mib is None else 0
                for what, suffix in (("memory", ""), ("ordered", "_async")):
                    lines = _told(place, limit_pct, (what, *_MEMORY), mem_mib or 0)[_WARM:]
                    for name, values in zip(
                        ("alloc", "free"), zip(*lines, strict=True), strict=True
                    ):
                        found.setdefault(name + suffix, []).append(statistics.median(values))
            last = with_it["limited"][-1] - bare["limited"][-1]
            step.update(f"{number + 1} of {_ROUNDS}: {last:+.0f} ns a limited launch")
    allowed = {name: bound for name, (_, _, bound) in ways.items()}
    return {name: _added(bare[name], with_it[name], allowed.get(name, MEMORY_NS)) for name in bare}


_Way = TypeVar("_Way")


def turned(ways: tuple[_Way, _Way], number: int) -> tuple[_Way, _Way]:
    """Return two ways in the order of a round."""
    return (ways[1], ways[0]) if number % 2 else ways


def _added(bare: Sequence[float], with_it: Sequence[float], bound_ns: float) -> Added:
    more = [b - a for a, b in zip(bare, with_it, strict=True)]
    low, _, high = statistics.quantiles(more, n=4, method="inclusive")
    return Added(
        bare_ns=round(statistics.median(bare), 1),
        added_ns=round(statistics.median(more), 1),
        low_ns=round(low, 1),
        high_ns=round(high, 1),
        bound_ns=bound_ns,
    )


def _told(
    place: Ground, limit_pct: int | None, arguments: Sequence[object], mem_mib: int = 0
) -> list[tuple[float, ...]]:
    """Run the program to its end and return the numbers of each line."""
    _, environ = place.variables(limit_pct=limit_pct, mem_mib=mem_mib)
    words = [str(place.program), *map(str, arguments)]
    what = f"cannot measure: {' '.join(words[1:])}"
    output = command.run(words, what=what, timeout_s=_DEADLINE_S, environ=environ)
    try:
        lines = [tuple(float(word) for word in line.split()) for line in output.splitlines()]
    except ValueError as error:
        raise TestbedError(f"{place.program.name} printed no figures", why=output[:200]) from error
    if not lines:
        raise TestbedError(f"{place.program.name} printed nothing", why=" ".join(words[1:]))
    return lines


def _race(place: Ground, progress: Progress, rounds: int, *, library: bool) -> Race:
    """Let processes race for a cap that has room for one context more, and a little.

    In half of the rounds all ask for many blocks, so that most are refused; in the others two ask
    at the same instant, far from the cap before and beyond it with both.
    """
    context = place.description.context_bytes
    room_mib = max(context // MIB + _ROOM_MIB, _LEAST_MIB)
    cap_mib = _RACERS * context // MIB + room_mib
    which = "" if library else " without the library"
    with progress.step(f"{_RACERS} processes race for a cap{which}, {rounds} rounds") as step:
        ((done, passed, most, refused),) = _told(
            place,
            0 if library else None,
            ("race", _RACERS, rounds, cap_mib * MIB, context),
            cap_mib,
        )
        step.update(f"passed in {passed:.0f}")
    return Race(
        rounds=int(done),
        processes=_RACERS,
        passed_cap=int(passed),
        most_mib=int(most) // MIB,
        cap_mib=cap_mib,
        refused=int(refused),
    )
