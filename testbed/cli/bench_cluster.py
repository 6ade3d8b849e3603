"""``testbed bench cluster``: how long clusters take to come and to go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from testbed.cli.bench_figures import medians, table
from testbed.cli.options import (
    CARDS_HELP,
    DEFAULT_CARDS,
    Json,
    Nodes,
    Output,
    Provider,
    complete_cards,
    format_of,
    resolved,
)
from testbed.cli.output import Format, emit, errors_as_exit_codes

if TYPE_CHECKING:
    from testbed.lab.bench.cluster import ClusterBench


def cluster(
    repeat: Annotated[
        int, typer.Option("--repeat", min=1, max=100, help="How often; medians count.")
    ] = 3,
    provider: Provider = "",
    cards: Annotated[
        str, typer.Option("--cards", help=CARDS_HELP, autocompletion=complete_cards)
    ] = DEFAULT_CARDS,
    nodes: Nodes = None,
    name: Annotated[
        str, typer.Option("--name", help="Name of the testbed it brings up.")
    ] = "bench",
    check: Annotated[
        bool, typer.Option("--check", help="Exit with 1 where an aim is missed.")
    ] = False,
    output: Output = Format.table,
    as_json: Json = False,
) -> None:
    """Measure how long a cluster takes to be ready, to run a first pod, and to be gone."""
    chosen = format_of(output, as_json)
    with errors_as_exit_codes(chosen):
        from testbed.lab.bench.cluster import measure
        from testbed.lab.progress import ConsoleProgress
        from testbed.lab.testbed import cluster_spec

        found = measure(
            ConsoleProgress(),
            name=name,
            provider=resolved(provider, name),
            spec=cluster_spec(cards, nodes),
            repeat=repeat,
        )
        emit(document(found), text(found), chosen)
        if check and not found.held:
            raise typer.Exit(1)


def document(bench: ClusterBench) -> dict[str, Any]:
    """Return what ``-o json`` prints: the medians by provider and key, then their spread."""
    return {
        bench.provider: {**medians(bench.figures), "nodes": bench.nodes},
        "held": bench.held,
        "environment": bench.environment,
    }


def text(bench: ClusterBench) -> str:
    """Return the measurements for people."""
    count = "1 node" if bench.nodes == 1 else f"{bench.nodes} nodes"
    return table(bench.figures, f"{bench.provider}, {count},", bench.environment)
