"""Admission on a whole cluster: the table, its control, and a webhook that is not there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from testbed.lab.kube import ApiError
from testbed.lab.scenario.record import Report
from testbed.lab.wait import wait_until
from testbed.stack import names

ROOT = Path(__file__).parents[2]
WEBHOOK = "vgpu-webhook"


def test_the_table_holds_and_its_control_fails(testbed, tmp_path):
    argv = ["run", "--name", testbed.name, "--runs", str(tmp_path / "runs"), "admission/*"]
    done = subprocess.run(
        [sys.executable, "-c", "from testbed.cli import main; main()", *argv, "-o", "json"],
        cwd=ROOT,
        text=True,
        capture_output=True,
        timeout=600,
        check=False,
        env={**os.environ, "NO_COLOR": "1"},
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    report = msgspec.json.decode(done.stdout, type=Report)
    [record] = report.cases
    assert report.verdict == record.verdict == "pass"
    assert {check.name for check in record.checks} == {"refused", "becomes", "untouched"}
    assert record.control is not None and record.control.verdict == "pass"
    failed = [check for check in record.control.checks if check.verdict == "fail"]
    assert len(failed) > 15  # what depends on the webhook
    notebook = json.loads(Path(record.artifacts["notebook"]).read_text())
    assert "memory-alone" in json.dumps([c.get("outputs") for c in notebook["cells"]])
    left = [each["metadata"] for each in testbed.kube.list("v1", "Namespace")]
    assert not [m["name"] for m in left if m["name"].startswith("trial-")
                and "deletionTimestamp" not in m]  # fmt: skip


@pytest.fixture
def without_webhook(testbed):
    """No webhook answers; afterwards it does again."""
    kube = testbed.kube

    def scale(replicas):
        body = {"spec": {"replicas": replicas}}
        kube.patch("apps/v1", "Deployment", WEBHOOK, body, names.NAMESPACE)

        def settled():
            found = kube.get("apps/v1", "Deployment", WEBHOOK, names.NAMESPACE)
            pods = kube.list("v1", "Pod", names.NAMESPACE,
                             labels=f"app.kubernetes.io/name={WEBHOOK}")  # fmt: skip
            return found["status"].get("readyReplicas", 0), len(pods)

        wait_until("the webhook's pods", settled, ready=lambda seen: seen == (replicas, replicas),
                   timeout_s=240)  # fmt: skip

    before = kube.get("apps/v1", "Deployment", WEBHOOK, names.NAMESPACE)["spec"]["replicas"]
    assert before == 2
    try:
        scale(0)
        yield
    finally:
        scale(before)


def pod(name, limits, **metadata):
    container = {"name": "main", "image": "example.test/none:1", "resources": {"limits": limits}}
    spec = {"containers": [container], "schedulingGates": [{"name": "vgpu-testbed.dev/never"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **metadata}, "spec": spec}


def test_without_a_webhook_the_cluster_goes_on_and_nobody_forges(
    testbed, without_webhook, namespace
):
    kube = testbed.kube
    made = kube.create(pod("plain", {"cpu": "1"}, namespace=namespace))
    assert made["spec"]["schedulerName"] == "default-scheduler"
    # A pod that asks passes unseen; it holds no promise, so no plugin serves it.
    asks = kube.create(pod("asks", {names.RESOURCE_COUNT: "1"}, namespace=namespace))
    assert asks["spec"]["schedulerName"] == "default-scheduler"
    forged = {names.POD_TO_ALLOCATE: "GPU-x,NVIDIA,1,1:;"}
    with pytest.raises(ApiError, match="written by the stack alone"):
        kube.create(pod("forged", {}, namespace=namespace, annotations=forged))
    with pytest.raises(ApiError, match="written by the stack alone"):
        body = {"metadata": {"annotations": forged}}
        kube.patch("v1", "Pod", "asks", body, namespace)
    [node, *_] = kube.list("v1", "Node")
    for value in (None, "[]"):
        with pytest.raises(ApiError, match="written by the stack alone"):
            body = {"metadata": {"annotations": {names.NODE_REGISTER: value}}}
            kube.patch("v1", "Node", node["metadata"]["name"], body)
