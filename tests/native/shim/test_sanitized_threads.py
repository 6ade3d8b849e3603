"""Threads of one process under the thread sanitizer, with every kind of call at once.

What several processes share is not its business: it sees one. Between threads every race that
it reports is a defect; nothing is suppressed.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import shim_harness as harness
from shim_harness import MIB, NATIVE

sys.path.append(str(harness.HERE.parent / "emu"))

import variant

from testbed.card import driver_root
from testbed.card.spec import CardSpec
from testbed.native import artifacts, build, page
from testbed.native.region import (
    Policy,
    RegionConstant,
    RegionDevice,
    make_region,
    read_region,
    set_compute,
    set_memory,
)

FLAGS = ("-O1", "-fsanitize=thread")
#: It wants its shadow memory at fixed addresses, which a random layout may have taken.
FIXED = ("setarch", "-R")
ROUNDS = 60
RACE = 66
BETWEEN_S = 0.02

pytestmark = pytest.mark.skipif(
    shutil.which("gcc") is None or shutil.which("setarch") is None,
    reason="needs gcc and setarch (util-linux)",
)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("program") / "all_calls"
    source = str(harness.HERE / "threads" / "all_calls.c")
    flags = ("-std=gnu11", "-Wall", "-Wextra", "-Werror", "-g", *FLAGS)
    command = ["gcc", *flags, source, "-pthread", "-ldl", "-o", str(made)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=harness.DEADLINE, check=False
    )
    if "libtsan" in done.stderr:
        pytest.skip("the compiler came without the thread sanitizer")
    assert done.returncode == 0, done.stderr
    return made


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The emulated driver, sanitized too: threads hand each other memory in it."""
    build.build(["emu"])
    folder = variant.build(tmp_path_factory.mktemp("driver"), flags=(*FLAGS, "-Wno-tsan"))
    shutil.copy(artifacts.library("libnvidia-ml.so.1"), folder)
    return folder


def library(sources: Path) -> Path:
    return harness.compile_(
        Path("libvgpu.so"),
        sorted(sources.glob("*.c")),
        *(*harness.STRICT, *FLAGS, "-fvisibility=hidden"),
        *(f"-I{sources}", f"-I{NATIVE / 'include'}", *harness.SHIM_LINK),
    )


@dataclass
class Outcome:
    status: int
    errors: str
    launches: int
    refused: int


@dataclass(frozen=True, kw_only=True)
class Ground:
    """One container of one emulated card."""

    folder: Path
    driver: Path
    memory: int = 64 << 30
    cores: int = 0
    #: Percent: what becomes of both limits, one after the other, while the program runs.
    changes: Sequence[int] = ()

    def run(self, program: Path, shim: Path) -> Outcome:
        root = self.folder / "root"
        spec = CardSpec(profile="a100-80gb", count=1)
        (uuid,) = driver_root.make(root, [spec], budget_bytes=64 * MIB)
        page.make_page(self.folder / "pages" / f"{uuid}.page", uuid)
        device = RegionDevice(uuid=uuid, memory_limit_bytes=self.memory, sm_limit_pct=self.cores)
        constant = RegionConstant(
            devices=(device,), pod_uid="pod", container_name="main", policy=Policy.FORCE
        )
        (self.folder / "c").mkdir()
        region = make_region(self.folder / "c", "cache", constant)
        errors = self.folder / "errors"
        with errors.open("w") as file:
            running = subprocess.Popen(
                [*FIXED, str(program), str(ROUNDS)],
                env={
                    "PATH": os.environ["PATH"],
                    "LD_LIBRARY_PATH": str(self.driver),
                    "LD_PRELOAD": str(shim),
                    "VGPU_EMU_CARDS": str(root / "cards"),
                    "VGPU_PAGE_FOLDER": str(self.folder / "pages"),
                    "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(region),
                    "TSAN_OPTIONS": f"exitcode={RACE}:halt_on_error=1",
                },
                stderr=file,
            )
            try:
                self._change_while(running, region)
                running.wait(timeout=harness.DEADLINE)
            finally:
                running.kill()
                running.wait()
        view = read_region(region)
        return Outcome(
            running.returncode, errors.read_text(), view.compute[0].launches, view.denied[0]
        )

    def _change_while(self, running: subprocess.Popen[bytes], region: Path) -> None:
        for limit in itertools.cycle(self.changes):
            with contextlib.suppress(subprocess.TimeoutExpired):
                running.wait(timeout=BETWEEN_S)
                return
            set_memory(region, {0: self.memory * limit // 100})
            set_compute(region, sm_limit_pct={0: limit})


GROUNDS: dict[str, dict[str, Any]] = {
    "unlimited share": {},
    "full card": {"memory": 700 * MIB},
    "share": {"cores": 50},
    "limits that change": {"memory": 4 << 30, "cores": 50, "changes": (100, 30, 70)},
}


@pytest.mark.parametrize("name", GROUNDS)
def test_no_race(tmp_path: Path, program: Path, driver: Path, name: str) -> None:
    ground = Ground(folder=tmp_path, driver=driver, **GROUNDS[name])
    outcome = ground.run(program, library(NATIVE / "shim"))
    assert (outcome.status, outcome.errors) == (0, "")
    assert outcome.launches > ROUNDS, "the library was not there"
    if ground.memory < 1 << 30:
        assert outcome.refused > 0, "the limit was not met"


def test_it_would_tell(tmp_path: Path, program: Path, driver: Path) -> None:
    """Control: a library whose lock keeps nobody out."""
    sources = tmp_path / "shim"
    shutil.copytree(NATIVE / "shim", sources)
    text = (sources / "sys.h").read_text()
    taking = "static inline void vgpu_lock(struct vgpu_lock *lock) {\n    int seen = 0;\n"
    assert text.count(taking) == 1
    text = text.replace(taking, taking + "    if (lock != NULL) return;\n")
    (sources / "sys.h").write_text(text)
    ground = Ground(folder=tmp_path, driver=driver, cores=50)
    outcome = ground.run(program, library(sources))
    assert outcome.status == RACE
    assert "ThreadSanitizer: data race" in outcome.errors
