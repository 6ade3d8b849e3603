"""``testbed bench cluster``: how long a cluster takes to come, to run a first pod, to go."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from testbed.errors import ClusterError, TestbedError
from testbed.lab import images
from testbed.lab.bench.figures import Environment, Figure, environment, spread
from testbed.lab.cluster.protocol import ClusterSpec, Progress
from testbed.lab.host import load
from testbed.lab.kube import Kube, Object
from testbed.lab.testbed import Testbed
from testbed.lab.wait import wait_until
from testbed.stack import names

_POD_S = 120.0
_NAME = "first"
#: The times in the order in which they pass: key and text.
_FIGURES = {
    "ready_s": "from nothing to all nodes Ready",
    "stack_s": "the sharing stack, until every layer has answered",
    "first_pod_s": "a pod with a card, from its creation until it runs",
    "down_s": "down, until no process and no file is left",
}
#: What each kind of cluster is to keep, by key.
_AIMS = {"process": {"ready_s": 10.0}, "kind": {"ready_s": 30.0}}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterBench:
    """What was measured of one provider."""

    provider: str
    nodes: int
    figures: tuple[Figure, ...]
    environment: Environment

    @property
    def held(self) -> bool:
        """No aim is missed."""
        return all(figure.held is not False for figure in self.figures)


def measure(
    progress: Progress, *, name: str, provider: str, spec: ClusterSpec, repeat: int
) -> ClusterBench:
    """Bring a testbed up and take it down, several times.

    What is made once (programs, images) is made before the clock starts.

    Args:
        progress: Told each step.
        name: Of the testbed; one that is up keeps its owner's work and is refused.
        provider: Kind of cluster.
        spec: What to bring up.
        repeat: How often.

    Raises:
        ClusterError: a testbed of that name is up.
        TestbedError: a step failed; what was started is taken down.
    """
    testbed = Testbed(name, provider)
    times: dict[str, list[float]] = {key: [] for key in _FIGURES}
    with testbed.use("bench", progress, wait_s=0) as use:
        if testbed.cluster.status().state != "absent" and not use.inherited:
            raise ClusterError(
                f"testbed {name!r} is up", hint=f"testbed down --name {name}, or another --name"
            )
        use.note(temporary=True)
        testbed.down(progress)  # what a bench that was killed left
        testbed.cluster.prepare(progress)
        prepared = images.prepare(progress)
        before = load()
        for number in range(1, repeat + 1):
            with progress.step(f"round {number} of {repeat}"):
                _round(testbed, spec, prepared, progress, times)
    aims = _AIMS.get(provider, {})
    return ClusterBench(
        provider=provider,
        nodes=spec.nodes,
        figures=tuple(
            Figure(key=key, text=text, aim=aims.get(key), spread=spread(times[key]))
            for key, text in _FIGURES.items()
        ),
        environment=environment(before, {}),
    )


def _round(
    testbed: Testbed,
    spec: ClusterSpec,
    prepared: tuple[images.Image, ...],
    progress: Progress,
    times: dict[str, list[float]],
) -> None:
    def timed(key: str, work: Callable[[], object]) -> None:
        began = time.monotonic()
        work()
        times[key].append(round(time.monotonic() - began, 3))

    try:
        timed("ready_s", lambda: testbed.up(spec, progress, prepared=prepared))
        timed("stack_s", lambda: testbed.deploy(progress, prepared=prepared))
        image = images.find(prepared, "testbed/base").reference
        with progress.step("first pod"):
            timed("first_pod_s", lambda: _first_pod(testbed.kube, image))
    except BaseException:
        testbed.down(progress)
        raise
    timed("down_s", lambda: testbed.down(progress))


def first_pod(image: str) -> Object:
    """Return the pod: it asks for a card, so that webhook, extender and plugin have their part."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": _NAME, "namespace": "default"},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "containers": [
                {
                    "name": "main",
                    "image": image,
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["sleep", "3600"],
                    "resources": {
                        "limits": {names.RESOURCE_COUNT: "1", names.RESOURCE_MEMORY: "1024"}
                    },
                }
            ],
        },
    }


def _first_pod(kube: Kube, image: str) -> None:
    kube.create(first_pod(image))

    def failed(pod: Object) -> TestbedError | None:
        if pod["status"].get("phase") != "Failed":
            return None
        return ClusterError("the first pod has failed", why=pod["status"].get("message", ""))

    wait_until(
        "the first pod runs",
        lambda: kube.get("v1", "Pod", _NAME, "default"),
        ready=lambda pod: pod["status"].get("phase") == "Running",
        failed=failed,
        describe=lambda pod: str(pod["status"])[:300],
        timeout_s=_POD_S,
        interval_s=0.05,
    )
