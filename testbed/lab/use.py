"""One user of a testbed at a time.

A run measures, switches enforcement off and on again, and takes the testbed down at
its end; two at once, or a ``down`` in between, would measure each other. The lock
falls with the process that holds it, however that ends. What is left then is the
file's text: whether the testbed was meant to be taken down.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from testbed.errors import ClusterError
from testbed.lab.cluster.lock import take

#: Set for the notebook by the command that runs it: the holder's process id.
VARIABLE = "VGPU_TESTBED_USER"
_POLL_S = 0.2


@dataclass(slots=True, kw_only=True)
class Use:
    """A use that is going on.

    Attributes:
        inherited: An earlier user was killed before it took the testbed down, as it
            would have.
    """

    inherited: bool
    _fd: int
    _command: str

    @property
    def joined(self) -> bool:
        """Whether it is part of a command's use that goes on."""
        return self._fd < 0

    def note(self, *, temporary: bool) -> None:
        """Write down whether the testbed goes when this use ends."""
        if self._fd >= 0:
            text = {"pid": os.getpid(), "command": self._command, "temporary": temporary}
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, json.dumps(text).encode(), 0)


@contextlib.contextmanager
def using(
    path: Path,
    what: str,
    command: str,
    *,
    wait_s: float,
    report: Callable[[str], None] | None = None,
) -> Iterator[Use]:
    """Be the only user while the body runs.

    A process whose command is the user already (``VARIABLE``) joins it.

    Args:
        path: The lock file; it goes with the use.
        what: The testbed, for errors.
        command: Shown to those who wait.
        wait_s: How long another user is waited for.
        report: Told who is waited for.

    Raises:
        ClusterError: another user does not end in time.
    """
    until = time.monotonic() + wait_s
    told = ""
    while (fd := take(path)) is None:
        other = _read(path)
        if str(other.get("pid", "")) == os.environ.get(VARIABLE, "none"):
            yield Use(inherited=False, _fd=-1, _command=command)
            return
        who = f"`testbed {other.get('command', '?')}` (process {other.get('pid', '?')})"
        if time.monotonic() >= until:
            raise ClusterError(
                f"{what} is in use",
                why=f"{who} works on it",
                hint="wait for its end, end it, or choose another --name",
            )
        if report is not None and who != told:
            told = who
            report(f"{who} works on {what}")
        time.sleep(_POLL_S)
    try:
        before = _read(path)
        use = Use(inherited=bool(before.get("temporary")), _fd=fd, _command=command)
        use.note(temporary=use.inherited)
        yield use
    finally:
        path.unlink(missing_ok=True)
        os.close(fd)
        with contextlib.suppress(OSError):
            path.parent.rmdir()  # the last testbed's; another's state keeps it


def _read(path: Path) -> dict[str, object]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
