"""Deploying the stack and taking it away again."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import msgspec

from testbed.errors import ClusterError, DeployError, InputError, WaitTimeout
from testbed.lab.cluster.protocol import Progress
from testbed.lab.deploy.common import PLUGIN, SELECTOR
from testbed.lab.deploy.diagnosis import diagnose
from testbed.lab.deploy.manifests import render
from testbed.lab.deploy.ready import (
    Expected,
    NodeCards,
    wait_cards,
    wait_ledger,
    wait_monitors,
    wait_pods,
    wait_webhook,
)
from testbed.lab.deploy.rotation import believe_first, certificates_for
from testbed.lab.deploy.switch import read_config
from testbed.lab.deploy.values import StackValues
from testbed.lab.kube import ApiError, Kube, Unreachable
from testbed.lab.wait import wait_until
from testbed.stack import names

_GONE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """A stack that is up.

    Attributes:
        values: What is deployed; its configuration carries the generation in force.
        nodes: The nodes' cards.
        source: Where the monitors' figures come from, ``emulated`` or ``nvml``.
    """

    values: StackValues
    nodes: tuple[NodeCards, ...]
    source: str


def deploy(
    kube: Kube,
    values: StackValues,
    progress: Progress,
    *,
    expected: Expected | None = None,
    renew_certificates: bool = False,
) -> Deployment:
    """Bring the stack to the given values and wait until every layer has answered.

    A second call with the same values changes nothing.

    Args:
        kube: The cluster, as an administrator.
        values: What to deploy.
        progress: Told each step.
        expected: Each node's uuids, where the provider knows them.
        renew_certificates: Make new ones though the deployed ones still serve.

    Raises:
        DeployError: the server refuses a manifest, or a layer is not ready in time;
            the text holds the pods' states, events and last log lines.
    """
    namespace = values.namespace
    with progress.step("stack applied") as step:
        _wait_ended(kube, namespace)
        values = _with_generation(kube, values)
        certificates = certificates_for(kube, values, renew=renew_certificates)
        manifests = render(values, certificates)
        believe_first(kube, values, certificates)
        for number, manifest in enumerate(manifests, 1):
            step.update(f"{number}/{len(manifests)} {manifest['kind']}")
            try:
                kube.apply([manifest])
            except ClusterError as error:
                raise DeployError(error.what, why=error.why, hint=error.hint) from error
    try:
        wait_pods(kube, values, progress)
        wait_webhook(kube, values, progress)
        nodes = wait_cards(kube, values, progress, expected)
        wait_ledger(kube, values, progress, nodes)
        reading = wait_monitors(kube, values, progress, nodes)
    except (DeployError, WaitTimeout) as error:
        raise DeployError(
            f"the stack is not ready: {error.what}",
            why=f"{error.why}\n{diagnose(kube, namespace)}",
            hint=error.hint or f"see `kubectl -n {namespace} describe pods`",
        ) from error
    return Deployment(values=values, nodes=nodes, source=reading.source)


def undeploy(kube: Kube, progress: Progress, *, namespace: str = names.NAMESPACE) -> None:
    """Take the stack away; nothing happens where there is none.

    Nodes keep the hook path's folders; pods that run keep what is mounted into them.

    Raises:
        WaitTimeout: something does not go away; the text names what holds it.
    """
    with progress.step("stack removed") as step:
        # First, so that no pod is shown to a webhook that is going.
        for api_version, kind in (
            ("admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration"),
            ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicyBinding"),
            ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy"),
            ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding"),
            ("rbac.authorization.k8s.io/v1", "ClusterRole"),
        ):
            for found in kube.list(api_version, kind, labels=SELECTOR):
                name = found["metadata"]["name"]
                if name.startswith(f"{namespace}-"):
                    step.update(f"{kind} {name}")
                    kube.delete(api_version, kind, name)
        ours = kube.find("apps/v1", "DaemonSet", PLUGIN, namespace) is not None
        step.update(f"namespace {namespace}")
        if kube.delete("v1", "Namespace", namespace):
            kube.wait_gone("v1", "Namespace", namespace, None, timeout_s=_GONE_S)
        if ours:
            _unregister(kube)


def _unregister(kube: Kube) -> None:
    """Remove the plugin's annotation from the nodes: cards that nobody serves.

    The API server goes on with a policy or webhook for a moment after it is deleted.
    """

    def left() -> list[str]:
        found = [
            node["metadata"]["name"]
            for node in kube.list("v1", "Node")
            if names.NODE_REGISTER in (node["metadata"].get("annotations") or {})
        ]
        body = {"metadata": {"annotations": {names.NODE_REGISTER: None}}}
        for name in found:
            kube.patch("v1", "Node", name, body)
        return found

    wait_until(
        "the nodes' annotations are taken away",
        left,
        ready=lambda found: not found,
        describe=", ".join,
        timeout_s=_GONE_S,
        transient=(ApiError, Unreachable),
    )


def _wait_ended(kube: Kube, namespace: str) -> None:
    """Wait for the end of an earlier deployment that is on its way out."""
    found = kube.find("v1", "Namespace", namespace)
    if found is not None and "deletionTimestamp" in found["metadata"]:
        kube.wait_gone("v1", "Namespace", namespace, None, timeout_s=_GONE_S)


def _with_generation(kube: Kube, values: StackValues) -> StackValues:
    """Count the generation on where the deployed configuration is another one."""
    try:
        found = read_config(kube, namespace=values.namespace)
    except InputError:
        found = None  # unreadable, by an older version: replaced
    if found is None:
        return values
    now, _ = found
    same = msgspec.structs.replace(values.config, generation=now.generation)
    generation = now.generation if same == now else now.generation + 1
    return dataclasses.replace(
        values, config=msgspec.structs.replace(values.config, generation=generation)
    )
