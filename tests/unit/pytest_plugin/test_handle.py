"""What waiting for a pod ends with."""

import json
from types import SimpleNamespace

import pytest

from testbed.errors import ClusterError, InputError, WaitTimeout
from testbed.lab.kube import ApiError
from testbed.lab.pytest_plugin import cards, handle
from testbed.lab.pytest_plugin.handle import Pod

#: A deadline that allows one look.
ONCE = 1e-9


class Kube:
    """Tells one pod and its log."""

    def __init__(self, pod, log=""):
        self.pod, self.log, self.deleted = pod, log, []

    def find(self, version, kind, name, namespace):
        return self.pod

    def get(self, *wanted):
        return self.pod

    def logs(self, namespace, name, container, *, tail=None):
        if isinstance(self.log, Exception):
            raise self.log
        return self.log

    def delete(self, version, kind, name, namespace, *, grace_s):
        self.deleted.append((name, grace_s))
        self.pod = None

    def list(self, *wanted, **selectors):
        return []


def seen(phase="Pending", *, uid="u", node="", state=None, conditions=(), ready=True, notes=None):
    status = {"phase": phase, "conditions": list(conditions)}
    if state is not None:
        status["containerStatuses"] = [{"name": "main", "ready": ready, "state": state}]
    return {
        "metadata": {"name": "p", "namespace": "s", "uid": uid, "annotations": notes or {}},
        "spec": {"nodeName": node, "containers": [{"name": "main"}]},
        "status": status,
    }


def handle_of(pod, log="", containers=("main",)):
    manifest = {"spec": {"containers": [{"name": name} for name in containers]}}
    return Pod(Kube(pod, log), manifest, seen(), timeout_s=ONCE)


RUNS = seen("Running", state={"running": {}})
DONE = seen("Succeeded", state={"terminated": {"exitCode": 0}})
FAILED = seen("Failed", state={"terminated": {"exitCode": 3, "reason": "Error"}}, ready=False)
REFUSED = seen("Pending", conditions=[
    {"type": "PodScheduled", "status": "False", "message": "0/1 nodes: too little memory"}
])  # fmt: skip
NO_IMAGE = seen(state={"waiting": {"reason": "InvalidImageName", "message": "bad"}}, ready=False)


def test_a_pod_runs_or_has_run_well():
    assert handle_of(RUNS).wait_running().name == "p"
    assert handle_of(DONE).wait_running().phase == "Succeeded"
    assert handle_of(DONE).wait_done() == 0
    assert handle_of(FAILED).wait_done() == 3


def test_a_pod_that_failed_instead_of_running_shows_its_last_lines():
    with pytest.raises(ClusterError, match="has ended") as caught:
        handle_of(FAILED, "first\nRuntimeError: no\n").wait_running()
    assert "exit code 3" in str(caught.value)
    assert "main | RuntimeError: no" in str(caught.value)


def test_waiting_on_is_pointless_where_it_never_starts_or_is_gone():
    with pytest.raises(ClusterError, match=r"cannot start.*InvalidImageName"):
        handle_of(NO_IMAGE).wait_done()
    for pod in (None, seen("Running", uid="another of that name")):
        with pytest.raises(ClusterError, match="is gone"):
            handle_of(pod).wait_running()


def test_a_time_out_says_what_was_seen_last(monkeypatch):
    monkeypatch.setattr(Pod, "explain", lambda self: "s/p waits: 3 MiB too few")
    with pytest.raises(WaitTimeout, match="too little memory") as caught:
        handle_of(REFUSED).wait_running()
    assert "3 MiB too few" in str(caught.value)
    starting = seen("Running", state={"waiting": {"reason": "ContainerCreating"}}, ready=False)
    with pytest.raises(WaitTimeout, match="ContainerCreating"):
        handle_of(starting).wait_running()


def test_a_pod_that_its_kubelet_refused_has_no_status_to_tell():
    with pytest.raises(ClusterError, match="never started"):
        handle_of(seen("Failed")).wait_done()


def test_the_schedulers_refusal_is_waited_for():
    assert handle_of(REFUSED).wait_unschedulable() == "0/1 nodes: too little memory"
    with pytest.raises(ClusterError, match=r"was scheduled.*n1"):
        handle_of(seen(node="n1")).wait_unschedulable()
    with pytest.raises(WaitTimeout):
        handle_of(seen()).wait_unschedulable()


LOG = 'hello\n{"event": "full", "mib": 3}\n{"event": "full", "mib": 4}\n[1]\n{"event": "br'


def test_facts_are_the_lines_that_are_objects():
    assert handle_of(RUNS, LOG).facts() == [
        {"event": "full", "mib": 3},
        {"event": "full", "mib": 4},
    ]
    assert handle.facts_in('  {"a": 1}\n{not}\n"x"') == [{"a": 1}]
    assert handle_of(RUNS, ApiError("x", status=400, reason="", message="")).facts() == []


def test_a_fact_is_waited_for():
    assert handle_of(RUNS, LOG).wait_fact("full")["mib"] == 3
    assert handle_of(DONE, LOG).wait_fact("full", mib=4)["mib"] == 4  # also after the end
    with pytest.raises(ClusterError, match=r"has ended.*Succeeded"):
        handle_of(DONE, LOG).wait_fact("empty")
    with pytest.raises(WaitTimeout) as caught:
        handle_of(RUNS, LOG).wait_fact("full", mib=5)
    assert json.dumps({"event": "full", "mib": 5}) in str(caught.value)
    assert 'main | {"event": "full", "mib": 4}' in str(caught.value)


def test_whose_log_must_be_clear():
    two = handle_of(RUNS, LOG, containers=("a", "b"))
    assert two.logs("b") == LOG
    for name in (None, "c"):
        with pytest.raises(InputError, match="whose log"):
            two.logs(name)


def test_deleting_waits_until_it_is_gone():
    pod = handle_of(RUNS)
    pod.delete()
    assert pod.phase == "Gone"
    pod.delete()  # again: nothing to do
    assert pod._kube.deleted == [("p", 0)]


NOTE = {"hami.io/vgpu-devices-allocated": "GPU-1,NVIDIA,4096,30:;GPU-2,NVIDIA,4096,30:;"}


def test_memory_is_of_its_own_processes(monkeypatch):
    def sample(uuid, uid, count):
        return SimpleNamespace(uuid=uuid, pod_uid=uid, bytes=count)

    found = (sample("GPU-1", "u", 1), sample("GPU-2", "u", 2), sample("GPU-1", "other", 4))
    monkeypatch.setattr(cards, "fresh", lambda kube: found)
    pod = handle_of(seen("Running", notes=NOTE))
    assert pod.cards == ("GPU-1", "GPU-2")
    assert pod.memory_bytes() == 3
    assert pod.memory_bytes("GPU-2") == 2
    with pytest.raises(InputError, match="does not have card GPU-3"):
        pod.memory_bytes("GPU-3")


def test_a_share_is_of_one_card():
    with pytest.raises(InputError, match="has 2 cards"):
        handle_of(seen("Running", notes=NOTE)).share_pct(2)
    with pytest.raises(InputError, match="has no card"):
        handle_of(RUNS).share_pct(2)
    with pytest.raises(InputError, match="says nothing"):
        handle_of(seen("Running", notes=NOTE)).share_pct(0.5, card="GPU-1")
