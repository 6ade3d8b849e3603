"""One testbed for the whole session, taken down at its end whatever happens."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from testbed.lab.cluster.protocol import ClusterSpec

from .places import brought_up, own_namespace

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
    folder = tmp_path_factory.mktemp
    with brought_up(f"t{os.getpid()}", ClusterSpec(), request.session, folder) as found:
        yield found


@pytest.fixture
def namespace(testbed):
    """A namespace of the test's own."""
    with own_namespace(testbed.kube) as name:
        yield name
