"""The control plane's images, which share their layers: kube-proxy's tools, all programs.

The node has the programs anyway, so the archive is kept in pieces between them; the node
puts them together on their way into containerd (``files/kind/bin/import-images``).
"""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from testbed.lab.binaries import versions
from testbed.lab.images import archive
from testbed.lab.images.node.layer import MOMENT, Layer

#: The tag that kubeadm of this release asks for (``kubeadm config images list``); the
#: program is that of ``versions.ETCD``.
ETCD_TAG = "3.7.0-0"
SERVERS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-proxy", "kube-scheduler")
_FOLDER = "usr/local/bin"
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """Programs by name, and the files that they are: several may be links to one."""

    files: Mapping[str, Path]
    links: Mapping[str, str]

    @classmethod
    def of(cls, paths: Mapping[str, Path]) -> Programs:
        files: dict[str, Path] = {}
        links: dict[str, str] = {}
        for name, path in paths.items():
            real = path.resolve()
            files[real.name] = real
            if real.name != name:
                links[name] = real.name
        return cls(files=files, links=links)


def references() -> list[str]:
    """Return the names of the images beside that of the pods' first process."""
    tags = dict.fromkeys(SERVERS, f"v{versions.KUBERNETES}") | {"etcd": ETCD_TAG}
    return [f"registry.k8s.io/{name}:{tag}" for name, tag in tags.items()]


def pieces(
    programs: Programs, tools: Callable[[Layer], None], pause: str, pause_program: bytes
) -> list[bytes | str]:
    """Return an archive of all images: bytes, and names of programs whose files go in between.

    Args:
        programs: Those of the images, all in one layer.
        tools: Adds the layer below: what kube-proxy calls.
        pause: Name of the image of the pods' first process.
        pause_program: Its only file.
    """
    buffer = io.BytesIO()
    lower = Layer(buffer)
    tools(lower)
    lower.close()
    upper = _programs_layer(programs)
    upper_blob = _blob(upper, programs)
    small = [buffer.getvalue(), archive.layer([_file("pause", pause_program, 0o755)])]
    lower_blob, pause_blob = map(archive.Blob.of, small)
    images = [
        archive.describe(reference, [lower_blob, upper_blob], _settings(reference))
        for reference in references()
    ]
    first = archive.Settings(entrypoint=["/pause"])
    images.append(archive.describe(pause, [pause_blob], first))

    blobs = {blob: data for image in images for blob, data in image.blobs}
    blobs |= zip((lower_blob, pause_blob), small, strict=True)
    before = archive.layer(
        [
            *archive.index(images),
            archive.Entry(name="blobs"),
            archive.Entry(name="blobs/sha256"),
            *(_file(archive.blob_name(blob), data) for blob, data in blobs.items()),
        ]
    )
    # Without the blocks of zeroes at its end: the archive goes on.
    head = before[: _end(before)] + _header(archive.blob_name(upper_blob), upper_blob.size)
    tail = bytes(-upper_blob.size % tarfile.BLOCKSIZE) + bytes(2 * tarfile.BLOCKSIZE)
    found = [head, *upper, tail]
    return _joined(found)


def _settings(reference: str) -> archive.Settings:
    name = reference.rpartition("/")[2].partition(":")[0]
    return archive.Settings(
        env={"PATH": f"/{_FOLDER}:/usr/sbin:/usr/bin"}, entrypoint=[f"/{_FOLDER}/{name}"]
    )


def _programs_layer(programs: Programs) -> list[bytes | str]:
    """Return a layer as ``pieces`` does."""
    found: list[bytes | str] = [
        _header(folder, kind=tarfile.DIRTYPE) for folder in ("usr", "usr/local", _FOLDER)
    ]
    for name, path in programs.files.items():
        size = path.stat().st_size
        found += [_header(f"{_FOLDER}/{name}", size), name, bytes(-size % tarfile.BLOCKSIZE)]
    for name, target in programs.links.items():
        found.append(_header(f"{_FOLDER}/{name}", kind=tarfile.SYMTYPE, target=target))
    found.append(bytes(2 * tarfile.BLOCKSIZE))
    return found


def _header(name: str, size: int = 0, kind: bytes = tarfile.REGTYPE, target: str = "") -> bytes:
    info = tarfile.TarInfo(name)
    info.type = kind
    info.mode = 0o755
    info.mtime = MOMENT
    info.size = size
    info.linkname = target
    return info.tobuf(tarfile.GNU_FORMAT)


def _blob(layer: list[bytes | str], programs: Programs) -> archive.Blob:
    digest = hashlib.sha256()
    size = 0
    for piece in layer:
        if isinstance(piece, bytes):
            digest.update(piece)
            size += len(piece)
            continue
        with programs.files[piece].open("rb") as source:
            while chunk := source.read(_CHUNK):
                digest.update(chunk)
                size += len(chunk)
    return archive.Blob(digest=f"sha256:{digest.hexdigest()}", size=size)


def _end(data: bytes) -> int:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        last = tar.getmembers()[-1]
    return last.offset_data + last.size + -last.size % tarfile.BLOCKSIZE


def _joined(pieces: list[bytes | str]) -> list[bytes | str]:
    """Put neighbouring bytes together."""
    found: list[bytes | str] = []
    for piece in pieces:
        if found and isinstance(piece, bytes) and isinstance(found[-1], bytes):
            found[-1] += piece
        else:
            found.append(piece)
    return found


def _file(name: str, data: bytes, mode: int = 0o644) -> archive.Entry:
    return archive.Entry(name=name, mode=mode, data=data)
