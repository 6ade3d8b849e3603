"""``testbed top``: who uses the cards, live."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from testbed.cli.options import DEFAULT_NAME, Json, Name, Output, format_of
from testbed.cli.output import Format, emit, errors_as_exit_codes

if TYPE_CHECKING:
    from testbed.lab.kube import Kube


def top(
    namespace: Annotated[
        str, typer.Option("-n", "--namespace", help="Show pods of this namespace only.")
    ] = "",
    every: Annotated[
        float, typer.Option("--every", min=0.5, max=60, help="Seconds between looks.")
    ] = 2.0,
    span: Annotated[
        float, typer.Option("--span", min=1, max=60, help="Seconds that shares and waits are over.")
    ] = 5.0,
    once: Annotated[bool, typer.Option("--once", help="Print one look and end.")] = False,
    name: Name = DEFAULT_NAME,
    output: Output = Format.table,
    as_json: Json = False,
) -> None:
    """Show nodes, cards and pods: what each asked, gets and waits for.

    Live on a terminal (Ctrl-C ends it), once elsewhere and with -o json.
    """
    chosen = format_of(output, as_json)
    with errors_as_exit_codes(chosen):
        from testbed.lab import top as lab
        from testbed.lab.testbed import Testbed

        kube = Testbed(name).kube
        if once or chosen is Format.json or not sys.stdout.isatty():
            look = lab.gather(kube, span_s=span, namespace=namespace)
            emit(look, lab.text(look, options=_named(name)), chosen)
        else:
            _live(kube, name, namespace, every, span)


def _live(kube: Kube, name: str, namespace: str, every: float, span: float) -> None:
    from rich.console import Console
    from rich.live import Live

    from testbed.errors import TestbedError
    from testbed.lab import top as lab

    console = Console()
    look = lab.gather(kube, span_s=span, namespace=namespace)  # an error here ends the command
    problem, fresh = "", time.monotonic()
    try:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                title = f"testbed {name}   shares over {span:g} s   {time.strftime('%H:%M:%S')}"
                shown = lab.frame(
                    look,
                    width=console.width,
                    title=title,
                    problem=problem,
                    options=_named(name),
                )
                live.update(shown, refresh=True)
                time.sleep(every)
                try:
                    look = lab.gather(kube, span_s=span, namespace=namespace)
                    problem, fresh = "", time.monotonic()
                except TestbedError as error:
                    # A cluster that restarts is watched on, not left.
                    age = time.monotonic() - fresh
                    problem = f"{error.what}: {error.why}   (figures are {age:.0f} s old)"
    except KeyboardInterrupt:
        pass  # how one leaves it
    console.print(lab.frame(look, width=console.width, options=_named(name)))


def _named(name: str) -> str:
    return "" if name == DEFAULT_NAME else f"--name {name}"
