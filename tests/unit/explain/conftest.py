"""A small cluster as the extender's books and raw objects tell it."""

from __future__ import annotations

import pytest

from testbed.lab.explain import Facts
from testbed.stack.codec import encode_pod_shares
from testbed.stack.config import DeviceConfig
from testbed.stack.model import Share

A100, T4 = "NVIDIA-NVIDIA A100-SXM4-80GB", "NVIDIA-Tesla T4"


def card(node, index, *, mem=80_000, model=A100, **fields):
    return {
        "uuid": f"GPU-{node}-{index}",
        "index": index,
        "model": model,
        "mode": "hami-core",
        "healthy": True,
        "cordoned": False,
        "slots": {"used": 0, "total": 10},
        "mem_mib": {"used": 0, "total": mem},
        "core_pct": {"used": 0, "total": 100},
        **fields,
    }


def pod(name, *, limits=None, namespace="default", node="", containers=None, **fields):
    spec = {
        "schedulerName": "vgpu-scheduler",
        "containers": containers
        or [{"name": "main", "resources": {"limits": limits or {"nvidia.com/gpu": "1"}}}],
    }
    if node:
        spec["nodeName"] = node
    found = {
        "metadata": {"name": name, "namespace": namespace, "uid": f"uid-{name}"},
        "spec": spec,
        "status": {"phase": "Pending"},
    }
    for key, value in fields.items():
        found[key] = {**found[key], **value}
    return found


def limits(cards=1, mem=None, cores=None):
    found = {"nvidia.com/gpu": str(cards)}
    if mem is not None:
        found["nvidia.com/gpumem"] = str(mem)
    if cores is not None:
        found["nvidia.com/gpucores"] = str(cores)
    return found


class World:
    """Nodes with cards, pods that hold shares, and the facts for one pod more."""

    def __init__(self, **nodes):
        self.books = {
            "synced": True,
            "nodes": {
                name: {"cards": [card(name, i, **each) for i, each in enumerate(cards)]}
                for name, cards in nodes.items()
            },
            "pods": [],
        }
        self.nodes = {
            name: {
                "metadata": {"name": name, "labels": {}},
                "spec": {},
                "status": {"allocatable": {"nvidia.com/gpu": str(10 * len(cards))}},
            }
            for name, cards in nodes.items()
        }
        self.pods = []

    def hold(self, name, node, *shares, namespace="default"):
        """A pod holds (card's index, MiB, percent)… on a node."""
        held = tuple(
            Share(uuid=f"GPU-{node}-{index}", mem_mib=mem, core_pct=cores)
            for index, mem, cores in shares
        )
        found = pod(
            name, namespace=namespace, node=node, limits=limits(len(shares)),
            metadata={"annotations": {"hami.io/vgpu-node": node}},
        )  # fmt: skip
        self.pods.append(found)
        self.books["pods"].append(
            {
                "namespace": namespace, "name": name, "uid": f"uid-{name}", "node": node,
                "bound": True, "devices": encode_pod_shares((held,)),
            }
        )  # fmt: skip
        for index, mem, cores in shares:
            entry = self.books["nodes"][node]["cards"][index]
            entry["slots"]["used"] += 1
            entry["mem_mib"]["used"] += mem
            entry["core_pct"]["used"] += cores
        return found

    def facts(self, subject, **fields):
        given = {
            "pod": subject,
            "config": DeviceConfig(),
            "books": self.books,
            "reservations": {"reservations": [], "turns": {}},
            "nodes": list(self.nodes.values()),
            "pods": [*self.pods, subject],
        }
        return Facts(**{**given, **fields})


@pytest.fixture
def world():
    return World
