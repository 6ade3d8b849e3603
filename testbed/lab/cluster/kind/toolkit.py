"""NVIDIA's container toolkit and the engine as their own tools describe them.

Pure: each function reads one tool's output. ``tests/data/toolkit/README.md`` says where
each format was taken from. Version facts are the toolkit's own change log and sources.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

from testbed.errors import InputError

Mode = Literal["legacy", "csv", "cdi", "jit-cdi"]
Version = tuple[int, int, int]

#: `nvidia-ctk cdi generate` and its JSON (1.12 and 1.13 of the change log).
CDI_GENERATE: Version = (1, 13, 0)
#: From here on mode "auto" is jit-cdi, and /proc/driver/nvidia is not masked any more
#: (k8s-device-plugin #811, nvkind #61).
JIT_CDI: Version = (1, 18, 0)

_VERSION = re.compile(r"CLI version v?(\d+)\.(\d+)\.(\d+)")
_QUALIFIED = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*=\S+", re.ASCII)


def parse_version(text: str) -> Version | None:
    """Return the version in ``nvidia-ctk --version``, None where there is none."""
    found = _VERSION.search(text)
    return (int(found[1]), int(found[2]), int(found[3])) if found else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolkitConfig:
    """What matters here of the toolkit's config.toml; the values are its defaults."""

    accept_volume_mounts: bool = False
    mode: str = "auto"
    default_kind: str = "nvidia.com/gpu"

    def resolved(self, version: Version) -> Mode:
        """Return what the runtime does on a machine with a card (not on Tegra)."""
        if self.mode == "auto":
            return "jit-cdi" if version >= JIT_CDI else "legacy"
        return self.mode  # type: ignore[return-value]  # checked by parse_config


def parse_config(text: str) -> ToolkitConfig:
    """Return the settings of ``/etc/nvidia-container-runtime/config.toml``.

    Raises:
        InputError: it is no TOML, or says what no toolkit reads.
    """
    try:
        document = tomllib.loads(text)
        runtime = document.get("nvidia-container-runtime", {})
        accept = document.get("accept-nvidia-visible-devices-as-volume-mounts", False)
        mode = runtime.get("mode", "auto")
        kind = runtime.get("modes", {}).get("cdi", {}).get("default-kind", "nvidia.com/gpu")
    except (tomllib.TOMLDecodeError, AttributeError) as error:
        raise InputError(
            "the toolkit's config.toml cannot be read",
            why=str(error),
            hint="sudo nvidia-ctk config --in-place   (writes it anew)",
        ) from error
    if not isinstance(accept, bool) or mode not in ("auto", "legacy", "csv", "cdi", "jit-cdi"):
        raise InputError(
            "the toolkit's config.toml says what no toolkit reads",
            why=f"mode {mode!r}, accept-nvidia-visible-devices-as-volume-mounts {accept!r}",
            hint="sudo nvidia-ctk config --set nvidia-container-runtime.mode=auto --in-place",
        )
    return ToolkitConfig(accept_volume_mounts=accept, mode=mode, default_kind=str(kind))


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolkit:
    """The container toolkit of the machine."""

    version: Version
    config: ToolkitConfig = ToolkitConfig()
    #: Qualified names of `nvidia-ctk cdi list`.
    listed: tuple[str, ...] = ()
    #: Programs that nodes get: path on the host → path in a node.
    programs: Mapping[str, str] = field(default_factory=dict)

    @property
    def mode(self) -> Mode:
        return self.config.resolved(self.version)


def parse_cdi_list(text: str) -> tuple[str, ...]:
    """Return the qualified names of ``nvidia-ctk cdi list``, whatever it logs between."""
    return tuple(line.strip() for line in text.splitlines() if _QUALIFIED.fullmatch(line.strip()))


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverParts:
    """What a container needs of the driver, by a CDI specification.

    Attributes:
        files: Path on the host → path in the container.
        links: Path of each symbolic link → what it says.
        folders: Folders of libraries, for the loader.
        common: Device nodes that every card needs.
        devices: Device nodes of each card or MIG device, by its name.
    """

    files: Mapping[str, str]
    links: Mapping[str, str] = field(default_factory=dict)
    folders: tuple[str, ...] = ()
    common: tuple[str, ...] = ()
    devices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def parse_specification(text: str) -> DriverParts:
    """Return what ``nvidia-ctk cdi generate --format json`` found.

    Raises:
        InputError: it cannot be read.
    """
    try:
        whole = json.loads(text)
        edits = whole["containerEdits"]
        files, links, folders = {}, {}, []
        for mount in edits.get("mounts", ()):
            files[_path(mount["hostPath"])] = _path(mount["containerPath"])
        for hook in edits.get("hooks", ()):
            words = hook.get("args", ())
            for link in _values(words, "--link"):
                says, _, at = link.partition("::")
                links[_path(at)] = says
            if "update-ldcache" in words:
                folders += [_path(each) for each in _values(words, "--folder")]
        return DriverParts(
            files=files,
            links=links,
            folders=tuple(dict.fromkeys(folders)),
            common=_nodes(edits),
            devices={
                str(device["name"]): _nodes(device["containerEdits"])
                for device in whole["devices"]
                if device["name"] != "all"
            },
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            "the CDI specification of nvidia-ctk cannot be read",
            why=repr(error),
            hint="nvidia-ctk cdi generate --format json   (what does it say?)",
        ) from error


