"""``testbed bench shim``: what a library between program and driver costs and holds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from testbed.cli.options import Json, Output, format_of
from testbed.cli.output import Format, emit, errors_as_exit_codes

if TYPE_CHECKING:
    from testbed.lab.bench.shim import ShimBench
    from testbed.lab.bench.shim_rows import Row

_PATTERNS = ("lone-deep", "lone-sync", "pair-deep", "pair-sync")


def _only(words: tuple[str, ...]) -> Any:
    return lambda incomplete: [word for word in words if word.startswith(incomplete)]


def shim(
    quick: Annotated[
        bool, typer.Option("--quick", help="The corner rows only: about four minutes.")
    ] = False,
    library: Annotated[
        Path | None,
        typer.Option("--shim", help="Another library for LD_PRELOAD; default: the testbed's own."),
    ] = None,
    clock: Annotated[
        str,
        typer.Option(
            "--clock",
            help="How the card shares its time: slices or sharing.",
            autocompletion=_only(("slices", "sharing")),
        ),
    ] = "slices",
    seconds: Annotated[
        float, typer.Option("--seconds", help="Over how long each share is measured.")
    ] = 10.0,
    parts: Annotated[
        list[str] | None,
        typer.Option(
            "--part",
            help="calls, race, step or accuracy; may be repeated; default: all.",
            autocompletion=_only(("calls", "race", "step", "accuracy")),
        ),
    ] = None,
    limits: Annotated[
        list[int] | None, typer.Option("--limit", help="Only these limits, percent.")
    ] = None,
    kernels: Annotated[
        list[int] | None, typer.Option("--kernel", help="Only these kernels, µs.")
    ] = None,
    patterns: Annotated[
        list[str] | None,
        typer.Option(
            "--pattern",
            help="Only these: " + ", ".join(_PATTERNS) + ".",
            autocompletion=_only(_PATTERNS),
        ),
    ] = None,
    rounds: Annotated[
        int, typer.Option("--rounds", min=1, help="Rounds of the race for the cap.")
    ] = 10_000,
    beside: Annotated[
        int,
        typer.Option(
            "--beside",
            help="Measure so many shares at one time, each on a card of its own; those of"
            " kernels below 100 µs alone; 0: as many as the processors carry.",
        ),
    ] = 0,
    output: Output = Format.table,
    as_json: Json = False,
) -> None:
    """Measure what the limiter costs a call and how true its limits are; needs no cluster.

    Exit status: 0 if all is within its bounds, 1 if not, 2 if it could not be measured.
    """
    chosen = format_of(output, as_json)
    with errors_as_exit_codes(chosen):
        from testbed.lab.bench.shim import PARTS, Options, measure
        from testbed.lab.progress import ConsoleProgress

        options = Options(
            parts=tuple(parts or PARTS),
            quick=quick,
            clock=clock,
            seconds=seconds,
            limits=tuple(limits or ()),
            kernels_us=tuple(kernels or ()),
            patterns=tuple(patterns or ()),
            rounds=rounds,
            beside=beside,
        )
        found = measure(ConsoleProgress(), options, library=library)
        emit(document(found), table(found), chosen)
        if not found.held:
            raise typer.Exit(1)


def document(bench: ShimBench) -> dict[str, Any]:
    """Return what ``-o json`` prints; what was not measured is null."""
    from testbed.lab.bench.shim_rows import BUSY_PCT, RATIO, RATIO_PCT, STEP_S, worst_ratio

    calls = bench.calls
    added = {name: call.added_ns for name, call in calls.items()}
    race, bare = bench.race, bench.bare_race
    return {
        "launch_added_ns": {
            name: added.get(name) for name in ("unlimited", "limited", "limited_200us")
        },
        "alloc_added_ns": added.get("alloc"),
        "free_added_ns": added.get("free"),
        "alloc_async_added_ns": added.get("alloc_async"),
        "free_async_added_ns": added.get("free_async"),
        "calls": calls,
        "accuracy": bench.rows,
        "pair_30_70_ratio": worst_ratio(bench.pairs),
        "pair_busy_pct": min((pair.busy_pct for pair in bench.pairs), default=None),
        "pairs_30_70": bench.pairs,
        "pair_bounds": {
            "ratio": round(RATIO, 3),
            "ratio_within_pct": RATIO_PCT,
            "busy_at_least_pct": BUSY_PCT,
        },
        "limit_steps": [
            {
                "from_pct": step.from_pct,
                "to_pct": step.to_pct,
                "settled_s": step.settled_s,
                "bound_s": STEP_S,
                "control_settled_s": step.control_s,
                "ok": step.ok,
            }
            for step in bench.steps
        ],
        "control": {
            "pair_30_70_ratio": worst_ratio_of_control(bench),
            "pairs_30_70": bench.bare_pairs,
            "cap_race": bare,
        },
        "cap_race": race,
        "library": bench.library,
        "clock": bench.clock,
        "lapped": bench.lapped,
        "held": bench.held,
        "missed": bench.missed,
        "control_failed": bench.control_failed,
        "environment": {
            **{name: getattr(bench.environment, name) for name in bench.environment.__slots__},
            "busy": bench.environment.busy,
        },
    }


def worst_ratio_of_control(bench: ShimBench) -> float | None:
    """Return the control's ratio that is nearest to 70 over 30: it is to be far from it."""
    from testbed.lab.bench.shim_rows import RATIO

    ratios = [pair.ratio for pair in bench.bare_pairs]
    return min(ratios, key=lambda ratio: abs(ratio - RATIO), default=None)


