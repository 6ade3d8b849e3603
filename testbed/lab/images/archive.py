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
    digest = _digest(content)
    config = _json(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": settings.document(),
            "rootfs": {"type": "layers", "diff_ids": [digest]},
        }
    )
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": f"{_MEDIA}.manifest.v1+json",
            "config": _descriptor(f"{_MEDIA}.config.v1+json", config),
            "layers": [_descriptor(f"{_MEDIA}.layer.v1.tar", content)],
        }
    )
    index = {
        "schemaVersion": 2,
        "manifests": [
            {
                **_descriptor(f"{_MEDIA}.manifest.v1+json", manifest),
                "platform": {"architecture": "amd64", "os": "linux"},
                "annotations": {
                    "io.containerd.image.name": full_name(reference),
                    "org.opencontainers.image.ref.name": reference.rpartition(":")[2],
                },
            }
        ],
    }
    blobs = [
        Entry(name=f"blobs/sha256/{_digest(blob).removeprefix('sha256:')}", mode=0o644, data=blob)
        for blob in (config, manifest, content)
    ]
    files = [
        Entry(name="oci-layout", mode=0o644, data=_json({"imageLayoutVersion": "1.0.0"})),
        Entry(name="index.json", mode=0o644, data=_json(index)),
    ]
    folders = [Entry(name="blobs"), Entry(name="blobs/sha256")]
    path.write_bytes(layer([*files, *folders, *blobs]))


def full_name(reference: str) -> str:
    """Return the name as containerd keeps it: with a registry.

    A first part with a dot or a colon, or ``localhost``, is a registry; anything else
    belongs to Docker's, where a name of one part is in the folder ``library``.
    """
    first, slash, _ = reference.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        return reference
    return f"docker.io/{reference}" if slash else f"docker.io/library/{reference}"


def _descriptor(media_type: str, blob: bytes) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": _digest(blob), "size": len(blob)}


def _digest(blob: bytes) -> str:
    return f"sha256:{hashlib.sha256(blob).hexdigest()}"


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
