"""Stand-ins for what programs come from: the network, and a compiler."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.errors import TestbedError
from testbed.lab.binaries import versions


class Sources:
    """Notes what was asked for; programs that it gives say their version and do nothing."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
        self.asked: list[str] = []
        self.route = True
        self.broken = False
        #: What programs say instead of the version that is wanted.
        self.version: str | None = None

    def came(self, what: str) -> None:
        """Note a download that is complete.

        Raises:
            TestbedError: it is to be refused.
        """
        self.asked.append(f"download {what}".rstrip())
        if self.broken:
            raise TestbedError("refused it", why="checksum")

    def program(self, path: Path) -> None:
        wanted = {"etcd": versions.ETCD, "kind": versions.KIND, "crictl": versions.CRICTL}
        version = wanted.get(path.name, versions.CONTAINERD)
        if path.name in versions.KUBERNETES_PROGRAMS:
            version = versions.KUBERNETES
        path.write_text(f"#!/bin/sh\necho {path.name} version v{self.version or version}\n")
        path.chmod(0o755)
