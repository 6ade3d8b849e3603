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
import msgspec
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from testbed.errors import ClusterError
from testbed.lab import binaries
from testbed.lab.bench import madeup
from testbed.lab.bench.extender import Served, free_port
from testbed.lab.bench.scraped import mean_ms, sums, writes
from testbed.lab.cluster.protocol import Progress
from testbed.lab.command import leashed
from testbed.lab.deploy.scheduler import scheduler_configuration
from testbed.lab.deploy.values import StackImages, StackValues
from testbed.stack import names

_TOOK = "vgpu_extender_request_seconds"
_START_S = 60.0
_TOGETHER = 16


@dataclass(slots=True, kw_only=True)
class ScheduleBench:
    """What was measured.

    Attributes:
        cpu_ms_per_pod: Of each program while the pods were placed, by name; ``bench`` is this
            one, which stands for the plugins.
        cores_of_others: What all else on the machine took meanwhile: with more than a
            little of it the rate says less than the sum of the CPU times.
        cycle_ms: Mean of the scheduler's part that comes one pod after the other, its
            question to the extender included.
        filter_ms, bind_ms: Means of the extender, its waits included.
        connections: That the scheduler opened to the extender, by protocol.
        calls_per_pod: Writes that the API server took, by method and resource.
    """

    nodes: int
    pods: int
    policy: str
    pods_per_s: float
    seconds: float
    cpu_ms_per_pod: dict[str, float]
    cores_of_others: float
    cycle_ms: float
    filter_ms: float
    bind_ms: float
    filters_per_pod: float
    connections: dict[str, int]
    calls_per_pod: dict[str, float]


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
                pids = plane.pids() | {"extender": served.pid, "bench": os.getpid()}
                calls = await _text(api, "/metrics")
                await _until(lambda: plugin.count(1), "the first pod is bound", plane)
                before = {name: _cpu_s(pid) for name, pid in pids.items()}
                busy, begun = _busy_s(), time.monotonic()
                while not await plugin.count(pods):
                    step.update(f"{len(plugin.bound)} of {pods}")
                    plane.check()
                    if time.monotonic() - plugin.last > _START_S:
                        raise ClusterError(
                            "pods are left over", why=f"{len(plugin.bound)} of {pods} are bound"
                        )
                    await asyncio.sleep(0.1)
                used = {name: _cpu_s(pid) - before[name] for name, pid in pids.items()}
                lasted = time.monotonic() - begun
                others = (_busy_s() - busy - sum(used.values())) / max(lasted, 1e-9)
                await plugin.answered()
                calls_after = await _text(api, "/metrics")
                scheduler = await _text(api, f"{plane.scheduler_url}/metrics")
            finally:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
            extender = served.text("/metrics")
    seconds = max(plugin.last - plugin.first, 1e-9)
    return ScheduleBench(
        nodes=nodes,
        pods=pods,
        policy=policy,
        pods_per_s=round((pods - 1) / seconds, 1),
        seconds=round(seconds, 2),
        cpu_ms_per_pod={name: round(1000 * s / pods, 2) for name, s in used.items()},
        cores_of_others=round(max(0.0, others), 2),
        cycle_ms=round(mean_ms(scheduler, "scheduler_scheduling_algorithm_duration_seconds"), 2),
        filter_ms=round(mean_ms(extender, _TOOK, verb="filter"), 3),
        bind_ms=round(mean_ms(extender, _TOOK, verb="bind"), 3),
        filters_per_pod=round(sums(extender, f"{_TOOK}_count", verb="filter").get((), 0) / pods, 3),
        connections={
            protocol: int(count)
            for (protocol,), count in sums(
                extender, "vgpu_extender_connections_total", ("protocol",)
            ).items()
        },
        calls_per_pod=dict(writes(calls, calls_after, pods)),
    )


class _Name(msgspec.Struct):
    name: str


class _Where(msgspec.Struct):
    nodeName: str = ""


class _Seen(msgspec.Struct):
    metadata: _Name
    spec: _Where


class _Event(msgspec.Struct):
    """What is read of a pod's event: this program shall take little of the machine."""

    object: _Seen


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

    async def answered(self) -> None:
        """Wait until every pod that was seen has got its answer."""
        while self._answers:
            await asyncio.gather(*self._answers)

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
                        self._see(msgspec.json.decode(line, type=_Event).object)

    def _see(self, pod: _Seen) -> None:
        name = pod.metadata.name
        if not pod.spec.nodeName or name in self.bound:
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
        self.scheduler_url = ""
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
        self.scheduler_url = f"https://127.0.0.1:{free_port()}"
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
            "--bind-address=127.0.0.1", f"--secure-port={self.scheduler_url.rpartition(':')[2]}",
            "--authentication-skip-lookup=true", f"--cert-dir={self.folder / 'scheduler'}",
            "--authorization-always-allow-paths=/metrics",
        )  # fmt: skip

    def _start(self, name: str, *arguments: str) -> None:
        with (self.folder / f"{name}.log").open("wb") as log:
            self._running[name] = subprocess.Popen(
                leashed(self._tools / name, *arguments),
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


def _busy_s() -> float:
    """Return the CPU time that all programs of the machine have had (proc_stat(5))."""
    user, nice, system, _, _, irq, softirq = map(
        int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:8]
    )
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


async def _text(api: aiohttp.ClientSession, where: str) -> str:
    async with api.get(where) as answer:
        await _checked(answer)
        return await answer.text()


def document(bench: ScheduleBench) -> dict[str, Any]:
    """Return what ``-o json`` prints."""
    return asdict(bench) | {"environment": {"cores": os.cpu_count(), "load": os.getloadavg()[0]}}
