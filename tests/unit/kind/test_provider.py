"""Which kind of cluster a name stands for."""

from __future__ import annotations

import pytest

from testbed.errors import InputError
from testbed.lab import cluster
from testbed.lab.cluster.kind import KindCluster, auto
from testbed.lab.cluster.process import ProcessCluster


@pytest.fixture
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "vgpu-testbed"


def there(state, name, record):
    (state / name).mkdir(parents=True)
    (state / name / record).write_text("{}")


def test_without_a_word_it_is_the_process_cluster(state):
    assert isinstance(cluster.provider(), ProcessCluster)
    assert isinstance(cluster.provider("kind"), KindCluster)
    assert cluster.provider("kind", "x").context == "kind-x"


@pytest.mark.parametrize(("record", "kind"), [("cluster.json", "process"), ("kind.json", "kind")])
@pytest.mark.parametrize("asked", ["", "auto"])
def test_what_is_there_is_found_without_being_named(state, record, kind, asked):
    there(state, "x", record)
    assert cluster.resolve(asked, "x") == cluster.Provider(kind=kind)
    assert cluster.provider(asked, "x").provider == kind


def test_a_name_is_of_one_kind_at_a_time(state):
    there(state, "x", "kind.json")
    with pytest.raises(InputError, match="is a kind cluster, not process") as caught:
        cluster.provider("process", "x")
    assert "testbed down --name x" in caught.value.hint


def test_auto_asks_the_machine_where_nothing_is_there(state, monkeypatch):
    monkeypatch.setattr(auto, "choose", lambda: ("kind", "because"))
    assert cluster.resolve("auto", "x") == cluster.Provider(kind="kind", why="because")


def test_a_cluster_that_is_absent(state):
    found = KindCluster("x")
    assert found.status().state == "absent"
    assert found.log_files() == {}
    assert found.node_root("x-control-plane") is None
