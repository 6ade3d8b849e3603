from pathlib import Path

import pytest

from testbed.errors import InputError
from testbed.lab.cluster import provider, state
from testbed.lab.cluster.process import ProcessCluster, layout


@pytest.mark.parametrize("name", ["vgpu", "a", "t-1", "0", "x" * 30])
def test_names_that_can_be(name):
    assert state.check_name(name) == name


@pytest.mark.parametrize("name", ["", "-a", "a-", "A", "a b", "a/b", "..", "ü", "x" * 31, "a\n"])
def test_names_that_cannot_be(name):
    with pytest.raises(InputError):
        state.check_name(name)


def test_nodes_have_names_and_addresses_of_their_own():
    found = layout.nodes("vgpu", layout.MAX_NODES)
    assert found[0].name == "vgpu-node-1"
    assert len({each.address for each in found} | {layout.API_ADDRESS}) == layout.MAX_NODES + 1
    assert len({each.pods for each in found}) == len({each.link for each in found}) == len(found)
    assert all(len(each.link) <= 15 for each in found)  # what the kernel takes


@pytest.mark.parametrize("count", [0, -1, layout.MAX_NODES + 1])
def test_impossible_counts_of_nodes(count):
    with pytest.raises(InputError):
        layout.nodes("vgpu", count)


def test_neutral_paths(tmp_path):
    neutral = layout.Neutral(state=tmp_path / "state", cache=tmp_path / "cache")
    assert neutral.path(tmp_path / "state" / "a") == "/mnt/state/a"
    assert neutral.path(tmp_path / "cache" / "images" / "x.tar") == "/mnt/cache/images/x.tar"
    assert neutral.path(Path("/usr/sbin/runc")) == "/usr/sbin/runc"
    lent = neutral.path(Path("/opt/cni/bin"))
    assert lent == neutral.path(Path("/opt/cni/bin")) != neutral.path(Path("/opt/other"))
    names = dict(neutral.binds)
    assert f"/mnt/{names['/opt/cni/bin']}" == lent
    assert len(neutral.binds) == len({name for _, name in neutral.binds})


def test_what_is_the_administrator_s_is_not_seen_inside(tmp_path):
    folders = layout.Folders(tmp_path)
    neutral = layout.Neutral(state=tmp_path, cache=tmp_path / "cache")
    bound = [Path(source) for source, _ in neutral.binds]
    for path in (folders.kubeconfig, folders.admin, folders.record):
        assert not any(path.is_relative_to(each) for each in bound)
    assert folders.pki in bound and folders.etcd in bound


def test_state_home(monkeypatch):
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    assert state.state_home() == Path("/home/somebody/.local/state/vgpu-testbed")
    monkeypatch.setenv("XDG_STATE_HOME", "/elsewhere")
    assert state.state_home() == Path("/elsewhere/vgpu-testbed")


def test_provider():
    assert isinstance(provider("process", "x"), ProcessCluster)
    with pytest.raises(InputError, match="process"):
        provider("docker")


def test_a_cluster_that_is_not_there(tmp_path, monkeypatch):
    from testbed.errors import ClusterError

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    cluster = ProcessCluster("absent")
    assert cluster.status().state == "absent"
    with pytest.raises(ClusterError, match="absent"):
        cluster.kubeconfig()
    with pytest.raises(ClusterError):
        cluster.enter("outer", ["true"])
    cluster.collect_logs(tmp_path / "logs")
    cluster.down(None)
    assert list(tmp_path.iterdir()) == []
