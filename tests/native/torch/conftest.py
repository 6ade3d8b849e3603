"""torch on emulated cards, without a cluster: each script in a process of its own."""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed.card import driver_root
from testbed.lab.cluster.protocol import CardSpec
from testbed.lab.images import pytorch
from testbed.lab.progress import QuietProgress
from testbed.units import GIB

DEADLINE_S = 240.0
#: Scripts read the card's size, never fill the host: 80 GiB of it are address space.
ADDRESS_SPACE = 512 * GIB
BUDGET = "1GiB"

PRELUDE = """
import json, os, sys
import torch
GIB, MIB = 1 << 30, 1 << 20
def say(**values):
    print(json.dumps(values), flush=True)
def until(word):
    assert sys.stdin.readline().strip() == word
def used(device=0):
    free, total = torch.cuda.mem_get_info(device)
    return total - free
def round_trip(mib=64):
    data = torch.randint(0, 255, (mib * MIB,), dtype=torch.uint8)
    return torch.equal(data.cuda().cpu(), data)
"""


class Script:
    """A running script that says one JSON object a line."""

    def __init__(self, command: list[str], environ: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            command,
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=_limit,
        )
        self._until = time.monotonic() + DEADLINE_S
        self._read = b""  # what it said and nobody has asked for yet
        self.errors = ""

    @property
    def pid(self) -> int:
        return self._process.pid

    def hears(self, word: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(word.encode() + b"\n")
        self._process.stdin.flush()

    def says(self) -> dict[str, Any]:
        """The next line; fails with the script's errors when it ends or is late."""
        assert self._process.stdout is not None
        while b"\n" not in self._read:
            left = max(0.0, self._until - time.monotonic())
            if not select.select([self._process.stdout], [], [], left)[0]:
                self.kill()
                pytest.fail(f"nothing said within {DEADLINE_S:g} s\n{self.errors}")
            part = os.read(self._process.stdout.fileno(), 1 << 16)
            if not part:
                self.ends()
                pytest.fail(f"ended without a word\n{self.errors}")
            self._read += part
        line, _, self._read = self._read.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found

    def ends(self) -> list[dict[str, Any]]:
        """Wait for a good end; what was said since."""
        try:
            out, errors = self._process.communicate(
                timeout=max(0.1, self._until - time.monotonic())
            )
        except subprocess.TimeoutExpired:
            self.kill()
            pytest.fail(f"no end within {DEADLINE_S:g} s\n{self.errors}")
        self.errors = errors.decode(errors="replace")
        assert self._process.returncode == 0, self.errors
        return [json.loads(line) for line in (self._read + out).splitlines()]

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
        out, errors = self._process.communicate()
        del out
        self.errors += errors.decode(errors="replace")


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


@pytest.fixture(scope="session")
def environment() -> Path:
    return pytorch.prepare(QuietProgress())


@pytest.fixture
def cards(tmp_path: Path) -> Callable[..., Path]:
    """Make a driver root with A100 cards of 80 GB."""

    def make(count: int = 1) -> Path:
        root = tmp_path / "root"
        driver_root.make(root, [CardSpec(profile="a100-80gb", count=count)])
        return root

    return make


Start = Callable[..., Script]


@pytest.fixture
def start(environment: Path) -> Iterator[Start]:
    """Start a script on a driver root; it is killed when the test ends before it."""
    running: list[Script] = []

    def run(root: Path, text: str, *, prelude: str = PRELUDE, **env: str) -> Script:
        command = pytorch.host_command(environment, root)
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("CUDA", "PYTORCH"))}
        environ = {
            **clean,
            **command.environ,
            "VGPU_EMU_MEMORY_BUDGET": BUDGET,
            "OMP_NUM_THREADS": "1",
            **env,
        }
        running.append(Script([*command.argv, "-c", prelude + text], environ))
        return running[-1]

    yield run
    for script in running:
        script.kill()


@pytest.fixture
def run(start: Start) -> Callable[..., dict[str, Any]]:
    """Run a script to its end; the last object that it said."""

    def to_the_end(root: Path, text: str, **env: str) -> dict[str, Any]:
        script = start(root, text, **env)
        *_, last = script.ends()
        return {**last, "errors": script.errors}

    return to_the_end
