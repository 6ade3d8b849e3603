"""``testbed up``, ``down``, ``status``, ``kubeconfig``: the cluster."""

from __future__ import annotations

import contextlib
import datetime as dt
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from testbed.cli.evidence import kept
from testbed.cli.options import (
    CARDS_HELP,
    DEFAULT_CARDS,
    DEFAULT_NAME,
    Json,
    Name,
    Nodes,
    Output,
    Provider,
    complete_cards,
    format_of,
    known_names,
    resolved,
)
from testbed.cli.output import Format, emit, errors_as_exit_codes
from testbed.cli.stack import Settings, Values, choice

if TYPE_CHECKING:
    from testbed.lab.cluster.protocol import ClusterStatus, NodeStatus


def up(
    name: Name = DEFAULT_NAME,
    cards: Annotated[
        str | None,
        typer.Option(
            "--cards",
            help=f"{CARDS_HELP} By default the testbed's own where it is there, else"
            f" {DEFAULT_CARDS}.",
            show_default=False,
            autocompletion=complete_cards,
        ),
    ] = None,
    nodes: Nodes = None,
    provider: Provider = "",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="API server's port on 127.0.0.1.")
    ] = 0,
    bare: Annotated[bool, typer.Option("--bare", help="Without the sharing stack.")] = False,
    values: Values = None,
    settings: Settings = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Only say what each node would get; nothing is started."),
    ] = False,
    output: Output = Format.table,
    as_json: Json = False,
) -> None:
    """Bring up a cluster with emulated cards and deploy the sharing stack.

    On a testbed that is there what is not said stays as it is: cards, nodes,
    port, the stack's values. A broken one comes back with cards, nodes, port.
    """
    chosen = format_of(output, as_json)
    if dry_run:
        _dry_run(name, cards, nodes, provider, port, chosen)
        return
    with errors_as_exit_codes(chosen):
        from testbed.errors import InputError
        from testbed.lab import images
        from testbed.lab.bundle import default_place
        from testbed.lab.progress import ConsoleProgress
        from testbed.lab.testbed import Testbed

        if bare and (values is not None or settings):
            raise InputError(
                "--bare deploys no stack",
                why="there is nothing to set of it",
                hint="leave out --bare, or --values and --set",
            )
        choice(values, settings)  # said before anything is started
        testbed = Testbed(name, resolved(provider, name))
        spec = testbed.wish(cards, nodes, port, default=DEFAULT_CARDS)
        testbed.check(spec, bare=bare)
        progress = ConsoleProgress()
        with (
            testbed.use("up", progress) as use,
            kept(testbed, lambda: default_place(name)),
        ):
            prepared = images.prepare(progress)
            found = testbed.up(spec, progress, prepared=prepared)
            use.note(temporary=False)
            if not bare:
                with _interruption_told(name):
                    wanted = choice(values, settings, testbed)
                    testbed.deploy(progress, prepared=prepared, values=wanted)
        emit(found, status_text(found), chosen)


@contextlib.contextmanager
def _interruption_told(name: str) -> Iterator[None]:
    """Say what is there where somebody ends the deployment on a cluster that is up."""
    try:
        yield
    except KeyboardInterrupt:
        named = _named(name)
        print(
            f"testbed {name} is up, its stack is not deployed to the end: testbed up{named}, with"
            f" the same options, goes on; testbed down{named} clears it",
            file=sys.stderr,
        )
        raise


def _named(name: str) -> str:
    """Return the option that names a testbed, where it needs one."""
    return "" if name == DEFAULT_NAME else f" --name {name}"


def _dry_run(
    name: str, cards: str | None, nodes: int | None, provider: str, port: int, output: Format
) -> None:
    """Print what ``up`` would give each node."""
    with errors_as_exit_codes(output):
        from testbed.errors import InputError
        from testbed.lab.cluster.kind.preview import preview
        from testbed.lab.testbed import Testbed

        if resolved(provider, name) != "kind":
            raise InputError(
                "there is no dry run of a process cluster",
                why="its nodes are given nothing of the machine but programs, read-only",
                hint="testbed up --provider kind --dry-run",
            )
        spec = Testbed(name, "kind").wish(cards, nodes, port, default=DEFAULT_CARDS)
        found = preview(name, spec.by_node(), port=spec.port)
        emit(found, found.text(), output)


def down(name: Name = DEFAULT_NAME, output: Output = Format.table, as_json: Json = False) -> None:
    """Take a testbed down: every process, mount, namespace and file of it."""
    chosen = format_of(output, as_json)
    with errors_as_exit_codes(chosen):
        from testbed.lab.progress import ConsoleProgress
        from testbed.lab.testbed import Testbed

        testbed, progress = Testbed(name), ConsoleProgress()
        # What is half there is taken down all the same.
        was = name in known_names()
        # A run that is going on takes the testbed down itself when it is ended.
        with testbed.use("down", progress, wait_s=0):
            testbed.down(progress)
        text = "" if was else f"testbed {name} is not there: nothing to take down{_others(name)}"
        emit({"name": name, "state": "absent"}, text, chosen)


