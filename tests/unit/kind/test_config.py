"""The configuration that kind is given, and what nodes are lent."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
import yaml

from testbed.errors import InputError
from testbed.lab.cluster.kind import config, layout, node
from testbed.lab.cluster.kind.layout import Mount
from testbed.lab.images.model import Bind, Image

CACHE = Path("/home/me/.cache/vgpu-testbed")


def rendered(**more):
    nodes = layout.nodes("vgpu", 2)
    wanted = {
        "name": "vgpu",
        "image": "testbed/kind-node:1",
        "nodes": [config.NodeConfig(node=each) for each in nodes],
        "port": 6443,
        "front": "/mnt/front",
        "containerd": 3,
    }
    return yaml.safe_load(config.text(config.render(**wanted | more)))


def test_kinds_own_schema():
    document = rendered()
    assert (document["kind"], document["apiVersion"]) == ("Cluster", "kind.x-k8s.io/v1alpha4")
    assert [each["role"] for each in document["nodes"]] == ["control-plane", "worker"]
    assert {each["image"] for each in document["nodes"]} == {"testbed/kind-node:1"}
    assert document["networking"] == {"apiServerAddress": "127.0.0.1", "apiServerPort": 6443}
    assert "apiServerPort" not in rendered(port=0)["networking"]


def test_mounts_are_read_only_unless_said():
    mounts = (Mount(source="/a", target="/b"), Mount(source="/c", target="/d", read_only=False))
    (node_1,) = layout.nodes("vgpu", 1)
    document = rendered(nodes=[config.NodeConfig(node=node_1, mounts=mounts, labels={"x": "y"})])
    assert document["nodes"][0]["extraMounts"] == [
        {"hostPath": "/a", "containerPath": "/b", "readOnly": True},
        {"hostPath": "/c", "containerPath": "/d"},
    ]
    assert document["nodes"][0]["labels"] == {"x": "y"}


@pytest.mark.parametrize(
    ("version", "plugin", "cdi"),
    [
        (2, "io.containerd.grpc.v1.cri", True),
        (3, "io.containerd.cri.v1.runtime", None),
        (4, "io.containerd.cri.v1.runtime", None),
    ],
)
def test_the_front_is_named_in_the_tables_of_the_files_version(version, plugin, cdi):
    patch = tomllib.loads(config.containerd_patch("/mnt/front", version))
    table = patch["plugins"][plugin]
    options = table["containerd"]["runtimes"]["runc"]["options"]
    assert options == {"BinaryName": "/mnt/front"}
    assert table.get("enable_cdi") is cdi
    assert "/var/run/cdi" in table["cdi_spec_dirs"]


def test_kubelet_is_told_what_the_process_clusters_is():
    document = rendered(kubeadm_patches=["kind: ClusterConfiguration"], patches=["a = 1"])
    kubelet = yaml.safe_load(document["kubeadmConfigPatches"][0])
    assert kubelet["kind"] == "KubeletConfiguration"
    assert kubelet["seccompDefault"] is True
    assert kubelet["failCgroupV1"] is False
    assert document["kubeadmConfigPatches"][1] == "kind: ClusterConfiguration"
    assert document["containerdConfigPatches"][1] == "a = 1"


# --- names and places ---------------------------------------------------------------------


def test_nodes_are_named_as_kind_names_them():
    names = [each.name for each in layout.nodes("x", 4)]
    assert names == ["x-control-plane", "x-worker", "x-worker2", "x-worker3"]


@pytest.mark.parametrize("count", [0, 17])
def test_a_number_of_nodes_that_is_not_possible(count):
    with pytest.raises(InputError):
        layout.nodes("x", count)


def image(*binds: str) -> Image:
    return Image(
        reference="testbed/base:1",
        archive=CACHE / "images/1/image.tar",
        binds=tuple(Bind(source=Path(each), destination="/x") for each in binds),
    )


def test_what_images_lend_is_seen_in_a_node_where_the_front_is_told():
    binds = ("/usr/bin", "/usr/lib", "/etc/alternatives", str(CACHE / "stack/1"))
    mounts = {each.source: each.target for each in layout.lent(CACHE, [image(*binds)])}
    assert list(mounts) == [str(CACHE), "/usr", "/etc/alternatives"]
    for bind in (*binds, str(CACHE / "images/1/image.tar")):
        seen = layout.relocate(CACHE, Path(bind))
        top = max((each for each in mounts if Path(bind).is_relative_to(each)), key=len)
        assert seen == mounts[top] + bind.removeprefix(top)


def test_new_images_need_no_new_mounts():
    first = layout.lent(CACHE, [image("/usr/bin", str(CACHE / "stack/1"))])
    assert layout.lent(CACHE, [image("/usr/bin", str(CACHE / "stack/2"))]) == first


# --- in the node --------------------------------------------------------------------------


def test_archives_are_imported_whatever_their_names():
    script = node.import_script(["/a b/image.tar", "/c/image.tar"])
    assert script.startswith("for each in '/a b/image.tar' /c/image.tar;")
    assert "pinned" in script
