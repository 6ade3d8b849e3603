"""The fixture ``submit``: pods of one test, in a namespace of its own, gone after it."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from testbed.errors import ClusterError, TestbedError
from testbed.lab.pytest_plugin import pods
from testbed.lab.pytest_plugin.handle import Pod
from testbed.lab.testbed import Testbed


class Submit:
    """Submits pods for one test and removes them after it.

    Args:
        testbed: Where they run.
        test: The test's name, for the namespace's.
        timeout_s: Default deadline of every wait.

    Attributes:
        testbed: Where they run.
        pods: What was submitted so far, in order.
    """

    def __init__(self, testbed: Testbed, test: str, *, timeout_s: float) -> None:
        self.testbed = testbed
        self._timeout_s = timeout_s
        self._name = pods.namespace_name(test, uuid.uuid4().hex[:8])
        self._made = False
        self._image = ""
        self.pods: list[Pod] = []

    @property
    def namespace(self) -> str:
        """The test's own namespace; made when it is first asked for."""
        if not self._made:
            kube, labels = self.testbed.kube, pods.MANAGED_BY
            # Before the call: when it is cut short, the namespace may be there.
            self._made = True
            kube.create(
                {
                    "apiVersion": "v1",
                    "kind": "Namespace",
                    "metadata": {"name": self._name, "labels": labels},
                }
            )
        return self._name

    def __call__(
        self,
        manifest: Mapping[str, Any] | str | Path | None = None,
        *,
        name: str = "",
        image: str = "",
        script: str | Path | None = None,
        command: Sequence[str] | None = None,
        gpus: int = 1,
        gpumem: int | str | None = None,
        gpumem_percentage: int | None = None,
        gpucores: int | None = None,
        priority: int | None = None,
        policy: str = "",
        place: str = "",
        card: str = "",
        node: str = "",
        env: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> Pod:
        """Submit a pod and return it at once: a manifest, or what keywords say.

        Args:
            manifest: A pod as a mapping, or a YAML file of one.
            name: The pod's; ``pod-1``, ``pod-2``, … by default.
            image: The container's; the testbed's PyTorch image for a script.
            script: Python source, or a ``Path``.
            command: What runs instead.
            gpus: Cards; 0 for a pod without.
            gpumem: Memory of each: MiB, or a quantity such as ``"20Gi"``.
            gpumem_percentage: Percent of each card's memory, instead.
            gpucores: Percent of each card's compute.
            priority: 0 (goes first) or 1.
            policy: ``force`` holds it to its share of compute also when it is alone.
            place: ``binpack`` (on one card with others) or ``spread``.
            card: Uuid of the card that it shall get.
            node: Name of the node.
            env, annotations, labels: Added to the pod.

        Raises:
            InputError: what cannot be, before anything is submitted.
            ApiError: the API server, or admission, refuses it; in its words.
        """
        __tracebackhide__ = True
        number = len(self.pods) + 1
        if manifest is not None:
            body = pods.from_manifest(manifest, self._name, number)
        else:
            wish = pods.Wish(
                name=name,
                image=image,
                script=script,
                command=command,
                gpus=gpus,
                gpumem=gpumem,
                gpumem_percentage=gpumem_percentage,
                gpucores=gpucores,
                priority=priority,
                policy=policy,
                place=place,
                card=card,
                node=node,
                env=env,
                annotations=annotations,
                labels=labels,
            )
            body = pods.from_wish(wish, self._name, pytorch_image=self._pytorch(), number=number)
        if body["metadata"]["namespace"] == self._name:
            _ = self.namespace
        created = self.testbed.kube.create(body)
        pod = Pod(self.testbed.kube, body, created, timeout_s=self._timeout_s)
        self.pods.append(pod)
        return pod

    def close(self) -> None:
        """Remove all pods and the namespace, and wait until the pods are gone.

        Raises:
            ClusterError: some could not be removed; the rest was.
        """
        __tracebackhide__ = True
        kube, left = self.testbed.kube, []
        # All are told before any is waited for.
        mine = [(pod.namespace, pod.name) for pod in self.pods if pod.namespace != self._name]
        if self._made:
            mine += [
                (self._name, str(pod["metadata"]["name"]))
                for pod in kube.list("v1", "Pod", self._name)
            ]
        for namespace, name in mine:
            kube.delete("v1", "Pod", name, namespace, grace_s=0)
        if self._made:
            kube.delete("v1", "Namespace", self._name)
        for namespace, name in mine:
            try:
                kube.wait_gone("v1", "Pod", name, namespace, timeout_s=self._timeout_s)
            except TestbedError as error:
                left.append(f"{namespace}/{name}: {error.why or error.what}")
        if left:
            raise ClusterError("pods of the test are still there", why="; ".join(left))

    def _pytorch(self) -> str:
        if not self._image:
            info = self.testbed.info()
            if info is None:
                raise ClusterError(
                    f"the sharing stack is not on testbed {self.testbed.name!r}",
                    hint=f"testbed deploy --name {self.testbed.name}",
                )
            self._image = info.pytorch_image
        return self._image
