"""Every manifest is accepted by a real API server; the client works against one.

Only etcd and kube-apiserver run; no controller, no node.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml

from testbed.errors import ClusterError, DeployError, WaitTimeout
from testbed.lab.deploy import (
    StackImages,
    StackValues,
    deploy,
    render,
    set_enforcement,
    undeploy,
)
from testbed.lab.deploy.common import SELECTOR
from testbed.lab.deploy.switch import read_config
from testbed.lab.kube import ApiError, Kube, Unreachable
from testbed.lab.progress import QuietProgress
from testbed.stack.certificates import sets as certs
from testbed.stack.config import DeviceConfig

VALUES = StackValues(
    images=StackImages(base="testbed/base:test", kube_scheduler="testbed/kube-scheduler:test")
)
_START_S = 60.0


@pytest.fixture
def kube(api_server: Any, tmp_path: Path) -> Iterator[Kube]:
    """The client by a kubeconfig as providers write it, with everything in it."""
    path = tmp_path / "kubeconfig"
    path.write_text(_kubeconfig(api_server.url, api_server.ca, *api_server.admin))
    with Kube(path) as found:
        yield found
        # Else the pods of other tests would be shown to webhooks that are not there, and
        # their nodes could not be written to.
        version = "admissionregistration.k8s.io/v1"
        for kind in (
            "MutatingWebhookConfiguration",
            "ValidatingAdmissionPolicyBinding",
            "ValidatingAdmissionPolicy",
        ):
            for left in found.list(version, kind, labels=SELECTOR):
                found.delete(version, kind, left["metadata"]["name"])


def _kubeconfig(server: str, ca: Path, cert: Path, key: Path) -> str:
    def embedded(path: Path) -> str:
        return base64.b64encode(path.read_bytes()).decode()

    cluster = {"server": server, "certificate-authority-data": embedded(ca)}
    user = {"client-certificate-data": embedded(cert), "client-key-data": embedded(key)}
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "t",
            "contexts": [{"name": "t", "context": {"cluster": "t", "user": "t"}}],
            "clusters": [{"name": "t", "cluster": cluster}],
            "users": [{"name": "t", "user": user}],
        }
    )


CHOSEN: dict[str, Any] = {
    "node_selector": {"gpu": "on"},
    "webhook_leaves_out": ("ci",),
    "webhook_url": "https://10.0.0.7:31998",
    "chosen": "schedulerReplicas: 1\n",
}


@pytest.mark.parametrize("more", [{}, CHOSEN], ids=["plain", "chosen"])
def test_server_accepts_every_manifest(kube: Kube, more: dict[str, Any]) -> None:
    values = replace(VALUES, namespace=f"vgpu-accepted-{len(more)}", **more)
    manifests = render(values, certs.make(values.namespace))
    kube.apply(manifests[:1])  # a dry run needs the namespace
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
    for event in kube.watch("v1", "ConfigMap", "default", timeout_s=120, labels="w=1"):
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
    began = time.monotonic()
    assert list(kube.watch("v1", "ConfigMap", "default", timeout_s=1, labels="w=1")) == []
    assert time.monotonic() - began >= 1


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
    kube.wait_gone("v1", "ConfigMap", "held", "default", timeout_s=60)


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


def test_server_that_is_gone(api_server: Any, tools: Any, tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    server = f"https://127.0.0.1:{tools.free_port()}"
    path.write_text(_kubeconfig(server, api_server.ca, *api_server.admin))
    with Kube(path) as kube, pytest.raises(Unreachable, match="refused"):
        kube.version()


def test_server_of_another_authority(api_server: Any, tmp_path: Path) -> None:
    other = tmp_path / "other.crt"
    trustme.CA().cert_pem.write_to_path(other)
    path = tmp_path / "kubeconfig"
    path.write_text(_kubeconfig(api_server.url, other, *api_server.admin))
    with Kube(path) as kube, pytest.raises(ClusterError, match="certificate verify failed"):
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
    for kind in ("MutatingWebhookConfiguration", "ValidatingAdmissionPolicy"):
        kept = kube.list("admissionregistration.k8s.io/v1", kind)
        assert not [o for o in kept if o["metadata"]["name"].startswith("vgpu-failed")]
    assert kube.find("rbac.authorization.k8s.io/v1", "ClusterRole", "vgpu-failed-plugin") is None


def test_undeploy_where_nothing_is(kube: Kube) -> None:
    undeploy(kube, QuietProgress(), namespace="vgpu-never-there")
