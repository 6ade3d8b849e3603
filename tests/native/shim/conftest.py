from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import shim_harness as harness
from shim_harness import GIB, Container

from testbed.native.region import RegionConstant, RegionDevice, make_region

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="no C compiler")


@pytest.fixture(params=["plain", "sanitized"])
def sanitized(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "sanitized")


@pytest.fixture
def container(tmp_path: Path, sanitized: bool) -> Callable[..., Container]:
    """Make a container of the driver double with limits by region, environment or neither."""
    count = 0

    def make(
        *limits: int,
        by: str = "region",
        cards: int = 1,
        oversubscribe: bool = False,
        uuid: Callable[[int], str] = harness.fake_uuid,
        **env: str,
    ) -> Container:
        nonlocal count
        count += 1
        folder = tmp_path / f"container-{count}"
        folder.mkdir()
        card = tmp_path / "card"
        card.touch()
        library = harness.shim(sanitized=sanitized)
        environment = {
            **harness.preload_of(library, sanitized=sanitized),
            "LD_LIBRARY_PATH": str(harness.fake_driver()),
            "FAKE_CARD": str(card),
            "FAKE_COUNT": str(max(cards, len(limits))),
            **env,
        }
        region = None
        if by == "region":
            devices = tuple(
                RegionDevice(uuid=uuid(i), memory_limit_bytes=limit)
                for i, limit in enumerate(limits)
            )
            constant = RegionConstant(devices=devices, oversubscribe=oversubscribe)
            region = make_region(folder, "cache", constant)
            environment["CUDA_DEVICE_MEMORY_SHARED_CACHE"] = str(region)
        elif by == "environment":
            for i, limit in enumerate(limits):
                environment[f"CUDA_DEVICE_MEMORY_LIMIT_{i}"] = f"{limit >> 20}m"
        return Container(
            library=library,
            driver=harness.fake_driver(),
            environment=environment,
            region=region,
            sanitized=sanitized,
        )

    return make


@pytest.fixture
def gibibyte(container: Callable[..., Container]) -> Container:
    """A container with a limit of 1 GiB on a card of 16 GiB."""
    return container(GIB)
