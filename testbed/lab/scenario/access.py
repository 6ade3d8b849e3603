"""A trial's access to a real cluster."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from testbed.errors import CodecError
from testbed.lab.deploy import Reading, cards, ledger
from testbed.lab.deploy.common import MONITOR, NAME
from testbed.lab.kube import ApiError, Kube
from testbed.lab.limits import Wanted, set_limits
from testbed.lab.scenario.question import LimitChange
from testbed.stack import names
from testbed.stack.codec import decode_register
from testbed.stack.model import Card


class ClusterAccess:
    """Implements ``trial.Access`` with the lab's Kubernetes client."""

    def __init__(self, kube: Kube, namespace: str = names.NAMESPACE) -> None:
        self._kube = kube
        self._stack_namespace = namespace

    def start(self, manifests: Sequence[Mapping[str, Any]]) -> None:
        """Create the objects in order; those that are there already are left alone.

        The trial's namespace is its own, so what is there was made by a call whose
        answer was lost.
        """
        for manifest in manifests:
            try:
                self._kube.create(dict(manifest))
            except ApiError as error:
                if error.status != 409:
                    raise

    def pod(self, namespace: str, name: str) -> Mapping[str, Any] | None:
        return self._kube.find("v1", "Pod", name, namespace)

    def log(self, namespace: str, name: str, container: str) -> str:
        """Return the workload's log; nothing before the container runs."""
        try:
            return self._kube.logs(namespace, name, container)
        except ApiError as error:
            if error.status in (400, 404):
                return ""
            raise

    def release(self, namespace: str, name: str, container: str, phase: str) -> bool:
        """Let a container that waits go on; False where it could not be told."""
        done = self._kube.exec(
            namespace, name, ["touch", f"/tmp/release/{phase}"], container=container
        )
        return done.rc == 0

    def delete(self, namespace: str, name: str) -> None:
        """Delete a pod, as its owner would; one that is gone is left alone."""
        self._kube.delete("v1", "Pod", name, namespace)

    def set_limits(self, namespace: str, name: str, change: LimitChange) -> None:
        """Change the limits of all its containers, as ``testbed limits set`` does."""
        wanted = Wanted(gpumem_mib=change.gpumem_mib, gpucores_pct=change.gpucores_pct)
        set_limits(self._kube, name, wanted, namespace=namespace)

    def cards(self, since: float | Mapping[str, float]) -> Reading:
        return cards(self._kube, since, namespace=self._stack_namespace)

    def registered(self) -> Mapping[str, tuple[Card, ...]]:
        found: dict[str, tuple[Card, ...]] = {}
        for node in self._kube.list("v1", "Node"):
            notes = node["metadata"].get("annotations", {})
            try:
                found[node["metadata"]["name"]] = decode_register(
                    notes.get(names.NODE_REGISTER, "")
                )
            except CodecError:
                found[node["metadata"]["name"]] = ()
        return found

    def ledger(self) -> Mapping[str, Any]:
        return ledger(self._kube, namespace=self._stack_namespace)

    def unenforced(self) -> Mapping[tuple[str, str], str]:
        """Return the containers whose limits nothing holds, as the monitors say."""
        found = {}
        label = f"{NAME}={MONITOR}"
        for pod in self._kube.list("v1", "Pod", self._stack_namespace, labels=label):
            name = pod["metadata"]["name"]
            told = json.loads(
                self._kube.pod_proxy(
                    self._stack_namespace, name, names.PORT_MONITOR, "/v1/containers"
                )
            )
            for container in told["containers"]:
                if container["unenforced"]:
                    key = (container["pod_uid"], container["container"])
                    found[key] = container["unenforced"]
        return found

    def why(self, namespace: str, name: str) -> str:
        """Return the last warnings about a pod, for people."""
        events = self._kube.list(
            "v1", "Event", namespace, fields=f"involvedObject.name={name},type=Warning"
        )
        return "; ".join(event.get("message", "") for event in events[-2:])
