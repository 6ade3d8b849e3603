"""Where a node's driver lies, and whether it is the emulated one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from testbed.errors import InputError
from testbed.stack import names

NVML_FILE = "libnvidia-ml.so.1"

#: Driver roots of hardware: the host's own driver, the GPU operator's, GKE's.
HARDWARE_ROOTS = ("/", "/run/nvidia/driver", "/home/kubernetes/bin/nvidia")

#: Where manifests mount a driver root that is the node's own root.
HOST_MOUNT = Path("/host")

#: Below a hardware root, in the order of the loaders of the big distributions.
LIBRARY_FOLDERS = ("usr/lib/x86_64-linux-gnu", "usr/lib64", "usr/lib", "lib64", "lib")


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverRoot:
    """The driver of one node.

    Attributes:
        path: On the node; what CDI specs name.
        emulated: True for the emulated card's driver box.
        nvml: NVML's file as this process sees it.
        seen: The root as this process sees it.
    """

    path: str
    emulated: bool
    nvml: Path
    seen: Path = Path("/")


def find_driver_root(wanted: str | None, *, host: Path | None = None) -> DriverRoot:
    """Return the driver root, detected among the hardware's where none is wanted.

    Args:
        wanted: The manifest value ``driverRoot``; None or ``auto`` detects.
        host: Where this process sees the node's own root; a pod cannot mount it over
            its own, so ``/host`` where that exists. Other roots are at their own path.

    Raises:
        InputError: there is no driver; the text lists where was looked.
    """
    roots = HARDWARE_ROOTS if wanted in (None, "", "auto") else (str(wanted),)
    if host is None:
        host = HOST_MOUNT if HOST_MOUNT.is_dir() else Path("/")
    looked: list[str] = []
    for root in roots:
        seen = host if root == "/" else Path(root)
        emulated = (seen / names.EMULATION_MARK).exists()
        for folder in ("driver",) if emulated else LIBRARY_FOLDERS:
            library = seen / folder / NVML_FILE
            looked.append(str(library))
            if library.exists():
                return DriverRoot(path=root, emulated=emulated, nvml=library, seen=seen)
    raise InputError(
        "no GPU driver on this node",
        why="none of " + ", ".join(looked) + " exists",
        hint="set driverRoot to the folder of the node's driver",
    )
