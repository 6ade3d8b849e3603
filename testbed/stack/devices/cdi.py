"""CDI specs: what is per card, one file a card, written by the plugin alone.

Per container things (library, region folder, preload) go by Allocate's mounts.
A spec is never written inside an Allocate: kubelet asks for all containers of a pod
before it creates the first one, so a spec replaced by a later answer would leave an
earlier container with an unresolvable device.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.errors import DeployError, MissingTool
from testbed.stack import names
from testbed.stack.devices.driver_root import DriverRoot

CDI_VERSION = "0.6.0"
_VENDOR, _CLASS = names.CDI_KIND.split("/")
_PREFIX = f"{_VENDOR}-{_CLASS}-"

#: Where packages put ``nvidia-ctk``, and where the GPU operator's toolkit container does.
_TOOL_FOLDERS = ("usr/bin", "usr/local/bin", "usr/local/nvidia/toolkit")

_MOUNT_READ_ONLY = ["ro", "rbind", "rprivate", "nosuid", "nodev"]
_MOUNT_READ_WRITE = ["rw", "rbind", "rprivate", "nosuid", "nodev"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CdiSpec:
    """One card's spec: the device's name (its uuid) and the document."""

    uuid: str
    document: Mapping[str, Any]

    @property
    def file_name(self) -> str:
        return f"{_PREFIX}{self.uuid}.json"

    def text(self) -> str:
        return json.dumps(self.document, indent=1, sort_keys=True) + "\n"


def emulated_spec(root: DriverRoot, uuid: str) -> CdiSpec:
    """Return the spec of an emulated card: driver libraries, the card's own state."""
    mounts = [
        _mount(f"{root.path}/driver", names.CONTAINER_DRIVER, _MOUNT_READ_ONLY),
        _mount(f"{root.path}/cards/{uuid}", f"{names.CONTAINER_CARDS}/{uuid}", _MOUNT_READ_WRITE),
    ]
    document = {
        "cdiVersion": CDI_VERSION,
        "kind": names.CDI_KIND,
        "devices": [{"name": uuid, "containerEdits": {"mounts": mounts}}],
    }
    return CdiSpec(uuid=uuid, document=document)


def hardware_specs(root: DriverRoot, uuids: Iterable[str]) -> tuple[CdiSpec, ...]:
    """Return the specs of NVIDIA's cards, made by ``nvidia-ctk``.

    Where this process sees the node's own root, the node's is called, in that root: it
    finds its libraries there, and paths in its answer are the node's. Where the driver has
    a root to itself, it is that of this process (the image's), told of that root.

    Raises:
        MissingTool: there is no ``nvidia-ctk``.
        DeployError: it failed, or knows not every card.
    """
    command = [
        *(*_tool(root), "cdi", "generate", "--vendor", _VENDOR, "--class", _CLASS),
        *("--device-name-strategy", "uuid", "--format", "json", "--driver-root", root.path),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except FileNotFoundError as error:
        raise MissingTool(
            "CDI specs cannot be made",
            why="nvidia-ctk is installed neither on the node nor in the plugin's image",
            hint="install NVIDIA's container toolkit (nvidia-container-toolkit-base)",
        ) from error
    except subprocess.TimeoutExpired as error:
        raise DeployError(
            "CDI specs cannot be made", why="nvidia-ctk gave no answer in 60 s"
        ) from error
    if done.returncode != 0:
        raise DeployError("CDI specs cannot be made", why=done.stderr.strip()[-2000:])
    return split_spec(done.stdout, uuids)


def _tool(root: DriverRoot) -> list[str]:
    """Return the words that call ``nvidia-ctk``: the node's in its own root, else one of ours."""
    if root.path == "/" and root.seen != Path("/"):
        for folder in _TOOL_FOLDERS:
            if os.path.lexists(root.seen / folder / "nvidia-ctk"):
                return ["chroot", str(root.seen), f"/{folder}/nvidia-ctk"]
    return ["nvidia-ctk"]


def split_spec(text: str, uuids: Iterable[str]) -> tuple[CdiSpec, ...]:
    """Return one spec for each card of a document that describes them all.

    What is common to all cards (libraries, hooks) is repeated: the runtime applies it
    once for each file that a container names, and equal mounts replace each other.

    Raises:
        DeployError: the document cannot be read or lacks a card.
    """
    try:
        whole = json.loads(text)
        by_name = {device["name"]: device for device in whole["devices"]}
    except (ValueError, KeyError, TypeError) as error:
        raise DeployError(
            "CDI specs cannot be made", why=f"nvidia-ctk's answer cannot be read: {error!r}"
        ) from error
    specs = []
    for uuid in uuids:
        if uuid not in by_name:
            raise DeployError(
                "CDI specs cannot be made", why=f"nvidia-ctk does not list card {uuid}"
            )
        document = {**whole, "kind": names.CDI_KIND, "devices": [by_name[uuid]]}
        specs.append(CdiSpec(uuid=uuid, document=document))
    return tuple(specs)


def sync_specs(folder: Path, specs: Iterable[CdiSpec]) -> tuple[str, ...]:
    """Make the folder hold exactly these specs of ours; return the names that changed.

    Files of other vendors are left alone; equal files are not written again.

    Raises:
        DeployError: the folder cannot be written.
    """
    wanted = {spec.file_name: spec.text() for spec in specs}
    changed = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in wanted.items():
            path = folder / name
            if path.is_file() and path.read_text() == text:
                continue
            # No suffix .json or .yaml: a half-written spec must not be loaded.
            fresh = folder / f".{name}.new"
            fresh.write_text(text)
            fresh.chmod(0o644)
            fresh.replace(path)
            changed.append(name)
        for path in folder.glob(f"{_PREFIX}*.json"):
            if path.name not in wanted:
                path.unlink()
                changed.append(path.name)
    except OSError as error:
        raise DeployError(f"CDI specs cannot be written to {folder}", why=str(error)) from error
    return tuple(changed)


def _mount(host: str, container: str, options: list[str]) -> dict[str, Any]:
    return {"hostPath": host, "containerPath": container, "options": list(options)}
