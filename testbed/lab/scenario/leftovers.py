"""Put a testbed back in order after a run that was ended half-way."""

from __future__ import annotations

from testbed.errors import TestbedError
from testbed.lab.cluster.protocol import Progress
from testbed.lab.deploy import plugin_states, set_enforcement
from testbed.lab.deploy.switch import read_config
from testbed.lab.kube import Kube
from testbed.lab.scenario.pods import TRIAL_LABEL
from testbed.lab.scenario.simulated import clear

_GONE_S = 90.0


def tidy(kube: Kube, progress: Progress) -> None:
    """Remove the pods of earlier trials and switch enforcement on.

    A run that was killed in its control leaves enforcement off: measured so, a
    testbed that works would fail. Its pods would hold the card's memory.

    Raises:
        DeployError: no stack, or one whose plugins do not follow.
        WaitTimeout: the pods of an earlier trial do not end.
    """
    clear(kube)
    found = kube.list("v1", "Namespace", labels=TRIAL_LABEL)
    pods = [
        (each["metadata"]["name"], pod["metadata"]["name"])
        for each in found
        for pod in kube.list("v1", "Pod", each["metadata"]["name"])
    ]
    # One that is on its way and has no pods any more is the last trial's, not a leftover.
    left = [
        each["metadata"]["name"] for each in found if "deletionTimestamp" not in each["metadata"]
    ]
    if left or pods:
        with progress.step("removing what an earlier run left"):
            for namespace in left:
                kube.delete("v1", "Namespace", namespace)
            for namespace, pod in pods:
                kube.wait_gone("v1", "Pod", pod, namespace, timeout_s=_GONE_S)
    if _needs_switching(kube):
        set_enforcement(kube, "on", progress)


def _needs_switching(kube: Kube) -> bool:
    """Tell whether anything says that enforcement is off; silence counts as that."""
    found = read_config(kube)
    if found is None or found[0].enforcement != "on":
        return True
    try:
        return any(
            (each.enforcement, each.generation) != ("on", found[0].generation)
            for each in plugin_states(kube)
        )
    except TestbedError:
        return True  # `set_enforcement` waits for those who do not answer