def _path(text: str) -> str:
    if not text.startswith("/") or ".." in text.split("/") or "\n" in text or ":" in text:
        raise ValueError(f"{text!r} is no absolute path that an engine can mount")
    return text


def _values(words: list[str], option: str) -> list[str]:
    """Return an option's values, written ``--link X`` or ``--link=X``."""
    found = [value for word, value in pairwise(words) if word == option]
    return found + [w.partition("=")[2] for w in words if w.startswith(option + "=")]


def _nodes(edits: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(_path(each["path"]) for each in edits.get("deviceNodes") or ())


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """What a container engine says of itself.

    Attributes:
        name: ``docker`` or ``podman``.
        cgroups: 1 or 2; 0 where it does not say.
        cgroup_driver: ``systemd`` or ``cgroupfs``.
        default_runtime: The OCI runtime that containers get.
        rootless: Whether it runs as an ordinary user.
        apparmor: Whether it puts profiles of AppArmor on containers.
        cdi_folders: Where it looks for CDI specifications; empty where it does not.
        storage: Where images and volumes lie.
    """

    name: str
    version: str
    cgroups: int
    cgroup_driver: str
    default_runtime: str
    rootless: bool
    apparmor: bool
    cdi_folders: tuple[str, ...] = ()
    storage: str = ""


def parse_docker_info(text: str) -> EngineFacts:
    """Return what ``docker info --format '{{json .}}'`` tells.

    Raises:
        InputError: it cannot be read, or the daemon did not answer.
    """
    document = _document("docker", text)
    errors = document.get("ServerErrors") or ()
    if errors or not document.get("ServerVersion"):
        raise InputError(
            "Docker's daemon does not answer",
            why="; ".join(map(str, errors)) or "it tells no version",
            hint="sudo systemctl start docker",
        )
    options = [str(each) for each in document.get("SecurityOptions") or ()]
    return EngineFacts(
        name="docker",
        version=str(document["ServerVersion"]),
        cgroups=_number(document.get("CgroupVersion", "1")),
        cgroup_driver=str(document.get("CgroupDriver", "")),
        default_runtime=str(document.get("DefaultRuntime", "")),
        rootless=any(each.startswith("name=rootless") for each in options),
        apparmor=any(each.startswith("name=apparmor") for each in options),
        cdi_folders=tuple(map(str, document.get("CDISpecDirs") or ())),
        storage=str(document.get("DockerRootDir", "")),
    )


def parse_podman_info(text: str) -> EngineFacts:
    """Return what ``podman info --format json`` tells.

    Raises:
        InputError: it cannot be read.
    """
    document = _document("podman", text)
    try:
        host, store = document["host"], document.get("store", {})
        security = host.get("security", {})
        return EngineFacts(
            name="podman",
            version=str(document["version"]["Version"]),
            cgroups=_number(host.get("cgroupVersion", "")),
            cgroup_driver=str(host.get("cgroupManager", "")),
            default_runtime=str(host["ociRuntime"]["name"]),
            rootless=bool(security.get("rootless", False)),
            apparmor=bool(security.get("apparmorEnabled", False)),
            # `--device vendor/class=name` since 4.1; it has no word for the folders.
            cdi_folders=("/etc/cdi", "/var/run/cdi"),
            storage=str(store.get("graphRoot", "")),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError("podman's information cannot be read", why=repr(error)) from error


def _document(engine: str, text: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except ValueError as error:
        raise InputError(
            f"{engine}'s information cannot be read",
            why=text.strip()[:300] or "it said nothing",
            hint=f"{engine} info",
        ) from error
    if not isinstance(document, dict):
        raise InputError(f"{engine}'s information is no object", hint=f"{engine} info")
    return document


def _number(word: object) -> int:
    digits = str(word).lstrip("v")
    return int(digits) if digits.isdecimal() else 0
