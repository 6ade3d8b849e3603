"""Clusters, each kind behind the protocol of ``protocol.py``."""

from __future__ import annotations

from dataclasses import dataclass

from testbed.errors import InputError, known_hint
from testbed.lab.cluster.protocol import Cluster
from testbed.lab.cluster.state import check_name, state_home

PROVIDERS = ("process", "kind")
#: Chooses between them by what the machine has.
AUTO = "auto"
#: What nobody chooses: the cluster that is there, else this.
DEFAULT = "process"
#: Kinds that the design has and this version has not.
_LATER = ("existing",)
#: The file in a testbed's state folder that tells its kind.
_RECORDS = {"process": "cluster.json", "kind": "kind.json"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """The kind of cluster that a name stands for."""

    kind: str
    #: Why, in one line; empty where it was said or is the only one.
    why: str = ""


def provider(kind: str = "", name: str = "vgpu") -> Cluster:
    """Return the cluster of that kind and name, whether it is up or not.

    Args:
        kind: ``process``, ``kind``, ``auto``, or empty for the cluster that is there.
        name: The testbed's.

    Raises:
        InputError: no such kind, an impossible name, or one of another kind is there.
    """
    found = resolve(kind, name).kind
    # Here, since what makes programs and images imports this package's protocol.
    if found == "kind":
        from testbed.lab.cluster.kind import KindCluster

        return KindCluster(name)
    from testbed.lab.cluster.process import ProcessCluster

    return ProcessCluster(name)


def resolve(kind: str, name: str) -> Provider:
    """Return which kind of cluster is meant.

    Raises:
        InputError: no such kind, an impossible name, or a testbed of that name is there
            and is of another.
    """
    check_name(name)
    if kind in _LATER:
        raise InputError(
            f"clusters of the kind {kind!r} are not in this version",
            hint="use --provider " + " or ".join((*PROVIDERS, AUTO)),
        )
    if kind and kind not in (*PROVIDERS, AUTO):
        raise InputError(
            f"there is no kind of cluster called {kind!r}",
            hint=known_hint(kind, (*PROVIDERS, AUTO)),
        )
    there = _there(name)
    if there:
        if kind not in ("", AUTO, there):
            raise InputError(
                f"testbed {name!r} is a {there} cluster, not {kind}",
                hint=f"testbed down --name {name} first, or another --name",
            )
        return Provider(kind=there)
    if kind == AUTO:
        from testbed.lab.cluster.kind import auto

        chosen, why = auto.choose()
        return Provider(kind=chosen, why=why)
    return Provider(kind=kind or DEFAULT)


def _there(name: str) -> str:
    """Return of which kind the cluster of that name is, empty where there is none."""
    folder = state_home() / name
    for kind, record in _RECORDS.items():
        if (folder / record).exists():
            return kind
    return ""
