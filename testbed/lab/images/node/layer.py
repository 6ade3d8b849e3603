"""Layers of a node and the archive that holds them, written in one pass.

The same content gives the same bytes: names in the order of their adding, one time for
all, numbers for owners.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import IO, Any

#: Of every file. Some programs take a time of 0 for "not set".
MOMENT = 1767225600
_CHUNK = 1 << 20
#: Folders of the root that are links into /usr (usrmerge), wherever a package puts its files.
_MERGED = ("bin", "lib", "lib32", "lib64", "libx32", "sbin")


class _Sink(io.RawIOBase):
    """Counts and hashes what passes."""

    def __init__(self, out: IO[bytes]) -> None:
        self.digest = hashlib.sha256()
        self.size = 0
        self._out = out

    def write(self, data: Any, /) -> int:
        self.digest.update(data)
        self.size += len(data)
        return self._out.write(data)

    def tell(self) -> int:
        return self.size


class Layer:
    """Writes a layer; what is added first stays, later entries of the same name are left out."""

    def __init__(self, out: IO[bytes]) -> None:
        self._sink = _Sink(out)
        self._seen: set[str] = set()
        self._tar = tarfile.TarFile(
            fileobj=self._sink, mode="w", format=tarfile.GNU_FORMAT, copybufsize=_CHUNK
        )

    @property
    def size(self) -> int:
        return self._sink.size

    @property
    def digest(self) -> str:
        """Of what was written so far, as images name it."""
        return f"sha256:{self._sink.digest.hexdigest()}"

    def merge_usr(self) -> None:
        """Put the links into /usr in place; folders below follow."""
        for name in ("bin", "lib", "lib64", "sbin"):
            self.link(name, f"usr/{name}")

    def folder(self, name: str, mode: int = 0o755) -> None:
        info = tarfile.TarInfo(name)
        info.type = tarfile.DIRTYPE
        info.mode = mode
        self._add(info)

    def link(self, name: str, target: str) -> None:
        info = tarfile.TarInfo(name)
        info.type = tarfile.SYMTYPE
        info.mode = 0o777
        info.linkname = target
        self._add(info)

    def data(self, name: str, data: bytes, mode: int = 0o644) -> None:
        info = tarfile.TarInfo(name)
        info.mode = mode
        info.size = len(data)
        self._add(info, io.BytesIO(data))

    def file(self, name: str, path: Path, mode: int = 0o755) -> None:
        info = tarfile.TarInfo(name)
        info.mode = mode
        info.size = path.stat().st_size
        with path.open("rb") as source:
            self._add(info, source)

    def package(self, content: tarfile.TarFile, wanted: Callable[[str], bool]) -> None:
        """Add the wanted files of a package; names are without a slash at the beginning."""
        for info in content:
            name = merged(info.name)
            if not name or not wanted(name) or _is_merged_folder(info.name):
                continue
            info.name = name
            if info.islnk():
                info.linkname = merged(info.linkname)
            self._add(info, content.extractfile(info) if info.isreg() else None)

    def close(self) -> None:
        self._tar.close()

    def _add(self, info: tarfile.TarInfo, source: IO[bytes] | None = None) -> None:
        if info.name in self._seen:
            return
        parent = info.name.rpartition("/")[0]
        if parent and parent not in self._seen:
            self.folder(parent)
        self._seen.add(info.name)
        info.mtime = MOMENT
        info.uname = info.gname = ""
        self._tar.addfile(info, source)


def merged(name: str) -> str:
    """Return a package's name for a file as it is in a root whose /bin is a link to /usr/bin."""
    name = name.removeprefix(".").strip("/")
    first = name.partition("/")[0]
    return f"usr/{name}" if first in _MERGED else name


def _is_merged_folder(name: str) -> bool:
    """Tell whether this is such a link itself (from Debian 13 on a package has them)."""
    return name.removeprefix(".").strip("/") in _MERGED


def write_archive(
    path: Path, reference: str, config: Mapping[str, Any], fill: Callable[[Layer], None]
) -> None:
    """Write what ``docker load`` and ``podman load`` take: one image with one layer.

    Args:
        path: The archive.
        reference: Name and tag.
        config: What containers of it start with, as ``docker inspect`` shows it.
        fill: Adds the layer's content.
    """
    with path.open("w+b") as out:
        out.write(bytes(tarfile.BLOCKSIZE))  # the layer's head, once its size is known
        layer = Layer(out)
        fill(layer)
        layer.close()
        out.write(bytes(-layer.size % tarfile.BLOCKSIZE))
        document = _json(
            {
                "architecture": "amd64",
                "os": "linux",
                "created": "2026-01-01T00:00:00Z",
                "config": dict(config),
                "rootfs": {"type": "layers", "diff_ids": [layer.digest]},
            }
        )
        name = f"{hashlib.sha256(document).hexdigest()}.json"
        manifest = [{"Config": name, "RepoTags": [reference], "Layers": ["layer.tar"]}]
        with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
            for entry, data in ((name, document), ("manifest.json", _json(manifest))):
                info = tarfile.TarInfo(entry)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
        info = tarfile.TarInfo("layer.tar")
        info.size = layer.size
        out.seek(0)
        out.write(info.tobuf(tarfile.GNU_FORMAT))


def tree(folder: Path) -> Iterable[tuple[str, Path, int]]:
    """Give name, path and mode of every file below a folder, in order.

    Scripts can be run whatever their mode is here: installers of packages lose it.
    """
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            with path.open("rb") as file:
                mode = 0o755 if file.read(2) == b"#!" else 0o644
            yield path.relative_to(folder).as_posix(), path, mode


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
