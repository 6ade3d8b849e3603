"""Reading the facts from a cluster; what cannot be read is named, not fatal."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

from testbed.errors import ClusterError, InputError, TestbedError, known_hint
from testbed.lab.deploy import reservations
from testbed.lab.deploy.common import MONITOR, NAME
from testbed.lab.deploy.samples import ledger_document, waiting
from testbed.lab.deploy.switch import read_config
from testbed.lab.explain.model import Facts
from testbed.lab.kube import Kube, Object
from testbed.stack import names
from testbed.stack.config import DeviceConfig

T = TypeVar("T")


def gather(kube: Kube, word: str, namespace: str = "") -> Facts:
    """Return what the cluster tells of a pod.

    Args:
        kube: The cluster, as an administrator.
        word: ``POD`` or ``NAMESPACE/POD``.
        namespace: Where a pod without namespace is looked for; empty for all.

    Raises:
        InputError: there is no such pod, or one in several namespaces.
        ClusterError: the API server does not answer.
    """
    pods = kube.list("v1", "Pod")
    pod = find_pod(pods, word, namespace)
    problems: list[str] = []

    def best(what: str, read: Callable[[], T], otherwise: T) -> T:
        try:
            return read()
        except TestbedError as error:
            problems.append(f"{what}: {error.why or error.what}")
            return otherwise

    found = best("the stack's configuration", lambda: read_config(kube), None)
    config = found[0] if found is not None else DeviceConfig()
    if found is None and not problems:
        problems.append("the sharing stack is not deployed (testbed deploy)")
    meta = pod["metadata"]
    fields = f"involvedObject.uid={meta['uid']}"
    return Facts(
        pod=pod,
        config=config,
        books=best("the extender's ledger", lambda: ledger_document(kube), None),
        reservations=best("its reservations", lambda: reservations(kube), None),
        waiting=best("its waiting pods", lambda: waiting(kube), None),
        nodes=best("nodes", lambda: kube.list("v1", "Node"), []),
        pods=pods,
        events=best(
            "events", lambda: kube.list("v1", "Event", meta["namespace"], fields=fields), []
        ),
        containers=_containers(kube, pod),
        problems=tuple(problems),
    )


def find_pod(pods: list[Object], word: str, namespace: str) -> Object:
    """Return the pod that a word means.

    Raises:
        InputError: there is none, or one in several namespaces.
    """
    where, _, name = word.rpartition("/")
    wanted = where or namespace
    found = [
        pod
        for pod in pods
        if pod["metadata"]["name"] == name
        and (not wanted or pod["metadata"]["namespace"] == wanted)
    ]
    if len(found) == 1:
        return found[0]
    if found:
        raise InputError(
            f"there is a pod {name} in several namespaces",
            why=", ".join(sorted(pod["metadata"]["namespace"] for pod in found)),
            hint="name one with -n",
        )
    known = [
        pod["metadata"]["name"]
        for pod in pods
        if not wanted or pod["metadata"]["namespace"] == wanted
    ]
    place = f" in namespace {wanted}" if wanted else ""
    raise InputError(
        f"there is no pod {name}{place}",
        hint=known_hint(name, known, listed="there are") if known else "there is none at all",
    )


def _containers(kube: Kube, pod: Object) -> list[dict[str, Any]] | None:
    """Return what the monitor of the pod's node tells of containers, None where it is silent."""
    node = pod["spec"].get("nodeName")
    if not node:
        return None
    try:
        monitors = kube.list("v1", "Pod", names.NAMESPACE, labels=f"{NAME}={MONITOR}")
        for monitor in monitors:
            if monitor["spec"].get("nodeName") == node:
                data = kube.pod_proxy(
                    names.NAMESPACE,
                    monitor["metadata"]["name"],
                    names.PORT_MONITOR,
                    "/v1/containers",
                )
                return list(json.loads(data)["containers"])
    except (ClusterError, ValueError, KeyError, TypeError):
        return None
    return None
