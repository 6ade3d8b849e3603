"""Every hook of the table, called with nothing and from small stacks, keeps to itself.

A bare driver answers a call of zeros with an error: so it must with the library in between. What
the library adds to a thread's stack is little (programs make threads with 16 KiB of it), and errno
is the program's, but for what the driver itself does to it.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import shim_harness as harness
from shim_harness import GIB, Container
from test_emulated import Emulated

from testbed.native import build

#: Of a frame of the library, and what all its frames may add to a call.
FRAME, ADDED = 4 << 10, 10 << 10
ROOMY_KIB = 512


@pytest.fixture
def container(tmp_path: Path, sanitized: bool) -> Container:
    build.build(["emu"])
    return Emulated(tmp_path, (8 * GIB,), sanitized=sanitized).container


def calls(container: Container, stack_kib: int) -> list[dict[str, Any]]:
    """Return what became of each call; a call that crashes is named by the failure."""
    program = harness.compile_(
        Path("hook"),
        [harness.HERE / "every" / "hook.c"],
        *("-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"),
        f"-I{harness.NATIVE / 'shim'}",
        "-ldl",
    )
    done = subprocess.run(
        [str(program), str(stack_kib)],
        env={**container.base(), **container.environment},
        capture_output=True,
        text=True,
        timeout=harness.DEADLINE,
        check=False,
    )
    assert done.returncode == 0, f"after {done.stderr.splitlines()[-1:]}: {done.returncode}"
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_nothing_is_answered_as_the_driver_does_and_errno_kept(container: Container) -> None:
    with_it = calls(container, ROOMY_KIB)
    bare = calls(container.without_library(), ROOMY_KIB)
    assert len(bare) > 190
    for mine, drivers in zip(with_it, bare, strict=True):
        assert (mine["name"], mine["code"]) == (drivers["name"], drivers["code"])
        assert mine["errno"] in {77, drivers["errno"]}, mine["name"]
        if not container.sanitized:
            assert mine["stack"] <= drivers["stack"] + ADDED, mine["name"]


def test_a_small_stack_does(container: Container) -> None:
    """The driver's own need of the largest call and little more, in threads of the least size."""
    if container.sanitized:
        pytest.skip("the sanitizer's frames are larger")
    needed = max(row["stack"] for row in calls(container.without_library(), ROOMY_KIB))
    assert calls(container, (needed + ADDED) // 1024 + 4)


def frames(source: Path, folder: Path) -> dict[str, int]:
    """Return how much of the stack each function (file:line:column:name) takes, bytes."""
    flags = [*harness.STRICT, "-O2", "-fvisibility=hidden", f"-I{harness.NATIVE / 'include'}"]
    command = ["gcc", *flags, "-fstack-usage", "-c", str(source), "-o", str(folder / "one.o")]
    subprocess.run([*command, f"-I{harness.NATIVE / 'shim'}"], check=True, timeout=240)
    rows = [line.split("\t") for line in (folder / "one.su").read_text().splitlines()]
    return {place: int(taken) for place, taken, _ in rows}


def test_no_frame_is_large(tmp_path: Path) -> None:
    taken: dict[str, int] = {}
    for source in sorted((harness.NATIVE / "shim").glob("*.c")):
        taken |= frames(source, tmp_path)
    assert len(taken) > 300
    assert {name: size for name, size in taken.items() if size > FRAME} == {}


def test_control_a_large_frame_is_seen(tmp_path: Path) -> None:
    source = tmp_path / "large.c"
    source.write_text(
        "void use(char *at);\nvoid f(void);\nvoid f(void) { char all[5000]; use(all); }\n"
    )
    assert max(frames(source, tmp_path).values()) > FRAME
