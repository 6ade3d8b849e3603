"""What a node holds: packages without what nobody reads there, our files, the programs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from testbed.lab.images.node import packages
from testbed.lab.images.node.control_plane import Programs
from testbed.lab.images.node.layer import Layer, tree

#: Where the node's own files are, as they lie in its root.
FILES = Path(__file__).with_name("files")

_UNIT = "usr/lib/systemd/system"
_LEFT_OUT = (
    *("usr/share/bash-completion", "usr/share/doc", "usr/share/info", "usr/share/lintian"),
    *("usr/share/locale", "usr/share/man", "usr/share/zsh", "usr/share/bug"),
    *("usr/share/perl5", "usr/share/polkit-1", "usr/share/i18n", "usr/share/common-licenses"),
    # Conversions between character sets; what they need at run time is in libc itself.
    "usr/lib/x86_64-linux-gnu/gconv",
    # What these would start is the host's: devices, consoles, disks.
    *("usr/lib/systemd/system-generators", "usr/lib/udev", "usr/lib/systemd/catalog"),
    *("usr/lib/kernel", "usr/lib/systemd/boot", "usr/lib/modprobe.d", "usr/lib/sysctl.d"),
    *("usr/bin/perl", "usr/share/perl", "usr/lib/x86_64-linux-gnu/perl"),
    *("etc/modules-load.d", "etc/rmt", "etc/sysctl.d"),
)
_CNI = "usr/lib/cni/"
_CNI_PLUGINS = ("bridge", "host-local", "loopback", "portmap", "ptp")
#: All that systemd starts beside what our own units say.
_STARTED = (
    f"{_UNIT}/sockets.target.wants/systemd-journald-dev-log.socket",
    f"{_UNIT}/sockets.target.wants/systemd-journald.socket",
    f"{_UNIT}/sysinit.target.wants/systemd-journald.service",
)
#: Parts of targets that no link asks for; they act on the host's kernel or on its disks.
_MASKED = (
    *("systemd-binfmt.service", "systemd-logind.service", "systemd-modules-load.service"),
    *("systemd-remount-fs.service", "systemd-sysctl.service", "systemd-udevd.service"),
    "systemd-journald-audit.socket",
)
#: Our units, and how the target at which kind goes on asks for them.
_ENABLED = {
    "containerd.service": "requires",
    "control-plane-images.service": "wants",
    "kubelet.service": "wants",
}
_FOLDERS = (
    *("dev", "etc/cdi", "etc/cni/net.d", "etc/kubernetes/manifests", "kind", "mnt", "opt/cni"),
    *("proc", "root", "run", "sys", "usr/lib/modules", "var/lib/containerd"),
    *("var/lib/kubelet", "var/log/containers", "var/log/pods"),
)
_LINKS = {
    "etc/mtab": "../proc/self/mounts",
    "opt/cni/bin": "/usr/lib/cni",
    "usr/sbin/init": "../lib/systemd/systemd",
    "var/lock": "/run/lock",
    "var/run": "/run",
    # What scripts of the packages would link.
    "usr/bin/awk": "mawk",
    "usr/bin/sh": "bash",
}
_IPTABLES = tuple(
    f"{family}{verb}" for family in ("iptables", "ip6tables") for verb in ("", "-save", "-restore")
)
_TEXTS = {
    "etc/hostname": "node\n",
    "etc/machine-id": "",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
    "etc/passwd": (
        "root:x:0:0:root:/root:/bin/bash\n"
        "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
    ),
    "etc/group": (
        "root:x:0:\nadm:x:4:\ntty:x:5:\nutmp:x:43:\nsystemd-journal:x:101:\nnogroup:x:65534:\n"
    ),
}
#: Kubernetes' programs that are called in the node itself.
CALLED = ("kubeadm", "kubectl", "kubelet")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Where everything that goes into a node lies on this machine."""

    packages: Path
    #: Kubernetes' own and etcd.
    programs: Programs
    #: containerd's and crictl.
    tools: tuple[Path, ...]
    kubernetes: str
    pause: str
    #: The control plane's images (``control_plane.pieces``).
    images: list[bytes | str]


