"""Clusters that exist on paper: nodes with cards, pods on them, pods that ask.

Objects have the size and shape in which an API server writes them (managed fields,
images of a node, conditions), seeded, so that two runs measure the same.
"""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from testbed.lab.bench.reference import Reference, Slot
from testbed.stack import names
from testbed.stack.codec import encode_register
from testbed.stack.model import Card, Share
from testbed.stack.placement import Kind

#: Model, MiB that programs can have of it.
MODELS = (
    ("NVIDIA A100-SXM4-80GB", 81050),
    ("NVIDIA H100-SXM5-80GB", 81090),
    ("NVIDIA L40S", 45580),
    ("NVIDIA-Tesla T4", 14910),
)
NAMESPACE = "bench"
SLOTS = 10


@dataclass(slots=True)
class MadeUp:
    """A cluster as lists of JSON documents, and the same as plain objects.

    Attributes:
        nodes, pods: The objects, encoded.
        reference: What is free, for decisions by plain loops.
        names: The nodes' names.
    """

    nodes: list[bytes] = field(default_factory=list)
    pods: list[bytes] = field(default_factory=list)
    reference: Reference = field(default_factory=Reference)
    names: list[str] = field(default_factory=list)


def make(nodes: int, cards: int, pods: int, rng: random.Random) -> MadeUp:
    """Return a cluster, its pods spread over the nodes, each with one card or two."""
    found = MadeUp()
    images = _images(rng)
    for i in range(nodes):
        name = f"node-{i:05d}.bench"
        model, mem = MODELS[i % len(MODELS)]
        own = [
            Card(
                uuid=f"GPU-{_uuid(rng)}", index=j, slots=SLOTS, mem_mib=mem, model=model,
                numa=2 * j // max(1, cards),
            )
            for j in range(cards)
        ]  # fmt: skip
        found.names.append(name)
        found.reference.nodes[name] = [Slot(card) for card in own]
        found.nodes.append(_node(name, own, images))
    made = 0
    while made < pods:
        before = made
        for name in found.names:
            if made == pods:
                break
            body = _placed(f"job-{made:06d}-{rng.randrange(16**5):05x}", name, found, rng)
            if body is not None:
                found.pods.append(body)
                made += 1
        if made == before:
            break  # the cluster is full
    return found


def pages(items: list[bytes], size: int, kind: str) -> Iterator[bytes]:
    """Yield a collection's answers to paged requests, as an API server sends them."""
    count = max(1, -(-len(items) // size))
    for i in range(count):
        more = f'"continue":"{i + 1}",' if i + 1 < count else ""
        body = b",".join(items[i * size : (i + 1) * size])
        head = f'{{"kind":"{kind}List","apiVersion":"v1","metadata":{{{more}"resourceVersion":"9"}}'
        yield head.encode() + b',"items":[' + body + b"]}"


# --- pods that ask ------------------------------------------------------------------


def simple(number: int, _rng: random.Random) -> dict[str, Any]:
    """Return a pod with one container that asks for a share of one card."""
    return asking(f"simple-{number}", [_limits(1000 + 10 * (number % 7), 10)])


def mixed(number: int, rng: random.Random) -> dict[str, Any]:
    """Return a pod of some shape: two in five with several containers, many wishes."""
    several = rng.random() < 0.4
    apps = [
        _limits(
            rng.randrange(500, 6000, 100),
            rng.choice((0, 5, 10, 15, 20)),
            count=rng.choice((1, 1, 1, 2)),
            percent=rng.choice((0, 0, 0, 5)),
        )
        for _ in range(rng.randrange(2, 5) if several else 1)
    ]
    inits = [_limits(rng.randrange(500, 8000, 100), 0)] if several and rng.random() < 0.4 else []
    annotations = {}
    if rng.random() < 0.3:
        annotations[names.USE_TYPE] = rng.choice(("A100", "H100", "L40S,A100"))
    if rng.random() < 0.3:
        annotations[names.NODE_POLICY] = "spread"
    if rng.random() < 0.4:
        annotations[names.CARD_POLICY] = rng.choice(("binpack", "mutex", "numa,binpack"))
    if rng.random() < 0.1:
        annotations[names.NUMA_BIND] = "true"
    return asking(f"mixed-{number}", apps, inits, annotations)


def unfit(number: int, _rng: random.Random) -> dict[str, Any]:
    """Return a pod that fits nowhere: more memory than any card has."""
    return asking(f"unfit-{number}", [_limits(82_000 + number % 5, 10)])


CASES = {"simple": simple, "mixed": mixed, "unfit": unfit}


def _limits(mem: int, cores: int, count: int = 1, percent: int = 0) -> dict[str, str]:
    limits = {"cpu": "4", "memory": "16Gi", names.RESOURCE_COUNT: str(count)}
    if percent:
        limits[names.RESOURCE_MEMORY_PERCENTAGE] = str(percent)
    else:
        limits[names.RESOURCE_MEMORY] = str(mem)
    if cores:
        limits[names.RESOURCE_CORES] = str(cores)
    return limits


def asking(
    name: str,
    apps: list[dict[str, str]],
    inits: list[dict[str, str]] | None = None,
    annotations: dict[str, str] | None = None,
) -> dict[str, Any]:
    """Return a pending pod with these limits, as kube-scheduler sends it."""
    return {
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "uid": f"{zlib.crc32(name.encode()):08x}-0000-4000-8000-{name[-12:]:0>12}",
            "resourceVersion": "123456",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"app": "train", "batch.kubernetes.io/job-name": "train"},
            "annotations": annotations or {},
            "managedFields": _managed(len(apps)),
        },
        "spec": {
            **_spec([_container(f"c{i}", limits) for i, limits in enumerate(apps)]),
            "initContainers": [_container(f"i{i}", limits) for i, limits in enumerate(inits or ())],
        },
        "status": {"phase": "Pending", "qosClass": "Guaranteed"},
    }


