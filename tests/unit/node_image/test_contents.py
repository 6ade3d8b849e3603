"""What goes into a node."""

from __future__ import annotations

import io
import re
import subprocess
import tarfile
from pathlib import Path

import pytest
import yaml

from testbed.lab.images.node import NO_DNS, contents
from testbed.lab.images.node.control_plane import SERVERS, Programs
from testbed.lab.images.node.layer import Layer, tree

from .test_layer import package


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("usr/bin/bash", True),
        ("usr/share/doc/bash/README", False),
        ("usr/share/documents", True),
        ("usr/lib/cni/ptp", True),
        ("usr/lib/cni/dhcp", False),
        ("usr/lib/systemd/system/sysinit.target.wants/systemd-journald.service", True),
        # It would register formats with the host's kernel.
        ("usr/lib/systemd/system/sysinit.target.wants/systemd-binfmt.service", False),
        ("usr/lib/systemd/system-generators/systemd-fstab-generator", False),
    ],
)
def test_wanted(name: str, expected: bool) -> None:
    assert contents.wanted(name) is expected


@pytest.fixture
def node(tmp_path: Path) -> tarfile.TarFile:
    """A layer of small parts."""
    (tmp_path / "debs").mkdir()
    package(tmp_path / "debs/p.deb", {"bin/tool": b"tool", "etc/passwd": b"the package's"})
    for name in ("kube-multi", "containerd", "crictl"):
        (tmp_path / name).write_bytes(name.encode())
    names = (*SERVERS, *contents.CALLED)
    for name in names:
        (tmp_path / name).symlink_to("kube-multi")
    parts = contents.Parts(
        packages=tmp_path / "debs",
        programs=Programs.of({name: tmp_path / name for name in names}),
        tools=(tmp_path / "containerd", tmp_path / "crictl"),
        kubernetes="v1.2.3",
        pause="registry.k8s.io/pause:3",
        images=[b"before", "kube-multi", b"after"],
    )
    out = io.BytesIO()
    layer = Layer(out)
    contents.fill(layer, parts)
    layer.close()
    return tarfile.open(fileobj=io.BytesIO(out.getvalue()))


def text(node: tarfile.TarFile, name: str) -> str:
    source = node.extractfile(name)
    assert source is not None
    return source.read().decode()


def test_a_node_has_what_kind_asks_of_it(node: tarfile.TarFile) -> None:
    assert text(node, "kind/version") == "v1.2.3\n"
    for name in ("kubeadm", "kubectl", "kubelet"):
        assert node.getmember(f"usr/bin/{name}").linkname == "kube-multi"
    for name in ("default-cni.yaml", "default-storage.yaml"):
        documents = list(yaml.safe_load_all(text(node, f"kind/manifests/{name}")))
        assert documents, "kind fails where there is nothing"
        assert all(documents)
    assert node.getmember("usr/sbin/init").linkname.endswith("systemd")
    assert 'sandbox_image = "registry.k8s.io/pause:3"' in text(node, "etc/containerd/config.toml")
    assert "--fail-cgroupv1=false" in text(node, "etc/default/kubelet")
    assert "kubelet.service" in str(node.getnames())


def test_images_are_put_together_in_order(node: tarfile.TarFile) -> None:
    order = text(node, "kind/images/order").split()
    assert order == ["/kind/images/0", "/usr/bin/kube-multi", "/kind/images/2"]
    assert "".join(text(node, name.lstrip("/")) for name in order) == "beforekube-multiafter"


def test_own_files_come_before_those_of_packages(node: tarfile.TarFile) -> None:
    assert text(node, "etc/passwd").startswith("root:x:0:0:")
    assert text(node, "usr/bin/tool") == "tool"


def test_every_link_of_ours_leads_somewhere_or_to_a_package(node: tarfile.TarFile) -> None:
    """Units are enabled by links: one that is misspelt would only be missed at boot."""
    names = set(node.getnames())
    wanted = [name for name in names if re.search(r"multi-user\.target\.(wants|requires)/", name)]
    assert wanted
    for name in wanted:
        assert node.getmember(name).linkname.lstrip("/") in names


def test_scripts_can_be_run_and_read_by_their_shells() -> None:
    scripts = [path for _, path, mode in tree(contents.FILES) if mode == 0o755]
    assert len(scripts) == 4
    for path in scripts:
        interpreter = path.read_text().splitlines()[0].removeprefix("#!")
        subprocess.run([interpreter, "-n", str(path)], check=True, timeout=120)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ("Type: io.containerd.grpc.v1\nID: cri", ""),
        ("Error:\n  Code: Unknown\n  Message:   no such thing", "no such thing\n"),
        (
            "Error:\n  Message: couldn't initialize inotify: too many open files",
            r".*too many open files; .*fs\.inotify\.max_user_instances \(\d+\) is used up",
        ),
    ],
)
def test_containerd_that_cannot_serve_is_told(tmp_path: Path, answer: str, told: str) -> None:
    ctr = tmp_path / "ctr"
    ctr.write_text(f"#!/bin/sh\ncat <<'END'\n{answer}\nEND\n")
    ctr.chmod(0o755)
    console = tmp_path / "console"
    script = (contents.FILES / "kind/bin/check-containerd").read_text()
    script = script.replace("told=/run/check", f"told={tmp_path}/check")
    done = subprocess.run(
        ["sh", "-c", script, "sh", console],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        timeout=120,
        check=False,
    )
    if told:
        assert done.returncode == 1
        assert re.match(f"node: containerd cannot serve kubelet: {told}", console.read_text())
    else:
        assert (done.returncode, console.exists()) == (0, False)


def groups(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [contents.FILES / "kind/bin/kubelet-cgroups", folder],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )


def test_groups_of_version_1_are_left_alone(tmp_path: Path) -> None:
    groups(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_groups_of_version_2_get_every_controller(tmp_path: Path) -> None:
    """On files: the last word that was written stays, and the kernel adds up instead."""
    for name in (".", "kubelet", "kubelet.slice"):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        (folder / "cgroup.controllers").write_text("cpu memory pids\n")
    (tmp_path / "cgroup.subtree_control").mkdir()  # refuses everything
    done = groups(tmp_path)
    assert done.stderr.splitlines()[-1].endswith(".: no pids"), "and goes on"
    for name in ("kubelet", "kubelet.slice"):
        assert (tmp_path / name / "cgroup.subtree_control").read_text() == "+pids\n"


def test_kubelets_settings_are_shown_and_not_written() -> None:
    """Those that kubelet sets (component-helpers, node/util/sysctl), with its values."""
    script = (contents.FILES / "usr/local/bin/node-entrypoint").read_text()
    shown = dict(re.findall(r"((?:vm|kernel)/[\w/]+)=(\d+)", script))
    assert shown == {
        "vm/overcommit_memory": "1",
        "vm/panic_on_oom": "0",
        "kernel/panic": "10",
        "kernel/panic_on_oops": "1",
        "kernel/keys/root_maxkeys": "1000000",
        "kernel/keys/root_maxbytes": "25000000",
    }
    assert "sysctl -w" not in script


def test_the_line_that_kind_goes_on_at_is_systemds() -> None:
    """kind waits for systemd's target or for its own entrypoint's words on version 1."""
    early = re.compile("Reached target .*Multi-User System|detected cgroup v1")
    for _, path, _ in tree(contents.FILES):
        assert not early.search(path.read_text()), path


def test_without_dns() -> None:
    document = yaml.safe_load(NO_DNS)
    assert document["kind"] == "ClusterConfiguration"
    assert document["dns"] == {"disabled": True}
