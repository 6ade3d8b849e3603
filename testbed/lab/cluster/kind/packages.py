"""The programs of an engine of our own: Debian packages, unpacked and not installed.

Installing ``docker.io`` starts a daemon on the host's own network and changes its
forwarding and packet filter. Unpacked in the cache nothing of the machine changes, and
nobody has to remove anything.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from testbed.errors import MissingTool, TestbedError
from testbed.lab import cache, command
from testbed.lab.cluster.protocol import Progress, Step

_KIND = "engines"
_RECIPE = "1"
_FETCH_S = 300.0
_CHECK_S = 30.0

#: Packages whose programs are taken; libraries are those that a small system lacks.
PACKAGES: Mapping[str, Sequence[str]] = {
    "docker": (
        *("docker.io", "containerd", "iptables"),
        *("libdevmapper1.02.1", "libsystemd0", "libip4tc2", "libip6tc2", "libxtables12"),
        *("libnftnl11", "libmnl0", "libnfnetlink0", "libnetfilter-conntrack3"),
    ),
    "podman": (
        *("podman", "conmon", "netavark", "aardvark-dns", "iptables"),
        *("golang-github-containers-common", "golang-github-containers-image"),
        # The second name: releases whose time has 64 bits.
        *("libglib2.0-0", "libglib2.0-0t64"),
        *("libgpgme11", "libassuan0", "libsubid4", "libdevmapper1.02.1", "libsystemd0"),
        *("libip4tc2", "libip6tc2", "libxtables12"),
        *("libnftnl11", "libmnl0", "libnfnetlink0", "libnetfilter-conntrack3", "libyajl2"),
    ),
}
#: What must start before the programs count as usable.
_TRIED: Mapping[str, Sequence[Sequence[str]]] = {
    "docker": (["dockerd", "--version"], ["containerd", "--version"], ["docker", "--version"]),
    "podman": (["podman", "--version"], ["conmon", "--version"]),
}
#: Debian's alternatives and links, which unpacking does not make.
_NAMES = tuple(
    f"{each}{verb}" for each in ("iptables", "ip6tables") for verb in ("", "-save", "-restore")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """An engine's programs in the cache."""

    program: str
    root: Path

    def path(self) -> str:
        """Return the folders of the programs, for PATH."""
        folders = ("bin", "usr/sbin", "usr/bin", "usr/lib/podman")
        return ":".join(str(self.root / each) for each in folders)

    def libraries(self) -> str:
        """Return the folders of libraries, for LD_LIBRARY_PATH: the machine's own come first."""
        folders = ("usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu")
        system = ("/usr/lib/x86_64-linux-gnu", "/lib/x86_64-linux-gnu")
        return ":".join([*system, *(str(self.root / each) for each in folders)])

    def environment(self) -> dict[str, str]:
        """Return what the programs need in their environment."""
        return {
            "PATH": f"{self.path()}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "LD_LIBRARY_PATH": self.libraries(),
            "XTABLES_LIBDIR": str(self.root / "usr/lib/x86_64-linux-gnu/xtables"),
        }


def cached(program: str) -> Programs | None:
    """Return an engine's programs if the cache has them."""
    folder = cache.find(_KIND, _key(program))
    return None if folder is None else Programs(program=program, root=folder)


def possible() -> bool:
    """Tell whether this machine can fetch Debian packages."""
    return shutil.which("apt-get") is not None and shutil.which("dpkg-deb") is not None


def prepare(program: str, progress: Progress) -> Programs:
    """Return an engine's programs, fetched first where needed.

    Raises:
        MissingTool: this machine has no Debian packages.
        TestbedError: a package cannot be had, or a program of it does not start.
    """
    found = cached(program)
    if found is not None:
        return found
    if not possible():
        raise MissingTool(
            f"there is no {program} here, and no Debian packages to take it from",
            hint=f"install and start {program}, or use --provider process",
        )

    def make(folder: Path, step: Step) -> None:
        _fetch(program, folder, step)
        _link(folder)
        _verify(Programs(program=program, root=folder))

    text = f"fetch {program} from Debian packages"
    folder = cache.obtain(_KIND, _key(program), make, progress, text)
    return Programs(program=program, root=folder)


def _key(program: str) -> str:
    return cache.key_of(_RECIPE, program, *PACKAGES[program])


def _fetch(program: str, folder: Path, step: Step) -> None:
    archives = folder / "archives"
    archives.mkdir()
    names = list(PACKAGES[program])

    def download() -> None:
        command.run(
            ["apt-get", "download", *_available(names)],
            what=f"cannot download the packages of {program}",
            timeout_s=_FETCH_S,
            tell=step.update,
            cwd=archives,
            environ={**os.environ, "LC_ALL": "C"},
        )

    try:
        download()
    except TestbedError:  # no lists, or lists that name files that are gone
        if os.geteuid() != 0:
            raise
        command.run(
            ["apt-get", "update"],
            what="cannot read the lists of packages",
            timeout_s=_FETCH_S,
            tell=step.update,
        )
        download()
    for archive in sorted(archives.glob("*.deb")):
        step.update(archive.name)
        command.run(
            ["dpkg-deb", "-x", archive, folder],
            what=f"cannot unpack {archive.name}",
            timeout_s=_FETCH_S,
        )
    shutil.rmtree(archives)
    for heavy in ("usr/share/doc", "usr/share/man", "usr/share/locale"):
        shutil.rmtree(folder / heavy, ignore_errors=True)


def _available(names: Sequence[str]) -> list[str]:
    """Return the packages that this release has: libraries change their names with time."""
    text = command.run(
        ["apt-cache", "policy", *names],
        what="cannot read the lists of packages",
        timeout_s=_CHECK_S,
        environ={**os.environ, "LC_ALL": "C"},
    )
    return available(names, text)


def available(names: Sequence[str], policy: str) -> list[str]:
    """Return the names that ``apt-cache policy`` has a candidate for, and all programs.

    A program that is not there stays in the list, so that apt-get says so.
    """
    there: set[str] = set()
    name = ""
    for line in policy.splitlines():
        if line and not line[0].isspace():
            name = line.rstrip(":")
        elif line.strip().startswith("Candidate:") and "(none)" not in line:
            there.add(name)
    return [each for each in names if each in there or not each.startswith("lib")]


def _link(folder: Path) -> None:
    links = folder / "bin"
    links.mkdir()
    for name in _NAMES:
        (links / name).symlink_to("../usr/sbin/xtables-nft-multi")


def _verify(programs: Programs) -> None:
    for argv in _TRIED[programs.program]:
        command.run(
            argv,
            what=f"{argv[0]} of the Debian packages does not start",
            timeout_s=_CHECK_S,
            environ=programs.environment() | {"HOME": "/nonexistent"},
        )
