"""A control plane of real Kubernetes programs on loopback: etcd, API server, scheduler.

No kubelet and no controller runs: nodes are fake, pods stay where they are bound.
The programs come from the folder ``VGPU_TESTBED_BIN`` or from ``lab.binaries``.
"""

from __future__ import annotations

import base64
import json
import os
import random
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

START_S = 180.0


def binaries() -> Path:
    if given := os.environ.get("VGPU_TESTBED_BIN"):
        return Path(given)
    from testbed.lab import binaries as lab_binaries
    from testbed.lab.progress import QuietProgress

    return Path(lab_binaries.ensure(QuietProgress()).folder)


def free_port() -> int:
    """Return a port that nobody listens on, for a program that is started later.

    Below those that the kernel gives to whoever connects: of those, one could be taken by
    a client until then.
    """
    given = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    while True:
        port = random.randrange(10_000, max(10_100, int(given[0])))
        with socket.socket() as found:
            try:
                found.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def wait_for(predicate: Callable[[], Any], seconds: float = 120.0, what: str = "") -> Any:
    """Return the first true value of a predicate; fail with its last value and ``what``."""
    deadline = time.monotonic() + seconds
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what or predicate} ({value!r})")
        time.sleep(0.05)


class Processes:
    """Programs that end with the test, whatever happens to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *argv: object) -> subprocess.Popen[bytes]:
        log = (self.folder / f"{name}.log").open("ab")
        with log:
            self._running[name] = subprocess.Popen(
                [str(part) for part in argv],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
            )
        return self._running[name]

    def stop(self, name: str) -> int:
        process = self._running.pop(name)
        process.kill()
        return process.wait()

    def stop_all(self) -> None:
        for name in list(self._running):
            self.stop(name)

    def check(self) -> None:
        for name, process in self._running.items():
            if process.poll() is not None:
                raise AssertionError(f"{name} ended with {process.returncode}: {self.tail(name)}")

    def tail(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")[-3000:]


class ApiStatus(Exception):
    """The API server answered with an error."""

    def __init__(self, status: int, body: str) -> None:
        super().__init__(f"{status}: {body[:2000]}")
        self.status = status
        self.body = body


class ControlPlane:
    """etcd and kube-apiserver, and a client for them."""

    def __init__(self, folder: Path, tools: Path) -> None:
        self.folder = folder
        self.tools = tools
        self.port = free_port()
        self.url = f"https://127.0.0.1:{self.port}"
        self.authority = trustme.CA()
        self.processes = Processes(folder)
        self.authority.cert_pem.write_to_path(folder / "ca.crt")
        self.admin = self.identity("admin", "system:masters")
        self.kubeconfig = self.kubeconfig_of("admin")
        self._tls = ssl.create_default_context(cafile=str(folder / "ca.crt"))
        self._tls.load_cert_chain(folder / "admin.crt", folder / "admin.key")
        serving = self.authority.issue_cert("127.0.0.1", "localhost", common_name="apiserver")
        serving.cert_chain_pems[0].write_to_path(folder / "apiserver.crt")
        serving.private_key_pem.write_to_path(folder / "apiserver.key")
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        (folder / "sa.key").write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )

    def identity(self, name: str, group: str = "testers") -> tuple[Path, Path]:
        """Return certificate and key of a user."""
        leaf = self.authority.issue_cert(
            f"{name.replace(':', '-')}.test", common_name=name, organization_name=group
        )
        cert, key = self.folder / f"{name}.crt", self.folder / f"{name}.key"
        leaf.cert_chain_pems[0].write_to_path(cert)
        leaf.private_key_pem.write_to_path(key)
        return cert, key

    def serving(self, name: str) -> tuple[Path, Path]:
        """Return certificate and key of a server on 127.0.0.1."""
        leaf = self.authority.issue_cert("127.0.0.1", "localhost", common_name=name)
        cert, key = self.folder / f"{name}-serving.crt", self.folder / f"{name}-serving.key"
        leaf.cert_chain_pems[0].write_to_path(cert)
        leaf.private_key_pem.write_to_path(key)
        return cert, key

    @property
    def ca(self) -> Path:
        return self.folder / "ca.crt"

    @property
    def ca_bundle(self) -> str:
        return base64.b64encode(self.authority.cert_pem.bytes()).decode()

    def kubeconfig_of(self, name: str) -> Path:
        path = self.folder / f"{name}.kubeconfig"
        cluster = {"server": self.url, "certificate-authority": str(self.ca)}
        user = {
            "client-certificate": str(self.folder / f"{name}.crt"),
            "client-key": str(self.folder / f"{name}.key"),
        }
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "t",
            "clusters": [{"name": "t", "cluster": cluster}],
            "users": [{"name": "t", "user": user}],
            "contexts": [{"name": "t", "context": {"cluster": "t", "user": "t"}}],
        }
        path.write_text(yaml.safe_dump(document))
        return path

    def start(self) -> None:
        sockets = self.folder
        self.processes.start(
            "etcd",
            self.tools / "etcd",
            f"--data-dir={self.folder / 'etcd'}",
            f"--listen-client-urls=unix://{sockets}/e.sock",
            f"--advertise-client-urls=unix://{sockets}/e.sock",
            f"--listen-peer-urls=unix://{sockets}/p.sock",
            f"--initial-advertise-peer-urls=unix://{sockets}/p.sock",
            f"--initial-cluster=default=unix://{sockets}/p.sock",
            "--unsafe-no-fsync",
            "--log-level=warn",
        )
        self.start_api_server()

    def start_api_server(self) -> None:
        folder = self.folder
        self.processes.start(
            "kube-apiserver",
            self.tools / "kube-apiserver",
            f"--etcd-servers=unix://{folder}/e.sock",
            "--bind-address=127.0.0.1",
            f"--secure-port={self.port}",
            f"--cert-dir={folder}",
            f"--tls-cert-file={folder / 'apiserver.crt'}",
            f"--tls-private-key-file={folder / 'apiserver.key'}",
            f"--client-ca-file={folder / 'ca.crt'}",
            "--endpoint-reconciler-type=none",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--authorization-mode=RBAC",
            "--allow-privileged=true",
            "--service-account-issuer=https://test",
            f"--service-account-key-file={folder / 'sa.key'}",
            f"--service-account-signing-key-file={folder / 'sa.key'}",
            # No controller makes service accounts or takes taints away.
            "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
        )
        wait_for(self._ready, START_S, "the API server is ready")

    def _ready(self) -> bool:
        self.processes.check()
        try:
            self.request("GET", "/readyz")
            self.request("GET", "/api/v1/namespaces/default")
        except (ApiStatus, OSError):
            return False
        return True

    def request(
        self, method: str, path: str, body: Any = None, content_type: str = "application/json"
    ) -> Any:
        request = urllib.request.Request(
            self.url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": content_type},
        )
        try:
            with urllib.request.urlopen(request, context=self._tls, timeout=240) as answer:
                raw = answer.read()
        except urllib.error.HTTPError as error:
            with error:
                raise ApiStatus(error.code, error.read().decode(errors="replace")) from None
        try:
            return json.loads(raw)
        except ValueError:
            return raw.decode()

    def namespace(self, labels: dict[str, str] | None = None) -> str:
        name = f"t-{uuid.uuid4().hex[:8]}"
        self.request(
            "POST",
            "/api/v1/namespaces",
            {"metadata": {"name": name, "labels": labels or {}}},
        )
        return name

    def node(self, annotations: dict[str, str], cards: int = 1, slots: int = 10) -> str:
        """Make a fake node that is ready and carries cards."""
        name = f"n-{uuid.uuid4().hex[:8]}"
        self.request(
            "POST", "/api/v1/nodes", {"metadata": {"name": name, "annotations": annotations}}
        )
        amounts = {
            "cpu": "64",
            "memory": "256Gi",
            "pods": "500",
            "nvidia.com/gpu": str(cards * slots),
        }
        status = {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [{"type": "Ready", "status": "True", "reason": "Test"}],
        }
        self.request(
            "PATCH",
            f"/api/v1/nodes/{name}/status",
            {"status": status},
            "application/merge-patch+json",
        )
        return name

    def pod(self, namespace: str, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.request("GET", f"/api/v1/namespaces/{namespace}/pods/{name}")
        return found

    def pods(self, namespace: str) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = self.request("GET", f"/api/v1/namespaces/{namespace}/pods")[
            "items"
        ]
        return items

    def delete_pod(self, namespace: str, name: str) -> None:
        self.request(
            "DELETE", f"/api/v1/namespaces/{namespace}/pods/{name}", {"gracePeriodSeconds": 0}
        )


@pytest.fixture(scope="session")
def api_server() -> Iterator[ControlPlane]:
    """An API server on loopback for the session; see ``ControlPlane``."""
    # A short path of its own: unix sockets bear no more than 107 characters.
    folder = Path(tempfile.mkdtemp(prefix="vgpu-cp-"))
    plane = None
    try:
        plane = ControlPlane(folder, binaries())
        plane.start()
        yield plane
    finally:
        # Killed: the data is thrown away, and an orderly end takes a quarter of a minute.
        if plane is not None:
            plane.processes.stop_all()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def programs(api_server: ControlPlane) -> Iterator[Processes]:
    """Starts programs that are stopped after the test."""
    folder = Path(tempfile.mkdtemp(prefix="run-", dir=api_server.folder))
    running = Processes(folder)
    try:
        yield running
    finally:
        running.stop_all()


@pytest.fixture
def namespace(api_server: ControlPlane) -> Iterator[str]:
    """A namespace of its own, emptied of pods at the end."""
    name = api_server.namespace()
    yield name
    for pod in api_server.pods(name):
        api_server.delete_pod(name, pod["metadata"]["name"])


@pytest.fixture
def nodes(api_server: ControlPlane) -> Iterator[Callable[..., str]]:
    """Makes fake nodes that are removed at the end."""
    made: list[str] = []

    def make(annotations: dict[str, str], cards: int = 1, slots: int = 10) -> str:
        made.append(api_server.node(annotations, cards, slots))
        return made[-1]

    yield make
    for name in made:
        api_server.request("DELETE", f"/api/v1/nodes/{name}")


@pytest.fixture(scope="session")
def python() -> str:
    return sys.executable


class Tools:
    """What tests need of this module: they cannot import it."""

    ApiStatus = ApiStatus
    free_port = staticmethod(free_port)
    wait_for = staticmethod(wait_for)


@pytest.fixture(scope="session")
def tools() -> type[Tools]:
    return Tools
