"""Whose process is a pid: from what the kernel tells, never from what a tenant writes.

The cgroup path names the pod wherever the runtime makes cgroups. Where it does not,
kubelet's bind of ``…/pods/<uid>/containers/<name>/<hex>`` (the termination log) is in
every container's mount table. A tenant who may make user namespaces can put such a
line there himself (a tmpfs with those folder names, seen), so a line counts only if it
is of the same file system as our own and its root is exactly below the same folder. A
process without one is its parent's; a container's orphans fall to its own first
process, so the walk cannot leave the container before the runtime's shim.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

UNKNOWN = "unknown"

_UID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32}"
#: A static pod's uid is a hash without dashes; every other is a UUID.
_TAIL = re.compile(rf"(?P<uid>{_UID})/containers/(?P<name>[a-z0-9][-a-z0-9]*)/[0-9a-f]+")
_OWN = re.compile(rf"(?P<prefix>(?:/.*)?/pods/){_TAIL.pattern}")
#: Under systemd's driver a pod is a slice, whose name cannot hold a dash inside.
_SLICE_UID = _UID.replace("-[", "[-_][")
_CGROUP_POD = re.compile(
    # kubepods-burstable-pod<uid>.slice; kind puts its kubelet- before that
    rf"^(?:[a-z]+-)*pod(?P<uid>{_SLICE_UID})(?:\.slice)?$"
)
_CGROUP_ID = re.compile(r"^(?:[a-z-]+-)?(?P<id>[0-9a-f]{64})(?:\.scope)?$")
_SHIM = "containerd-shim"
_STEPS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The container of a process; ``container`` is empty where only the pod is known."""

    pod_uid: str
    container: str = ""


NOBODY = Owner(pod_uid=UNKNOWN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor:
    """Where kubelet keeps its pods, as a mount table names it.

    Attributes:
        device: ``major:minor`` of the file system.
        prefix: The root field up to the pod's uid, such as ``/kubelet/pods/``.
    """

    device: str
    prefix: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessFacts:
    """What the kernel says of one process."""

    parent: int
    comm: str
    cgroup: str
    mountinfo: str


def anchor_of(mountinfo: str) -> Anchor | None:
    """Return the anchor that our own mount table shows, None outside a pod."""
    for device, root in _mounts(mountinfo):
        if match := _OWN.fullmatch(root):
            return Anchor(device=device, prefix=match["prefix"])
    return None


def owner_by_mounts(mountinfo: str, anchor: Anchor) -> Owner | None:
    """Return the container that a mount table names, None if it names none.

    Two different ones (a pod that was given another's folder) are nobody's.
    """
    found = set()
    for device, root in _mounts(mountinfo):
        if device != anchor.device or not root.startswith(anchor.prefix):
            continue
        if match := _TAIL.fullmatch(root, len(anchor.prefix)):
            found.add(Owner(pod_uid=match["uid"], container=match["name"]))
    if not found:
        return None
    return found.pop() if len(found) == 1 else NOBODY


def pod_by_cgroup(cgroup: str) -> tuple[str, str] | None:
    """Return (pod uid, container id) of ``/proc/<pid>/cgroup``, None if it names no pod.

    The first component that names a pod counts: whatever comes after it lies in the
    pod's own hierarchy, where a tenant may make folders of any name.
    """
    found = set()
    for line in cgroup.splitlines():
        path = line.split(":", 2)[-1]
        parts = path.split("/")
        for position, part in enumerate(parts):
            if match := _CGROUP_POD.match(part):
                inner = parts[position + 1] if position + 1 < len(parts) else ""
                container = _CGROUP_ID.match(inner)
                found.add((match["uid"].replace("_", "-"), container["id"] if container else ""))
                break
    return found.pop() if len(found) == 1 else None


def owner(
    pid: int,
    facts: Callable[[int], ProcessFacts | None],
    anchor: Anchor | None,
    container_name: Callable[[str, str], str],
) -> Owner:
    """Return the container of a process, ``NOBODY`` where none is certain.

    Args:
        pid: In this process' namespace.
        facts: Reads a process; None if it has ended.
        anchor: Our own; None leaves cgroups alone to tell.
        container_name: The name of a pod's container by the runtime's id, or nothing.
    """
    seen = facts(pid) if pid > 0 else None
    if seen is None:
        return NOBODY
    by_mounts = _walk(pid, seen, facts, anchor) if anchor is not None else NOBODY
    named = pod_by_cgroup(seen.cgroup)
    if named is None:
        return by_mounts
    uid, runtime_id = named
    name = container_name(uid, runtime_id) if runtime_id else ""
    # The status that names the id may lag behind; the mount table does not.
    if not name and by_mounts.pod_uid == uid:
        name = by_mounts.container
    return Owner(pod_uid=uid, container=name)


def _walk(
    pid: int, seen: ProcessFacts, facts: Callable[[int], ProcessFacts | None], anchor: Anchor
) -> Owner:
    for _ in range(_STEPS):
        if pid <= 1 or seen.comm.startswith(_SHIM):
            return NOBODY
        if found := owner_by_mounts(seen.mountinfo, anchor):
            return found
        pid = seen.parent
        parent = facts(pid) if pid > 1 else None
        if parent is None:
            return NOBODY
        seen = parent
    return NOBODY


def _mounts(mountinfo: str) -> Iterable[tuple[str, str]]:
    """Yield (device, root) of each line; see proc_pid_mountinfo(5)."""
    for line in mountinfo.splitlines():
        fields = line.split(" ", 5)
        if len(fields) == 6:
            yield fields[2], fields[3]
