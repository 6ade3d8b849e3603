"""Give nodes that run the machine's own cards: the edge of ``gpu``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from testbed.card.spec import REAL, CardSpec
from testbed.errors import TestbedError
from testbed.lab.cluster.kind import gpu, gpu_host


class Inside(Protocol):
    """What is needed of an engine (``engine.Engine``)."""

    def inside(
        self, node: str, argv: Sequence[str], *, what: str, timeout_s: float = ...
    ) -> str: ...


def planned(nodes: Sequence[Sequence[CardSpec]]) -> gpu.GpuPlan | None:
    """Return the plan for this machine, None where nodes carry emulated cards.

    Raises:
        InputError: both kinds are asked for, or the machine has not what is asked for.
    """
    return gpu.plan(nodes, gpu_host.look()) if gpu.wanted(nodes) else None


def again(uuids: Mapping[str, Sequence[str]]) -> gpu.GpuPlan:
    """Return the plan for nodes that have their cards: by uuid, since indices may move.

    Args:
        uuids: What each node was given (``NodeGpus.devices``), in the nodes' order.

    Raises:
        InputError: a card is not there any more.
    """
    return gpu.plan(
        [
            (CardSpec(profile=REAL, count=len(given), devices=tuple(given)),)
            for given in uuids.values()
        ],
        gpu_host.look(),
    )


def set_up(engine: Inside, name: str, part: gpu.NodeGpus) -> None:
    """Run a node's scripts and look whether it sees its cards; may be done again.

    Raises:
        TestbedError: a script failed.
        ClusterError: the node sees other cards.
    """
    for script in part.scripts:
        engine.inside(name, script.argv, what=f"{name}: cannot {script.what}")
    try:
        said = engine.inside(name, part.LIST, what=f"{name}: cannot list its cards")
    except TestbedError as error:
        said = error.why
    part.check(name, said)
