"""A cluster that is there against the one that is asked for."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from testbed.errors import InputError
from testbed.lab.cluster.kind import drift
from testbed.lab.cluster.kind.drift import Wanted
from testbed.lab.cluster.kind.record import Record

RECORD = Record(
    name="vgpu",
    token="t",
    stage="up",
    engine="docker",
    own=False,
    environment={},
    data="",
    port=6443,
    nodes=2,
    cards="a100-80gb:1;t4:1",
    image="testbed/kind-node:1",
    runc="/usr/sbin/runc",
    kind="/cache/kind",
    mounts=[["/usr", "/mnt/testbed/host/usr", True]],
)
SAME = Wanted(
    nodes=2,
    cards="a100-80gb:1;t4:1",
    port=0,
    image="testbed/kind-node:1",
    mounts=[["/usr", "/mnt/testbed/host/usr", True]],
)


@pytest.mark.parametrize("wanted", [SAME, replace(SAME, port=6443, engine="docker", image="")])
def test_the_same_is_no_drift(wanted):
    drift.check(RECORD, wanted)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"nodes": 3}, "it has 2 nodes, not 3"),
        ({"cards": "t4:2"}, "its cards are 'a100-80gb:1;t4:1', not 't4:2'"),
        ({"port": 1}, "its port is 6443, not 1"),
        ({"image": "testbed/kind-node:2"}, "of image testbed/kind-node:1, not testbed/kind-node:2"),
        ({"mounts": [["/opt", "/mnt/testbed/host/opt", True]]}, "its nodes do not see /opt"),
        ({"engine": "podman"}, "it runs in docker, not podman"),
    ],
)
def test_what_differs_is_told_with_what_to_do(changes, told):
    with pytest.raises(InputError) as caught:
        drift.check(RECORD, replace(SAME, **changes))
    assert told in caught.value.why
    assert caught.value.why.count(";") - told.count(";") == 0  # and nothing else
    assert caught.value.hint.startswith("testbed down --name vgpu")


def test_all_that_differs_is_told_at_once():
    with pytest.raises(InputError) as caught:
        drift.check(RECORD, replace(SAME, nodes=1, port=1))
    assert "not 1;" in caught.value.why and "its port" in caught.value.why


def test_a_record_comes_back_from_its_file(tmp_path):
    path = tmp_path / "kind.json"
    RECORD.write(path)
    assert Record.read(path) == RECORD
    profiles = [[card.profile for card in cards] for cards in RECORD.specs()]
    assert profiles == [["a100-80gb"], ["t4"]]


@pytest.mark.parametrize("text", ["", "{}", '{"name": 1}', "[]"])
def test_half_a_record_is_none(tmp_path, text):
    path = tmp_path / "kind.json"
    path.write_text(text)
    assert Record.read(path) is None
    assert Record.read(tmp_path / "missing") is None


def test_a_record_of_another_version_is_none(tmp_path):
    path = tmp_path / "kind.json"
    RECORD.write(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"later": 1}))
    assert Record.read(path) is None