def fill(layer: Layer, parts: Parts) -> None:
    """Add a node's content."""
    layer.merge_usr()
    for name in _FOLDERS:
        layer.folder(name)
    layer.folder("tmp", 0o1777)
    layer.folder("var/tmp", 0o1777)
    for name, target in _links().items():
        layer.link(name, target)
    for name, path, mode in tree(FILES):
        layer.data(name, path.read_text().replace("@PAUSE@", parts.pause).encode(), mode)
    layer.data("kind/version", f"{parts.kubernetes}\n".encode())
    order = []
    for number, piece in enumerate(parts.images):
        if isinstance(piece, str):
            order.append(f"/usr/bin/{piece}")
        else:
            order.append(f"/kind/images/{number}")
            layer.data(order[-1].lstrip("/"), piece)
    layer.data("kind/images/order", "\n".join([*order, ""]).encode())
    for name, text in _TEXTS.items():
        layer.data(name, text.encode())
    for name, path in parts.programs.files.items():
        layer.file(f"usr/bin/{name}", path)
    for name, target in parts.programs.links.items():
        layer.link(f"usr/bin/{name}", target)
    for path in parts.tools:
        layer.file(f"usr/local/bin/{path.name}", path)
    for file in packages.files(parts.packages):
        with packages.contents(file) as content:
            layer.package(content, wanted)


def fill_proxy_tools(layer: Layer, folder: Path) -> None:
    """Add what kube-proxy calls, with libraries, as the lower layer of its image."""
    layer.merge_usr()
    layer.folder("tmp", 0o1777)
    layer.folder("run")
    layer.folder("root")
    for name in _IPTABLES:
        layer.link(f"usr/sbin/{name}", "xtables-nft-multi")
    for name in ("etc/passwd", "etc/group", "etc/nsswitch.conf"):
        layer.data(name, _TEXTS[name].encode())
    for file in packages.needed(folder, packages.PROXY_TOOLS):
        with packages.contents(file) as content:
            layer.package(content, wanted_by_proxy)


def wanted(name: str) -> bool:
    """Tell whether a file of a package goes into a node."""
    if _below(name, _LEFT_OUT):
        return False
    if name.startswith(_CNI):
        return name.removeprefix(_CNI) in _CNI_PLUGINS
    return ".wants/" not in name or name in _STARTED


def wanted_by_proxy(name: str) -> bool:
    """Tell whether a file of a package goes into kube-proxy's image: programs and libraries."""
    return not _below(name, _LEFT_OUT) and _below(
        name, ("usr/lib/x86_64-linux-gnu", "usr/lib64", "usr/sbin")
    )


def config() -> dict[str, object]:
    """Return what a node's container starts with."""
    return {
        "Entrypoint": ["/usr/local/bin/node-entrypoint", "/sbin/init"],
        "Env": [
            "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            # Else systemd takes the node for a machine (systemd.io/CONTAINER_INTERFACE).
            "container=docker",
        ],
        # On SIGTERM systemd would start itself anew.
        "StopSignal": "SIGRTMIN+3",
        "WorkingDir": "/",
    }


def recipe() -> str:
    """Return everything that decides a node's content beside its parts."""
    lists = (_LEFT_OUT, _CNI_PLUGINS, _STARTED, _FOLDERS)
    return json.dumps([*lists, _TEXTS, _links(), config()])


def _links() -> dict[str, str]:
    found = dict(_LINKS)
    found |= {f"usr/sbin/{name}": "xtables-nft-multi" for name in _IPTABLES}
    found |= {f"etc/systemd/system/{name}": "/dev/null" for name in _MASKED}
    found |= {
        f"etc/systemd/system/multi-user.target.{how}/{name}": f"/etc/systemd/system/{name}"
        for name, how in _ENABLED.items()
    }
    found["etc/systemd/system/default.target"] = "/usr/lib/systemd/system/multi-user.target"
    return found


def _below(name: str, folders: Iterable[str]) -> bool:
    return any(name == folder or name.startswith(f"{folder}/") for folder in folders)
