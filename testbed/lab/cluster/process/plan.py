"""What a pid 1 sets up and supervises: values here, JSON for ``inside/init.py``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

#: The whole environment of everything inside: no proxy, no home, no locale of the user.
ENVIRONMENT = {"HOME": "/root", "LANG": "C.UTF-8", "TMPDIR": "/tmp"}


@dataclass(frozen=True, slots=True)
class Step:
    """A command, and what to run when it fails (nothing, where that is fine)."""

    run: tuple[str, ...]
    otherwise: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A program that pid 1 keeps running, or runs until it worked once."""

    name: str
    argv: tuple[str, ...]
    log: str
    wait: tuple[str, ...] = ()
    before: tuple[Step, ...] = ()
    once: bool = False
    listen: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All that one pid 1 does."""

    status: str
    hostname: str
    environment: dict[str, str]
    setup: tuple[Step, ...] = ()
    services: tuple[Service, ...] = field(default=())

    def json(self) -> str:
        return json.dumps(asdict(self), indent=1)


def step(*run: str) -> Step:
    """Return a step that must work."""
    return Step(run)


def optional(*run: str) -> Step:
    """Return a step that may fail."""
    return Step(run, ())


def tmpfs(path: str, mode: str = "755") -> Step:
    return step("mount", "-n", "-t", "tmpfs", "-o", f"mode={mode}", "tmpfs", path)


def hidden(paths: Sequence[str]) -> list[Step]:
    """Return steps that put an empty folder over folders that hold people's files."""
    return [
        Step(("mount", "-n", "-t", "tmpfs", "-o", "mode=755", "tmpfs", each), ()) for each in paths
    ]


#: What of the host nobody inside has to do with: a pod may ask for any hostPath.
PRIVATE = ("/home", "/root", "/srv", "/media")
