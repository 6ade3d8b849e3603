"""Testbeds and namespaces that last as long as a fixture, and the pods that tests run there."""

from __future__ import annotations

import contextlib
import sys
import uuid

from testbed.errors import TestbedError
from testbed.lab.progress import ConsoleProgress
from testbed.lab.testbed import Testbed

#: A pod that was deleted is gone by then, also where many end on a busy machine.
GONE_S = 180.0


@contextlib.contextmanager
def brought_up(name, spec, session, folder):
    """A deployed testbed, taken down whatever happens; on a failure its logs are kept.

    Args:
        name: Its name.
        spec: Its cluster.
        session: pytest's, for whether a test has failed meanwhile.
        folder: Makes a folder for what is kept.
    """
    found = Testbed(name)
    progress = ConsoleProgress(stream=sys.__stderr__)
    before = session.testsfailed

    def keep():
        print(f"\nbundle: {found.bundle(folder('bundle'))}", file=sys.stderr)

    try:
        try:
            found.ensure(spec, progress)
        except TestbedError:
            keep()
            raise
        yield found
        if session.testsfailed > before:
            keep()
    finally:
        found.down(progress)


@contextlib.contextmanager
def own_namespace(kube):
    """A namespace of the test's own; when it ends, its pods are gone."""
    name = f"e2e-{uuid.uuid4().hex[:8]}"
    kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    try:
        yield name
    finally:
        pods = [pod["metadata"]["name"] for pod in kube.list("v1", "Pod", name)]
        for pod in pods:
            kube.delete("v1", "Pod", pod, name, grace_s=0)
        kube.delete("v1", "Namespace", name)
        for pod in pods:
            kube.wait_gone("v1", "Pod", pod, name, timeout_s=GONE_S)


def sample_pod(testbed, namespace, name, command, limits, *, annotations=None, **spec):
    """Return a pod of one container with cards, in the PyTorch image, that ends at once."""
    container = {
        "name": "main",
        "image": testbed.info().pytorch_image,
        "imagePullPolicy": "IfNotPresent",
        "command": command,
        "resources": {"limits": {key: str(value) for key, value in limits.items()}},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "annotations": annotations or {}},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "containers": [container],
            **spec,
        },
    }
