"""Enforcement on and off, while the stack runs.

The value is in the ConfigMap; every plugin reports what it acts on by ``/healthz``.
Kubelet refreshes a mounted ConfigMap when it syncs the pod, by default once a minute:
an annotation on the plugin's pods makes it do so at once.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import msgspec

from testbed.errors import ClusterError, DeployError, TestbedError
from testbed.lab.cluster.protocol import Progress
from testbed.lab.deploy.common import ANNOTATION_NUDGE, CONFIG_KEY, CONFIG_MAP, NAME, PLUGIN
from testbed.lab.deploy.values import config_text
from testbed.lab.kube import ApiError, Kube, Object
from testbed.lab.wait import wait_until
from testbed.stack import config, names
from testbed.stack.config import DeviceConfig

Enforcement = Literal["on", "off"]

_TIMEOUT_S = 90.0
_NUDGE_EVERY = 10  # looks; kubelet's own cache of the ConfigMap may lag behind a nudge
_CONFLICTS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginState:
    """What one plugin acts on; ``problem`` is why it cannot use a newer configuration."""

    node: str
    pod: str
    enforcement: str
    generation: int
    problem: str = ""


def read_config(kube: Kube, *, namespace: str = names.NAMESPACE) -> tuple[DeviceConfig, str] | None:
    """Return the deployed configuration and its resource version; None without one."""
    found = kube.find("v1", "ConfigMap", CONFIG_MAP, namespace)
    if found is None:
        return None
    text = (found.get("data") or {}).get(CONFIG_KEY, "")
    return config.parse(text), found["metadata"]["resourceVersion"]


def set_enforcement(
    kube: Kube,
    value: Enforcement,
    progress: Progress,
    *,
    namespace: str = names.NAMESPACE,
    timeout_s: float = _TIMEOUT_S,
) -> int:
    """Switch enforcement and wait until every plugin acts on it.

    Returns:
        The generation of the configuration in force.

    Raises:
        DeployError: the stack is not deployed, or a plugin does not follow in time.
    """
    with progress.step(f"enforcement {value}") as step:
        wanted = _write(kube, value, namespace)
        wait_for_plugins(kube, wanted, namespace=namespace, timeout_s=timeout_s, report=step.update)
    return wanted.generation


@contextlib.contextmanager
def enforcement(
    kube: Kube,
    value: Enforcement,
    progress: Progress,
    *,
    namespace: str = names.NAMESPACE,
    timeout_s: float = _TIMEOUT_S,
) -> Iterator[int]:
    """Hold enforcement at a value; the former value is back, and in force, afterwards.

    Also on failure, and on a failure to switch. Where the restoring fails as well, the
    first error is raised with a note that says so.
    """
    before = _deployed(kube, namespace)[0].enforcement

    def restore() -> None:
        set_enforcement(kube, before, progress, namespace=namespace, timeout_s=timeout_s)

    try:
        yield set_enforcement(kube, value, progress, namespace=namespace, timeout_s=timeout_s)
    except BaseException as error:
        try:
            restore()
        except TestbedError as second:
            error.add_note(f"enforcement could not be set back to {before}: {second.text()}")
        raise
    restore()


def wait_for_plugins(
    kube: Kube,
    wanted: DeviceConfig,
    *,
    namespace: str,
    timeout_s: float,
    report: Callable[[str], None] | None = None,
) -> tuple[PluginState, ...]:
    """Wait until every plugin reports a configuration's value and generation.

    Raises:
        DeployError: there is no plugin, or one does not follow in time.
    """
    looks = 0

    def behind(state: PluginState) -> bool:
        return (state.enforcement, state.generation) != (wanted.enforcement, wanted.generation)

    def observe() -> tuple[PluginState, ...]:
        nonlocal looks
        states = plugin_states(kube, namespace=namespace)
        if looks % _NUDGE_EVERY == 0:
            for state in states:
                if behind(state):
                    _nudge(kube, namespace, state.pod, f"{wanted.generation}.{looks}")
        looks += 1
        return states

    def describe(states: tuple[PluginState, ...]) -> str:
        return ", ".join(
            f"{s.node}: {s.enforcement}, generation {s.generation}"
            + (f" ({s.problem})" if s.problem else "")
            for s in states
            if behind(s)
        )

    try:
        return wait_until(
            f"every plugin acts on enforcement {wanted.enforcement}, "
            f"generation {wanted.generation}",
            observe,
            ready=lambda states: not any(map(behind, states)),
            describe=describe,
            timeout_s=timeout_s,
            transient=(ClusterError, DeployError),
            report=report,
        )
    except TestbedError as error:
        raise DeployError(
            error.what,
            why=error.why,
            hint=f"see `kubectl -n {namespace} logs -l {NAME}={PLUGIN}`",
        ) from error


def plugin_states(kube: Kube, *, namespace: str = names.NAMESPACE) -> tuple[PluginState, ...]:
    """Return what every plugin acts on.

    Raises:
        DeployError: there is no plugin, or one does not answer.
    """
    pods = [
        pod
        for pod in kube.list("v1", "Pod", namespace, labels=f"{NAME}={PLUGIN}")
        if "deletionTimestamp" not in pod["metadata"]
    ]
    if not pods:
        raise DeployError(
            f"no device plugin runs in namespace {namespace}", hint="deploy the stack first"
        )
    return tuple(_state(kube, namespace, pod) for pod in pods)


def _state(kube: Kube, namespace: str, pod: Object) -> PluginState:
    name, node = pod["metadata"]["name"], pod["spec"].get("nodeName", "")
    try:
        answer = json.loads(kube.pod_proxy(namespace, name, names.PORT_PLUGIN_HEALTH, "/healthz"))
        return PluginState(
            node=node,
            pod=name,
            enforcement=str(answer["enforcement"]),
            generation=int(answer["generation"]),
            problem=str(answer.get("config_error") or ""),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise DeployError(f"plugin {name} answers /healthz in no known form", why=str(error)) from (
            error
        )
    except ClusterError as error:
        raise DeployError(
            f"plugin {name} of node {node or '(none yet)'} does not answer",
            why=error.why or error.what,
        ) from error


def _deployed(kube: Kube, namespace: str) -> tuple[DeviceConfig, str]:
    found = read_config(kube, namespace=namespace)
    if found is None:
        raise DeployError(
            f"the stack is not deployed in namespace {namespace}", hint="deploy the stack first"
        )
    return found


def _write(kube: Kube, value: Enforcement, namespace: str) -> DeviceConfig:
    for attempt in range(_CONFLICTS):
        now, version = _deployed(kube, namespace)
        if now.enforcement == value:
            return now
        wanted = msgspec.structs.replace(now, enforcement=value, generation=now.generation + 1)
        try:
            kube.patch(
                "v1",
                "ConfigMap",
                CONFIG_MAP,
                {
                    # Two who switch at once must not end with one generation for two values.
                    "metadata": {"resourceVersion": version},
                    "data": {CONFIG_KEY: config_text(wanted)},
                },
                namespace,
            )
        except ApiError as error:
            if error.status != 409 or attempt == _CONFLICTS - 1:
                raise
        else:
            return wanted
    raise AssertionError("unreachable")


def _nudge(kube: Kube, namespace: str, pod: str, text: str) -> None:
    body = {"metadata": {"annotations": {ANNOTATION_NUDGE: text}}}
    try:
        kube.patch("v1", "Pod", pod, body, namespace)
    except ApiError as error:
        if error.status != 404:  # replaced meanwhile: its successor reads the new value
            raise
