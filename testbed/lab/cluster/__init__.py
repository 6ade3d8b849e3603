"""Clusters, each kind behind the protocol of ``protocol.py``."""

from __future__ import annotations

from testbed.errors import InputError, known_hint
from testbed.lab.cluster.protocol import Cluster

PROVIDERS = ("process",)
#: Kinds that the design has and this version has not.
_LATER = ("kind", "existing")


def provider(kind: str, name: str = "vgpu") -> Cluster:
    """Return the cluster of that kind and name, whether it is up or not.

    Raises:
        InputError: no such kind, or an impossible name.
    """
    if kind == "process":
        # Here, since what makes programs and images imports this package's protocol.
        from testbed.lab.cluster.process import ProcessCluster

        return ProcessCluster(name)
    if kind in _LATER:
        raise InputError(
            f"clusters of the kind {kind!r} are not in this version",
            hint="use --provider " + " or ".join(PROVIDERS),
        )
    raise InputError(
        f"there is no kind of cluster called {kind!r}", hint=known_hint(kind, PROVIDERS)
    )
