"""What is done otherwise than kind does it, because of the host: one line each."""

from __future__ import annotations

from pathlib import Path

from testbed.lab.images import adaptations

_CONTROLLERS = Path("/sys/fs/cgroup/cgroup.controllers")


def told(*, own: bool, made: bool, version_2: bool | None = None) -> list[str]:
    """Return the adaptations of a cluster on this host.

    Args:
        own: Whether it runs in an engine of our own, behind the OCI front.
        made: Whether its nodes are of the image that is made here.
        version_2: Whether control groups are of version 2; looked up if not given.
    """
    lines = adaptations.of(adaptations.look()) if own else []
    if not (_CONTROLLERS.exists() if version_2 is None else version_2):
        lines.append("cgroup version 1: kubelet is told to run with it (failCgroupV1: false)")
    if made:
        lines.append("kernel settings that kubelet writes go to files of its node")
    if own:
        lines.append("the engine's forwarding and packet filter are those of a network of its own")
    return lines
