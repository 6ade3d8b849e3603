"""Options that several commands share, and how a shell completes them.

Nothing heavy is imported here or at the top of a command's module: a command that
completes a word or shows its help must be there at once.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from testbed.cli.output import Format

#: Same as ``testbed.lab.testbed.DEFAULT_NAME``, which takes a second to import.
DEFAULT_NAME = "vgpu"
DEFAULT_CARDS = "a100-80gb:1"
PROVIDERS = ("process", "kind", "auto")


def known_names() -> list[str]:
    """Return the testbeds that there are."""
    from testbed.lab.cluster.state import known_names as found

    return found()


def complete_name(incomplete: str) -> list[str]:
    """Return the testbeds whose name begins so."""
    return [name for name in known_names() if name.startswith(incomplete)]


def complete_cards(incomplete: str) -> list[str]:
    """Return the cards of a cluster that can go on what is written so far."""
    from testbed.card.spec import REAL

    return sorted([*complete_emulated(incomplete), *_going_on(incomplete, (REAL,))])


def complete_emulated(incomplete: str) -> list[str]:
    """Return the emulated cards that can go on what is written so far."""
    from testbed.card.profiles import PROFILES

    return _going_on(incomplete, sorted(PROFILES))


def complete_profile(incomplete: str) -> list[str]:
    """Return the emulated cards whose name begins so, where one is named."""
    from testbed.card.profiles import PROFILES

    return [name for name in sorted(PROFILES) if name.startswith(incomplete)]


def _going_on(written: str, names: Iterable[str]) -> list[str]:
    """Return a list of cards with each name that its last, unfinished word can become."""
    cut = max(written.rfind(","), written.rfind(";")) + 1
    head, word = written[:cut], written[cut:]
    return [head + name for name in names if name.startswith(word)]


def complete_case(incomplete: str) -> list[str]:
    """Return the cases whose name begins so."""
    from testbed.errors import TestbedError
    from testbed.lab.scenario.cases import find_cases, scenarios_root

    try:
        found = [str(case) for case in find_cases(scenarios_root())]
    except TestbedError:
        return []
    return [case for case in found if case.startswith(incomplete)]


Name = Annotated[
    str, typer.Option("--name", help="Name of the testbed.", autocompletion=complete_name)
]
Output = Annotated[Format, typer.Option("-o", "--output", help="table or json.")]
Json = Annotated[bool, typer.Option("--json", help="The same as -o json.")]
Nodes = Annotated[
    int | None,
    typer.Option("--nodes", min=1, max=16, help="How many nodes; as many as --cards lists."),
]
Provider = Annotated[
    str,
    typer.Option(
        "--provider",
        help="Kind of cluster: " + ", ".join(PROVIDERS) + "; by default the testbed's that is up,"
        " else process. auto is kind where an engine and its images are at hand.",
        show_default=False,
        autocompletion=lambda: list(PROVIDERS),
    ),
]
Namespace = Annotated[str, typer.Option("-n", "--namespace", help="Namespace of the pod.")]
CARDS_HELP = (
    "Cards of each node: PROFILE[:COUNT][,…]; with semicolons one list a node:"
    " 'a100-80gb:8;t4:16'. In kind also the machine's own: nvidia, nvidia:2 (how many),"
    " nvidia:0,1 or nvidia:GPU-…,MIG-… (which)."
)


def resolved(provider: str, name: str) -> str:
    """Return the kind of cluster that is meant; says how it was chosen where we chose.

    Raises:
        InputError: no such kind, or a testbed of that name is of another.
    """
    from testbed.lab.cluster import resolve

    found = resolve(provider, name)
    if found.why:
        print(found.why, file=sys.stderr, flush=True)
    return found.kind


def format_of(output: Format, as_json: bool) -> Format:
    """Return the chosen format; ``--json`` is a synonym of ``-o json``."""
    return Format.json if as_json else output


def shown(path: Path) -> str:
    """Return a path as short as it can be written from here."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
