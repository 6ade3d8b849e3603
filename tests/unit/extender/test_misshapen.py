"""Documents in which one value is another than it should be: answered or refused, never a fault.

A fault in what a watch shows would end the extender, and end it again after each restart.
"""

from __future__ import annotations

import copy
import json

import pytest

from testbed.errors import CodecError, InputError
from testbed.stack import names
from testbed.stack.codec import encode_register
from testbed.stack.extender import debug, handler, wire
from testbed.stack.extender.metrics import lines
from testbed.stack.model import Card

WRONG = (
    None, True, -1, 0.5, 10**30, "", "x", "1e3", "16Gi", [], [None], ["x"], {}, {"a": None},
    {"a": "b"}, "\x00", "a" * 70_000,
)  # fmt: skip
CARDS = encode_register([Card(uuid="GPU-n1-0", index=0, mem_mib=81920, model="NVIDIA A100")])
POD = {
    "metadata": {
        "name": "p",
        "namespace": "ns",
        "uid": "u",
        "labels": {"a": "b"},
        "annotations": {
            names.CARD_POLICY: "binpack",
            names.NODE_POLICY: "spread",
            names.CARD_WEIGHTS: "slot=1,core=1,memory=3",
            names.NUMA_BIND: "true",
            names.VGPU_MODE: "hami-core",
            "nvidia.com/use-gputype": "A100",
        },
    },
    "spec": {
        "schedulerName": names.SCHEDULER_NAME,
        "priority": 5,
        "preemptionPolicy": "Never",
        "nodeName": "",
        "initContainers": [
            {"name": "i", "restartPolicy": "Always", "resources": {"limits": {"cpu": "1"}}}
        ],
        "containers": [
            {
                "name": "c",
                "resources": {
                    "limits": {
                        names.RESOURCE_COUNT: "1",
                        names.RESOURCE_MEMORY: "3000",
                        names.RESOURCE_CORES: "30",
                    },
                    "requests": {names.RESOURCE_COUNT: "1"},
                },
            }
        ],
    },
    "status": {"phase": "Pending"},
}
NODE = {
    "metadata": {
        "name": "n1",
        "annotations": {
            names.NODE_REGISTER: CARDS,
            names.NODE_SCORE: '[{"uuid":"GPU-n1-0","score":{"GPU-b":200}}]',
            names.DEVICE_CORDON: "x",
        },
    },
    "status": {"allocatable": {names.RESOURCE_COUNT: "10"}},
}
REQUESTS = {
    "filter": {"Pod": POD, "Nodes": None, "NodeNames": ["n1"]},
    "simulate": {"Pod": POD, "Nodes": {"items": [NODE]}, "NodeNames": None},
    "preempt": {"Pod": POD, "NodeNameToMetaVictims": {"n1": {"Pods": [{"UID": "x"}]}}},
    "bind": {"PodName": "p", "PodNamespace": "ns", "PodUID": "u", "Node": "n1"},
}


def places(document, path=()):
    yield path
    parts = document.items() if isinstance(document, dict) else ()
    parts = enumerate(document) if isinstance(document, list) else parts
    for key, part in parts:
        yield from places(part, (*path, key))


def variants(document):
    for path in places(document):
        for wrong in WRONG:
            changed = holder = [copy.deepcopy(document)]
            at = 0
            for key in path:
                holder, at = holder[at], key
            holder[at] = wrong
            yield changed[0]


def answer(state, kind, body):
    if kind == "preempt":
        wire.encode(handler.preempt(state, wire.decode_preempt(body)))
    elif kind == "bind":
        handler.bindable(state, wire.decode_bind(body))
    else:
        wire.encode(handler.filter_pods(state, wire.decode_filter(body)).result)


@pytest.mark.parametrize("kind", REQUESTS)
def test_requests(world, kind):
    world.node()
    refused = 0
    for document in variants(REQUESTS[kind]):
        try:
            answer(world.state, kind, json.dumps(document).encode())
        except (InputError, CodecError):
            refused += 1
        for held in world.state.reservations:
            world.state.release(held.pod.uid)
    assert refused
    assert (world.used()[0].slots, world.used()[0].mem_mib) == (0, 0)


@pytest.mark.parametrize("key", [names.NODE_REGISTER, names.NODE_SCORE, names.DEVICE_CORDON])
@pytest.mark.parametrize(
    "text",
    [
        "x", "[", "[]", "[{}]", "[1]", "{}", "null", "[null]", "[" * 5000, ":::", "a,b,c:",
        '[{"id":"a","count":-1}]', '[{"id":"a","count":1e9,"devmem":1e30,"type":1}]',
        '[{"id":"a","count":10,"devmem":99999999999999999999,"health":true}]',
        '[{"id":"a","count":9223372036854775807,"devmem":9223372036854775807}]',
        '[{"id":"a","count":10,"devmem":1},{"id":"a","count":10,"devmem":1}]',
        '[{"uuid":"GPU-a","score":{"GPU-b":99999999999999999999}}]',
        '[{"uuid":"GPU-a","score":[]}]', '[{"uuid":"GPU-a","score":{"GPU-b":-5}}]',
    ],
)  # fmt: skip
def test_what_a_node_registers_by_a_watch(world, key, text):
    node = copy.deepcopy(NODE)
    node["metadata"]["annotations"][key] = text
    world.state.node_changed(node)
    answer(world.state, "filter", json.dumps(REQUESTS["filter"]).encode())
    wire.encode(debug.ledger(world.state))
    wire.encode(debug.waiting(world.state))
    assert list(lines(world.state, world.state.times, None))


@pytest.mark.parametrize("key", [names.POD_ALLOCATED, names.POD_TO_ALLOCATE, names.POD_NODE])
@pytest.mark.parametrize(
    "text",
    [
        "", ";", "x", ";GPU-n1-0,NVIDIA,3000,30:;;;", ";GPU-n1-0,NVIDIA,-5,30:;", ";,,,:;",
        ";GPU-n1-0,NVIDIA,99999999999999999999,30:;", ";GPU-n1-0,NVIDIA,3000,1000:;",
        ";GPU-n1-0,DCU,3000,30:;", ";" + "GPU-n1-0,NVIDIA,3000,30:" * 5000 + ";",
    ],
)  # fmt: skip
def test_what_a_pod_was_promised_by_a_watch(world, key, text):
    world.node()
    promise = ";GPU-n1-0,NVIDIA,3000,30:;"
    pod = world.bound(POD, "n1", promise, **{key: text})
    for _ in range(2):
        world.state.pod_changed(pod)
        wire.encode(debug.ledger(world.state))
    world.state.pod_gone("u")
    used = world.used()[0]
    assert (used.slots, used.mem_mib, used.core_pct) == (0, 0, 0)
