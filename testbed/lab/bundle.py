"""The bundle of a failure: logs, events, pods, manifests; never a secret."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from testbed.errors import TestbedError
from testbed.lab.cluster.protocol import Cluster
from testbed.lab.kube import Kube

#: What is read from the API server, with its version. Secrets are not in the list.
KINDS = (
    ("v1", "Node"),
    ("v1", "Pod"),
    ("v1", "Event"),
    ("v1", "ConfigMap"),
    ("v1", "Service"),
    ("apps/v1", "Deployment"),
    ("apps/v1", "DaemonSet"),
    ("admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration"),
)
LOG_LINES = 5000


def collect(folder: Path, cluster: Cluster, kube: Kube | None) -> Path | None:
    """Write everything that a failure needs below a folder; best effort, never raises.

    What could not be had is named in ``problems.txt``. What an earlier failure left there
    goes first.

    Returns:
        The folder; None where there was nothing to collect, since nothing had started.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    problems: list[str] = []
    try:
        cluster.collect_logs(folder / "components")
    except (TestbedError, OSError) as error:
        problems.append(f"component logs: {error}")
    if kube is not None:
        for version, kind in KINDS:
            try:
                _write(folder / "objects" / f"{kind.lower()}s.json", kube.list(version, kind))
            except (TestbedError, OSError) as error:
                problems.append(f"{kind}: {error}")
                break  # an API server that does not answer will not answer the rest either
        else:
            _pod_logs(folder / "pods", kube, problems)
    if problems:
        (folder / "problems.txt").write_text("\n".join(problems) + "\n")
    if any(folder.iterdir()):
        return folder
    folder.rmdir()
    return None


def _pod_logs(folder: Path, kube: Kube, problems: list[str]) -> None:
    for pod in kube.list("v1", "Pod"):
        namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
        spec = pod["spec"]
        for container in [*spec.get("initContainers", []), *spec["containers"]]:
            try:
                text = kube.logs(namespace, name, container["name"], tail=LOG_LINES)
            except TestbedError as error:
                problems.append(f"log of {namespace}/{name} {container['name']}: {error.why}")
                continue
            path = folder / f"{namespace}_{name}_{container['name']}.log"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)


def _write(path: Path, items: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    for item in items:
        item.get("metadata", {}).pop("managedFields", None)
    path.write_text(json.dumps(items, indent=1) + "\n")
