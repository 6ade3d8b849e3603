"""Commands of ``testbed``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
import yaml

from testbed import __version__
from testbed.cli.kubectl import CONTEXT, kubectl
from testbed.cli.output import Format, emit, errors_as_exit_codes
from testbed.cli.report import report
from testbed.cli.run import run
from testbed.lab import binaries, images
from testbed.lab.cluster.protocol import ClusterStatus
from testbed.lab.notebook import scenarios_root
from testbed.lab.progress import ConsoleProgress
from testbed.lab.report.table import columns
from testbed.lab.scenario.cases import find_cases
from testbed.lab.testbed import DEFAULT_NAME, Testbed, checked_name, cluster_spec

app = typer.Typer(
    name="testbed",
    help="Prove that GPU sharing on Kubernetes holds: a cluster, the sharing stack, notebooks.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command(name="run")(run)
app.command(name="report")(report)
app.command(name="kubectl", context_settings=CONTEXT)(kubectl)

Name = Annotated[str, typer.Option("--name", help="Name of the testbed.")]
Output = Annotated[Format, typer.Option("-o", "--output", help="table or json.")]
Json = Annotated[bool, typer.Option("--json", help="The same as -o json.")]
Cards = Annotated[
    str, typer.Option("--cards", help="Cards of each node: PROFILE[:COUNT][,…], a100-80gb:1.")
]


def format_of(output: Format, as_json: bool) -> Format:
    """Return the chosen format; ``--json`` is a synonym of ``-o json``."""
    return Format.json if as_json else output


def shown(path: Path) -> str:
    """Return a path as short as it can be written from here."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def status_text(status: ClusterStatus) -> str:
    """Return a cluster's status as kubectl would print it."""
    if status.state == "absent":
        return f"testbed {status.name} is not up   (testbed up --name {status.name})"
    rows = [
        (node.name, "Ready" if node.ready else "NotReady", node.address, str(len(node.cards)))
        for node in status.nodes
    ]
    lines = [
        f"testbed {status.name} ({status.provider}) is {status.state}"
        f"   Kubernetes {status.kubernetes or '-'}   {status.server}",
        columns(("NODE", "STATUS", "ADDRESS", "CARDS"), rows),
    ]
    lines += [f"problem: {problem}" for problem in status.problems]
    if status.kubeconfig:
        named = "" if status.name == DEFAULT_NAME else f"--name {status.name} "
        lines.append(f"testbed kubectl {named}get pods -A")
    return "\n".join(lines)


@app.command()
def up(
    name: Name = DEFAULT_NAME,
    cards: Cards = "a100-80gb:1",
    nodes: Annotated[
        int | None, typer.Option("--nodes", min=1, max=16, help="How many nodes.")
    ] = None,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="API server's port on 127.0.0.1.")
    ] = 0,
    bare: Annotated[bool, typer.Option("--bare", help="Without the sharing stack.")] = False,
    output: Output = Format.table,
    as_json: Json = False,
) -> None:
    """Bring up a cluster with emulated cards and deploy the sharing stack."""
    chosen = format_of(output, as_json)
    with errors_as_exit_codes(chosen):
        spec = cluster_spec(cards, nodes, port)
        testbed = Testbed(checked_name(name))
        progress = ConsoleProgress()
        with testbed.use("up", progress) as use:
            status = testbed.up(spec, progress)
            use.note(temporary=False)
            if not bare:
                testbed.deploy(progress)
        emit(status, status_text(status), chosen)


@app.command()
def down(name: Name = DEFAULT_NAME, output: Output = Format.table, as_json: Json = False) -> None:
    """Take a testbed down: every process, mount, namespace and file of it."""
    chosen = format_of(output, as_json)
    with errors_as_exit_codes(chosen):
        testbed, progress = Testbed(checked_name(name)), ConsoleProgress()
        # A run that is going on takes the testbed down itself when it is ended.
        with testbed.use("down", progress, wait_s=0):
            testbed.down(progress)
        emit({"name": name, "state": "absent"}, "", chosen)


