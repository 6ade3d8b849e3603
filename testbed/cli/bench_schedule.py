"""``testbed bench schedule``: pods a second through a real API server and scheduler."""

from __future__ import annotations

from typing import Annotated

import typer

from testbed.cli.options import Json, Output, format_of
from testbed.cli.output import Format, emit, errors_as_exit_codes


def schedule(
    nodes: Annotated[int, typer.Option("--nodes", min=1, max=5000, help="Nodes.")] = 500,
    cards: Annotated[int, typer.Option("--cards", min=1, max=64, help="Cards of each.")] = 8,
    pods: Annotated[int, typer.Option("--pods", min=2, help="Pods that are placed.")] = 1000,
    policy: Annotated[
        str, typer.Option("--policy", help="Node policy of the pods: spread or binpack.")
    ] = "spread",
    output: Output = Format.table,
    as_json: Json = False,
) -> None:
    """Measure how fast pods are placed on nodes without kubelets, and where time goes."""
    chosen = format_of(output, as_json)
    with errors_as_exit_codes(chosen):
        from testbed.lab.bench.schedule import document, measure
        from testbed.lab.progress import ConsoleProgress
        from testbed.stack.policy import node_policy

        found = measure(
            ConsoleProgress(), nodes=nodes, cards=cards, pods=pods, policy=node_policy(policy)
        )
        cpu = ", ".join(f"{name} {ms:.1f}" for name, ms in found.cpu_ms_per_pod.items())
        lines = [
            f"{found.pods_per_s:.0f} pods a second: {pods} onto {nodes} nodes in "
            f"{found.seconds:.1f} s",
            f"CPU a pod, ms: {cpu}; all {sum(found.cpu_ms_per_pod.values()):.1f}"
            f" (others took {found.cores_of_others:.1f} cores)",
            "API calls a pod: "
            + ", ".join(f"{call} {count:.2g}" for call, count in found.calls_per_pod.items()),
            f"scheduler: {found.cycle_ms:.2f} ms for each pod alone, the question to the "
            "extender included",
            f"extender: filter {found.filter_ms:.2f} ms ({found.filters_per_pod:.2f} a pod), "
            f"bind {found.bind_ms:.1f} ms with its wait for the node's turn; connections "
            + ", ".join(f"{count} {name}" for name, count in found.connections.items()),
        ]
        emit(document(found), "\n".join(lines), chosen)
