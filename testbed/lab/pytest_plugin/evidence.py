"""What a failed test is told of its pods: description, explanation, logs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from testbed.errors import TestbedError
from testbed.lab.pytest_plugin.cluster import Cluster
from testbed.lab.pytest_plugin.handle import Pod
from testbed.lab.redact import redact

LOG_LINES = 200
_DESCRIBE_S = 20.0


def sections(cluster: Cluster, pods: Iterable[Pod]) -> list[tuple[str, str]]:
    """Return title and text of what is known of each pod; best effort, never raises."""
    found: list[tuple[str, str]] = []
    for pod in pods:
        where = f"pod {pod.namespace}/{pod.name}"
        describe = partial(
            cluster.kubectl, "describe", "pod", pod.name, "-n", pod.namespace, timeout_s=_DESCRIBE_S
        )
        found.append((f"{where}: testbed explain", _best(pod.explain)))
        found.append((f"{where}: kubectl describe", _best(describe)))
        spec = pod.manifest["spec"]
        for container in [*spec.get("initContainers", []), *spec.get("containers", [])]:
            name = str(container["name"])
            text = _best(partial(pod.logs, name, tail=LOG_LINES))
            found.append((f"{where}: log of {name}", text or "(it has printed nothing)"))
    return found


def _best(read: Callable[[], str]) -> str:
    try:
        return redact(read().encode()).decode(errors="replace").rstrip()
    except TestbedError as error:
        return f"(not to be had: {error.text()})"
    except (KeyError, TypeError, ValueError, OSError) as error:
        return f"(not to be had: {type(error).__name__}: {error})"
