"""``testbed bench extender``: how fast and how right the scheduler extender decides."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from testbed.cli.options import Json, Output, format_of
from testbed.cli.output import Format, emit, errors_as_exit_codes

if TYPE_CHECKING:
    from testbed.lab.bench.extender import ExtenderBench


class Protocol(StrEnum):
    """What a client of the extender speaks, by the names of ALPN."""

    h2 = "h2"
    http1 = "http/1.1"


def extender(
    nodes: Annotated[int, typer.Option("--nodes", min=1, max=20_000, help="Nodes.")] = 1000,
    cards: Annotated[int, typer.Option("--cards", min=1, max=64, help="Cards of each.")] = 8,
    pods: Annotated[
        int | None,
        typer.Option("--pods", min=0, help="Pods that are placed already (default: 20 a node)."),
    ] = None,
    requests: Annotated[
        int, typer.Option("--requests", min=10, max=100_000, help="Requests of each case.")
    ] = 400,
    verify: Annotated[
        int,
        typer.Option(
            "--verify", min=0, help="Decisions of each case compared with the plain reference."
        ),
    ] = 30,
    seed: Annotated[int, typer.Option("--seed", help="Of everything random.")] = 1,
    protocol: Annotated[
        Protocol, typer.Option("--protocol", help="What the client speaks; a scheduler does h2.")
    ] = Protocol.h2,
    output: Output = Format.table,
    as_json: Json = False,
) -> None:
    """Measure filter over HTTPS in front of a made-up cluster; exit 1 where it errs."""
    chosen = format_of(output, as_json)
    with errors_as_exit_codes(chosen):
        from testbed.lab.bench.extender import measure
        from testbed.lab.progress import ConsoleProgress

        found = measure(
            ConsoleProgress(),
            nodes=nodes,
            cards=cards,
            pods=20 * nodes if pods is None else pods,
            requests=requests,
            verify=min(verify, requests),
            seed=seed,
            protocol=protocol.value,
        )
        emit(document(found), table(found), chosen)
        if found.differences:
            raise typer.Exit(1)


def document(bench: ExtenderBench) -> dict[str, Any]:
    """Return what ``-o json`` prints."""
    import dataclasses

    from testbed.lab.bench.extender import environment

    return {**dataclasses.asdict(bench), "environment": environment()}


def table(bench: ExtenderBench) -> str:
    """Return the measurements for people."""
    from testbed.lab.report.table import columns

    rows = [
        (
            case,
            f"{found['p50']:.3f} ms",
            f"{found['p99']:.3f} ms",
            f"{bench.per_s[case]:,.0f}",
            f"{bench.cpu_ms[case]:.3f} ms" if case in bench.cpu_ms else "-",
            f"{bench.waited_ms[case]:.3f} ms" if case in bench.waited_ms else "-",
        )
        for case, found in bench.filter_ms.items()
    ]
    lines = [
        columns(("FILTER", "MEDIAN", "P99", "A SECOND", "CPU OF IT", "WAITED FOR CPU"), rows),
        f"{bench.nodes:,} nodes of {bench.cards} cards, {bench.pods:,} pods; "
        f"read in {bench.load_s:.2f} s; {bench.rss_mb:.0f} MB (at most {bench.rss_peak_mb:.0f})",
        f"requests of {bench.payload_kb:.0f} kB by {bench.protocol}, {bench.shapes} mixed shapes, "
        f"{bench.several_pct:.0f} % with several containers",
        f"{bench.verified} decisions compared with the reference: "
        + ("all the same" if not bench.differences else f"{len(bench.differences)} differ"),
        *(f"✗ {text}" for text in bench.differences[:10]),
    ]
    return "\n".join(lines)
