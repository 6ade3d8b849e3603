"""Threads of one process under the thread sanitizer."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import variant
from emu_harness import TIMEOUT_S, Emulation

HERE = Path(__file__).parent
FLAGS = ("-O1", "-fsanitize=thread")
#: It wants its shadow memory at fixed addresses, which a random layout may have taken.
FIXED = ("setarch", "-R")

pytestmark = pytest.mark.parametrize("libraries", ["plain"], indirect=True)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("threads") / "threads"
    source = str(HERE / "threads.c")
    command = ["cc", *FLAGS, source, "-pthread", "-ldl", "-o", str(made)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    if "libtsan" in done.stderr:
        pytest.skip("the compiler came without the thread sanitizer")
    assert done.returncode == 0, done.stderr
    assert shutil.which(FIXED[0]), "setarch is part of util-linux"
    return made


def run(emulation: Emulation, program: Path, driver: Path) -> subprocess.CompletedProcess[str]:
    environment = emulation.environment(
        LD_LIBRARY_PATH=str(driver),
        VGPU_EMU_CARDS=str(emulation.root / "cards"),
        TSAN_OPTIONS="exitcode=66:halt_on_error=1",
    )
    return subprocess.run(
        [*FIXED, str(program), "300"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )


def test_threads_of_a_process(emulation: Emulation, program: Path, tmp_path: Path) -> None:
    driver = variant.build(tmp_path / "sanitized", flags=FLAGS)
    done = run(emulation, program, driver)
    assert (done.returncode, done.stderr) == (0, "")


def test_it_would_tell(emulation: Emulation, program: Path, tmp_path: Path) -> None:
    """Control: a driver without its lock."""
    unlocked = [("    pthread_mutex_lock(&lock);", ""), ("    pthread_mutex_unlock(&lock);", "")]
    driver = variant.build(tmp_path / "broken", replace={"init.c": unlocked}, flags=FLAGS)
    done = run(emulation, program, driver)
    assert done.returncode == 66
    assert "ThreadSanitizer: data race" in done.stderr
