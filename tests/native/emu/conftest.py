"""Emulated cards for tests; every test runs on the plain and on the sanitized build."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from emu_harness import Emulation, Worker

from testbed.card import CardSpec, driver_root
from testbed.native import build


@pytest.fixture(scope="session", params=["plain", "sanitized"])
def libraries(request: pytest.FixtureRequest) -> Path:
    """Folder of the built libraries."""
    return build.build(["emu"], sanitize=request.param == "sanitized")


def _preload(libraries: Path) -> str:
    if libraries.name != "sanitized":
        return ""
    # Python is not linked with the sanitizers' runtime, so it has to come first.
    names = [
        subprocess.run(
            ["cc", f"-print-file-name={name}"], check=True, capture_output=True, text=True
        ).stdout.strip()
        for name in ("libasan.so", "libubsan.so")
    ]
    return ":".join(names)


@pytest.fixture
def make_emulation(
    libraries: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Emulation]]:
    """Makes a driver root; its processes are ended with the test."""
    monkeypatch.setenv("VGPU_TESTBED_NATIVE", str(libraries))
    made: list[Emulation] = []

    def make(count: int = 1, budget_bytes: int | None = None) -> Emulation:
        root = tmp_path / f"root-{len(made)}"
        uuids = driver_root.make(root, [CardSpec(count=count)], budget_bytes=budget_bytes)
        made.append(Emulation(root, uuids, _preload(libraries)))
        return made[-1]

    yield make
    for emulation in made:
        emulation.close()


@pytest.fixture
def emulation(make_emulation: Callable[..., Emulation]) -> Emulation:
    """One A100 of 80 GB."""
    return make_emulation()


@pytest.fixture
def worker(emulation: Emulation) -> Worker:
    """A process with a primary context."""
    started = emulation.start()
    started("context()")
    return started
