"""The Debian packages of a node, downloaded with everything that they depend on.

apt is told of a machine without any package, so that the answer is whole whatever is
installed here, and of folders of our own, so that nothing of this machine's changes and
no right is needed.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from testbed.errors import MissingTool, TestbedError
from testbed.lab import cache, command
from testbed.lab.cluster.protocol import Progress, Step

#: Of these everything else follows.
WANTED = (
    *("base-files", "base-passwd", "bash", "coreutils", "findutils", "grep", "gzip", "hostname"),
    *("libc-bin", "mawk", "mount", "procps", "sed", "tar", "util-linux", "systemd"),
    *("conntrack", "containernetworking-plugins", "iproute2", "iptables", "nftables", "runc"),
    # A small answer to a dependency that else brings all of Perl.
    "usr-is-merged",
)
#: What kube-proxy calls in its own image.
PROXY_TOOLS = ("conntrack", "iptables", "nftables")

_KIND = "node-packages"
_RECIPE = "1"
_APT_S = 600.0
_QUERY_S = 30.0
_LISTS = Path("/var/lib/apt/lists")
_RELEASE = Path("/etc/os-release")


def fetch(progress: Progress) -> Path:
    """Return the folder of the packages' files, downloaded the first time.

    Raises:
        MissingTool: this machine has no apt.
        TestbedError: a package cannot be had.
    """
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise MissingTool(
                "cannot make a node image",
                why=f"it is put together from Debian packages, and there is no {tool}",
                hint="let your engine pull kindest/node, or use --provider process",
            )
    return cache.obtain(_KIND, _key(), _download, progress, "download the node's packages")


def find() -> Path | None:
    """Return the folder of the packages' files if the cache has it."""
    return cache.find(_KIND, _key())


def _key() -> str:
    release = _RELEASE.read_text() if _RELEASE.is_file() else ""
    return cache.key_of(_RECIPE, release, *WANTED)


def files(folder: Path) -> list[Path]:
    """Return the packages' files, always in the same order."""
    return sorted(folder.glob("*.deb"))


def needed(folder: Path, names: Iterable[str]) -> list[Path]:
    """Return the files of some packages and of all that they depend on.

    Files are found by the names that apt gives them: ``name_version_architecture.deb``.

    Raises:
        TestbedError: a file is no package.
    """
    by_name = {file.name.partition("_")[0]: file for file in files(folder)}

    def depends(name: str) -> list[list[str]]:
        fields = _fields(by_name[name])
        named = filter(None, (fields.get("Pre-Depends"), fields.get("Depends")))
        return dependencies(", ".join(named))

    return sorted(by_name[name] for name in closure(names, set(by_name), depends))


def dependencies(text: str) -> list[list[str]]:
    """Return the alternatives of each dependency of a control field, without versions."""
    return [
        [re.sub(r"[\s(\[:<].*", "", choice.strip(), flags=re.DOTALL) for choice in part.split("|")]
        for part in text.split(",")
        if part.strip()
    ]


def closure(
    names: Iterable[str], there: Container[str], depends: Callable[[str], list[list[str]]]
) -> set[str]:
    """Return names and all that they need, as far as it is there; each is asked for once."""
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name in found or name not in there:
            continue
        found.add(name)
        waiting += [choice for choices in depends(name) for choice in choices]
    return found


@contextmanager
def contents(file: Path) -> Iterator[tarfile.TarFile]:
    """Open the files of a package as a stream.

    Raises:
        TestbedError: it cannot be read.
    """
    process = subprocess.Popen(
        ["dpkg-deb", "--fsys-tarfile", str(file)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        with tarfile.open(fileobj=process.stdout, mode="r|") as tar:
            yield tar
        while process.stdout.read(1 << 20):  # what is padded, so that it ends well
            pass
        said = process.stderr.read().decode(errors="replace").strip()
        if process.wait():
            raise TestbedError(f"cannot read {file.name}", why=said, artifacts=file)
    except tarfile.TarError as error:
        raise TestbedError(f"cannot read {file.name}", why=str(error), artifacts=file) from error
    finally:
        if process.returncode is None:
            process.kill()
            process.wait()
        process.stdout.close()
        process.stderr.close()


def _download(folder: Path, step: Step) -> None:
    with tempfile.TemporaryDirectory(prefix=".apt.", dir=folder.parent) as name:
        state = Path(name)
        (state / "status").touch()
        (folder / "partial").mkdir()
        (state / "lists/partial").mkdir(parents=True)

        def apt_get(lists: Path, *arguments: str) -> None:
            options = {
                "Dir::State::status": state / "status",
                "Dir::State::extended_states": state / "extended",
                "Dir::State::lists": lists,
                "Dir::Cache::archives": folder,
                # Kept beside the lists of the machine, where only root may write.
                "Dir::Cache::pkgcache": "",
                "Dir::Cache::srcpkgcache": "",
                "Debug::NoLocking": "true",
                # The user that apt becomes for downloads cannot write here.
                "APT::Sandbox::User": "root",
                "APT::Install-Recommends": "false",
                "APT::Keep-Downloaded-Packages": "true",
                # Hooks of this machine are for this machine's packages.
                "DPkg::Pre-Install-Pkgs": "",
            }
            command.run(
                [
                    "apt-get",
                    *(word for key, value in options.items() for word in ("-o", f"{key}={value}")),
                    *("--yes", *arguments),
                ],
                what="cannot download the node's packages",
                timeout_s=_APT_S,
                tell=step.update,
                hint="a Debian mirror must be reachable (apt-get update says whether it is)",
            )

        download = ("--download-only", "install", *WANTED)
        try:
            apt_get(_LISTS, *download)
        except TestbedError:
            # No lists, or old ones that name files that are gone: new ones, for us only.
            apt_get(state / "lists", "update")
            apt_get(state / "lists", *download)
        shutil.rmtree(folder / "partial")
        (folder / "lock").unlink(missing_ok=True)
    if not files(folder):
        raise TestbedError("cannot download the node's packages", why="apt-get left none")


def _fields(file: Path) -> dict[str, str]:
    text = command.run(
        ["dpkg-deb", "--field", file, "Pre-Depends", "Depends"],
        what=f"cannot read {file.name}",
        timeout_s=_QUERY_S,
    )
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, colon, value = line.partition(": ")
        if colon and not line.startswith(" "):
            found[name] = value
    return found
