"""OCI image archives, written so that the same content gives the same bytes."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_MEDIA = "application/vnd.oci.image"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A file, a link (``target``) or else a folder of a layer; all belong to uid 0.

    Under a map of a single id no other owner could be unpacked.
    """

    name: str
    mode: int = 0o755
    data: bytes | None = None
    target: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a container of the image starts with unless its pod says otherwise."""

    env: Mapping[str, str] = field(default_factory=dict)
    entrypoint: Sequence[str] = ()
    command: Sequence[str] = ()

    def document(self) -> dict[str, Any]:
        """Return the ``config`` of an OCI image configuration."""
        found: dict[str, Any] = {"WorkingDir": "/"}
        if self.env:
            found["Env"] = [f"{name}={value}" for name, value in self.env.items()]
        if self.entrypoint:
            found["Entrypoint"] = list(self.entrypoint)
        if self.command:
            found["Cmd"] = list(self.command)
        return found


def layer(entries: Iterable[Entry]) -> bytes:
    """Return an uncompressed layer."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for entry in entries:
            info = tarfile.TarInfo(entry.name)
            info.mode = entry.mode
            if entry.data is not None:
                info.size = len(entry.data)
                tar.addfile(info, io.BytesIO(entry.data))
                continue
            if entry.target is not None:
                info.type = tarfile.SYMTYPE
                info.linkname = entry.target
            else:
                info.type = tarfile.DIRTYPE
            tar.addfile(info)
    return buffer.getvalue()


def write(path: Path, reference: str, content: bytes, settings: Settings) -> None:
    """Write an OCI layout of one image with one layer.

    Args:
        path: The archive.
        reference: Name and tag; without a registry the default one is meant.
        content: The layer.
        settings: Of the image.
    """
    image = describe(reference, [Blob.of(content)], settings)
    blobs = [
        Entry(name=blob_name(blob), mode=0o644, data=data)
        for blob, data in (*image.blobs, (Blob.of(content), content))
    ]
    folders = [Entry(name="blobs"), Entry(name="blobs/sha256")]
    path.write_bytes(layer([*index([image]), *folders, *blobs]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Blob:
    """What descriptors say of content: ``sha256:<hex>`` and the number of bytes."""

    digest: str
    size: int

    @classmethod
    def of(cls, data: bytes) -> Blob:
        return cls(digest=f"sha256:{hashlib.sha256(data).hexdigest()}", size=len(data))


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """An image without its layers: its entry of the index, its configuration and manifest."""

    entry: Mapping[str, Any]
    blobs: Sequence[tuple[Blob, bytes]]


def describe(reference: str, layers: Sequence[Blob], settings: Settings) -> Described:
    """Return configuration and manifest of an image of uncompressed layers."""
    config = _json(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": settings.document(),
            "rootfs": {"type": "layers", "diff_ids": [blob.digest for blob in layers]},
        }
    )
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": f"{_MEDIA}.manifest.v1+json",
            "config": _descriptor(f"{_MEDIA}.config.v1+json", Blob.of(config)),
            "layers": [_descriptor(f"{_MEDIA}.layer.v1.tar", blob) for blob in layers],
        }
    )
    entry = {
        **_descriptor(f"{_MEDIA}.manifest.v1+json", Blob.of(manifest)),
        "platform": {"architecture": "amd64", "os": "linux"},
        "annotations": {
            "io.containerd.image.name": full_name(reference),
            "org.opencontainers.image.ref.name": reference.rpartition(":")[2],
        },
    }
    return Described(entry=entry, blobs=[(Blob.of(config), config), (Blob.of(manifest), manifest)])


def index(images: Sequence[Described]) -> list[Entry]:
    """Return the files of an OCI layout that say which images it holds."""
    document = {"schemaVersion": 2, "manifests": [image.entry for image in images]}
    return [
        Entry(name="oci-layout", mode=0o644, data=_json({"imageLayoutVersion": "1.0.0"})),
        Entry(name="index.json", mode=0o644, data=_json(document)),
    ]


def blob_name(blob: Blob) -> str:
    """Return where a layout keeps a blob."""
    return f"blobs/sha256/{blob.digest.removeprefix('sha256:')}"


def full_name(reference: str) -> str:
    """Return the name as containerd keeps it: with a registry.

    A first part with a dot or a colon, or ``localhost``, is a registry; anything else
    belongs to Docker's, where a name of one part is in the folder ``library``.
    """
    first, slash, _ = reference.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        return reference
    return f"docker.io/{reference}" if slash else f"docker.io/library/{reference}"


def _descriptor(media_type: str, blob: Blob) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": blob.digest, "size": blob.size}


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
