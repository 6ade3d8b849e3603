"""Why a deployment does not get ready: states of pods, events, last lines of logs."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

from testbed.errors import ClusterError
from testbed.lab.kube import Kube, Object

_LOG_LINES = 10
_EVENTS = 10

#: Reasons to wait that do not go away by waiting.
_HOPELESS = ("InvalidImageName", "ErrImageNeverPull", "ImagePullBackOff", "ImageInspectError")
_CRASHES = 3


def pod_ready(pod: Object) -> bool:
    """Tell whether a pod's condition Ready is true and it is not on its way out."""
    if "deletionTimestamp" in pod["metadata"]:
        return False
    conditions = (pod.get("status") or {}).get("conditions") or []
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)


def pod_line(pod: Object) -> str:
    """Return a pod's state as one line."""
    status = pod.get("status") or {}
    parts = [status.get("phase", "?")]
    if "deletionTimestamp" in pod["metadata"]:
        parts.append("terminating")
    if status.get("reason") or status.get("message"):
        parts.append(_joined(status.get("reason"), status.get("message")))
    parts += [
        _joined(condition.get("reason"), condition.get("message"))
        for condition in status.get("conditions") or []
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False"
    ]
    parts += [text for c in _containers(pod) if (text := _container_text(c))]
    return f"{pod['metadata']['name']}: {'; '.join(parts)}"


def hopeless(pods: Iterable[Object]) -> str:
    """Return why waiting for these pods is pointless, or nothing."""
    for pod in pods:
        for container in _containers(pod):
            waiting = (container.get("state") or {}).get("waiting") or {}
            reason = waiting.get("reason", "")
            crashed = container.get("restartCount", 0) >= _CRASHES and not container.get("ready")
            if reason in _HOPELESS or (crashed and reason == "CrashLoopBackOff"):
                return pod_line(pod)
    return ""


def diagnose(kube: Kube, namespace: str) -> str:
    """Return pods, warnings and logs of what is not ready, for a terminal.

    It never fails: what cannot be read is said in its place.
    """
    lines: list[str] = []
    try:
        pods = kube.list("v1", "Pod", namespace)
    except ClusterError as error:
        return f"(pods cannot be listed: {error.why or error.what})"
    if not pods:
        lines.append(f"no pod exists in namespace {namespace}")
    for pod in pods:
        if pod_ready(pod):
            lines.append(f"pod {pod['metadata']['name']}: ready")
            continue
        lines.append(f"pod {pod_line(pod)}")
        for container in _containers(pod):
            if not container.get("ready"):
                lines += _log(kube, namespace, pod, container)
    fine = {pod["metadata"]["name"] for pod in pods if pod_ready(pod)}
    lines += _events(kube, namespace, fine)
    return "\n".join(lines)


def _containers(pod: Object) -> list[Object]:
    status = pod.get("status") or {}
    found: list[Object] = [
        *(status.get("initContainerStatuses") or []),
        *(status.get("containerStatuses") or []),
    ]
    return found


def _container_text(container: Object) -> str:
    if container.get("ready"):
        return ""
    name, restarts = container["name"], container.get("restartCount", 0)
    state: dict[str, Any] = container.get("state") or {}
    if waiting := state.get("waiting"):
        text = _joined(waiting.get("reason"), waiting.get("message"))
    elif ended := state.get("terminated"):
        text = _joined(ended.get("reason"), ended.get("message"))
        text = f"{text} (exit code {ended.get('exitCode')})"
    else:
        text = "running, not ready"
    last = (container.get("lastState") or {}).get("terminated")
    if last and not state.get("terminated"):
        text += f", before that {last.get('reason', '')} (exit code {last.get('exitCode')})"
    return f"container {name} {text}" + (f", {restarts} restarts" if restarts else "")


def _log(kube: Kube, namespace: str, pod: Object, container: Object) -> list[str]:
    state = container.get("state") or {}
    began = "running" in state or "terminated" in state
    if not began and not container.get("restartCount"):
        return []  # never started: there is no log
    try:
        text = kube.logs(
            namespace,
            pod["metadata"]["name"],
            container["name"],
            tail=_LOG_LINES,
            previous=not began,
        )
    except ClusterError as error:
        return [f"    (no log: {error.why or error.what})"]
    return [f"    {container['name']} | {line}" for line in text.splitlines()[-_LOG_LINES:]]


def _events(kube: Kube, namespace: str, fine: Container[str]) -> list[str]:
    try:
        # core/v1: items of events.k8s.io can hold a null time that clients choke on.
        events = kube.list("v1", "Event", namespace, fields="type=Warning")
    except ClusterError as error:
        return [f"(events cannot be listed: {error.why or error.what})"]
    # What a pod that is ready by now had to say on its way there is noise.
    events = [e for e in events if (e.get("involvedObject") or {}).get("name") not in fine]
    events.sort(key=lambda e: str(e.get("lastTimestamp") or e.get("eventTime") or ""))
    lines = []
    for event in events[-_EVENTS:]:
        about = event.get("involvedObject") or {}
        lines.append(
            f"event {about.get('kind', '?')}/{about.get('name', '?')}: "
            f"{_joined(event.get('reason'), event.get('message'))}"
        )
    return lines


def _joined(reason: object, message: object) -> str:
    return ": ".join(str(part).strip() for part in (reason, message) if part) or "?"
