"""The node image as it is delivered: its programs start, and nothing of it is the host's.

Without an engine: the layer is unpacked, and its programs are called in it.
"""

from __future__ import annotations

import json
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.errors import MissingTool
from testbed.lab.binaries import versions
from testbed.lab.images import PAUSE, archive, node
from testbed.lab.images.node import control_plane
from testbed.lab.progress import ConsoleProgress

DEADLINE_S = 60
#: More would have grown unseen: kind's own is above 1 GB.
MOST_BYTES = 450 << 20


@pytest.fixture(scope="module")
def image() -> node.NodeImage:
    try:
        return node.prepare(ConsoleProgress())
    except MissingTool as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def root(image: node.NodeImage) -> Iterator[Path]:
    """The root file system of a node; not pytest's folder, which would be kept."""
    assert image.archive is not None
    with tempfile.TemporaryDirectory(prefix="vgpu-node-") as name:
        with tarfile.open(image.archive) as outer:
            layer = outer.extractfile("layer.tar")
            assert layer is not None
            unpack(layer.read(), Path(name))
        yield Path(name)


def unpack(layer: bytes, folder: Path) -> None:
    """As tar does for root; as an ordinary user, owners are one's own."""
    subprocess.run(
        ["tar", "--extract", "--no-same-owner", "--preserve-permissions", "-C", str(folder)],
        input=layer,
        check=True,
        timeout=DEADLINE_S,
    )