def _container(name: str, limits: dict[str, str]) -> dict[str, Any]:
    return {
        "name": name,
        "image": "registry.example/train:1.0",
        "command": ["python", "train.py"],
        "env": [{"name": f"SETTING_{k}", "value": "x" * 24} for k in range(8)],
        "resources": {"limits": limits, "requests": limits},
        "volumeMounts": [
            {
                "name": "kube-api-access-2x7bq",
                "readOnly": True,
                "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
            }
        ],
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "IfNotPresent",
    }


def _spec(containers: list[dict[str, Any]], node: str = "") -> dict[str, Any]:
    return {
        **({"nodeName": node} if node else {}),
        "volumes": [
            {
                "name": "kube-api-access-2x7bq",
                "projected": {
                    "sources": [
                        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
                        {"configMap": {"name": "kube-root-ca.crt"}},
                    ],
                    "defaultMode": 420,
                },
            }
        ],
        "containers": containers,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "ClusterFirst",
        "serviceAccountName": "default",
        "schedulerName": names.SCHEDULER_NAME,
        "priority": 0,
        "preemptionPolicy": "PreemptLowerPriority",
        "tolerations": [
            {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"}
        ],
    }


def _managed(containers: int) -> list[dict[str, Any]]:
    fields = {
        "f:metadata": {"f:labels": {".": {}, "f:app": {}}},
        "f:spec": {
            "f:containers": {
                f'k:{{"name":"c{i}"}}': {
                    key: {}
                    for key in (".", "f:command", "f:env", "f:image", "f:imagePullPolicy", "f:name",
                                "f:resources", "f:terminationMessagePath")
                }
                for i in range(containers)
            },
            "f:restartPolicy": {},
            "f:schedulerName": {},
        },
    }  # fmt: skip
    return [
        {
            "manager": "kubectl",
            "operation": "Update",
            "apiVersion": "v1",
            "time": "2026-01-01T00:00:00Z",
            "fieldsType": "FieldsV1",
            "fieldsV1": fields,
        }
    ]


# --- what is there ------------------------------------------------------------------


def _placed(name: str, node: str, found: MadeUp, rng: random.Random) -> bytes | None:
    slots = found.reference.nodes[node]
    mem, cores = rng.randrange(256, slots[0].card.mem_mib // 8), rng.choice((0, 5, 10))
    free = [
        s
        for s in slots
        if s.slots < SLOTS and s.mem + mem <= s.card.mem_mib and s.core + max(cores, 1) <= 100
    ]
    count = 2 if rng.random() < 0.2 else 1
    if len(free) < count:
        return None
    chosen = sorted(rng.sample(free, count), key=lambda slot: slot.card.index)
    placed = [[(slot.card.uuid, mem, cores) for slot in chosen]]
    uid = _uuid(rng)
    found.reference.promise(uid, node, (Kind.APP,), placed)
    shares = "".join(f"{u},NVIDIA,{m},{c}:" for u, m, c in placed[0]) + ";"
    annotations = {
        names.POD_NODE: node,
        names.POD_TIME: "1790000000",
        names.POD_TO_ALLOCATE: ";",
        names.POD_ALLOCATED: shares,
        names.POD_BIND_PHASE: names.PHASE_SUCCESS,
        names.POD_BIND_TIME: "1790000000",
    }
    pod = asking(name, [_limits(mem, cores, count)], annotations=annotations)
    pod["metadata"]["uid"] = uid
    pod["metadata"]["namespace"] = f"team-{rng.randrange(40):02d}"
    pod["spec"]["nodeName"] = node
    pod["status"] = {
        "phase": "Running",
        "conditions": [{"type": t, "status": "True"} for t in ("Initialized", "Ready")],
        "podIP": "10.0.0.1",
        "startTime": "2026-01-01T00:00:00Z",
        "containerStatuses": [{"name": "c0", "ready": True, "containerID": "containerd://" + uid}],
    }
    return json.dumps(pod, separators=(",", ":")).encode()


def _node(name: str, cards: list[Card], images: list[dict[str, Any]]) -> bytes:
    amounts = {
        "cpu": "128", "memory": "1Ti", "pods": "500",
        names.RESOURCE_COUNT: str(SLOTS * len(cards)),
    }  # fmt: skip
    node = {
        "metadata": {
            "name": name,
            "uid": name,
            "resourceVersion": "7",
            "labels": {"kubernetes.io/hostname": name, "gpu": "on"},
            "annotations": {names.NODE_REGISTER: encode_register(cards)},
            "managedFields": _managed(2),
        },
        "spec": {"podCIDR": "10.0.0.0/24"},
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
            "images": images,
        },
    }
    return json.dumps(node, separators=(",", ":")).encode()


def _images(rng: random.Random) -> list[dict[str, Any]]:
    return [
        {
            "names": [f"registry.example/image-{i}@sha256:{rng.randrange(16**64):064x}"],
            "sizeBytes": rng.randrange(10**9),
        }
        for i in range(50)
    ]


def _uuid(rng: random.Random) -> str:
    text = f"{rng.randrange(16**32):032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def taken_of(shares: tuple[tuple[Share, ...], ...]) -> list[list[tuple[str, int, int]]]:
    """Return a promise as the reference writes it."""
    return [[(s.uuid, s.mem_mib, s.core_pct) for s in container] for container in shares]
