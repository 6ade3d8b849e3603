"""Where the state of a testbed is, whatever its kind."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from testbed.errors import ClusterError, InputError

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,28}[a-z0-9])?")


def state_home() -> Path:
    """Return the folder that holds every testbed's state."""
    base = os.environ.get("XDG_STATE_HOME", "")
    # The XDG specification: a relative path there is invalid and to be ignored.
    home = Path(base) if base.startswith("/") else Path.home() / ".local" / "state"
    return home / "vgpu-testbed"


def known_names() -> list[str]:
    """Return the testbeds that there are, of either kind."""
    home = state_home()
    return sorted(each.name for each in home.iterdir() if each.is_dir()) if home.is_dir() else []


def absent(name: str, *, options: str = "") -> ClusterError:
    """Return the error of who wants something of a testbed that is not there.

    Args:
        name: Perhaps a mistyped one, so the others are named.
        options: Of ``testbed up``, before ``--name``.
    """
    there = ", ".join(known_names())
    return ClusterError(
        f"there is no testbed {name!r}",
        why=f"known are {there}" if there else "",
        hint=f"testbed up {options}--name {name}",
    )


def check_name(name: str) -> str:
    """Return a cluster's name that can be part of node names and file names.

    Raises:
        InputError: it cannot.
    """
    if not _NAME.fullmatch(name):
        raise InputError(
            f"{name!r} cannot name a testbed",
            why="it becomes part of node names",
            hint="use at most 30 lower-case letters, digits and hyphens, such as vgpu",
        )
    return name


@dataclass(frozen=True, slots=True)
class StateFolder:
    """The state folder of one cluster, on the host."""

    top: Path
    #: The file that tells what was started; each kind has its own.
    RECORD: ClassVar[str]

    @property
    def record(self) -> Path:
        return self.top / self.RECORD

    @property
    def kubeconfig(self) -> Path:
        return self.top / "kubeconfig"

    @property
    def admin(self) -> Path:
        """The administrator's certificate and key, for our own calls."""
        return self.top / "admin.pem"

    @property
    def authority(self) -> Path:
        return self.top / "ca.crt"

    @property
    def logs(self) -> Path:
        return self.top / "logs"
