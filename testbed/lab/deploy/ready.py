"""When a deployment is done: each layer is asked, none is believed.

The webhook's failurePolicy is Ignore, so a webhook that is not ready would let a pod
pass unseen: a dry-run pod must come back with our scheduler's name. A plugin that runs
may have registered nothing: the node must show the cards, and so must the extender's
ledger. A monitor that is ready may be out of reach: its figures must arrive through
the API server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from testbed.errors import CodecError, DeployError, TestbedError
from testbed.lab.cluster.protocol import Progress
from testbed.lab.deploy.common import SELECTOR
from testbed.lab.deploy.diagnosis import hopeless, pod_line, pod_ready
from testbed.lab.deploy.samples import Reading, cards, ledger
from testbed.lab.deploy.switch import plugin_states, wait_for_plugins
from testbed.lab.deploy.values import StackValues
from testbed.lab.kube import ApiError, Kube, Object, Unreachable
from testbed.lab.wait import wait_until
from testbed.stack import names
from testbed.stack.codec import decode_register
from testbed.stack.model import Card

#: Seconds that each layer has. Pods start in seconds where images are at hand.
PODS_S = 120.0
WEBHOOK_S = 30.0
#: kubelet tells its node's new resources with its next status, by default every 10 s.
CARDS_S = 60.0
LEDGER_S = 30.0
MONITOR_S = 30.0

#: Expected uuids by node; None where only "some card somewhere" can be demanded.
Expected = Mapping[str, Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCards:
    """What a node shows of its cards.

    Attributes:
        registered: By the register annotation.
        allocatable: Slots that kubelet offers.
    """

    node: str
    registered: tuple[Card, ...]
    allocatable: int

    @property
    def slots(self) -> int:
        """Slots that kubelet should offer: those of healthy cards."""
        return sum(card.slots for card in self.registered if card.healthy)


def wait_pods(kube: Kube, values: StackValues, progress: Progress) -> None:
    """Wait until every Deployment and DaemonSet runs its newest pods, all Ready."""
    namespace = values.namespace

    def observe() -> tuple[list[str], list[Object]]:
        late = [
            text
            for kind in ("Deployment", "DaemonSet")
            for item in kube.list("apps/v1", kind, namespace, labels=SELECTOR)
            if (text := rollout(item))
        ]
        return late, kube.list("v1", "Pod", namespace, labels=SELECTOR)

    def failed(seen: tuple[list[str], list[Object]]) -> TestbedError | None:
        why = hopeless(seen[1])
        return DeployError("a pod of the stack cannot start", why=why) if why else None

    def describe(seen: tuple[list[str], list[Object]]) -> str:
        waiting = [pod_line(pod) for pod in seen[1] if not pod_ready(pod)]
        return "; ".join(waiting) or ", ".join(seen[0])

    with progress.step("pods of the stack are ready") as step:
        wait_until(
            "the stack's pods are ready",
            observe,
            ready=lambda seen: not seen[0],
            failed=failed,
            describe=describe,
            timeout_s=PODS_S,
            transient=(ApiError, Unreachable),
            report=step.update,
        )


def rollout(workload: Object) -> str:
    """Return what a Deployment or DaemonSet still waits for, or nothing."""
    name = f"{workload['kind']} {workload['metadata']['name']}"
    status = workload.get("status") or {}
    if status.get("observedGeneration", 0) < workload["metadata"].get("generation", 0):
        return f"{name}: not seen by its controller yet"
    if workload["kind"] == "Deployment":
        wanted = workload["spec"].get("replicas", 1)
        updated, ready = status.get("updatedReplicas", 0), status.get("readyReplicas", 0)
        total = status.get("replicas", 0)
    else:
        wanted = status.get("desiredNumberScheduled", 0)
        updated, ready = status.get("updatedNumberScheduled", 0), status.get("numberReady", 0)
        total = wanted
        if not wanted:
            return f"{name}: no node is meant to run it"
    if updated == ready == total == wanted:
        return ""
    return f"{name}: {ready} of {wanted} ready, {updated} of the newest"


def wait_webhook(kube: Kube, values: StackValues, progress: Progress) -> None:
    """Wait until a pod that asks for a card comes back with our scheduler's name."""
    wanted = values.config.schedulerName
    probe = probe_pod(values)

    def observe() -> str:
        return str(kube.create(probe, dry_run=True)["spec"].get("schedulerName", ""))

    with progress.step("webhook names the scheduler") as step:
        wait_until(
            f"a dry-run pod comes back with the scheduler {wanted}",
            observe,
            ready=lambda seen: seen == wanted,
            describe=lambda seen: f"it came back with {seen!r}: the webhook was not asked",
            timeout_s=WEBHOOK_S,
            transient=(ApiError, Unreachable),
            report=step.update,
        )