def status(
    name: Name = DEFAULT_NAME,
    every: Annotated[bool, typer.Option("--all", help="All testbeds, a line each.")] = False,
    output: Output = Format.table,
    as_json: Json = False,
) -> None:
    """Show a testbed: nodes, cards, address, what is wrong.

    The exit status is 0 if it is up, 2 if it is broken or not there; with
    --all 2 if one of them is broken.
    """
    chosen = format_of(output, as_json)
    if every:
        _status_of_all(chosen)
        return
    with errors_as_exit_codes(chosen):
        from testbed.lab.testbed import Testbed

        found = Testbed(name).status()
        others = _others(name) if found.state == "absent" else ""
        emit(found, status_text(found) + others, chosen)
        if found.state != "up":
            raise typer.Exit(2)


def _status_of_all(output: Format) -> None:
    """Print what testbeds there are."""
    with errors_as_exit_codes(output):
        from testbed.lab.report.table import columns
        from testbed.lab.testbed import Testbed

        found = [Testbed(name).status() for name in known_names()]
        rows = [
            (each.name, each.provider, each.state, str(len(each.nodes)), _all_cards(each))
            for each in found
        ]
        text = columns(("NAME", "PROVIDER", "STATE", "NODES", "CARDS"), rows)
        emit(found, text if rows else "there is no testbed   (testbed up)", output)
        if any(each.state == "broken" for each in found):
            raise typer.Exit(2)


def _all_cards(status: ClusterStatus) -> str:
    return "; ".join(dict.fromkeys(_cards(node) for node in status.nodes)) or "-"


def kubeconfig(
    name: Name = DEFAULT_NAME, output: Output = Format.table, as_json: Json = False
) -> None:
    """Print the path of the kubeconfig (context testbed-NAME, of kind: kind-NAME)."""
    chosen = format_of(output, as_json)
    with errors_as_exit_codes(chosen):
        from testbed.lab.testbed import Testbed

        cluster = Testbed(name).cluster
        path = cluster.kubeconfig()
        emit({"kubeconfig": path, "context": cluster.context}, str(path), chosen)


def status_text(status: ClusterStatus) -> str:
    """Return a cluster's status as kubectl would print it."""
    from testbed.lab.report.table import columns

    if status.state == "absent":
        return f"testbed {status.name} is not up   (testbed up{_named(status.name)})"
    rows = [
        (node.name, "Ready" if node.ready else "NotReady", node.address, _cards(node))
        for node in status.nodes
    ]
    lines = [
        f"testbed {status.name} ({status.provider}) is {status.state}"
        f"   Kubernetes {status.kubernetes or '-'}   {status.server}",
        columns(("NODE", "STATUS", "ADDRESS", "CARDS"), rows),
    ]
    if status.certificates_until:
        lines.append(certificates_text(status.certificates_until, dt.datetime.now(dt.UTC)))
    lines += [f"problem: {problem}" for problem in status.problems]
    lines += [f"note: {note}" for note in (*status.notes, *status.reach)]
    if status.state == "broken":
        named = _named(status.name)
        lines.append(
            f"testbed up{named} mends it, or makes it anew with the same nodes and cards;"
            f" testbed down{named} clears it"
        )
    elif status.kubeconfig:
        lines.append(f"testbed kubectl{_named(status.name)} get pods -A")
    return "\n".join(lines)


def certificates_text(until: str, now: dt.datetime) -> str:
    """Return how long the stack's certificates serve, and what to do where that is too short.

    Args:
        until: When the first of them ends, ISO 8601.
        now: The time.
    """
    from testbed.stack.certificates.sets import RENEW_DAYS

    end = dt.datetime.fromisoformat(until)
    days = (end - now).days
    if end <= now:
        said = f"certificates ended on {end:%Y-%m-%d}: testbed deploy makes new ones"
    elif days < RENEW_DAYS - 1:  # the daily look has had its chance
        said = f"certificates end in {days} days, and were not renewed: testbed deploy does it"
    else:
        said = f"certificates until {end:%Y-%m-%d} ({days} days), renewed {RENEW_DAYS} days before"
    return said


def _others(name: str) -> str:
    """Return which other testbeds there are, for somebody who may have mistyped one."""
    others = [each for each in known_names() if each != name]
    return f"   (there are: {', '.join(others)})" if others else ""


def _cards(node: NodeStatus) -> str:
    if not node.profiles:
        return str(len(node.cards))
    return ", ".join(f"{card.count} x {card.profile}" for card in node.profiles)
