"""Programs that the machine brings: found, or installed from Debian packages as root."""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from testbed.errors import MissingTool, TestbedError
from testbed.lab import command
from testbed.lab.cluster.protocol import Progress

#: An ordinary user's PATH often lacks the folders of the administrator's programs.
_SEARCH = ("/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/local/bin", "/usr/bin", "/bin")
_CNI_FOLDERS = ("/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni")
_CNI_PLUGINS = ("ptp", "host-local", "loopback")
_APT_LISTS = Path("/var/lib/apt/lists")
_INSTALL_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A program and where it comes from."""

    name: str
    package: str
    purpose: str


TOOLS = (
    Tool(name="runc", package="runc", purpose="runs containers"),
    Tool(name="cni", package="containernetworking-plugins", purpose="pod networks"),
    Tool(name="nft", package="nftables", purpose="Services (kube-proxy)"),
    Tool(name="ip", package="iproute2", purpose="the testbed's network"),
    Tool(name="unshare", package="util-linux", purpose="namespaces"),
    Tool(name="nsenter", package="util-linux", purpose="namespaces"),
    Tool(name="mount", package="mount", purpose="mounts in the namespaces"),
    Tool(name="ldconfig", package="libc-bin", purpose="the containers' library cache"),
    # gcc alone does not bring the headers: Debian only recommends them.
    Tool(name="cc", package="gcc libc6-dev", purpose="this project's C libraries"),
    Tool(name="python3", package="python3", purpose="the interpreter inside containers"),
)


def missing_tools() -> tuple[Tool, ...]:
    """Return what the machine lacks; empty if all is there."""
    return tuple(tool for tool in TOOLS if locate(tool.name) is None)


def locate(name: str) -> Path | None:
    """Return where a tool is; for ``cni`` the plugins' folder."""
    if name == "cni":
        for folder in map(Path, _CNI_FOLDERS):
            if all(os.access(folder / plugin, os.X_OK) for plugin in _CNI_PLUGINS):
                return folder
        return None
    if name == "python3":
        # Exactly this one: it is what containers see, and a private one they could not.
        path = Path("/usr/bin/python3")
        return path if os.access(path, os.X_OK) else None
    folders = [folder for folder in os.environ.get("PATH", "").split(":") if folder]
    found = shutil.which(name, path=":".join([*folders, *_SEARCH]))
    return Path(found) if found else None


def install_command(tools: tuple[Tool, ...]) -> str:
    """Return the one line that installs tools on Debian and its kin, as this user types it."""
    sudo = "" if os.geteuid() == 0 else "sudo "
    # A new system has no lists: apt-get would find none of the packages.
    update = "" if _has_lists() else f"{sudo}apt-get update && "
    return f"{update}{sudo}apt-get {_arguments(tools)}"


def _arguments(tools: tuple[Tool, ...]) -> str:
    packages = sorted({tool.package for tool in tools})
    return f"install --yes --no-install-recommends {' '.join(packages)}"


def _has_lists() -> bool:
    return any(_APT_LISTS.glob("*_Packages*"))


def ensure_tools(progress: Progress) -> dict[str, Path]:
    """Return every tool's path by name, installed first where root may.

    Raises:
        MissingTool: tools are missing and cannot be installed; the hint is one command.
    """
    missing = missing_tools()
    if missing:
        _install(missing, progress)
        missing = missing_tools()
        if missing:
            raise _refusal(missing, why="still missing after the installation")
    paths = {tool.name: locate(tool.name) for tool in TOOLS}
    return {name: path for name, path in paths.items() if path is not None}


def _install(missing: tuple[Tool, ...], progress: Progress) -> None:
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise _refusal(missing)
    names = " ".join(sorted({tool.package for tool in missing}))
    with progress.step(f"install {names}") as step:

        def apt_get(arguments: str, what: str) -> None:
            command.run(
                ["apt-get", *arguments.split()],
                what=what,
                timeout_s=_INSTALL_S,
                tell=step.update,
                environ={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
            )

        def update() -> None:
            apt_get("update", "cannot read the lists of packages")

        def install() -> None:
            apt_get(_arguments(missing), f"cannot install {names}")

        if _has_lists():
            with contextlib.suppress(TestbedError):  # lists that are old name files that are gone
                install()
                return
        update()
        install()


def _refusal(missing: tuple[Tool, ...], *, why: str = "") -> MissingTool:
    lacks = ", ".join(f"{tool.name} ({tool.purpose})" for tool in missing)
    return MissingTool(f"this machine lacks {lacks}", why=why, hint=install_command(missing))
