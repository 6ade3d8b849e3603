"""Manifests of a case's pods (pure)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from testbed.errors import InputError
from testbed.lab.scenario.question import ContainerPlan, PodPlan
from testbed.stack import names
from testbed.stack.codec import decode_pod_shares

WORKLOAD_FOLDER = "/workload"
#: What workloads of any question may import, wherever the question lies.
SHARED = Path(__file__).with_name("workload")
TRIAL_LABEL = "vgpu-testbed.dev/trial"


def namespace_manifest(name: str) -> dict[str, Any]:
    """Return the namespace that holds one trial."""
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": name, "labels": {TRIAL_LABEL: "true"}},
    }


def workload_manifest(namespace: str, folder: Path, plans: Sequence[PodPlan]) -> dict[str, Any]:
    """Return the ConfigMap with the workloads' sources."""
    files = {container.workload for plan in plans for container in plan.containers}
    files |= {name for plan in plans for name in plan.files}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "workload", "namespace": namespace},
        "data": {name: workload_file(folder, name).read_text() for name in sorted(files)},
    }


def workload_file(folder: Path, name: str) -> Path:
    """Return a file of a question's folder, or one that the workloads of all share."""
    own = folder / name
    return own if own.exists() else SHARED / name


def pod_manifest(
    namespace: str,
    plan: PodPlan,
    *,
    image: str,
    pin: Mapping[str, str] | None = None,
    node: str = "",
) -> dict[str, Any]:
    """Return one pod of a case.

    Args:
        namespace: The trial's namespace.
        plan: What the question asks for.
        image: Reference of the PyTorch image.
        pin: Annotations that pin the pod to cards (control runs).
        node: Node that the pod is pinned to, by selector (control runs).
    """
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "containers": [_container(container, image) for container in plan.containers],
        "volumes": [{"name": "workload", "configMap": {"name": "workload"}}],
    }
    if plan.scheduler:
        spec["schedulerName"] = plan.scheduler
    if node:
        spec["nodeSelector"] = {"kubernetes.io/hostname": node}
    if plan.run_as_user is not None:
        spec["securityContext"] = {"runAsUser": plan.run_as_user, "runAsGroup": plan.run_as_user}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": plan.name,
            "namespace": namespace,
            "labels": {"app.kubernetes.io/managed-by": "vgpu-testbed"},
            "annotations": {**plan.annotations, **(pin or {})},
        },
        "spec": spec,
    }


def _container(plan: ContainerPlan, image: str) -> dict[str, Any]:
    env = {**plan.env, "WORKLOAD_PARAMETERS": json.dumps(plan.parameters)}
    return {
        "name": plan.name,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "-u", f"{WORKLOAD_FOLDER}/{plan.workload}"],
        "env": [{"name": name, "value": value} for name, value in env.items()],
        "resources": {"limits": dict(plan.limits)},
        "volumeMounts": [{"name": "workload", "mountPath": WORKLOAD_FOLDER, "readOnly": True}],
    }


def check_users(plans: Sequence[PodPlan], *, id_range: bool) -> None:
    """Refuse pods that ask for another user on a cluster that has only one.

    Kubernetes would only show a mount that failed with ``lchown … invalid argument``,
    once for every attempt, and ignore a group silently.

    Raises:
        InputError: names the pods; nothing has been submitted.
    """
    others = [f"{plan.name} ({plan.run_as_user})" for plan in plans if plan.run_as_user]
    if others and not id_range:
        raise InputError(
            f"pods ask for another user than 0: {', '.join(others)}",
            why="this testbed runs as an ordinary user without a range of ids",
            hint="install newuidmap (Debian: uidmap) and a range in /etc/subuid and"
            " /etc/subgid, or run as root, and bring the testbed up anew",
        )


def check_cards(needed: int, nodes: Sequence[int]) -> None:
    """Refuse a case that wants more cards on one node than any has.

    Args:
        needed: Cards that one node must have.
        nodes: Cards of each node.

    Raises:
        InputError: before anything is submitted.
    """
    if nodes and max(nodes) < needed:
        raise InputError(
            f"this case needs {needed} cards on one node; this testbed has at most {max(nodes)}",
            hint=f"bring one up with more (testbed up --cards a100-80gb:{needed})",
        )


def pins(pod: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
    """Return node and annotations that put a copy of a finished pod in the same place."""
    notes = pod.get("metadata", {}).get("annotations", {})
    shares = decode_pod_shares(notes.get(names.POD_ALLOCATED, ""))
    uuids = dict.fromkeys(share.uuid for container in shares for share in container)
    return pod.get("spec", {}).get("nodeName", ""), {names.USE_UUID: ",".join(uuids)}
