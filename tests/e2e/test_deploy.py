"""The stack on a cluster with a kubelet: deployed again, switched, its own doubles."""

from __future__ import annotations

import copy
import threading
import time

import pytest

from testbed.errors import CheckFailed, TestbedError
from testbed.lab.deploy import cards, enforcement, ledger, plugin_states, set_enforcement
from testbed.lab.deploy.chosen import Chosen
from testbed.lab.deploy.common import (
    ANNOTATION_NUDGE,
    CERTIFICATES,
    NAME,
    SCHEDULER,
    SELECTOR,
    WEBHOOK,
)
from testbed.lab.deploy.ready import rollout
from testbed.lab.kube import Kube
from testbed.lab.progress import QuietProgress
from testbed.lab.wait import wait_until
from testbed.stack import names
from testbed.stack.codec import decode_register

from .test_allocation import phase, pod, wait_phase

QUIET = QuietProgress()


def stack_pods(testbed):
    """Return the uids of the stack's pods."""
    found = testbed.kube.list("v1", "Pod", names.NAMESPACE, labels=SELECTOR)
    return {pod["metadata"]["uid"] for pod in found if "deletionTimestamp" not in pod["metadata"]}


def test_second_deployment_rolls_nothing(testbed):
    before, states = stack_pods(testbed), plugin_states(testbed.kube)
    testbed.deploy(QUIET)
    assert stack_pods(testbed) == before
    assert plugin_states(testbed.kube) == states


def test_switch_is_followed_and_undone(testbed):
    before = stack_pods(testbed)
    (start,) = plugin_states(testbed.kube)
    assert start.enforcement == "on"
    with pytest.raises(CheckFailed), enforcement(testbed.kube, "off", QUIET) as generation:
        (state,) = plugin_states(testbed.kube)
        assert (state.enforcement, state.generation) == ("off", generation)
        raise CheckFailed("of a control run")
    (end,) = plugin_states(testbed.kube)
    assert (end.enforcement, end.generation) == ("on", start.generation + 2)
    assert stack_pods(testbed) == before


def test_deployment_repairs_an_interrupted_control_run(testbed):
    set_enforcement(testbed.kube, "off", QUIET)
    testbed.deploy(QUIET)
    (state,) = plugin_states(testbed.kube)
    assert state.enforcement == "on"


