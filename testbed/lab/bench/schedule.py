"""``testbed bench schedule``: pods a second through a real API server and scheduler.

etcd, kube-apiserver, kube-scheduler and the extender run as plain processes on loopback;
nodes are objects without a kubelet, and one client stands for all device plugins: it
answers what is allocating with ``success``, as a plugin does. All pods are there before
the scheduler starts; the rate is counted from the first that is bound to the last.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import secrets
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from testbed.errors import ClusterError
from testbed.lab import binaries
from testbed.lab.bench import madeup
from testbed.lab.bench.extender import Served, free_port
from testbed.lab.cluster.protocol import Progress
from testbed.lab.deploy.scheduler import scheduler_configuration
from testbed.lab.deploy.values import StackImages, StackValues
from testbed.stack import names

_START_S = 60.0
_TOGETHER = 16


@dataclass(slots=True, kw_only=True)
class ScheduleBench:
    """What was measured.

    Attributes:
        cpu_ms_per_pod: Of each program while the pods were placed, by name.
        filter_ms, bind_ms: Means of the extender, its waits included.
        calls_per_pod: Writes to the API server: Binding and the plugin's phase.
    """

    nodes: int
    pods: int
    policy: str
    pods_per_s: float
    seconds: float
    cpu_ms_per_pod: dict[str, float]
    filter_ms: float
    bind_ms: float
    filters_per_pod: float
    calls_per_pod: int = 2


def measure(
    progress: Progress, *, nodes: int, cards: int, pods: int, policy: str = "spread"
) -> ScheduleBench:
    """Measure one run.

    Args:
        progress: Told of the steps.
        nodes: How many nodes.
        cards: Cards of each.
        pods: How many pods are placed.
        policy: Node policy of the pods. Under ``binpack`` they go to one node after the
            other, and the node's turn (one pod at a time between Binding and Allocate)
            bounds the rate; under ``spread`` the scheduler does.

    Raises:
        ClusterError: a program does not start, or pods are left over.
    """
    tools = Path(binaries.ensure(progress).folder)
    with tempfile.TemporaryDirectory(prefix="vgpu-sched-") as folder:
        plane = _Plane(Path(folder), tools)
        try:
            with progress.step("start etcd and the API server"):
                plane.start()
            return asyncio.run(_measure(progress, plane, nodes, cards, pods, policy))
        finally:
            plane.stop()


async def _measure(
    progress: Progress, plane: _Plane, nodes: int, cards: int, pods: int, policy: str
) -> ScheduleBench:
    rng = random.Random(1)
    made = madeup.make(nodes, cards, 0, rng)
    headers = {"Authorization": f"Bearer {plane.token}"}
    connector = aiohttp.TCPConnector(ssl=False, limit=2 * _TOGETHER)
    async with aiohttp.ClientSession(plane.url, headers=headers, connector=connector) as api:
        await _until(lambda: _ready(api), "the API server is ready", plane)
        with progress.step(f"make {nodes} nodes and {pods} pods"):
            await _many([_node(api, json.loads(body)) for body in made.nodes])
            await _many([_pod(api, i, policy) for i in range(pods)])
        served = await asyncio.to_thread(
            Served, plane.folder, plane.url, token=plane.token, name="extender"
        )
        with served, progress.step("place the pods") as step:
            plugin = _Plugin(api, pods)
            watching = asyncio.create_task(plugin.run())
            try:
                await _until(plugin.started, "pods are watched", plane)
                plane.start_scheduler(served)
                pids = plane.pids() | {"extender": served.pid}
                await _until(lambda: plugin.count(1), "the first pod is bound", plane)
                before = {name: _cpu_s(pid) for name, pid in pids.items()}
                while not await plugin.count(pods):
                    step.update(f"{len(plugin.bound)} of {pods}")
                    plane.check()
                    if time.monotonic() - plugin.last > _START_S:
                        raise ClusterError(
                            "pods are left over", why=f"{len(plugin.bound)} of {pods} are bound"
                        )
                    await asyncio.sleep(0.1)
                used = {name: _cpu_s(pid) - before[name] for name, pid in pids.items()}
            finally:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
            figures = _figures(served.text("/metrics"))
    seconds = max(plugin.last - plugin.first, 1e-9)
    return ScheduleBench(
        nodes=nodes,
        pods=pods,
        policy=policy,
        pods_per_s=round((pods - 1) / seconds, 1),
        seconds=round(seconds, 2),
        cpu_ms_per_pod={name: round(1000 * s / pods, 2) for name, s in used.items()},
        filter_ms=round(1000 * figures["filter"][0] / max(1, figures["filter"][1]), 3),
        bind_ms=round(1000 * figures["bind"][0] / max(1, figures["bind"][1]), 3),
        filters_per_pod=round(figures["filter"][1] / pods, 3),
    )


class _Plugin:
    """Stands for all device plugins, and notes when each pod was bound."""

    def __init__(self, api: aiohttp.ClientSession, pods: int) -> None:
        self._api = api
        self._pods = pods
        self.bound: set[str] = set()
        self.first = self.last = time.monotonic()
        self._watching = False
        self._answers: set[asyncio.Task[None]] = set()

    async def started(self) -> bool:
        return self._watching

    async def count(self, least: int) -> bool:
        return len(self.bound) >= least

    async def run(self) -> None:
        path = f"/api/v1/namespaces/{madeup.NAMESPACE}/pods"
        async with self._api.get(path, params={"limit": "1"}) as found:
            version = (await found.json())["metadata"]["resourceVersion"]
        query = {"watch": "true", "resourceVersion": version}
        timeout = aiohttp.ClientTimeout(total=None)
        async with self._api.get(path, params=query, timeout=timeout) as stream:
            self._watching = True
            rest = b""
            async for chunk in stream.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    if line.strip():
                        self._see(json.loads(line)["object"])

    def _see(self, pod: dict[str, Any]) -> None:
        name = pod["metadata"]["name"]
        if not pod["spec"].get("nodeName") or name in self.bound:
            return
        now = time.monotonic()
        if not self.bound:
            self.first = now
        self.bound.add(name)
        self.last = now
        task = asyncio.create_task(self._answer(name))
        self._answers.add(task)
        task.add_done_callback(self._answers.discard)

    async def _answer(self, name: str) -> None:
        patch = {"metadata": {"annotations": {names.POD_BIND_PHASE: names.PHASE_SUCCESS}}}
        path = f"/api/v1/namespaces/{madeup.NAMESPACE}/pods/{name}"
        headers = {"Content-Type": "application/merge-patch+json"}
        async with self._api.patch(path, data=json.dumps(patch), headers=headers) as answer:
            await answer.read()


class _Plane:
    """etcd, API server and scheduler as processes; ``stop`` ends what was started."""

    def __init__(self, folder: Path, tools: Path) -> None:
        self.folder, self._tools = folder, tools
        self.token = secrets.token_hex(16)
        self._port = free_port()
        self.url = f"https://127.0.0.1:{self._port}"
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        folder = self.folder
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        (folder / "sa.key").write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        (folder / "tokens").write_text(f"{self.token},bench,bench,system:masters\n")
        self._start(
            "etcd", f"--data-dir={folder / 'etcd'}",
            f"--listen-client-urls=unix://{folder}/e.sock",
            f"--advertise-client-urls=unix://{folder}/e.sock",
            f"--listen-peer-urls=unix://{folder}/p.sock",
            f"--initial-advertise-peer-urls=unix://{folder}/p.sock",
            f"--initial-cluster=default=unix://{folder}/p.sock",
            "--unsafe-no-fsync", "--log-level=warn",
        )  # fmt: skip
        self._start(
            "kube-apiserver", f"--etcd-servers=unix://{folder}/e.sock",
            "--bind-address=127.0.0.1", f"--secure-port={self._port}",
            f"--cert-dir={folder / 'api'}", f"--token-auth-file={folder / 'tokens'}",
            "--authorization-mode=AlwaysAllow", "--endpoint-reconciler-type=none",
            "--service-cluster-ip-range=10.96.0.0/16", "--service-account-issuer=https://bench",
            f"--service-account-key-file={folder / 'sa.key'}",
            f"--service-account-signing-key-file={folder / 'sa.key'}",
            # No controller makes service accounts or takes taints away.
            "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
        )  # fmt: skip

    def start_scheduler(self, served: Served) -> None:
        images = StackImages(base="bench:1", kube_scheduler="bench:1")
        configuration = scheduler_configuration(StackValues(images=images))
        configuration["leaderElection"] = {"leaderElect": False}
        path = self.folder / "kubeconfig"
        configuration["clientConnection"]["kubeconfig"] = str(path)
        (extender,) = configuration["extenders"]
        extender["urlPrefix"] = served.url
        extender["tlsConfig"] = {
            "caFile": str(self.folder / "ca.crt"),
            "certFile": str(self.folder / "client.crt"),
            "keyFile": str(self.folder / "client.key"),
        }
        (self.folder / "scheduler.yaml").write_text(yaml.safe_dump(configuration))
        self._start(
            "kube-scheduler", f"--config={self.folder / 'scheduler.yaml'}",
            "--bind-address=127.0.0.1", f"--secure-port={free_port()}",
            "--authentication-skip-lookup=true", f"--cert-dir={self.folder / 'scheduler'}",
        )  # fmt: skip

    def _start(self, name: str, *arguments: str) -> None:
        with (self.folder / f"{name}.log").open("wb") as log:
            self._running[name] = subprocess.Popen(
                [str(self._tools / name), *arguments],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder,
            )  # fmt: skip

    def pids(self) -> dict[str, int]:
        return {name: process.pid for name, process in self._running.items()}

    def check(self) -> None:
        for name, process in self._running.items():
            if process.poll() is not None:
                text = (self.folder / f"{name}.log").read_text(errors="replace")[-1500:]
                raise ClusterError(f"{name} ended with {process.returncode}", why=text)

    def stop(self) -> None:
        for process in reversed(self._running.values()):
            process.kill()  # the data is thrown away
            process.wait()


async def _until(condition: Callable[[], Awaitable[bool]], what: str, plane: _Plane) -> None:
    deadline = time.monotonic() + _START_S
    while not await condition():
        plane.check()
        if time.monotonic() > deadline:
            raise ClusterError(f"not within {_START_S:.0f} s: {what}")
        await asyncio.sleep(0.05)


async def _ready(api: aiohttp.ClientSession) -> bool:
    try:
        async with api.get("/readyz") as answer:
            if answer.status != 200:
                return False
        async with api.post(
            "/api/v1/namespaces", json={"metadata": {"name": madeup.NAMESPACE}}
        ) as answer:
            return answer.status in (201, 409)
    except aiohttp.ClientError:
        return False


async def _many(calls: list[Awaitable[None]]) -> None:
    gate = asyncio.Semaphore(_TOGETHER)

    async def one(call: Awaitable[None]) -> None:
        async with gate:
            await call

    await asyncio.gather(*map(one, calls))


async def _node(api: aiohttp.ClientSession, node: dict[str, Any]) -> None:
    metadata = {k: node["metadata"][k] for k in ("name", "labels", "annotations")}
    await _post(api, "/api/v1/nodes", {"metadata": metadata})
    path = f"/api/v1/nodes/{metadata['name']}/status"
    headers = {"Content-Type": "application/merge-patch+json"}
    status = json.dumps({"status": node["status"]})
    async with api.patch(path, data=status, headers=headers) as answer:
        await _checked(answer)


async def _pod(api: aiohttp.ClientSession, number: int, policy: str) -> None:
    pod = madeup.simple(number, random.Random(number))
    body = {
        "metadata": {
            "name": pod["metadata"]["name"],
            "annotations": {names.NODE_POLICY: policy},
        },
        "spec": {
            "schedulerName": names.SCHEDULER_NAME,
            "containers": [
                {key: container[key] for key in ("name", "image", "resources")}
                for container in pod["spec"]["containers"]
            ],
        },
    }
    for container in body["spec"]["containers"]:
        limits = container["resources"]["limits"]
        limits |= {"cpu": "100m", "memory": "64Mi"}
        container["resources"] = {"limits": limits}
    await _post(api, f"/api/v1/namespaces/{madeup.NAMESPACE}/pods", body)


async def _post(api: aiohttp.ClientSession, path: str, body: dict[str, Any]) -> None:
    async with api.post(path, json=body) as answer:
        await _checked(answer)


async def _checked(answer: aiohttp.ClientResponse) -> None:
    text = await answer.text()
    if answer.status >= 300:
        raise ClusterError(f"{answer.method} {answer.url.path} was refused", why=text[:500])


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _figures(text: str) -> dict[str, tuple[float, int]]:
    """Return sum and count of the extender's histogram, by verb."""
    found = {"filter": [0.0, 0.0], "bind": [0.0, 0.0]}
    for line in text.splitlines():
        for verb, sums in found.items():
            for at, part in enumerate(("sum", "count")):
                if line.startswith(f'vgpu_extender_request_seconds_{part}{{verb="{verb}"'):
                    sums[at] += float(line.rpartition(" ")[2])
    return {verb: (sums[0], int(sums[1])) for verb, sums in found.items()}


def document(bench: ScheduleBench) -> dict[str, Any]:
    """Return what ``-o json`` prints."""
    return asdict(bench) | {"environment": {"cores": os.cpu_count(), "load": os.getloadavg()[0]}}
