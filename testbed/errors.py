"""One error root for the whole project.

Whatever goes wrong reaches the user as one sentence each: what failed, why, and
what to do about it. The command line maps the class to an exit code: 1 when a
check failed, 2 when the infrastructure (cluster, tools, input) did.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from pathlib import Path


def known_hint(word: str, known: Iterable[str], *, listed: str = "known are") -> str:
    """Return the hint for an unknown word: the nearest one that there is, and all.

    Args:
        word: What was written.
        known: What could have been.
        listed: Stands before the list.
    """
    names = sorted(set(known))
    folded = {name.casefold(): name for name in names}
    near = difflib.get_close_matches(word.casefold(), folded, n=1, cutoff=0.6)
    every = f"{listed} {', '.join(names)}"
    return f"did you mean {folded[near[0]]}? {every}" if near else every


def unknown_key_hint(message: str, known: Iterable[str]) -> str:
    """Return the hint for a document with a key that there is not; empty for another fault.

    Args:
        message: msgspec's, such as ``Object contains unknown field `x` - at `$.y```.
        known: Keys of the whole document; of what is deeper nothing is said.
    """
    found = re.fullmatch(r"Object contains unknown field `(.*)`", message)
    return known_hint(found[1], known) if found else ""


#: What helps against a full disk, wherever it was met.
FULL_HINT = (
    "make room there, or point XDG_STATE_HOME (testbeds), XDG_CACHE_HOME (what is made once),"
    " TMPDIR and --runs (results) elsewhere"
)


class TestbedError(Exception):
    """Base of every error that the testbed raises on purpose.

    Args:
        what: What could not be done, as a clause without a full stop.
        why: The cause, with the failing program's own words where there are any.
        hint: The command or the change that helps.
        artifacts: A file or folder that holds the evidence.
    """

    __test__ = False  # pytest: not a test class
    exit_code = 2

    def __init__(
        self, what: str, *, why: str = "", hint: str = "", artifacts: Path | None = None
    ) -> None:
        self.what = what
        self.why = why
        self.hint = hint
        self.artifacts = artifacts
        super().__init__(self.text())

    def text(self) -> str:
        """Return the error as the lines that a terminal shows."""
        lines = [self.what if not self.why else f"{self.what}: {self.why}"]
        if self.hint:
            lines.append(f"  to fix: {self.hint}")
        if self.artifacts:
            lines.append(f"  see: {self.artifacts}")
        return "\n".join(lines)

    def _render_traceback_(self) -> list[str]:
        """Return what IPython shows instead of a stack: the error says all that helps."""
        return [f"{type(self).__name__}: {self.text()}"]


class InputError(TestbedError):
    """The user asked for something impossible or unknown."""


class MissingTool(TestbedError):
    """A program, package or right that the machine lacks."""


class ClusterError(TestbedError):
    """A cluster could not be brought up, reached or taken down."""


class DeployError(TestbedError):
    """The sharing stack could not be deployed or did not become ready."""


class WaitTimeout(TestbedError):
    """A condition did not come true before its deadline."""


class CodecError(TestbedError):
    """Text or bytes of a wire format that cannot be read."""


class CheckFailed(TestbedError):
    """The run is complete and a check did not hold."""

    exit_code = 1
