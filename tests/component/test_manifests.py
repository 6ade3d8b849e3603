"""Every manifest is accepted by a real API server; the client works against one.

Only etcd and kube-apiserver run, as local processes; no controller, no node.
"""

from __future__ import annotations

import base64
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import trustme
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from testbed.errors import ClusterError, DeployError, WaitTimeout
from testbed.lab.deploy import (
    StackImages,
    StackValues,
    deploy,
    render,
    set_enforcement,
    undeploy,
)
from testbed.lab.deploy import certificates as certs
from testbed.lab.deploy.switch import read_config
from testbed.lab.kube import ApiError, Kube, Unreachable
from testbed.lab.progress import QuietProgress
from testbed.stack.config import DeviceConfig

VALUES = StackValues(
    images=StackImages(base="testbed/base:test", kube_scheduler="testbed/kube-scheduler:test")
)
_START_S = 60.0


@dataclass(frozen=True)
class Server:
    kubeconfig: Path
    folder: Path


def _binaries() -> Path:
    if given := os.environ.get("VGPU_TESTBED_BIN"):
        return Path(given)
    from testbed.lab import binaries

    return Path(binaries.ensure(QuietProgress()).folder)


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Start etcd and kube-apiserver on loopback; stop them also when the start fails."""
    tools, folder = _binaries(), tmp_path_factory.mktemp("api")
    port, etcd = _free_port(), folder / "etcd.sock"
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    (folder / "sa.key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    authority = trustme.CA()
    serving = authority.issue_cert("127.0.0.1")
    # With an identity: Go refuses the critical, empty one that is there without.
    admin = authority.issue_cert(
        "admin.test", common_name="admin", organization_name="system:masters"
    )
    authority.cert_pem.write_to_path(folder / "ca.crt")
    serving.cert_chain_pems[0].write_to_path(folder / "api.crt")
    serving.private_key_pem.write_to_path(folder / "api.key")
    log = (folder / "log").open("wb")
    started: list[subprocess.Popen[bytes]] = []

    def start(*argv: str) -> None:
        started.append(
            subprocess.Popen(argv, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=folder)
        )

    try:
        start(
            str(tools / "etcd"),
            f"--data-dir={folder / 'etcd'}",
            f"--listen-client-urls=unix://{etcd}",
            f"--advertise-client-urls=unix://{etcd}",
            f"--listen-peer-urls=unix://{folder / 'peer.sock'}",
            f"--initial-advertise-peer-urls=unix://{folder / 'peer.sock'}",
            f"--initial-cluster=default=unix://{folder / 'peer.sock'}",
            "--unsafe-no-fsync",
        )
        start(
            str(tools / "kube-apiserver"),
            f"--etcd-servers=unix://{etcd}",
            "--bind-address=127.0.0.1",
            f"--secure-port={port}",
            f"--tls-cert-file={folder / 'api.crt'}",
            f"--tls-private-key-file={folder / 'api.key'}",
            f"--client-ca-file={folder / 'ca.crt'}",
            "--endpoint-reconciler-type=none",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--authorization-mode=RBAC",
            "--allow-privileged=true",
            "--service-account-issuer=https://test",
            f"--service-account-key-file={folder / 'sa.key'}",
            f"--service-account-signing-key-file={folder / 'sa.key'}",
            # There is no controller that would make the accounts.
            "--disable-admission-plugins=ServiceAccount",
        )
        kubeconfig = folder / "kubeconfig"
        kubeconfig.write_text(_kubeconfig(port, authority, admin))
        _wait_ready(kubeconfig, started, folder / "log")
        yield Server(kubeconfig=kubeconfig, folder=folder)
    finally:
        # Killed: the data is thrown away, and an orderly end takes a quarter of a minute.
        for process in started:
            process.kill()
            process.wait()
        log.close()
        shutil.rmtree(folder / "etcd", ignore_errors=True)


def _kubeconfig(port: int, authority: trustme.CA, user: trustme.LeafCert) -> str:
    def embedded(blob: trustme.Blob) -> str:
        return base64.b64encode(blob.bytes()).decode()

    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "t",
            "contexts": [{"name": "t", "context": {"cluster": "t", "user": "t"}}],
            "clusters": [
                {
                    "name": "t",
                    "cluster": {
                        "server": f"https://127.0.0.1:{port}",
                        "certificate-authority-data": embedded(authority.cert_pem),
                    },
                }
            ],
            "users": [
                {
                    "name": "t",
                    "user": {
                        "client-certificate-data": embedded(user.cert_chain_pems[0]),
                        "client-key-data": embedded(user.private_key_pem),
                    },
                }
            ],
        }
    )


def _wait_ready(kubeconfig: Path, started: list[subprocess.Popen[bytes]], log: Path) -> None:
    deadline = time.monotonic() + _START_S
    with Kube(kubeconfig) as kube:
        while True:
            try:
                kube.raw("/readyz")
                # Made by the server a moment after it is ready.
                if kube.find("v1", "Namespace", "default"):
                    return
            except ClusterError as error:
                dead = [p.args for p in started if p.poll() is not None]
                refused = isinstance(error, ApiError) and error.status == 401
                if dead or refused or time.monotonic() > deadline:
                    tail = log.read_text(errors="replace")[-3000:]
                    raise AssertionError(f"no API server ({error}); ended: {dead}\n{tail}") from (
                        error
                    )
            time.sleep(0.1)


@pytest.fixture
def kube(server: Server) -> Iterator[Kube]:
    with Kube(server.kubeconfig) as found:
        yield found


def test_server_accepts_every_manifest(kube: Kube) -> None:
    values = replace(VALUES, namespace="vgpu-accepted", node_selector={"gpu": "on"})
    manifests = render(values, certs.make(values.namespace))
    kube.apply(manifests[:1])  # a dry run needs the namespace
    try:
        assert len(kube.apply(manifests, dry_run=True)) == len(manifests)
        assert kube.find("apps/v1", "DaemonSet", "vgpu-plugin", values.namespace) is None
        applied = kube.apply(manifests)
        for sent, stored in zip(manifests, applied, strict=True):
            assert stored["metadata"]["name"] == sent["metadata"]["name"]
        # Once more: nothing has changed, so no object has a new version.
        again = kube.apply(manifests)
        assert [o["metadata"]["resourceVersion"] for o in again] == [
            o["metadata"]["resourceVersion"] for o in applied
        ]
    finally:
        kube.delete(
            "admissionregistration.k8s.io/v1",
            "MutatingWebhookConfiguration",
            "vgpu-accepted-webhook",
        )


@pytest.mark.parametrize("access", ["privileged", "runtime-class"])
def test_server_accepts_hardware_manifests(kube: Kube, access: str) -> None:
    values = replace(VALUES, namespace=f"vgpu-{access}", gpu_access=access, driver_root="/")
    manifests = render(values, certs.make(values.namespace))
    kube.apply(manifests[:1])
    assert kube.apply(manifests, dry_run=True)


def test_unknown_field_is_refused(kube: Kube) -> None:
    bad = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "x", "namespace": "default"},
        "datum": {},
    }
    with pytest.raises(ApiError, match="datum"):
        kube.apply([bad])
    with pytest.raises(ApiError, match="datum"):
        kube.create(bad)
    assert kube.find("v1", "ConfigMap", "x", "default") is None


def test_objects_round(kube: Kube) -> None:
    made = kube.create(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "round", "namespace": "default", "labels": {"a": "b"}},
            "data": {"x": "1"},
        }
    )
    assert made["metadata"]["uid"]
    patched = kube.patch("v1", "ConfigMap", "round", {"data": {"x": "2"}}, "default")
    assert patched["data"] == {"x": "2"}
    operations = [{"op": "add", "path": "/data/y", "value": "3"}]
    assert kube.patch("v1", "ConfigMap", "round", operations, "default", strategy="json")[
        "data"
    ] == {"x": "2", "y": "3"}
    found = kube.list("v1", "ConfigMap", "default", labels="a=b")
    assert [(o["kind"], o["metadata"]["name"]) for o in found] == [("ConfigMap", "round")]
    assert kube.list("v1", "ConfigMap", labels="a=c") == []
    assert kube.delete("v1", "ConfigMap", "round", "default") is True
    assert kube.delete("v1", "ConfigMap", "round", "default") is False
    assert kube.find("v1", "ConfigMap", "round", "default") is None
    with pytest.raises(ApiError, match='configmaps "round" not found') as caught:
        kube.get("v1", "ConfigMap", "round", "default")
    assert (caught.value.status, caught.value.reason) == (404, "NotFound")


def test_list_goes_through_all_pages(kube: Kube, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("testbed.lab.kube._PAGE", 2)
    wanted = {f"page-{i}" for i in range(5)}
    for name in wanted:
        kube.apply(
            [
                {
                    "apiVersion": "v1",
                    "kind": "ConfigMap",
                    "metadata": {"name": name, "namespace": "default", "labels": {"p": "1"}},
                }
            ]
        )
    found = kube.list("v1", "ConfigMap", "default", labels="p=1")
    assert {o["metadata"]["name"] for o in found} == wanted and len(found) == 5


def test_dry_run_creates_nothing(kube: Kube) -> None:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "dry", "namespace": "default"},
        "spec": {"containers": [{"name": "c", "image": "x"}]},
    }
    assert kube.create(pod, dry_run=True)["spec"]["schedulerName"] == "default-scheduler"
    assert kube.find("v1", "Pod", "dry", "default") is None


def test_watch_yields_changes_until_its_time_is_up(kube: Kube) -> None:
    def config_map(name: str, value: str) -> dict[str, object]:
        return {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name, "namespace": "default", "labels": {"w": "1"}},
            "data": {"v": value},
        }

    kube.apply([config_map("watched", "1")])
    seen: list[tuple[str, str]] = []
    began = time.monotonic()
    for event in kube.watch("v1", "ConfigMap", "default", timeout_s=20, labels="w=1"):
        if event.kind == "BOOKMARK":
            continue
        seen.append((event.kind, event.object["data"]["v"]))
        if len(seen) == 1:
            kube.apply([config_map("watched", "2")])
        elif len(seen) == 2:
            kube.delete("v1", "ConfigMap", "watched", "default")
        else:
            break
    assert seen == [("ADDED", "1"), ("MODIFIED", "2"), ("DELETED", "2")]
    assert time.monotonic() - began < 10
    began = time.monotonic()
    assert list(kube.watch("v1", "ConfigMap", "default", timeout_s=1, labels="w=1")) == []
    assert 1 <= time.monotonic() - began < 6


def test_wait_gone_names_what_holds(kube: Kube) -> None:
    kube.apply(
        [
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {
                    "name": "held",
                    "namespace": "default",
                    "finalizers": ["example.test/held"],
                },
            }
        ]
    )
    kube.delete("v1", "ConfigMap", "held", "default")
    with pytest.raises(WaitTimeout, match=r"example\.test/held"):
        kube.wait_gone("v1", "ConfigMap", "held", "default", timeout_s=0.3)
    kube.patch("v1", "ConfigMap", "held", {"metadata": {"finalizers": None}}, "default")
    kube.wait_gone("v1", "ConfigMap", "held", "default", timeout_s=5)


def test_version_and_unknown_kinds(kube: Kube) -> None:
    assert kube.version().startswith("v1.")
    with pytest.raises(ClusterError, match="no kind Nothing"):
        kube.get("v1", "Nothing", "x")
    with pytest.raises(ClusterError, match=r"does not know no\.such\.group/v1"):
        kube.list("no.such.group/v1", "Thing")
    with pytest.raises(ClusterError, match="needs a namespace"):
        kube.get("v1", "Pod", "x")
    with pytest.raises(ClusterError, match="belongs to no namespace"):
        kube.get("v1", "Node", "x", "default")


def test_server_that_is_gone(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    authority = trustme.CA()
    kubeconfig.write_text(_kubeconfig(_free_port(), authority, authority.issue_cert("x.test")))
    with Kube(kubeconfig) as kube, pytest.raises(Unreachable, match="refused"):
        kube.version()


def test_failed_deployment_says_why(kube: Kube, monkeypatch: pytest.MonkeyPatch) -> None:
    """No controller runs, so no pod ever appears: the error says so, and undeploy cleans up."""
    monkeypatch.setattr("testbed.lab.deploy.ready.PODS_S", 0.5)
    values = replace(VALUES, namespace="vgpu-failed")
    with pytest.raises(DeployError) as caught:
        deploy(kube, values, QuietProgress())
    assert "the stack is not ready" in caught.value.what
    assert "no pod exists in namespace vgpu-failed" in caught.value.why
    assert "not seen by its controller yet" in caught.value.why

    # The second time keeps certificates and generation: no pod would roll.
    before = kube.get("v1", "Secret", "vgpu-webhook-tls", "vgpu-failed")["data"]
    with pytest.raises(DeployError):
        deploy(kube, values, QuietProgress())
    assert kube.get("v1", "Secret", "vgpu-webhook-tls", "vgpu-failed")["data"] == before
    found = read_config(kube, namespace="vgpu-failed")
    assert found is not None and found[0] == DeviceConfig()

    # Switching is refused where no plugin runs, but the value is written and counted.
    with pytest.raises(DeployError, match="no device plugin runs"):
        set_enforcement(kube, "off", QuietProgress(), namespace="vgpu-failed", timeout_s=0.3)
    found = read_config(kube, namespace="vgpu-failed")
    assert found is not None and (found[0].enforcement, found[0].generation) == ("off", 1)

    # An interrupted control run is repaired by the next deployment, with a new generation.
    with pytest.raises(DeployError):
        deploy(kube, values, QuietProgress())
    found = read_config(kube, namespace="vgpu-failed")
    assert found is not None and (found[0].enforcement, found[0].generation) == ("on", 2)

    # There is no controller to empty the namespace either: undeploy says what holds it.
    monkeypatch.setattr("testbed.lab.deploy.stack._GONE_S", 0.5)
    with pytest.raises(WaitTimeout, match="Namespace vgpu-failed still exists"):
        undeploy(kube, QuietProgress(), namespace="vgpu-failed")
    assert (
        kube.find(
            "admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration", "vgpu-failed-webhook"
        )
        is None
    )
    assert kube.find("rbac.authorization.k8s.io/v1", "ClusterRole", "vgpu-failed-plugin") is None


def test_undeploy_where_nothing_is(kube: Kube) -> None:
    undeploy(kube, QuietProgress(), namespace="vgpu-never-there")
