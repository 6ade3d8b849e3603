"""A kind cluster whose programs are scripts, and whose other parts make nothing.

Run as a program it brings such a cluster up, for a test that kills whoever does:

    standins.py PROGRAMS

with the scripts ``docker`` and ``kind`` in that folder.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace

from testbed.lab.cluster.kind import KindCluster, choice
from testbed.lab.cluster.kind.choice import Choice
from testbed.lab.cluster.kind.engine import Engine
from testbed.lab.cluster.protocol import ClusterSpec
from testbed.lab.images.node import NodeImage
from testbed.lab.progress import QuietProgress

NAME = "x"


class FakeParts:
    """Makes nothing."""

    def __init__(self, kind: Path) -> None:
        self._kind = kind

    def tools(self, progress):
        return SimpleNamespace(kind=self._kind, kubectl=Path("kubectl"))

    def node(self, engine, progress):
        return NodeImage(reference="kindest/node:1", archive=None, kubernetes="v1")

    def images(self, progress):
        return ()

    def front(self, progress):
        return Path("/front")

    def driver(self):
        return "driver"

    def check_cards(self, specs):
        pass

    def cards(self, folder, specs, nodes):
        return ("GPU-1",)


def chosen(programs: Path) -> Choice:
    """Return the choice of the engine whose ``docker`` is in a folder."""
    engine = Engine(program="docker", environment={"PATH": f"{programs}:{os.environ['PATH']}"})
    return Choice(program="docker", engine=engine, why="the engine that is there")


def cluster(programs: Path) -> KindCluster:
    """Return the cluster that the ``kind`` of a folder makes."""
    return KindCluster(NAME, parts=FakeParts(programs / "kind"))


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    choice.look = lambda: chosen(folder)
    cluster(folder).up(ClusterSpec(), QuietProgress())
