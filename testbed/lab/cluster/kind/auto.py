"""``--provider auto``: kind where it would start at once, else processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from testbed.errors import TestbedError
from testbed.lab.cluster.kind.choice import Choice, asked_program
from testbed.lab.cluster.kind.engine import Engine

_HOW = "choose with --provider process or kind (make: PROVIDER=…)"


def choose(
    environ: Mapping[str, str] | None = None,
    *,
    look: Callable[[Mapping[str, str]], Choice] | None = None,
    images: Callable[[Engine], str] | None = None,
) -> tuple[str, str]:
    """Return the kind of cluster, and one line that says why and how to choose.

    kind, only if an engine answers and the nodes' image exists or can be pulled within 3 s
    of asking; nothing is started or made for the question.

    Args:
        environ: Variables that name an engine; the process's own by default.
        look: Finds the engine; this machine's by default.
        images: Returns where the nodes' image is, empty where it is nowhere.

    Raises:
        InputError: a variable names no engine.
    """
    from testbed.lab.cluster.kind import choice, parts

    environ = os.environ if environ is None else environ
    asked_program(environ)  # a mistyped wish is an error, not a reason
    try:
        found = (look or choice.look)(environ)
    except TestbedError as error:
        return "process", f"a process cluster: {error.why or error.what}; {_HOW}"
    if found.engine is None:
        reason = found.why.partition(": ")[2]
        return "process", f"a process cluster: {reason}; {_HOW}"
    where = (images or parts.node_image_at_hand)(found.engine)
    if not where:
        return "process", (
            f"a process cluster: {found.program.capitalize()} answers, but has no node image and"
            f" cannot pull one; {_HOW}"
        )
    return "kind", f"a kind cluster in {found.why}, {where}; {_HOW}"
