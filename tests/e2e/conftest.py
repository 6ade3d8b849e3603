"""One testbed for the whole session, taken down at its end whatever happens."""

from __future__ import annotations

import os
import sys
import uuid
from pathlib import Path

import pytest

from testbed.errors import TestbedError
from testbed.lab.cluster.protocol import ClusterSpec
from testbed.lab.progress import ConsoleProgress
from testbed.lab.testbed import Testbed

ROOT = Path(__file__).parents[2]


def pytest_collection_modifyitems(items):
    """Everything here needs a cluster, and more time than a unit test."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.cluster)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(900))


@pytest.fixture(scope="session")
def testbed(request, tmp_path_factory):
    """A deployed testbed of its own name; on a failure its logs are kept."""
    found = Testbed(f"t{os.getpid()}")
    progress = ConsoleProgress(stream=sys.__stderr__)
    before = request.session.testsfailed
    try:
        try:
            found.ensure(ClusterSpec(), progress)
        except TestbedError:
            print(f"\nbundle: {found.bundle(tmp_path_factory.mktemp('bundle'))}", file=sys.stderr)
            raise
        yield found
        if request.session.testsfailed > before:
            print(f"\nbundle: {found.bundle(tmp_path_factory.mktemp('bundle'))}", file=sys.stderr)
    finally:
        found.down(progress)


@pytest.fixture
def namespace(testbed):
    """A namespace of the test's own."""
    name = f"e2e-{uuid.uuid4().hex[:8]}"
    kube = testbed.kube
    kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    try:
        yield name
    finally:
        for pod in kube.list("v1", "Pod", name):
            kube.delete("v1", "Pod", pod["metadata"]["name"], name, grace_s=0)
        kube.delete("v1", "Namespace", name)
        for pod in kube.list("v1", "Pod", name):
            kube.wait_gone("v1", "Pod", pod["metadata"]["name"], name, timeout_s=60)
