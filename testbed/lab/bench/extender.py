"""``testbed bench extender``: how fast and how right the extender decides.

The extender is the real program in a process of its own, with TLS, the scheduler's
certificate demanded, quotas, metrics and logging. It reads a made-up cluster from a
recording API server in this process and answers filter requests as kube-scheduler sends
them (the pod as an API server writes it, all node names in random order), one client,
one request at a time on one connection, by HTTP/2 unless told otherwise. Its reservations
stay, so the cluster fills.

Afterwards decisions are made a second time by plain loops (``reference``), on what was
free at that moment: node, cards, and for a pod that fits nowhere every node's reasons.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from testbed.errors import ClusterError, InputError
from testbed.lab.bench import madeup
from testbed.lab.bench.client import Asking, connect
from testbed.lab.bench.reference import Reference
from testbed.lab.bench.scheduled import Scheduled, scheduled
from testbed.lab.command import leashed
from testbed.lab.deploy.scheduler import EXTENDER_ENVIRONMENT
from testbed.lab.progress import ConsoleProgress
from testbed.stack.certificates.sets import make as make_certificates
from testbed.stack.codec import decode_pod_shares
from testbed.stack.config import DeviceConfig
from testbed.stack.placement import PodRequest, pod_request

_PAGE = 500
_LOAD_S = 120.0


@dataclass(slots=True, kw_only=True)
class Decision:
    """One request and its answer."""

    case: str
    pod: dict[str, Any]
    seconds: float
    answer: dict[str, Any]


@dataclass(slots=True, kw_only=True)
class ExtenderBench:
    """What was measured; times in milliseconds, memory in MB (10^6 bytes).

    Attributes:
        cpu_ms: What the extender itself computed for a decision, by case.
        waited_ms: How long it waited in one for a processor that others had; both empty
            where the kernel does not count it.
        start_cpu_s: What it computed from its start until it had read the cluster.
    """

    nodes: int
    cards: int
    pods: int
    filter_ms: dict[str, dict[str, float]]
    decisions_per_s: float
    per_s: dict[str, float]
    rss_mb: float
    rss_peak_mb: float
    load_s: float
    payload_kb: float
    verified: int
    differences: list[str]
    shapes: int
    several_pct: float
    cpu_ms: dict[str, float] = field(default_factory=dict)
    waited_ms: dict[str, float] = field(default_factory=dict)
    start_cpu_s: float | None = None
    calls: dict[str, int] = field(default_factory=dict)
    protocol: str = "h2"


def measure(
    progress: ConsoleProgress,
    *,
    nodes: int,
    cards: int,
    pods: int,
    requests: int,
    verify: int,
    seed: int,
    protocol: str = "h2",
) -> ExtenderBench:
    """Measure an extender in front of a made-up cluster.

    Args:
        progress: Told of the steps.
        nodes: How many nodes.
        cards: Cards of each.
        pods: Pods that are placed already.
        requests: Filter requests of each case.
        verify: Decisions of each case that are compared with the reference.
        seed: Of everything random.
        protocol: What the client speaks, ``h2`` or ``http/1.1``.

    Raises:
        InputError: so many pods do not fit on these cards.
        ClusterError: the extender does not start, or does not answer.
    """
    rng = random.Random(seed)
    with progress.step(f"make up {nodes} nodes and {pods} pods"):
        cluster = madeup.make(nodes, cards, pods, rng)
    if len(cluster.pods) < pods:
        raise InputError(
            f"{pods} pods do not fit on {nodes} nodes of {cards} cards",
            why=f"{len(cluster.pods)} do",
            hint="ask for fewer pods",
        )
    collections = {
        "/api/v1/nodes": list(madeup.pages(cluster.nodes, _PAGE, "Node")),
        "/api/v1/pods": list(madeup.pages(cluster.pods, _PAGE, "Pod")),
        "/api/v1/resourcequotas": list(madeup.pages([_quota()], _PAGE, "ResourceQuota")),
    }
    cluster.nodes.clear()
    cluster.pods.clear()
    from testbed.lab.bench.recording_api import RecordingApi

    with (
        tempfile.TemporaryDirectory(prefix="vgpu-bench-") as folder,
        RecordingApi(collections) as api,
    ):
        with progress.step("the extender reads the cluster"):
            served = Served(Path(folder), api.url)
        with served:
            load_s = served.load_s()
            start = scheduled(served.pid)
            had: dict[str, Scheduled] = {}
            decisions: list[Decision] = []
            with contextlib.closing(served.client(protocol)) as client:
                for case in madeup.CASES:
                    before = scheduled(served.pid)
                    with progress.step(f"{requests} requests: {case}"):
                        decisions += _ask(client, case, requests, cluster.names, rng)
                    after = scheduled(served.pid)
                    if before is not None and after is not None:
                        had[case] = after - before
            rss, peak = served.memory_mb()
            reserved = served.document("/debug/reservations")["reservations"]
    with progress.step(f"compare {verify} decisions of each case with the reference"):
        verified, differences = _verify(cluster, decisions, reserved, verify)
    times = {
        case: sorted(1000 * d.seconds for d in decisions if d.case == case) for case in madeup.CASES
    }
    per_s = {case: round(len(found) / sum(found) * 1000, 1) for case, found in times.items()}
    mixed = [d.pod for d in decisions if d.case == "mixed"]
    several = [p for p in mixed if len(p["spec"]["containers"] + p["spec"]["initContainers"]) > 1]
    return ExtenderBench(
        nodes=nodes,
        cards=cards,
        pods=pods,
        filter_ms={
            case: {"p50": _percentile(found, 50), "p99": _percentile(found, 99)}
            for case, found in times.items()
        },
        decisions_per_s=per_s["simple"],
        per_s=per_s,
        rss_mb=rss,
        rss_peak_mb=peak,
        load_s=round(load_s, 3),
        payload_kb=round(len(_body(decisions[0].pod, cluster.names)) / 1000, 1),
        verified=verified,
        differences=differences,
        shapes=len({json.dumps(_shape(pod), sort_keys=True) for pod in mixed}),
        several_pct=round(100 * len(several) / max(1, len(mixed)), 1),
        cpu_ms={case: round(one.ran_ns / requests / 1e6, 3) for case, one in had.items()},
        waited_ms={case: round(one.waited_ns / requests / 1e6, 3) for case, one in had.items()},
        start_cpu_s=None if start is None else round(start.ran_ns / 1e9, 2),
        calls=dict(api.calls),
        protocol=protocol,
    )


def _quota() -> bytes:
    hard = {"limits.nvidia.com/gpumem": "100000000", "limits.nvidia.com/gpucores": "10000000"}
    metadata = {"name": "cards", "namespace": madeup.NAMESPACE, "resourceVersion": "3"}
    return json.dumps({"metadata": metadata, "spec": {"hard": hard}}).encode()


def _shape(pod: dict[str, Any]) -> Any:
    spec = pod["spec"]
    return [
        pod["metadata"]["annotations"],
        *(
            [c["resources"]["limits"] for c in spec[key]]
            for key in ("initContainers", "containers")
        ),
    ]


def _body(pod: dict[str, Any], names: Sequence[str]) -> bytes:
    # As Go's encoder writes it: no spaces.
    document = {"Pod": pod, "Nodes": None, "NodeNames": names}
    return json.dumps(document, separators=(",", ":")).encode()


def _ask(
    client: Asking, case: str, requests: int, names: list[str], rng: random.Random
) -> list[Decision]:
    order = list(names)
    found = []
    for number in range(requests):
        pod = madeup.CASES[case](number, rng)
        rng.shuffle(order)  # kube-scheduler's workers race for the order of names
        body = _body(pod, order)
        begun = time.perf_counter()
        raw = client.post("/filter", body)
        seconds = time.perf_counter() - begun
        answer = json.loads(raw)
        if answer["Error"]:
            raise ClusterError(f"the extender failed at {case} {number}", why=answer["Error"])
        found.append(Decision(case=case, pod=pod, seconds=seconds, answer=answer))
    return found


def _percentile(ordered: list[float], percent: int) -> float:
    at = min(len(ordered) - 1, round(percent / 100 * (len(ordered) - 1)))
    return round(ordered[at], 3)


# --- comparison ---------------------------------------------------------------------


def _verify(
    cluster: madeup.MadeUp, decisions: list[Decision], reserved: list[dict[str, Any]], verify: int
) -> tuple[int, list[str]]:
    """Replay all decisions, and make some of each case again by plain loops."""
    promised = {entry["uid"]: entry for entry in reserved}
    config = DeviceConfig()
    reference = cluster.reference
    totals = {case: sum(d.case == case for d in decisions) for case in madeup.CASES}
    seen = dict.fromkeys(totals, 0)
    verified, differences = 0, []
    for decision in decisions:
        number, total = seen[decision.case], totals[decision.case]
        seen[decision.case] += 1
        chosen = (decision.answer["NodeNames"] or [None])[0]
        if decision.case == "unfit" and chosen is not None:
            # Else its time would be that of pods that fit.
            differences.append(f"{decision.pod['metadata']['name']}: made to fit nowhere")
        entry = promised.get(decision.pod["metadata"]["uid"])
        request = pod_request(decision.pod, config)
        count = len(request.containers)
        placed = madeup.taken_of(decode_pod_shares(entry["devices"], count)) if entry else None
        if number * verify // total != (number + 1) * verify // total:
            verified += 1
            wrong = _difference(reference, request, decision.answer, chosen, placed, cluster.names)
            if wrong:
                differences.append(f"{decision.pod['metadata']['name']}: {wrong}")
        if chosen is not None and placed is not None:
            reference.promise(decision.pod["metadata"]["uid"], chosen, request.kinds, placed)
    return verified, differences


def _difference(
    reference: Reference,
    request: PodRequest,
    answer: dict[str, Any],
    chosen: str | None,
    placed: list[list[tuple[str, int, int]]] | None,
    names: Sequence[str],
) -> str:
    fitting = reference.decide(request, names)
    if not fitting:
        if chosen is not None:
            return f"fits nowhere, and was placed on {chosen}"
        return _wrong_reason(reference, request, answer["FailedNodes"], names)
    if chosen is None:
        return f"fits on {len(fitting)} nodes, and was placed nowhere"
    if chosen not in fitting:
        return f"does not fit on {chosen}"
    if chosen not in reference.best(request, fitting):
        return f"another node than {chosen} is better by its policy"
    if placed != fitting[chosen]:
        return f"gets {placed} on {chosen}, not {fitting[chosen]}"
    return ""


def _wrong_reason(
    reference: Reference, request: PodRequest, failed: dict[str, str], names: Sequence[str]
) -> str:
    if set(failed) != set(names):
        return f"{len(failed)} of {len(names)} nodes have a reason"
    asking = [one for one in request.containers if one.count]
    if len(asking) != 1 or request.constraint.numa_bind:
        return ""
    for name in names:
        slots = reference.nodes[name]
        words = [
            slot.refusal(asking[0], request.constraint, "mutex" in request.card_policy)
            for slot in slots
        ]
        counts = {word: words.count(word) for word in words if word}
        text = ", ".join(sorted(f"{n}/{len(slots)} {word}" for word, n in counts.items()))
        if failed[name] != text:
            return f"{name} says {failed[name]!r}, not {text!r}"
    return ""


# --- the program --------------------------------------------------------------------


class Served:
    """The extender as a process; a context manager that ends it."""

    def __init__(self, folder: Path, api: str, *, token: str = "", name: str = "log") -> None:
        self._folder, self._log = folder, folder / f"{name}.txt"
        self._port, self._observe = free_port(), free_port()
        certificates = make_certificates("bench")
        for name, text in (
            ("ca.crt", certificates.ca),
            ("tls.crt", certificates.extender.cert),
            ("tls.key", certificates.extender.key),
            ("client.crt", certificates.scheduler.cert),
            ("client.key", certificates.scheduler.key),
            ("kubeconfig", yaml.safe_dump(_kubeconfig(api, token))),
        ):
            (folder / name).write_text(text)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                leashed(
                    sys.executable, "-m", "testbed.stack.extender",
                    f"--kubeconfig={folder / 'kubeconfig'}", f"--cert={folder / 'tls.crt'}",
                    f"--key={folder / 'tls.key'}", f"--client-ca={folder / 'ca.crt'}",
                    f"--port={self._port}", "--observe-host=127.0.0.1",
                    f"--observe-port={self._observe}",
                ),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env=os.environ | EXTENDER_ENVIRONMENT,
            )  # fmt: skip
        try:
            self._wait()
        except BaseException:
            self._end()
            raise

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _end(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _wait(self) -> None:
        deadline = time.monotonic() + _LOAD_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                break
            try:
                if self._get("/readyz") == b"ok":
                    return
            except OSError:
                pass
            time.sleep(0.05)
        text = self._log.read_text(errors="replace")[-2000:]
        raise ClusterError("the extender does not become ready", why=text)

    def _get(self, path: str) -> bytes:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._observe}{path}", timeout=30) as found:
            raw: bytes = found.read()
        return raw

    @property
    def url(self) -> str:
        """Where the scheduler finds it."""
        return f"https://127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        return self._process.pid

    def text(self, path: str) -> str:
        """Return a text of the observer's port."""
        return self._get(path).decode()

    def document(self, path: str) -> dict[str, Any]:
        """Return a document of the observer's port."""
        found: dict[str, Any] = json.loads(self._get(path))
        return found

    def load_s(self) -> float:
        """Return how long it read, as it counts itself."""
        for line in self._get("/metrics").decode().splitlines():
            if line.startswith("vgpu_extender_load_seconds "):
                return float(line.split()[1])
        raise ClusterError("the extender does not tell how long it read")

    def memory_mb(self) -> tuple[float, float]:
        """Return resident memory now and at most, MB."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        fields = dict(line.split(":", 1) for line in status.splitlines())
        now, most = (int(fields[key].split()[0]) * 1024 for key in ("VmRSS", "VmHWM"))
        return round(now / 1e6, 1), round(most / 1e6, 1)

    def client(self, protocol: str) -> Asking:
        """Return a connection of the scheduler's, which speaks a protocol."""
        context = ssl.create_default_context(cafile=str(self._folder / "ca.crt"))
        context.load_cert_chain(self._folder / "client.crt", self._folder / "client.key")
        return connect(self._port, context, protocol)


def _kubeconfig(server: str, token: str = "") -> dict[str, Any]:
    cluster = {"server": server, "insecure-skip-tls-verify": bool(token)}
    return {
        "current-context": "bench",
        "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "bench"}}],
        "clusters": [{"name": "bench", "cluster": cluster}],
        "users": [{"name": "bench", "user": {"token": token} if token else {}}],
    }


def free_port() -> int:
    """Return a port of loopback that nobody uses at the moment."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def environment() -> dict[str, Any]:
    """Return what the figures depend on."""
    return {"python": sys.version.split()[0], "cores": os.cpu_count(), "load": os.getloadavg()[0]}
