"""``testbed limits`` and ``testbed region``: limits and use of a pod that runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from testbed.cli.options import DEFAULT_NAME, Json, Name, Namespace, Output, format_of
from testbed.cli.output import Format, emit, errors_as_exit_codes

if TYPE_CHECKING:
    from testbed.lab.limits import Held

limits = typer.Typer(
    name="limits",
    help="Show or change the limits of a pod that runs.",
    no_args_is_help=True,
)
region = typer.Typer(
    name="region",
    help="What the library of a pod counts: bytes by kind, launches, waits, by process.",
    no_args_is_help=True,
)

Pod = Annotated[str, typer.Argument(metavar="[NAMESPACE/]POD", help="Which pod.")]
Container = Annotated[
    str, typer.Option("-c", "--container", help="One container; all that hold cards otherwise.")
]


@limits.command(name="show")
def show_limits(
    pod: Pod,
    namespace: Namespace = "",
    container: Container = "",
    name: Name = DEFAULT_NAME,
    output: Output = Format.table,
    as_json: Json = False,
) -> None:
    """Show what a pod's containers were promised, their limits now, and what they use."""
    chosen = format_of(output, as_json)
    with errors_as_exit_codes(chosen):
        from testbed.lab import limits as lab

        held = _held(name, pod, namespace, container)
        emit(held, lab.limits_text(held), chosen)


@limits.command(name="set")
def set_limits(
    pod: Pod,
    gpumem: Annotated[
        int | None, typer.Option("--gpumem", metavar="MIB", help="Memory of each card, MiB.")
    ] = None,
    gpucores: Annotated[
        int | None,
        typer.Option("--gpucores", metavar="PCT", help="Share of each card; 0 or 100 for none."),
    ] = None,
    policy: Annotated[
        str | None, typer.Option("--policy", help="default, force or disable.")
    ] = None,
    namespace: Namespace = "",
    container: Container = "",
    name: Name = DEFAULT_NAME,
    output: Output = Format.table,
    as_json: Json = False,
) -> None:
    """Change limits while a pod runs: lower, and up to what it was promised.

    Programs see it at their next allocation and launch. What they hold is not
    taken: below that they get no more until they have freed enough. The
    scheduler's books keep the promise, so nobody else is given what was lowered.
    """
    chosen = format_of(output, as_json)
    with errors_as_exit_codes(chosen):
        from testbed.lab import limits as lab
        from testbed.lab.testbed import Testbed

        wanted = lab.Wanted(gpumem_mib=gpumem, gpucores_pct=gpucores, policy=policy)
        kube = Testbed(name).kube
        held = lab.set_limits(kube, pod, wanted, namespace=namespace, container=container)
        emit(held, lab.limits_text(held), chosen)


@region.command(name="show")
def show_region(
    pod: Pod,
    namespace: Namespace = "",
    container: Container = "",
    name: Name = DEFAULT_NAME,
    output: Output = Format.table,
    as_json: Json = False,
) -> None:
    """Show a pod's shared regions as its processes wrote them (a tenant could forge them)."""
    chosen = format_of(output, as_json)
    with errors_as_exit_codes(chosen):
        from testbed.lab import limits as lab

        held = _held(name, pod, namespace, container)
        emit(held, lab.region_text(held), chosen)


def _held(name: str, pod: str, namespace: str, container: str) -> list[Held]:
    from testbed.lab import limits as lab
    from testbed.lab.testbed import Testbed

    kube = Testbed(name).kube
    return lab.show(kube, pod, namespace=namespace, container=container)
