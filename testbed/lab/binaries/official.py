"""Official releases, checked against the checksums that are published beside them.

The checksum comes over the same TLS connection's host as the file, so it guards against
damage and stale mirrors rather than against that host; no checksum is kept in this
source, since none could be verified when it was written.
"""

from __future__ import annotations

import hashlib
import http.client
import tarfile
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from testbed.errors import TestbedError
from testbed.lab.binaries import versions
from testbed.lab.cluster.protocol import Step

#: Without an answer for this long there is no route, and we build instead.
GIVE_UP_S = 3.0
_STALL_S = 30.0
_CHUNK = 1 << 20
_CHECKSUMS_MAX = 1 << 20

#: Opens a URL with a timeout in seconds.
Open = Callable[[str, float], "http.client.HTTPResponse"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A file to download and where its checksum is; ``members`` if it is an archive."""

    url: str
    checksum_url: str
    members: tuple[str, ...] = ()
    #: What a program is to be called where its file is called otherwise.
    program: str = ""

    @property
    def file_name(self) -> str:
        return self.url.rpartition("/")[2]


def releases() -> tuple[Release, ...]:
    """Return everything that makes up ``versions.PROGRAMS``."""
    kubernetes = f"https://dl.k8s.io/v{versions.KUBERNETES}/bin/linux/amd64"
    etcd = f"https://github.com/etcd-io/etcd/releases/download/v{versions.ETCD}"
    etcd_name = f"etcd-v{versions.ETCD}-linux-amd64"
    containerd = (
        "https://github.com/containerd/containerd/releases/download/"
        f"v{versions.CONTAINERD}/containerd-{versions.CONTAINERD}-linux-amd64.tar.gz"
    )
    return (
        *(
            Release(url=f"{kubernetes}/{name}", checksum_url=f"{kubernetes}/{name}.sha256")
            for name in versions.KUBERNETES_PROGRAMS
        ),
        Release(
            url=f"{etcd}/{etcd_name}.tar.gz",
            checksum_url=f"{etcd}/SHA256SUMS",
            members=(f"{etcd_name}/etcd",),
        ),
        Release(
            url=containerd,
            checksum_url=f"{containerd}.sha256sum",
            members=tuple(f"bin/{name}" for name in versions.CONTAINERD_PROGRAMS),
        ),
    )


def kind_release() -> Release:
    """Return where kind is (the addresses of its Quick Start page)."""
    url = f"https://kind.sigs.k8s.io/dl/v{versions.KIND}/kind-linux-amd64"
    return Release(url=url, checksum_url=f"{url}.sha256sum", program="kind")


def crictl_release() -> Release:
    """Return where crictl is (the addresses of the cri-tools readme)."""
    url = (
        "https://github.com/kubernetes-sigs/cri-tools/releases/download/"
        f"v{versions.CRICTL}/crictl-v{versions.CRICTL}-linux-amd64.tar.gz"
    )
    return Release(url=url, checksum_url=f"{url}.sha256", members=("crictl",))


def open_url(url: str, timeout_s: float) -> http.client.HTTPResponse:
    """Open an HTTPS URL; proxies of the environment are honoured."""
    response = urllib.request.urlopen(url, timeout=timeout_s)
    assert isinstance(response, http.client.HTTPResponse)
    return response


def reachable(open_: Open = open_url, wanted: Sequence[Release] = ()) -> bool:
    """Tell within ``GIVE_UP_S`` whether releases can be had: those of the cluster if none given."""
    answers: list[bool] = []

    def ask() -> None:
        try:
            for release in wanted or (releases()[0], releases()[-1]):
                with open_(release.checksum_url, GIVE_UP_S):
                    pass
        except (OSError, http.client.HTTPException):
            return
        answers.append(True)

    # In a thread, since looking a name up has no timeout of its own.
    thread = threading.Thread(target=ask, name="reachable", daemon=True)
    thread.start()
    thread.join(GIVE_UP_S)
    return bool(answers)


def download(
    folder: Path, step: Step, open_: Open = open_url, wanted: Sequence[Release] = ()
) -> None:
    """Fill a folder with programs: those of the cluster if none are given.

    Raises:
        TestbedError: a download broke or does not match its checksum.
    """
    for release in wanted or releases():
        published = _published(release, open_)
        file = folder / release.file_name
        actual = _fetch(release.url, file, step, open_)
        if actual != published:
            raise TestbedError(
                f"refused {release.url}",
                why=f"sha256 is {actual}, published is {published}",
                hint="try again; a proxy on the way may have changed or cut the file",
            )
        if release.members:
            _unpack(file, release.members, folder)
            file.unlink()
        else:
            file.chmod(0o755)
            if release.program:
                file.rename(folder / release.program)


def _published(release: Release, open_: Open) -> str:
    """Read ``<hash>``, or the line ``<hash>  <file name>`` of several."""
    try:
        with open_(release.checksum_url, _STALL_S) as response:
            text = response.read(_CHECKSUMS_MAX).decode("ascii", errors="replace")
    except (OSError, http.client.HTTPException) as error:
        raise _broken(release.checksum_url, error) from error
    lines = [line.split() for line in text.splitlines() if line.strip()]
    found = [
        words[0].lower()
        for words in lines
        if (len(words) == 1 and len(lines) == 1)
        or (len(words) == 2 and words[1].lstrip("*") == release.file_name)
    ]
    if len(found) != 1 or len(found[0]) != 64:
        raise TestbedError(
            f"cannot verify {release.url}", why=f"no checksum for it in {release.checksum_url}"
        )
    return found[0]


def _fetch(url: str, file: Path, step: Step, open_: Open) -> str:
    digest = hashlib.sha256()
    got = 0
    try:
        with open_(url, _STALL_S) as response, file.open("wb") as out:
            total = int(response.headers.get("Content-Length") or 0)
            while chunk := response.read(_CHUNK):
                out.write(chunk)
                digest.update(chunk)
                got += len(chunk)
                of = f" of {total >> 20}" if total else ""
                step.update(f"{file.name}: {got >> 20}{of} MiB")
    except (OSError, http.client.HTTPException) as error:
        raise _broken(url, error) from error
    return digest.hexdigest()


def _unpack(archive: Path, members: tuple[str, ...], folder: Path) -> None:
    with tarfile.open(archive) as tar:
        for name in members:
            try:
                source = tar.extractfile(name)
            except KeyError:
                source = None
            if source is None:
                raise TestbedError(f"cannot unpack {archive.name}", why=f"it has no file {name}")
            target = folder / name.rpartition("/")[2]
            with source, target.open("wb") as out:
                while chunk := source.read(_CHUNK):
                    out.write(chunk)
            target.chmod(0o755)


def _broken(url: str, error: Exception) -> TestbedError:
    return TestbedError(f"cannot download {url}", why=str(error), hint="try again")
