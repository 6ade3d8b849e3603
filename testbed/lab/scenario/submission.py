"""Show pods to a cluster's admission and bring home what became of each.

For questions whose pods need not run. Most are only tried (a dry run passes the same
admission); those that are to be changed later exist, held back from every scheduler by
a gate.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from testbed.errors import TestbedError
from testbed.lab.cluster.protocol import Step
from testbed.lab.kube import ApiError, Kube, Unreachable
from testbed.lab.scenario.pods import namespace_manifest
from testbed.lab.scenario.question import ContainerTrace, PodTrace, Trial
from testbed.lab.wait import wait_until
from testbed.stack import names

#: A scheduler leaves a pod alone while it has one.
GATE = {"name": "vgpu-testbed.dev/never"}
QUOTA_S = 30.0
_MOST = str(2**31 - 1)
_CARDS = "1000"


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A pod to be shown.

    Attributes:
        name: Of the pod.
        manifest: The pod, without a namespace.
        patch: Merged into it once it exists.
        debug: Containers added to it as ``kubectl debug`` does, once it exists.
        own_environment: Its namespace's administrator lets it set the library's variables.
    """

    name: str
    manifest: Mapping[str, Any]
    patch: Mapping[str, Any] = field(default_factory=dict)
    debug: Sequence[Mapping[str, Any]] = ()
    own_environment: bool = False


def submit(
    kube: Kube,
    submissions: Sequence[Submission],
    *,
    quota: Mapping[str, str],
    asked: bool,
    step: Step,
) -> Trial:
    """Show the pods, each once, and return what the API server said.

    A pod's trace holds it as it would be stored; one that is refused has an event
    ``refused`` with the reason.

    Args:
        kube: The cluster.
        submissions: The pods.
        quota: ``spec.hard`` of a ResourceQuota of their namespace; empty for none.
        asked: Whether the webhook is asked; in a control it is not.
        step: Told which pod is shown.

    Raises:
        ApiError: the API server does not take a namespace or a quota.
        WaitTimeout: the webhook does not learn of the quota.
    """
    started = time.time()
    spaces: dict[bool, str] = {}
    pods: dict[str, PodTrace] = {}
    try:
        for own in sorted({one.own_environment for one in submissions}):
            spaces[own] = _namespace(kube, own_environment=own, asked=asked)
            if quota:
                set_quota(kube, spaces[own], quota, asked=asked)
        for number, one in enumerate(submissions, 1):
            step.update(f"{number}/{len(submissions)} {one.name}")
            pods[one.name] = _show(kube, one, spaces[one.own_environment])
    finally:
        with contextlib.suppress(TestbedError):  # the next run's tidying finds what is left
            for one in submissions:
                if _exists(one) and one.own_environment in spaces:
                    space = spaces[one.own_environment]
                    kube.delete("v1", "Pod", one.name, space, grace_s=0)
            for space in spaces.values():
                kube.delete("v1", "Namespace", space)
    return Trial(
        enforcement="on" if asked else "off",
        pods=pods,
        samples=(),
        source="api-server",
        registered={},
        ledger={},
        started=started,
        ended=time.time(),
    )


def _namespace(kube: Kube, *, own_environment: bool, asked: bool) -> str:
    manifest = namespace_manifest(f"trial-{uuid.uuid4().hex[:8]}")
    labels = manifest["metadata"]["labels"]
    if own_environment:
        labels[names.OWN_ENVIRONMENT_LABEL] = names.OWN_ENVIRONMENT_ALLOWED
    if not asked:
        labels[names.WEBHOOK_LABEL] = names.WEBHOOK_IGNORE
    kube.create(manifest)
    return str(manifest["metadata"]["name"])


def set_quota(kube: Kube, namespace: str, hard: Mapping[str, str], *, asked: bool) -> None:
    """Set a quota and wait until the webhook knows of it: two replicas watch for it."""
    kube.create(
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "quota", "namespace": namespace},
            "spec": {"hard": dict(hard)},
        }
    )
    if not asked:
        return
    # More than any quota of either key, as far as a pod can ask for it.
    limits = {
        names.RESOURCE_COUNT: _CARDS, names.RESOURCE_MEMORY: _MOST, names.RESOURCE_CORES: "100",
    }  # fmt: skip
    container = {"name": "probe", "image": "probe", "resources": {"limits": limits}}
    probe = _pod("probe", {"spec": {"containers": [container]}}, namespace)
    seen = 0

    def refused() -> int:
        nonlocal seen
        try:
            kube.create(probe, dry_run=True)
        except ApiError as error:
            seen = seen + 1 if "exceeding resource quota" in error.message else 0
        else:
            seen = 0
        return seen

    # Whichever replica answers: several times in a row.
    wait_until(
        "the webhook knows of the quota",
        refused,
        ready=lambda count: count >= 6,
        timeout_s=QUOTA_S,
        transient=(Unreachable,),
        interval_s=0.1,
    )


def _show(kube: Kube, one: Submission, namespace: str) -> PodTrace:
    manifest = _pod(one.name, one.manifest, namespace)
    exists = _exists(one)
    if exists:
        spec = manifest["spec"]
        manifest = {**manifest, "spec": {**spec, "schedulingGates": [GATE]}}
    found: Mapping[str, Any] = {}
    event: dict[str, Any] = {"event": "admitted", "time": time.time()}
    # A token's volume has a name by chance, and two answers could not be compared.
    manifest = {**manifest, "spec": {"automountServiceAccountToken": False, **manifest["spec"]}}
    try:
        found = kube.create(manifest, dry_run=not exists)
        if one.patch:
            found = kube.patch("v1", "Pod", one.name, dict(one.patch), namespace)
        if one.debug:
            body = {"spec": {"ephemeralContainers": [dict(each) for each in one.debug]}}
            found = kube.patch(
                "v1",
                "Pod",
                one.name,
                body,
                namespace,
                strategy="strategic",
                subresource="ephemeralcontainers",
            )
    except ApiError as error:
        event = {"event": "refused", "time": time.time(), "message": error.message}
    return PodTrace(
        name=one.name,
        uid=str((found.get("metadata") or {}).get("uid", "")),
        node="",
        object=found,
        containers=(ContainerTrace(name="admission", events=(event,)),),
    )


def _exists(one: Submission) -> bool:
    """Tell whether a pod must exist to be changed."""
    return bool(one.patch or one.debug)


def _pod(name: str, manifest: Mapping[str, Any], namespace: str) -> dict[str, Any]:
    metadata = {**(manifest.get("metadata") or {}), "name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "Pod", **manifest, "metadata": metadata}