def _had(row: Row) -> str:
    return f"only {row.demand_pct:.1f} % to be had" if row.ceiling else ""


def table(bench: ShimBench) -> str:
    """Return the measurements for people."""
    from testbed.lab.report.table import columns

    lines: list[str] = []
    if bench.calls:
        rows = [
            (
                _mark(a.ok),
                name,
                f"{a.bare_ns:.0f} ns",
                f"{a.added_ns:+.0f} ns",
                f"{a.low_ns:+.0f} to {a.high_ns:+.0f}",
                f"{a.bound_ns:.0f} ns",
            )
            for name, a in bench.calls.items()
        ]
        lines += [columns(("", "CALL", "BARE", "ADDED", "SPREAD", "BOUND"), rows), ""]
    if bench.rows:
        shares = [
            (
                _mark(row.ok),
                f"{row.limit_pct} %",
                f"{row.kernel_us:,} µs",
                row.pattern,
                f"{row.share_pct:.2f} %",
                f"{row.mean_error_pp:+.2f}",
                _allowed(row.bound_pp, row.bound_above_pp, ceiling=row.ceiling),
                f"{row.worst_1s_error_pp:+.2f}",
                f"{row.bound_1s_pp:.1f}",
                ", ".join(filter(None, (_had(row), row.note))),
            )
            for row in bench.rows
        ]  # fmt: skip
        head = ("", "LIMIT", "KERNEL", "PATTERN", "GOT", "OFF", "BOUND", "WORST 1 S", "BOUND", "")
        lines += [columns(head, shares), ""]
    for pair, without in zip(bench.pairs, bench.bare_pairs, strict=True):
        lines.append(
            f"{_mark(pair.ok)} 30 beside 70, {pair.kernel_us:,} µs: work {pair.ratio:.2f} to 1,"
            f" card busy {pair.busy_pct:.1f} %"
            f" (without: {without.ratio:.2f}, {without.busy_pct:.1f} %)"
        )
    for step in bench.steps:
        took = "never settled" if step.settled_s is None else f"settled in {step.settled_s:.2f} s"
        lines.append(
            f"{_mark(step.ok)} a limit of {step.from_pct} % becomes {step.to_pct} %: {took}"
        )
    if bench.race and bench.bare_race:
        race, bare = bench.race, bench.bare_race
        lines.append(
            f"{_mark(not race.passed_cap and race.refused > 0)} race for {race.cap_mib:,} MiB:"
            f" {race.processes} processes, {race.rounds:,} rounds, passed in {race.passed_cap}"
            f" (without: {bare.passed_cap} of {bare.rounds:,})"
        )
    lines += [f"✗ control: {text}" for text in bench.control_failed]
    where = bench.environment
    lines.append(
        f"{bench.library} on {where.cpu}, {where.cores} cores, load {where.load_before:.1f},"
        f" clock {bench.clock}"
    )
    if where.busy:
        lines.append("other processes were busy meanwhile: quiet the machine for true figures")
    return "\n".join(lines)


def _allowed(bound: float, above: float, *, ceiling: bool) -> str:
    if ceiling:
        return f"+{above:.1f}"
    return f"{bound:.1f}" if bound == above else f"-{bound:.1f} +{above:.1f}"


def _mark(held: bool) -> str:
    return "✓" if held else "✗"
