"""A state with a clock that the test moves, and raw objects to feed it."""

from __future__ import annotations

import json
import uuid as uuids
from dataclasses import dataclass, field

import pytest

from testbed.stack import names
from testbed.stack.codec import encode_register
from testbed.stack.config import DeviceConfig
from testbed.stack.extender import handler, wire
from testbed.stack.extender.state import State
from testbed.stack.model import Card


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class World:
    """A state, its clock, and the pods and nodes that were made for it."""

    state: State
    clock: Clock
    pods: dict = field(default_factory=dict)

    def node(self, name="n1", count=1, mem=81920, cordon=None, offered="10", **card):
        card.setdefault("model", "NVIDIA A100-SXM4-80GB")
        cards = [Card(uuid=f"GPU-{name}-{i}", index=i, mem_mib=mem, **card) for i in range(count)]
        annotations = {names.NODE_REGISTER: encode_register(cards)}
        if cordon is not None:
            annotations[names.DEVICE_CORDON] = cordon
        allocatable = {} if offered is None else {names.RESOURCE_COUNT: offered}
        self.state.node_changed(
            {
                "metadata": {"name": name, "annotations": annotations},
                "status": {"allocatable": allocatable},
            }
        )

    def pod(self, name="p", mem=1000, count=1, cores=None, containers=None, init=(), **spec):
        def one(position, mem):
            limits = {names.RESOURCE_COUNT: str(count), names.RESOURCE_MEMORY: str(mem)}
            if cores is not None:
                limits[names.RESOURCE_CORES] = str(cores)
            resources = {"limits": limits} if mem else {}
            return {"name": f"c{position}", "resources": resources}

        found = {
            "metadata": {"name": name, "namespace": "ns", "uid": f"{name}-{uuids.uuid4()}"},
            "spec": {
                "schedulerName": names.SCHEDULER_NAME,
                "containers": [one(i, m) for i, m in enumerate(containers or [mem])],
                **spec,
            },
            "status": {"phase": "Pending"},
        }
        if init:
            found["spec"]["initContainers"] = [
                {**one(f"i{i}", m), "restartPolicy": "Always" if side else None}
                for i, (m, side) in enumerate(init)
            ]
        self.pods[name] = found
        return found

    def filter(self, pod, *nodes):
        nodes = list(nodes or self.state.ledger.nodes())
        body = json.dumps({"Pod": pod, "Nodes": None, "NodeNames": nodes}).encode()
        return handler.filter_pods(self.state, wire.decode_filter(body)).result

    def used(self, node="n1"):
        return {card.index: charge for card, charge in self.state.ledger.usage(node)}

    def bound(self, pod, node, devices, phase=names.PHASE_ALLOCATING, **annotations):
        """The pod as the watch shows it after its Binding."""
        pod = json.loads(json.dumps(pod))
        pod["spec"]["nodeName"] = node
        pod["metadata"]["annotations"] = {
            names.POD_NODE: node,
            names.POD_ALLOCATED: devices,
            names.POD_TO_ALLOCATE: devices,
            names.POD_BIND_PHASE: phase,
            **annotations,
        }
        return pod


def bind_args(pod, node="n1"):
    metadata = pod["metadata"]
    return wire.BindArgs(
        podname=metadata["name"],
        podnamespace=metadata["namespace"],
        poduid=metadata["uid"],
        node=node,
    )


@pytest.fixture
def world():
    clock = Clock()
    state = State(DeviceConfig(), clock=clock, wall=lambda: 1790000000.9)
    state.nodes_synced = state.pods_synced = True
    return World(state, clock)


@pytest.fixture
def args_of():
    return bind_args
