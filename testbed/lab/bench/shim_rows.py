"""Rows of ``testbed bench shim``: which are run, how far from its limit each may be. Pure.

The bounds are within reach of any controller that sees device time by kernels: a kernel that
has begun cannot be taken back, so a window is allowed the length of one more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product

from testbed.errors import InputError

LIMITS = (5, 10, 25, 30, 50, 75, 90)
KERNELS_US = (5, 100, 5_000, 50_000, 200_000)
PATTERNS = ("lone-deep", "lone-sync", "pair-deep", "pair-sync")
QUICK_LONE, QUICK_PAIR, QUICK_KERNELS_US = (10, 30, 75), (30, 70), KERNELS_US[:4]

#: Work of 70 over work of 30, and how far from it a pair may be.
RATIO, RATIO_PCT = 70 / 30, 6.0
#: Least part of its time that a card with a pair that fills it is busy, percent.
BUSY_PCT = 93.0
#: A change of a limit: until the share is the new one within some points, s, and in windows
#: of which length that is looked at.
STEP_S, STEP_POINTS, STEP_WINDOW_S = 2.0, 3.0, 0.5
#: From how much of its time on a tenant that waited for a processor is told of.
STARVED_PCT = 3.0
#: Windows of a minute leave the length of a kernel out of account.
_LONG_SECONDS = 60.0
_MS10_US = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Tenants that run at one time: one alone, or two.

    Attributes:
        limits: Of each, percent; 0 is none.
        judged: Which of them are rows of the result.
    """

    limits: tuple[int, ...]
    kernel_us: int
    sync: bool
    judged: tuple[int, ...] = (0,)

    @property
    def pattern(self) -> str:
        return f"{'lone' if len(self.limits) == 1 else 'pair'}-{'sync' if self.sync else 'deep'}"

    @property
    def bare(self) -> Run:
        """The same without a limiter."""
        return Run(limits=(0,) * len(self.limits), kernel_us=self.kernel_us, sync=self.sync)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """What the card granted to each tenant of a run, percent.

    Attributes:
        mean: Over the whole time, by tenant.
        windows: Over each second of it, by tenant.
        seconds: The whole time.
        starved: How much of it each tenant's threads waited for a processor; empty where the
            kernel does not tell.
    """

    mean: tuple[float, ...]
    windows: tuple[tuple[float, ...], ...]
    seconds: float
    starved: tuple[float, ...] = ()

    @property
    def busy(self) -> float:
        return sum(self.mean)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How far a row may be from its limit, percentage points.

    Attributes:
        below, above: The mean over the whole time.
        second: Any window of a second.
    """

    below: float
    above: float
    second: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One tenant of one run, judged.

    Attributes:
        demand_pct: The most that it could have had there, by runs without a limiter.
        ceiling: Its demand is below its limit, which then only bounds it from above.
        mean_error_pp: What it had over its limit, over the whole time.
        worst_1s_error_pp: The same in the worst second; for a ceiling the most.
        bound_pp: What ``mean_error_pp`` may be at most, whichever way it is off.
        bound_above_pp: What it may be above.
        bound_1s_pp: What the worst second may be.
        starved_pct: How much of the time it waited for a processor of the host: what it did
            not launch meanwhile is not the library's doing. None where that is not known.
        beside: How many other runs were measured at the same time, on cards of their own.
        earlier: What was measured beside others, where that missed and this is the same alone.
    """

    limit_pct: int
    kernel_us: int
    pattern: str
    clock: str
    seconds: float
    share_pct: float
    demand_pct: float
    ceiling: bool
    mean_error_pp: float
    worst_1s_error_pp: float
    bound_pp: float
    bound_above_pp: float
    bound_1s_pp: float
    starved_pct: float | None = None
    beside: int = 0
    earlier: Row | None = None
    ok: bool

    @property
    def note(self) -> str:
        """What else is to be said of it, empty: nothing."""
        notes = []
        if self.earlier is not None:
            notes.append(f"beside others {self.earlier.mean_error_pp:+.2f}")
        if self.starved_pct is not None and self.starved_pct >= STARVED_PCT:
            notes.append(f"waited {self.starved_pct:.0f} % of the time for a processor")
        return ", ".join(notes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A pair of 30 and 70 that is kept queued.

    Attributes:
        earlier: As of a row.
    """

    kernel_us: int
    ratio: float
    busy_pct: float
    ok: bool
    earlier: Pair | None = None


def runs(
    limits: Sequence[int], kernels_us: Sequence[int], patterns: Sequence[str], *, quick: bool
) -> tuple[Run, ...]:
    """Return what has to be run; a pair whose limits are both asked for is run once.

    Args:
        limits: Empty for the standard ones.
        kernels_us: Likewise.
        patterns: Likewise.
        quick: The corner rows only, where nothing else is said.

    Raises:
        InputError: a limit, a length or a pattern that cannot be.
    """
    _check(limits, kernels_us, patterns)
    lone = tuple(limits) or (QUICK_LONE if quick else LIMITS)
    pairs = tuple(limits) or (QUICK_PAIR if quick else LIMITS)
    lengths = tuple(kernels_us) or (QUICK_KERNELS_US if quick else KERNELS_US)
    found: dict[tuple[frozenset[int], int, bool], Run] = {}
    for pattern, length in product(patterns or PATTERNS, lengths):
        sync = pattern.endswith("sync")
        if pattern.startswith("lone"):
            for limit in lone:
                run = Run(limits=(limit,), kernel_us=length, sync=sync)
                found[frozenset(run.limits), length, sync] = run
            continue
        for limit in pairs:
            both = frozenset({limit, 100 - limit})
            pair = tuple(sorted(both)) if len(both) == 2 else (limit, limit)
            judged = tuple(i for i, each in enumerate(pair) if each in pairs)
            key = (both | {-1}, length, sync)
            found[key] = Run(limits=pair, kernel_us=length, sync=sync, judged=judged)
    return tuple(found.values())


def _check(limits: Sequence[int], kernels_us: Sequence[int], patterns: Sequence[str]) -> None:
    for limit in limits:
        if not 1 <= limit <= 99:
            raise InputError(f"{limit} is no limit", hint="percent, 1 to 99")
    for length in kernels_us:
        if not 1 <= length <= 1_000_000:
            raise InputError(f"a kernel of {length} µs", hint="1 to 1000000")
    for pattern in patterns:
        if pattern not in PATTERNS:
            raise InputError(
                f"there is no pattern {pattern!r}", hint="one of " + ", ".join(PATTERNS)
            )


def bounds(kernel_us: int, *, pair: bool, clock: str, seconds: float) -> Bounds:
    """Return how far a row may be off.

    Alone 1 point, beside a neighbour 2, and a kernel's length in percent of the time (none
    from a minute on). On a card that runs its tenants' kernels side by side a share above
    the limit takes from the neighbour what nobody can give back: 1 point there. A second:
    3 points, for kernels above 10 ms and their length in percent of it, twice in a pair.
    """
    length = 0.0 if seconds >= _LONG_SECONDS else kernel_us / 1e4 / seconds
    below = (2.0 if pair else 1.0) + length
    above = 1.0 + length if clock == "sharing" else below
    second = 3.0
    if kernel_us > _MS10_US:
        second += kernel_us / 1e4 * (2 if pair else 1)
    return Bounds(below=below, above=above, second=second)


def demand(run: Run, number: int, got: Shares, bare: Shares, lone: Shares) -> float:
    """Return the most that a tenant of a run could have had, percent.

    Alone: what it has without a limiter. In a pair: its part of a pair without a limiter, or,
    where that is more, what such a pair keeps the card busy less what the other one had; never
    more than it takes alone.

    Args:
        run: The run.
        number: The tenant.
        got: What the run gave.
        bare: The same run without a limiter.
        lone: The tenant alone and without a limiter.
    """
    if len(run.limits) == 1:
        return bare.mean[0]
    left = bare.busy - sum(share for i, share in enumerate(got.mean) if i != number)
    return min(lone.mean[0], max(bare.mean[number], left))


def judge(run: Run, number: int, got: Shares, *, demand_pct: float, clock: str) -> Row:
    """Return the row of one tenant of a run."""
    limit = run.limits[number]
    allowed = bounds(
        run.kernel_us, pair=len(run.limits) > 1, clock=clock, seconds=round(got.seconds)
    )
    errors = [window - limit for window in got.windows[number]]
    mean = got.mean[number] - limit
    ceiling = demand_pct < limit
    worst = max(errors) if ceiling else max(errors, key=abs)
    held = mean <= allowed.above and worst <= allowed.second
    if not ceiling:
        held = held and mean >= -allowed.below and worst >= -allowed.second
    return Row(
        limit_pct=limit,
        kernel_us=run.kernel_us,
        pattern=run.pattern,
        clock=clock,
        seconds=round(got.seconds, 1),
        share_pct=round(got.mean[number], 2),
        demand_pct=round(demand_pct, 1),
        ceiling=ceiling,
        mean_error_pp=round(mean, 2),
        worst_1s_error_pp=round(worst, 2),
        bound_pp=round(allowed.below, 2),
        bound_above_pp=round(allowed.above, 2),
        bound_1s_pp=round(allowed.second, 2),
        starved_pct=round(got.starved[number], 1) if got.starved else None,
        ok=held,
    )


def pair_of(run: Run, got: Shares) -> Pair | None:
    """Return the figures of a pair of 30 and 70 that keeps work queued, None of another."""
    if sorted(run.limits) != [30, 70] or run.sync:
        return None
    small, large = (share for _, share in sorted(zip(run.limits, got.mean, strict=True)))
    ratio = large / small if small else float("inf")
    return Pair(
        kernel_us=run.kernel_us,
        ratio=round(ratio, 3),
        busy_pct=round(got.busy, 2),
        ok=near(ratio) and got.busy >= BUSY_PCT,
    )


def near(ratio: float) -> bool:
    """Tell whether a ratio of work is that of 70 and 30."""
    return abs(ratio / RATIO - 1) * 100 <= RATIO_PCT


def worst_ratio(pairs: Iterable[Pair]) -> float | None:
    """Return the ratio that is farthest from that of 70 and 30."""
    return max((p.ratio for p in pairs), key=lambda r: abs(r - RATIO), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitStep:
    """A limit that is changed while its tenant works.

    Attributes:
        settled_s: How long after the change the share was the new one for good; None: it
            never was while that was looked at.
        control_s: The same where the limit was not changed: to be None.
    """

    from_pct: int
    to_pct: int
    settled_s: float | None
    control_s: float | None

    @property
    def ok(self) -> bool:
        return self.settled_s is not None and self.settled_s <= STEP_S


def settled(
    looks: Sequence[tuple[int, Mapping[int, int]]], pid: int, changed_ns: int, to_pct: int
) -> float | None:
    """Return how long after a change a tenant's share was what it is to be, for good, s.

    Args:
        looks: Time in ns and device time by pid in ns, several in each window.
        pid: The tenant.
        changed_ns: When its limit was changed.
        to_pct: The new limit.
    """
    found: float | None = None
    for start, (begin, busy) in enumerate(looks):
        later = [look for look in looks[start:] if look[0] - begin >= STEP_WINDOW_S * 1e9]
        if begin < changed_ns or not later:
            continue
        end, after = later[0]
        share = (after.get(pid, 0) - busy.get(pid, 0)) / (end - begin) * 100
        if abs(share - to_pct) > STEP_POINTS:
            found = None
        elif found is None:
            found = (begin - changed_ns) / 1e9
    return found


def bare_runs(wanted: Sequence[Run]) -> Iterator[Run]:
    """Return the runs without a limiter that the wanted ones are compared with, each once.

    A pair's tenants are looked at alone as well.
    """
    seen: dict[Run, None] = {}
    for run in wanted:
        alone = Run(limits=(0,), kernel_us=run.kernel_us, sync=run.sync)
        seen |= dict.fromkeys((alone, run.bare))
    yield from seen


def shares_between(
    looks: Sequence[tuple[int, Mapping[int, int]]],
    pids: Sequence[int],
    waited_ns: Sequence[int] = (),
) -> Shares:
    """Return shares from looks at the card's book.

    Args:
        looks: Time in ns and device time by pid in ns, one a second and one at the start.
        pids: The tenants.
        waited_ns: How long each of them waited for a processor meanwhile; empty: not known.
    """
    first, last = looks[0], looks[-1]

    def percent(
        a: tuple[int, Mapping[int, int]], b: tuple[int, Mapping[int, int]], pid: int
    ) -> float:
        return (b[1].get(pid, 0) - a[1].get(pid, 0)) / (b[0] - a[0]) * 100

    return Shares(
        mean=tuple(percent(first, last, pid) for pid in pids),
        windows=tuple(tuple(percent(a, b, pid) for a, b in pairwise(looks)) for pid in pids),
        seconds=(last[0] - first[0]) / 1e9,
        starved=tuple(waited / (last[0] - first[0]) * 100 for waited in waited_ns),
    )