def ran(kube, suffix, *more):
    """Run the CronJob's pod now, with more arguments, and return what it logged."""
    cron = kube.get("batch/v1", "CronJob", CERTIFICATES, names.NAMESPACE)
    spec = copy.deepcopy(cron["spec"]["jobTemplate"]["spec"])
    spec["template"]["spec"]["containers"][0]["command"] += more
    metadata = {"name": f"{CERTIFICATES}-{suffix}", "namespace": names.NAMESPACE}
    kube.create({"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec})
    try:
        wait_until(
            "the certificates' job is done",
            lambda: kube.get("batch/v1", "Job", metadata["name"], names.NAMESPACE),
            ready=lambda job: (job.get("status") or {}).get("succeeded"),
            describe=lambda job: str(job.get("status")),
            timeout_s=240,
        )
        (pod,) = (
            pod["metadata"]["name"]
            for pod in kube.list("v1", "Pod", names.NAMESPACE,
                                 labels=f"batch.kubernetes.io/job-name={metadata['name']}")
        )  # fmt: skip
        return kube.logs(names.NAMESPACE, pod)
    finally:
        kube.delete("batch/v1", "Job", metadata["name"], names.NAMESPACE)


def test_certificates_renew_themselves_while_pods_are_admitted(testbed, namespace):
    kube = testbed.kube
    assert "certificates are kept" in ran(kube, "kept")
    before = stack_pods(testbed)
    missed, answered, stop = [], [], threading.Event()
    probe = pod(testbed, namespace, "probe", 1000)

    def flow():
        with Kube(testbed.cluster.kubeconfig()) as own:
            while not stop.is_set():
                try:
                    made = own.create(probe, dry_run=True)
                except TestbedError as error:
                    missed.append(error.text())
                    return
                answered.append(made["spec"]["schedulerName"])

    def admitted(count):
        start = len(answered)
        wait_until(
            "pods are admitted", lambda: len(answered) - start,
            ready=lambda got: missed or got >= count, timeout_s=180,
        )  # fmt: skip

    flowing = threading.Thread(target=flow)
    flowing.start()
    try:
        admitted(3)
        assert "certificates are new" in ran(kube, "new", "--renew")
        wait_until(
            "both webhooks show the new leaf",
            lambda: webhooks_that_read_anew(kube),
            ready=lambda found: found == 2,
            timeout_s=300,
        )
        admitted(10)
    finally:
        stop.set()
        flowing.join(60)
    assert not missed and set(answered) == {names.SCHEDULER_NAME}
    wait_until(
        "the scheduler's pod is a new one",
        lambda: rollout(kube.get("apps/v1", "Deployment", SCHEDULER, names.NAMESPACE)),
        ready=lambda late: not late,
        timeout_s=180,
    )
    # Scheduler and extender have theirs: a pod gets its card.
    kube.create(pod(testbed, namespace, "after", 2048))
    assert phase(wait_phase(kube, namespace, "after", ("Running", "Failed"))) == "Running"
    rolled = stack_pods(testbed)
    assert len(before - rolled) == len(rolled - before) == 1, "the scheduler's pod alone"
    # A deployment finds what the job left.
    testbed.deploy(QUIET)
    assert stack_pods(testbed) == rolled


def holder(kube):
    """Return the pod whose scheduler holds the lease."""
    lease = kube.find("coordination.k8s.io/v1", "Lease", SCHEDULER, names.NAMESPACE) or {}
    return ((lease.get("spec") or {}).get("holderIdentity") or "").rpartition("_")[0]


def test_of_two_schedulers_the_other_takes_over_and_the_choice_is_kept(testbed, namespace):
    kube = testbed.kube
    chosen = Chosen(schedulerReplicas=2, deviceConfig={"gpuSchedulerPolicy": "binpack"})
    testbed.deploy(QUIET, values=chosen)
    try:
        testbed.deploy(QUIET)  # without a file: as it was chosen
        assert testbed.chosen() == chosen
        pods = kube.list("v1", "Pod", names.NAMESPACE, labels=f"{NAME}={SCHEDULER}")
        here = {found["metadata"]["name"] for found in pods}
        assert len(here) == 2
        first = wait_until(
            "one of the two leads", lambda: holder(kube), ready=here.__contains__, timeout_s=180
        )
        kube.create(pod(testbed, namespace, "before", 2048))
        before = wait_phase(kube, namespace, "before", ("Running", "Failed"))
        kube.delete("v1", "Pod", first, names.NAMESPACE, grace_s=0)
        # The API server forgets the pod at once; until kubelet ends it, it still leads.
        wait_until(
            "another leads", lambda: holder(kube), ready=lambda now: now not in ("", first),
            timeout_s=180,
        )  # fmt: skip
        kube.create(pod(testbed, namespace, "after", 3072))
        found = wait_phase(kube, namespace, "after", ("Running", "Failed"))
        assert phase(found) == "Running", found["status"]
        # Who took over knows what the first one promised.
        both = {each["metadata"]["uid"] for each in (before, found)}
        wait_until(
            "the ledger has both pods", lambda: ledger(kube)["pods"].keys(),
            ready=lambda known: both <= known, transient=(TestbedError,), timeout_s=60,
        )  # fmt: skip
    finally:
        testbed.deploy(QUIET, values=Chosen())
    assert testbed.chosen() == Chosen()


def webhooks_that_read_anew(kube):
    """Have kubelet look at the webhooks' volumes, and count those that say they did, too."""
    count = 0
    for found in kube.list("v1", "Pod", names.NAMESPACE, labels=f"{NAME}={WEBHOOK}"):
        name = found["metadata"]["name"]
        body = {"metadata": {"annotations": {ANNOTATION_NUDGE: str(time.time())}}}
        kube.patch("v1", "Pod", name, body, names.NAMESPACE)
        count += "read anew: /certificates" in kube.logs(names.NAMESPACE, name)
    return count


def test_node_ledger_and_monitor_know_the_same_cards(testbed):
    registered = {
        (node["metadata"]["name"], card.uuid)
        for node in testbed.kube.list("v1", "Node")
        for card in decode_register(node["metadata"]["annotations"][names.NODE_REGISTER])
    }
    books = ledger(testbed.kube)
    assert {
        (node, card["uuid"]) for node, found in books["nodes"].items() for card in found["cards"]
    } == registered
    reading = cards(testbed.kube)
    assert {(card.node, card.uuid) for card in reading.cards} == registered
    assert registered


def test_readings_join_without_gap_or_repeat(testbed):
    first = cards(testbed.kube, since=time.time() - 2)
    second = cards(testbed.kube, since=first.now)
    times = [s.time for s in (*first.samples, *second.samples)]
    assert times == sorted(times) and len(set(times)) == len(times)