@app.command()
def status(name: Name = DEFAULT_NAME, output: Output = Format.table, as_json: Json = False) -> None:
    """Show a testbed: nodes, cards, address, what is wrong."""
    chosen = format_of(output, as_json)
    with errors_as_exit_codes(chosen):
        found = Testbed(checked_name(name)).cluster.status()
        emit(found, status_text(found), chosen)
        if found.state == "broken":
            raise typer.Exit(2)


@app.command()
def kubeconfig(
    name: Name = DEFAULT_NAME, output: Output = Format.table, as_json: Json = False
) -> None:
    """Print the path of the kubeconfig (context testbed-NAME)."""
    chosen = format_of(output, as_json)
    with errors_as_exit_codes(chosen):
        path = Testbed(checked_name(name)).cluster.kubeconfig()
        emit({"kubeconfig": path, "context": f"testbed-{name}"}, str(path), chosen)


@app.command()
def deploy(name: Name = DEFAULT_NAME, output: Output = Format.table, as_json: Json = False) -> None:
    """Deploy the sharing stack of this source tree on a testbed that is up."""
    chosen = format_of(output, as_json)
    with errors_as_exit_codes(chosen):
        testbed, progress = Testbed(checked_name(name)), ConsoleProgress()
        testbed.cluster.kubeconfig()  # said before anything is built
        with testbed.use("deploy", progress):
            emit(testbed.deploy(progress), "", chosen)


@app.command()
def render(name: Name = DEFAULT_NAME, output: Output = Format.table, as_json: Json = False) -> None:
    """Print the manifests that `deploy` applies (new certificates each time)."""
    chosen = format_of(output, as_json)
    with errors_as_exit_codes(chosen):
        manifests = Testbed(checked_name(name)).manifests(ConsoleProgress())
        if chosen is Format.json:
            print(json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests}, indent=2))
        else:
            print(yaml.safe_dump_all(manifests, sort_keys=False), end="")


@app.command(name="ls")
def list_cases(output: Output = Format.table, as_json: Json = False) -> None:
    """List the cases that `run` knows."""
    chosen = format_of(output, as_json)
    with errors_as_exit_codes(chosen):
        cases = find_cases(scenarios_root())
        rows = [(str(case), shown(case.path)) for case in cases]
        emit(
            [{"case": case, "path": path} for case, path in rows],
            columns(("CASE", "PARAMETERS"), rows),
            chosen,
        )


@app.command()
def prepare(output: Output = Format.table, as_json: Json = False) -> None:
    """Fetch or build everything that a testbed needs, and start nothing."""
    chosen = format_of(output, as_json)
    with errors_as_exit_codes(chosen):
        progress = ConsoleProgress()
        programs = binaries.ensure(progress)
        prepared = images.prepare(progress)
        rows = [("binaries", str(programs.folder))]
        rows += [(image.reference, str(image.archive)) for image in prepared]
        emit(
            [{"name": name, "path": path} for name, path in rows],
            columns(("NAME", "PATH"), rows),
            chosen,
        )


@app.command()
def doctor(output: Output = Format.table, as_json: Json = False) -> None:
    """Say what this machine lacks, each with the command that helps."""
    from testbed.lab.doctor import diagnose

    chosen = format_of(output, as_json)
    with errors_as_exit_codes(chosen):
        findings = diagnose()
        rows = [("✓" if f.ok else "✗", f.name, f.detail, f.hint) for f in findings]
        emit(
            [{"ok": f.ok, "name": f.name, "detail": f.detail, "hint": f.hint} for f in findings],
            columns(("", "NEED", "FOUND", "TO FIX"), rows),
            chosen,
        )
        if not all(f.ok for f in findings):
            raise typer.Exit(2)


@app.command()
def version() -> None:
    """Print the version."""
    print(__version__)