def call(root: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    """Call a program in the root, in a user namespace: nothing of the host is written."""
    return subprocess.run(
        [
            *("unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--net"),
            *("--kill-child", "chroot", str(root), *argv),
        ],
        env={"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


@pytest.mark.parametrize(
    ("argv", "answer"),
    [
        (["kubelet", "--version"], versions.KUBERNETES),
        (["kubeadm", "version", "--output=short"], versions.KUBERNETES),
        (["kubectl", "version", "--client"], versions.KUBERNETES),
        (["containerd", "--version"], versions.CONTAINERD),
        (["containerd-shim-runc-v2", "-v"], versions.CONTAINERD),
        (["ctr", "--version"], versions.CONTAINERD),
        (["crictl", "--version"], versions.CRICTL),
        (["runc", "--version"], "runc"),
        # By its own name and not as the first process: else it would do what it is there for.
        (["sh", "-c", "/usr/lib/systemd/systemd --version; exit"], "systemd"),
        (["systemctl", "--version"], "systemd"),
        (["journalctl", "--version"], "systemd"),
        (["systemd-machine-id-setup", "--version"], "systemd"),
        (["nft", "--version"], "nftables"),
        (["iptables", "--version"], "nf_tables"),
        (["iptables-restore", "--version"], "nf_tables"),
        (["ip", "-V"], "iproute2"),
        (["conntrack", "--version"], "conntrack"),
        (["awk", "BEGIN {print 6 * 7}"], "42"),
        (["tar", "--version"], "tar"),
        (["pgrep", "--version"], "procps"),
        (["xargs", "--version"], "findutils"),
        (["mount", "--version"], "util-linux"),
        (["nsenter", "--version"], "util-linux"),
        (["hostname", "--version"], "hostname"),
        (["sh", "-c", "echo $((6 * 7))"], "42"),
        (["/opt/cni/bin/ptp"], "CNI"),
        (["/opt/cni/bin/host-local"], "CNI"),
        (["/opt/cni/bin/portmap"], "CNI"),
    ],
    ids=lambda value: " ".join(value[:1]) if isinstance(value, list) else "",
)
def test_programs_of_a_node_start(root: Path, argv: list[str], answer: str) -> None:
    result = call(root, *argv)
    assert answer in result.stdout + result.stderr, result


def test_links_lead_somewhere(root: Path) -> None:
    """Those of packages and ours, but for what the kernel or an engine mounts."""
    listed = call(root, "find", "-L", "/usr/bin", "/usr/sbin", "/etc", "-type", "l")
    lost = {name: (root / name.lstrip("/")).readlink() for name in listed.stdout.split()}
    mounted = ("/dev/", "/proc/", "/run/", "../proc/", "../run/")
    assert {name: to for name, to in lost.items() if not str(to).startswith(mounted)} == {}


def test_containerd_takes_the_configuration(root: Path) -> None:
    """It calls what it does not know by name; and the tables are those that patches name."""
    result = call(root, "containerd", "config", "dump")
    assert result.returncode == 0, result.stderr
    assert "unknown" not in result.stderr.lower()
    assert f"sandbox = '{PAUSE}'" in result.stdout
    assert "SystemdCgroup = true" in result.stdout
    assert "restrict_oom_score_adj = true" in result.stdout
    (root / "tmp/odd.toml").write_text(
        'version = 2\n[plugins."io.containerd.grpc.v1.cri"]\n  nonsense = 1\n'
    )
    control = call(root, "containerd", "--config", "/tmp/odd.toml", "config", "dump")
    assert "nonsense" in control.stderr, "what it does not know is told"


def test_kubelet_knows_its_flags(root: Path) -> None:
    line = (root / "etc/default/kubelet").read_text().partition("=")[2]
    help_text = call(root, "kubelet", "--help").stdout
    for word in line.split():
        assert f"{word.partition('=')[0]} " in help_text, word


def test_units_are_in_order(root: Path) -> None:
    own = sorted(path.name for path in root.glob("etc/systemd/system/*.service"))
    units = [name for name in own if not (root / f"etc/systemd/system/{name}").is_symlink()]
    assert "containerd.service" in units
    result = call(root, "systemd-analyze", "verify", "--man=no", *units)
    assert result.returncode == 0, result.stderr
    assert "Unknown" not in result.stderr, result.stderr


@pytest.fixture(scope="module")
def layout(root: Path) -> Iterator[Path]:
    """The control plane's images, put together as a node does."""
    with tempfile.TemporaryDirectory(prefix="vgpu-images-") as name:
        result = subprocess.run(
            ["tar", "--extract", "-C", name],
            input=b"".join(
                (root / piece.lstrip("/")).read_bytes()
                for piece in (root / "kind/images/order").read_text().split()
            ),
            timeout=DEADLINE_S,
            check=False,
        )
        assert result.returncode == 0
        yield Path(name)


def blob(layout: Path, digest: str) -> bytes:
    return (layout / "blobs/sha256" / digest.removeprefix("sha256:")).read_bytes()


def test_images_are_those_that_kubeadm_asks_for(root: Path, layout: Path) -> None:
    wanted = call(
        root, "kubeadm", "config", "images", "list", f"--kubernetes-version=v{versions.KUBERNETES}"
    )
    asked = set(wanted.stdout.split())
    index = json.loads((layout / "index.json").read_text())
    held = {each["annotations"]["io.containerd.image.name"] for each in index["manifests"]}
    assert {PAUSE, *control_plane.references()} == held
    # CoreDNS is left out (NO_DNS); all else must be there, or it would be pulled.
    assert {name for name in asked - held if "coredns" not in name} == set()


def test_kube_proxy_finds_its_tools(layout: Path) -> None:
    index = json.loads((layout / "index.json").read_text())
    name = archive.full_name(f"registry.k8s.io/kube-proxy:v{versions.KUBERNETES}")
    (entry,) = [
        each
        for each in index["manifests"]
        if each["annotations"]["io.containerd.image.name"] == name
    ]
    manifest = json.loads(blob(layout, entry["digest"]))
    with tempfile.TemporaryDirectory(prefix="vgpu-proxy-") as folder:
        for layer in manifest["layers"]:
            unpack(blob(layout, layer["digest"]), Path(folder))
        for argv, answer in (
            (["kube-proxy", "--version"], versions.KUBERNETES),
            (["nft", "--version"], "nftables"),
            (["iptables", "--version"], "nf_tables"),
            (["ip6tables-save", "--version"], "nf_tables"),
            (["conntrack", "--version"], "conntrack"),
        ):
            result = call(Path(folder), *argv)
            assert answer in result.stdout + result.stderr, result


def test_it_stays_small(image: node.NodeImage) -> None:
    assert image.archive is not None
    assert image.archive.stat().st_size < MOST_BYTES


def test_it_is_found_without_being_made(image: node.NodeImage) -> None:
    assert node.find() == image
