"""``python -m testbed.stack.extender.bench``: how long a decision takes, as JSON.

Clusters are made up (seeded): nodes of 8 cards of four models, filled with pods; the
requests are those of pods as the API server writes them, with all node names in
random order, as the scheduler sends them. ``in_process`` is decoding, decision,
reservation and encoding; ``http`` is the same through the server on loopback, from
one client that waits for each answer. Nothing is asserted here.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import platform
import random
import resource
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import aiohttp
import msgspec
import numpy as np

from testbed.stack import names
from testbed.stack.codec import encode_register
from testbed.stack.config import DeviceConfig
from testbed.stack.extender.binder import Binder
from testbed.stack.extender.handler import filter_pods
from testbed.stack.extender.server import scheduler_app, serve
from testbed.stack.extender.state import State
from testbed.stack.extender.wire import decode_filter
from testbed.stack.model import Card
from testbed.stack.placement.effective import Charge

_MODELS = (
    ("NVIDIA A100-SXM4-80GB", 81920),
    ("NVIDIA H100-SXM5-80GB", 81920),
    ("NVIDIA L40S", 46068),
    ("NVIDIA-Tesla T4", 15360),
)
_CARDS = 8
_PODS_PER_NODE = 20


def cluster(nodes: int, rng: random.Random) -> State:
    """Return the state of a cluster with 20 pods on each node."""
    state = State(DeviceConfig())
    state.nodes_synced = state.pods_synced = True
    for i in range(nodes):
        model, mem = _MODELS[i % len(_MODELS)]
        cards = [
            Card(uuid=f"GPU-{i:05d}-{j}", index=j, mem_mib=mem, model=model, numa=j // 4)
            for j in range(_CARDS)
        ]
        annotations = {names.NODE_REGISTER: encode_register(cards)}
        state.node_changed(
            {
                "metadata": {"name": _node(i), "annotations": annotations},
                "status": {"allocatable": {names.RESOURCE_COUNT: str(10 * _CARDS)}},
            }
        )
        for j in range(_PODS_PER_NODE):
            card = cards[rng.randrange(_CARDS)]
            charge = Charge(slots=1, mem_mib=rng.randrange(256, mem // 8), core_pct=10)
            state.ledger.promise(f"old-{i}-{j}", _node(i), {card.uuid: charge})
    return state


def _node(i: int) -> str:
    return f"node-{i:05d}.example"


def body(case: str, i: int, nodes: list[str], rng: random.Random) -> bytes:
    """Return a filter request."""

    def container(name: str, mem: int, cores: int = 10, count: int = 1) -> dict[str, Any]:
        limits = {
            "cpu": "4",
            names.RESOURCE_COUNT: str(count),
            names.RESOURCE_MEMORY: str(mem),
            names.RESOURCE_CORES: str(cores),
        }
        env = [{"name": f"VARIABLE_{k}", "value": "x" * 40} for k in range(12)]
        return {"name": name, "image": "i", "env": env, "resources": {"limits": limits}}

    if case == "simple":
        members = [container("main", 1000 + i % 7)]
    elif case == "several":
        members = [container(f"c{k}", rng.randrange(500, 4000)) for k in range(3)]
    elif case == "nowhere":
        members = [container("main", 100_000)]
    else:
        raise ValueError(case)
    rng.shuffle(nodes)
    pod = {
        "metadata": {"name": f"p{i}", "namespace": "bench", "uid": f"uid-{case}-{i}"},
        "spec": {"schedulerName": names.SCHEDULER_NAME, "containers": members},
    }
    return json.dumps({"Pod": pod, "Nodes": None, "NodeNames": nodes}).encode()


CASES = ("simple", "several", "nowhere")


def in_process(state: State, bodies: list[bytes]) -> list[float]:
    """Return the milliseconds of each decision; each reservation is given back."""
    times = []
    for i, sent in enumerate(bodies):
        begin = time.perf_counter()
        answer = filter_pods(state, decode_filter(sent))
        msgspec.json.encode(answer.result)
        times.append(1000 * (time.perf_counter() - begin))
        _check(answer.result.Error, i)
        if answer.pod is not None:
            state.release(answer.pod.uid)
    return times


async def over_http(state: State, bodies: list[bytes]) -> list[float]:
    """Return the milliseconds of each request through the server."""
    binder = Binder(state, _NoApi(), label=False, report=lambda *_: True)
    runner = await serve(scheduler_app(state, binder, lambda *_: True, None), "127.0.0.1", 0, None)
    port = runner.addresses[0][1]
    times = []
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
            for i, sent in enumerate(bodies):
                begin = time.perf_counter()
                async with session.post("/filter", data=sent) as answer:
                    raw = await answer.read()
                times.append(1000 * (time.perf_counter() - begin))
                _check(json.loads(raw)["Error"], i)
                for held in state.reservations:
                    state.release(held.pod.uid)
    finally:
        await runner.cleanup()
    return times


class _NoApi:
    """Filter calls no API server."""

    async def bind(self, binding: dict[str, Any]) -> None:
        raise NotImplementedError

    async def read_pod(self, namespace: str, name: str) -> dict[str, Any] | None:
        raise NotImplementedError

    async def patch_pod(self, namespace: str, name: str, patch: list[dict[str, Any]]) -> None:
        raise NotImplementedError


def _http(state: State, bodies: list[bytes]) -> list[float]:
    return asyncio.run(over_http(state, bodies))


def _check(error: str, i: int) -> None:
    if error:
        raise RuntimeError(f"request {i}: {error}")


def _figures(times: list[float], cpu_s: float) -> dict[str, float]:
    return {
        "p50_ms": round(float(np.percentile(times, 50)), 3),
        "p99_ms": round(float(np.percentile(times, 99)), 3),
        "max_ms": round(max(times), 3),
        "cpu_ms_per_request": round(1000 * cpu_s / len(times), 3),
    }


def _timed(run: Callable[[], list[float]]) -> dict[str, float]:
    begin = time.process_time()
    times = run()
    return _figures(times, time.process_time() - begin)


def measure(nodes: int, requests: int, seed: int) -> dict[str, Any]:
    """Return the figures of one size of cluster."""
    rng = random.Random(seed)
    begin = time.perf_counter()
    state = cluster(nodes, rng)
    load_s = time.perf_counter() - begin
    gc.collect()
    gc.freeze()
    offered = [_node(i) for i in range(nodes)]
    cases = {}
    for case in CASES:
        bodies = [body(case, i, offered, rng) for i in range(requests)]
        in_process(state, bodies[:5])  # first calls into numpy are not typical
        cases[case] = {
            "in_process": _timed(partial(in_process, state, bodies)),
            "http": _timed(partial(_http, state, bodies)),
        }
    gc.unfreeze()
    return {
        "nodes": nodes,
        "cards": nodes * _CARDS,
        "pods": nodes * _PODS_PER_NODE,
        "load_s": round(load_s, 3),
        "body_bytes": len(bodies[0]),
        "cases": cases,
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="testbed.stack.extender.bench", description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=[100, 1000, 5000])
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    report = {
        "schema": 1,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "requests": options.requests,
        "seed": options.seed,
        "sizes": [measure(n, options.requests, options.seed) for n in options.nodes],
        "max_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }
    json.dump(report, sys.stdout, indent=1)
    sys.stdout.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
