"""The commands of ``testbed``, put together."""

from __future__ import annotations

import typer

from testbed.cli.bench import app as bench
from testbed.cli.bench_cluster import cluster as bench_cluster
from testbed.cli.bench_extender import extender as bench_extender
from testbed.cli.bench_schedule import schedule as bench_schedule
from testbed.cli.bench_shim import shim as bench_shim
from testbed.cli.bundle import bundle
from testbed.cli.card import app as card
from testbed.cli.cases import list_cases
from testbed.cli.cluster import down, kubeconfig, status, up
from testbed.cli.doctor import doctor
from testbed.cli.explain import explain
from testbed.cli.kubectl import CONTEXT, kubectl
from testbed.cli.limits import limits, region
from testbed.cli.logs import logs
from testbed.cli.report import report
from testbed.cli.run import run
from testbed.cli.stack import deploy, prepare, render
from testbed.cli.top import top
from testbed.cli.version import version

app = typer.Typer(
    name="testbed",
    help="Prove that GPU sharing on Kubernetes holds: a cluster, the sharing stack, notebooks.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_CASES, _TESTBED, _LOOK, _MACHINE = "Cases", "Testbed", "Look inside", "This machine"

app.command(rich_help_panel=_CASES)(run)
app.command(name="ls", rich_help_panel=_CASES)(list_cases)
app.command(rich_help_panel=_CASES)(report)

app.command(rich_help_panel=_TESTBED)(up)
app.command(rich_help_panel=_TESTBED)(down)
app.command(rich_help_panel=_TESTBED)(status)
app.command(rich_help_panel=_TESTBED)(deploy)
app.command(rich_help_panel=_TESTBED)(render)
app.command(rich_help_panel=_TESTBED)(kubeconfig)
app.command(rich_help_panel=_TESTBED, context_settings=CONTEXT)(kubectl)

app.command(rich_help_panel=_LOOK)(top)
app.command(rich_help_panel=_LOOK)(explain)
app.command(rich_help_panel=_LOOK)(logs)
app.command(rich_help_panel=_LOOK)(bundle)
app.add_typer(region, name="region", rich_help_panel=_LOOK)
app.add_typer(limits, name="limits", rich_help_panel=_TESTBED)

app.add_typer(card, name="card", rich_help_panel=_MACHINE)
bench.command(name="cluster")(bench_cluster)
bench.command(name="extender")(bench_extender)
bench.command(name="schedule")(bench_schedule)
bench.command(name="shim")(bench_shim)
app.add_typer(bench, name="bench", rich_help_panel=_MACHINE)
app.command(rich_help_panel=_MACHINE)(doctor)
app.command(rich_help_panel=_MACHINE)(prepare)
app.command(rich_help_panel=_MACHINE)(version)
