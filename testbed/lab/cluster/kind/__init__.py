"""The ``kind`` cluster: real kind, in Docker or Podman."""

from testbed.lab.cluster.kind.cluster import KindCluster
from testbed.lab.cluster.kind.parts import NodeImage, Parts

__all__ = ["KindCluster", "NodeImage", "Parts"]
