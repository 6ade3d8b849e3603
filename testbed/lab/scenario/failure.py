"""What a log tells of a failure: a notebook's, or a pod's that did not get where it should."""

from __future__ import annotations

import re

from testbed import errors
from testbed.lab.scenario.question import PodTrace

#: ``package.SomeError: what`` at the end of a traceback; its source lines are indented.
_ERROR = re.compile(r"([A-Za-z_][\w.]*): (.*)")


def last_error(text: str) -> str:
    """Return the last error that a log tells, with the lines that belong to it."""
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    for position in range(len(lines) - 1, -1, -1):
        if match := _ERROR.fullmatch(lines[position]):
            kind, what = match.groups()
            # Our own errors say what, why and hint; others need their class to be understood.
            first = what if hasattr(errors, kind.rpartition(".")[2]) else lines[position]
            return "\n".join([first, *lines[position + 1 :]])
    return lines[-1] if lines else ""


def unreached(pod: PodTrace | None, phase: str = "", container: str = "main") -> str:
    """Return why a workload has not told what is asked of it.

    Args:
        pod: Whose, None where there was none.
        phase: The phase whose failure is meant; empty: whichever.
        container: Which of its containers.
    """
    if pod is None:
        return "no pod"
    trace = pod.container(container)
    failure = trace.event("error", phase)
    told = last_error(str(failure["text"])) if failure else trace.problem
    return f"its workload did not get there: {told or 'no such event'}"
