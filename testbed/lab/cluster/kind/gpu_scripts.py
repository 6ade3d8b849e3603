"""What is run in a node that carries the machine's own cards. Pure."""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from testbed.lab.cluster.kind.gpu_assign import Given
from testbed.lab.cluster.kind.gpu_cards import RealCard
from testbed.lab.cluster.kind.toolkit import DriverParts

_SEARCHED = ("/usr/bin", "/bin", "/usr/sbin", "/sbin")
LOADER_FILE = "/etc/ld.so.conf.d/00-vgpu-testbed-nvidia.conf"
#: In a node, where the masked params lie.
MASK_FOLDER = "/run/vgpu-testbed"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeScript:
    """Something that is run in a node as root, by ``sh -c``; it may be run again."""

    what: str
    text: str

    @property
    def argv(self) -> tuple[str, ...]:
        return ("sh", "-c", self.text)


def node_scripts(
    devices: Sequence[Given], cards: Iterable[RealCard], parts: DriverParts | None, *, loader: bool
) -> tuple[NodeScript, ...]:
    """Return what is run in a node, in this order; all of it may be run again.

    Args:
        devices: What the node gets.
        cards: All of the machine.
        parts: What the toolkit tells of driver and device nodes, where it does.
        loader: Whether the driver's files came as plain mounts, and need links and the
            loader's cache.
    """
    scripts = []
    if loader and parts is not None:
        scripts.append(NodeScript(what="make the driver's libraries known", text=_loader(parts)))
    # The hook of older toolkits runs the one that Ubuntu has (kind PR #3257).
    link = "test -e /sbin/ldconfig.real || ln -s ldconfig /sbin/ldconfig.real"
    scripts.append(NodeScript(what="link ldconfig.real", text=link))
    scripts.append(NodeScript(what="keep device nodes from being made", text=_MASK))
    if foreign := foreign_nodes(devices, cards, parts):
        scripts.append(NodeScript(what="remove the device nodes of others", text=_remove(foreign)))
    scripts.append(NodeScript(what="link device nodes by number", text=_LINKS))
    return tuple(scripts)


def foreign_nodes(
    devices: Sequence[Given], cards: Iterable[RealCard], parts: DriverParts | None
) -> tuple[str, ...]:
    """Return the device nodes that a node must not have: those of cards that are not its own.

    By the CDI specification, which knows MIG devices' and /dev/dri's too, else by minor
    numbers (which need not be the indices).
    """
    own, every = set[str](), set[str]()
    uuids = {mig.uuid if mig else card.uuid for card, mig in devices}
    mine = {card.uuid for card, _ in devices}
    for card in cards:
        if card.minor is not None:
            path = f"/dev/nvidia{card.minor}"
            every.add(path)
            own |= {path} if card.uuid in mine else set()
    if parts is not None:
        for name, paths in parts.devices.items():
            every |= set(paths)
            own |= set(paths) if name in uuids else set()
        own |= set(parts.common)
    return tuple(sorted(every - own))


def _loader(parts: DriverParts) -> str:
    lines = ["set -e"]
    lines += [
        f"mkdir -p {shlex.quote(posixpath.dirname(at))}; "
        f"ln -sfn {shlex.quote(says)} {shlex.quote(at)}"
        for at, says in parts.links.items()
    ]
    folders = " ".join(shlex.quote(each) for each in parts.folders)
    if folders:
        lines += [
            f"mkdir -p {posixpath.dirname(LOADER_FILE)}",
            f"printf '%s\\n' {folders} > {LOADER_FILE}",
            # Debian's file says so; a smaller image may have none.
            "grep -qs 'ld.so.conf.d' /etc/ld.so.conf"
            " || echo 'include /etc/ld.so.conf.d/*.conf' >> /etc/ld.so.conf",
        ]
    lines.append("ldconfig")
    for at in parts.files.values():
        folder, name = posixpath.split(at)
        # Programs outside the search path: nodes and their pods call them by name.
        if folder.endswith("bin") and folder not in _SEARCHED:
            here = shlex.quote(f"/usr/bin/{name}")
            lines.append(f"test -e {here} || ln -s {shlex.quote(at)} {here}")
    return "\n".join(lines)


#: Toolkits before 1.18 lay a tmpfs over the folder, later ones a file over params, and a
#: privileged container has neither without them: so what is there is looked at, and not
#: the version (k8s-device-plugin #811, nvkind #61: "umount: … not mounted").
_MASK = f"""set -e
proc=/proc/driver/nvidia
test -e $proc || exit 0  # WSL2: no such devices, nothing to keep from being made
while grep -qE "^([^ ]+ ){{4}}$proc " /proc/self/mountinfo; do
  umount -R $proc
done
if ! grep -qx 'ModifyDeviceFiles: 0' $proc/params; then
  mkdir -p {MASK_FOLDER}
  sed 's/^ModifyDeviceFiles: 1$/ModifyDeviceFiles: 0/' $proc/params > {MASK_FOLDER}/nvidia-params
  mount --bind {MASK_FOLDER}/nvidia-params $proc/params
fi
grep -qx 'ModifyDeviceFiles: 0' $proc/params"""

#: Without them a `systemctl daemon-reload` takes cards from containers under the systemd
#: cgroup driver (nvidia-container-toolkit #48).
_LINKS = """set -e
mkdir -p /dev/char
for node in /dev/nvidia* /dev/nvidia-caps/*; do
  test -c "$node" || continue
  ln -sfn "$node" "/dev/char/$((0x$(stat -c %t "$node"))):$((0x$(stat -c %T "$node")))"
done"""


def _remove(paths: Iterable[str]) -> str:
    # The toolkit binds device nodes one by one; the engine makes them.
    words = " ".join(shlex.quote(path) for path in paths)
    return f"""for node in {words}; do
  while umount "$node" 2>/dev/null; do :; done
  rm -f "$node"
  test ! -e "$node" || exit 1
done"""
