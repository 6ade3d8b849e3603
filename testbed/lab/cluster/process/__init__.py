"""The ``process`` cluster: real Kubernetes programs as local processes in namespaces."""

from testbed.lab.cluster.process.cluster import ProcessCluster
from testbed.lab.cluster.process.parts import Parts, Programs

__all__ = ["Parts", "ProcessCluster", "Programs"]