def probe_pod(values: StackValues) -> Object:
    """Return the pod of the dry run; it never exists."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "vgpu-testbed-probe", "namespace": "default"},
        "spec": {
            "automountServiceAccountToken": False,
            "containers": [
                {
                    "name": "probe",
                    "image": values.images.base,
                    "resources": {"limits": {values.config.resourceCountName: "1"}},
                }
            ],
        },
    }


def wait_cards(
    kube: Kube, values: StackValues, progress: Progress, expected: Expected | None
) -> tuple[NodeCards, ...]:
    """Wait until plugins act on the configuration and nodes show their cards."""
    namespace = values.namespace

    def observe() -> tuple[NodeCards, ...]:
        running = {state.node for state in plugin_states(kube, namespace=namespace)}
        resource = values.config.resourceCountName
        return tuple(
            node_cards(node, resource)
            for node in kube.list("v1", "Node")
            if node["metadata"]["name"] in running
        )

    with progress.step("nodes show their cards") as step:
        wait_for_plugins(
            kube, values.config, namespace=namespace, timeout_s=CARDS_S, report=step.update
        )
        return wait_until(
            "every node shows its cards",
            observe,
            ready=lambda seen: not missing_cards(seen, expected),
            describe=lambda seen: missing_cards(seen, expected),
            timeout_s=CARDS_S,
            transient=(ApiError, Unreachable, DeployError, CodecError),
            report=step.update,
        )


def node_cards(node: Object, resource: str) -> NodeCards:
    """Return what a node object shows.

    Raises:
        CodecError: its register annotation cannot be read.
    """
    annotations = node["metadata"].get("annotations") or {}
    allocatable = ((node.get("status") or {}).get("allocatable") or {}).get(resource, "0")
    return NodeCards(
        node=node["metadata"]["name"],
        registered=decode_register(annotations.get(names.NODE_REGISTER, "")),
        allocatable=int(allocatable),
    )


def missing_cards(seen: Sequence[NodeCards], expected: Expected | None) -> str:
    """Return what is not yet as it should be, or nothing."""
    problems = [
        f"{node.node}: {node.slots} slots registered, kubelet offers {node.allocatable}"
        for node in seen
        if node.slots != node.allocatable
    ]
    shown = {node.node: {card.uuid for card in node.registered} for node in seen}
    if expected is None:
        if not any(shown.values()):
            problems.append("no node has registered a card")
    else:
        for node, uuids in expected.items():
            lacking = [uuid for uuid in uuids if uuid not in shown.get(node, set())]
            if lacking:
                problems.append(f"{node}: {', '.join(lacking)} not registered")
    return "; ".join(problems)


def wait_ledger(
    kube: Kube, values: StackValues, progress: Progress, shown: Sequence[NodeCards]
) -> None:
    """Wait until the extender has read the cluster and has every card in its books."""
    wanted = {(node.node, card.uuid) for node in shown for card in node.registered}

    def lacking(books: Mapping[str, Any]) -> str:
        if not books["synced"]:
            return "it has not read the cluster yet"
        known = {
            (name, str(card["uuid"]))
            for name, node in books["nodes"].items()
            for card in node["cards"]
        }
        return ", ".join(f"{uuid} of {node} is not in it" for node, uuid in sorted(wanted - known))

    with progress.step("extender has the cards in its ledger") as step:
        wait_until(
            "the extender's ledger has every card",
            lambda: ledger(kube, namespace=values.namespace),
            ready=lambda books: not lacking(books),
            describe=lacking,
            timeout_s=LEDGER_S,
            transient=(ApiError, Unreachable, DeployError),
            report=step.update,
        )


def wait_monitors(
    kube: Kube, values: StackValues, progress: Progress, shown: Sequence[NodeCards]
) -> Reading:
    """Wait until the monitors tell of every registered card, through the API server."""
    wanted = {card.uuid for node in shown for card in node.registered}

    def lacking(reading: Reading) -> str:
        told = {card.uuid for card in reading.cards}
        sampled = {sample.uuid for sample in reading.samples}
        problems = [f"{uuid} unknown to its monitor" for uuid in sorted(wanted - told)]
        problems += [f"{uuid} not sampled yet" for uuid in sorted(wanted & told - sampled)]
        return ", ".join(problems)

    with progress.step("monitors answer") as step:
        return wait_until(
            "the monitors tell of every card",
            lambda: cards(kube, namespace=values.namespace),
            ready=lambda reading: not lacking(reading),
            describe=lacking,
            timeout_s=MONITOR_S,
            transient=(ApiError, Unreachable, DeployError),
            report=step.update,
        )
