"""Asks monitors, extender and API server; what does not answer is a problem, no end."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from testbed.errors import DeployError, TestbedError
from testbed.lab.deploy.common import MONITOR, NAME
from testbed.lab.deploy.samples import leading, scheduler_pods
from testbed.lab.kube import Kube
from testbed.lab.top.model import NodeAnswer, Pending, View, node_answer, view
from testbed.stack import names

#: Later than any sample: the cards are wanted, not their history.
_NO_SAMPLES = "1e18"


def gather(
    kube: Kube, *, span_s: float = 5.0, namespace: str = "", stack: str = names.NAMESPACE
) -> View:
    """Return one look at a testbed.

    Args:
        kube: The cluster.
        span_s: What shares and waits are over.
        namespace: Shows pods of this one only; all by default.
        stack: Where the sharing stack lives.

    Raises:
        ClusterError: the API server does not answer.
        DeployError: no monitor runs.
    """
    monitors = [
        (pod["metadata"]["name"], pod["spec"].get("nodeName", ""))
        for pod in kube.list("v1", "Pod", stack, labels=f"{NAME}={MONITOR}")
        if "deletionTimestamp" not in pod["metadata"] and pod["spec"].get("nodeName")
    ]
    if not monitors:
        raise DeployError(
            f"no monitor runs in namespace {stack}", hint="deploy the stack first: testbed deploy"
        )
    with ThreadPoolExecutor(max_workers=min(8, len(monitors))) as pool:
        answers = list(pool.map(lambda m: _monitor(kube, stack, m[0], m[1], span_s), monitors))
    problems: list[str] = []
    return view(
        answers,
        nodes={node["metadata"]["name"]: _ready(node) for node in kube.list("v1", "Node")},
        ledger=_ledger(kube, stack, problems),
        pending=[
            Pending(
                namespace=pod["metadata"]["namespace"],
                pod=pod["metadata"]["name"],
                since=pod["metadata"].get("creationTimestamp", ""),
            )
            for pod in kube.list("v1", "Pod", fields="spec.nodeName=,status.phase=Pending")
            if pod["spec"].get("schedulerName") == names.SCHEDULER_NAME
        ],
        problems=problems,
        namespace=namespace,
    )


def _monitor(kube: Kube, stack: str, pod: str, node: str, span_s: float) -> NodeAnswer:
    port = names.PORT_MONITOR
    try:
        return node_answer(
            node,
            kube.pod_proxy(stack, pod, port, "/v1/cards", {"since": _NO_SAMPLES}),
            kube.pod_proxy(stack, pod, port, "/v1/containers", {"span": f"{span_s:g}"}),
        )
    except TestbedError as error:
        return NodeAnswer(node=node, problem=f"monitor: {error.why or error.what}")


def _ledger(kube: Kube, stack: str, problems: list[str]) -> dict[str, Any] | None:
    pods = scheduler_pods(kube, stack)
    if not pods:
        problems.append("extender: it does not run")
        return None
    try:
        data = kube.pod_proxy(
            stack, leading(kube, stack, pods), names.PORT_EXTENDER_OBSERVE, "/debug/ledger"
        )
        found: dict[str, Any] = json.loads(data)
        return found
    except (TestbedError, ValueError) as error:
        why = error.why or error.what if isinstance(error, TestbedError) else str(error)
        problems.append(f"extender: {why}")
        return None


def _ready(node: dict[str, Any]) -> bool:
    conditions = node.get("status", {}).get("conditions", ())
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
