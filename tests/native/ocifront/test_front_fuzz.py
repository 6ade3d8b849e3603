"""Any configuration passes the front without harm: what it need not change stays equal."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .conftest import Front

NAMES = [
    *("mounts", "linux", "process", "annotations", "type", "options", "destination", "source"),
    *("cgroupsPath", "resources", "capabilities", "rlimits", "oomScoreAdj", "hard", "soft"),
    *("bounding", "io.kubernetes.cri.container-type", "io.kubernetes.cri.image-name", "x"),
]
WORDS = ["bind", "cgroup", "devpts", "container", "CAP_FUTURE", "RLIMIT_NEW", "testbed/other:1"]

scalars = st.none() | st.booleans() | st.integers() | st.sampled_from(WORDS) | st.text(max_size=5)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=5)
    ),
    max_leaves=25,
)
documents = st.dictionaries(st.sampled_from(NAMES), values, max_size=6)


def without_cgroups(document: dict[str, Any]) -> dict[str, Any]:
    """What ``cgroups drop`` and ``oom-score drop`` leave, written independently in Python."""
    document = json.loads(json.dumps(document))
    if isinstance(document.get("linux"), dict):
        for name in ("cgroupsPath", "resources"):
            document["linux"].pop(name, None)
    if isinstance(document.get("process"), dict):
        document["process"].pop("oomScoreAdj", None)
    if isinstance(document.get("mounts"), list):
        document["mounts"] = [
            mount
            for mount in document["mounts"]
            if not (isinstance(mount, dict) and mount.get("type") == "cgroup")
        ]
    return document


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(documents)
def test_only_what_is_named_is_changed(front: Front, document: dict[str, Any]) -> None:
    front.configure(
        *("cgroups drop", "oom-score drop", "image testbed/base:1", "bind /usr/bin /usr/bin")
    )
    front.spec(document)
    result = front.create()
    assert result.returncode == 7, result.stderr
    assert front.result() == without_cgroups(document)
