"""Clusters, each kind behind the protocol of ``protocol.py``."""

from __future__ import annotations

from testbed.errors import InputError
from testbed.lab.cluster.protocol import Cluster

PROVIDERS = ("process",)


def provider(kind: str, name: str = "vgpu") -> Cluster:
    """Return the cluster of that kind and name, whether it is up or not.

    Raises:
        InputError: no such kind, or an impossible name.
    """
    if kind == "process":
        # Here, since what makes programs and images imports this package's protocol.
        from testbed.lab.cluster.process import ProcessCluster

        return ProcessCluster(name)
    raise InputError(
        f"there is no kind of cluster called {kind!r}", hint="one of: " + ", ".join(PROVIDERS)
    )
