"""``testbed bench``: measurements of the testbed itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from testbed.cli.bench_figures import medians, table
from testbed.cli.options import Json, Output, complete_profile, format_of
from testbed.cli.output import Format, emit, errors_as_exit_codes

if TYPE_CHECKING:
    from testbed.lab.bench.card import CardBench

app = typer.Typer(
    help="Measure the testbed itself: what calls cost, how true its time is.",
    no_args_is_help=True,
)


@app.command()
def card(
    profile: Annotated[
        str,
        typer.Option("--card", help="Which card is emulated.", autocompletion=complete_profile),
    ] = "a100-80gb",
    repeat: Annotated[
        int, typer.Option("--repeat", min=1, max=100, help="Starts of PyTorch that count.")
    ] = 3,
    seconds: Annotated[
        float,
        typer.Option("--seconds", help="Length of the run that the card's time is judged by."),
    ] = 10.0,
    torch: Annotated[
        bool, typer.Option("--torch/--no-torch", help="With what needs PyTorch.")
    ] = True,
    check: Annotated[
        bool, typer.Option("--check", help="Exit with 1 where an aim is missed.")
    ] = False,
    output: Output = Format.table,
    as_json: Json = False,
) -> None:
    """Measure launches, allocations, PyTorch's start and the card's time; needs no cluster."""
    chosen = format_of(output, as_json)
    with errors_as_exit_codes(chosen):
        from testbed.lab.bench.card import measure
        from testbed.lab.progress import ConsoleProgress

        found = measure(
            ConsoleProgress(), profile=profile, repeat=repeat, seconds=seconds, with_torch=torch
        )
        emit(document(found), text(found), chosen)
        if check and not found.held:
            raise typer.Exit(1)


def document(bench: CardBench) -> dict[str, Any]:
    """Return what ``-o json`` prints: the medians by key, then where they come from."""
    return {
        **medians(bench.figures),
        "alloc_free_us_by_bytes": {str(k): v for k, v in bench.allocations.items()},
        "card": bench.profile,
        "held": bench.held,
        "environment": bench.environment,
    }


def text(bench: CardBench) -> str:
    """Return the measurements for people."""
    return table(bench.figures, bench.profile, bench.environment)
