"""Processes on an emulated card, driven line by line."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from testbed.native import card

#: Bounds a hang and nothing else: a busy machine takes its time.
TIMEOUT_S = 180
WORKER = Path(__file__).with_name("worker_main.py")
#: A PID namespace of its own, as every container has: its first process is pid 1.
OWN_NAMESPACE = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child")


class Failed(AssertionError):
    """The code raised in its process."""


def children_of(pid: int) -> list[int]:
    """The processes that a process started: inside ``unshare``, the one that counts."""
    try:
        return [int(n) for n in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def _alive(pid: int) -> bool:
    """Whether anything of a process runs: its first thread may be a zombie before the others."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state != "Z" or len(list(Path(f"/proc/{pid}/task").iterdir())) > 1
    except (FileNotFoundError, ProcessLookupError):
        return False


class Worker:
    """A process that runs code for a test."""

    def __init__(self, command: list[str], environment: Mapping[str, str], stderr: Path) -> None:
        self.stderr = stderr
        self._errors = stderr.open("wb")
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=dict(environment),
            start_new_session=True,
        )
        self._buffer = b""

    def send(self, code: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(textwrap.dedent(code).strip()).encode() + b"\n")
        self.process.stdin.flush()

    def answers_within(self, seconds: float) -> bool:
        assert self.process.stdout is not None
        return bool(select.select([self.process.stdout.fileno()], [], [], seconds)[0])

    def receive(self) -> Any:
        assert self.process.stdout is not None
        descriptor = self.process.stdout.fileno()
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([descriptor], [], [], TIMEOUT_S)
            if not ready:
                raise Failed(f"no answer in {TIMEOUT_S} s; {self.log()}")
            data = os.read(descriptor, 65536)
            if not data:
                raise Failed(f"ended with {self.process.wait(TIMEOUT_S)}: {self.log()}")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        answer = json.loads(line)
        if "error" in answer:
            raise Failed(answer["error"])
        return answer["value"]

    def __call__(self, code: str) -> Any:
        self.send(code)
        return self.receive()

    def log(self) -> str:
        return self.stderr.read_text(errors="replace")

    def kill(self) -> None:
        """Kill the process, and wait until it is gone in its own namespace as well."""
        inner = children_of(self.process.pid)
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(TIMEOUT_S)
        deadline = time.monotonic() + TIMEOUT_S
        while any(_alive(pid) for pid in inner):
            assert time.monotonic() < deadline, f"{inner} outlived a kill"
            time.sleep(0.005)

    def close(self) -> None:
        """End the process and look at what it left on standard error."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        if self.process.poll() is None:
            try:
                code = self.process.wait(TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.kill()
                raise
            assert code == 0, self.log()
        self.process.stdout.close()
        self._errors.close()
        text = self.log()
        assert "Sanitizer" not in text and "runtime error" not in text, text


@dataclass
class Emulation:
    """A driver root and the processes that a test starts on it."""

    root: Path
    uuids: tuple[str, ...]
    preload: str = ""
    workers: list[Worker] = field(default_factory=list)

    def environment(self, **more: str) -> dict[str, str]:
        path = os.environ["PATH"]
        clean = {"PATH": path, "LD_LIBRARY_PATH": str(self.root / "driver"), "HOME": "/tmp"}
        if self.preload:
            clean["ASAN_OPTIONS"] = "detect_leaks=0:allocator_may_return_null=1"
            clean["UBSAN_OPTIONS"] = "halt_on_error=1:print_stacktrace=1"
        return clean | more

    def command(self, *program: str, own_namespace: bool = False) -> list[str]:
        prefix = OWN_NAMESPACE if own_namespace else ()
        preload = ("env", f"LD_PRELOAD={self.preload}") if self.preload else ()
        return [*prefix, *preload, *program]

    def start(self, *, own_namespace: bool = False, **environment: str) -> Worker:
        stderr = self.root / f"worker-{len(self.workers)}.log"
        worker = Worker(
            self.command(sys.executable, str(WORKER), own_namespace=own_namespace),
            self.environment(**environment),
            stderr,
        )
        self.workers.append(worker)
        return worker

    def card(self, index: int = 0) -> Path:
        return self.root / "cards" / self.uuids[index]

    def state(self, index: int = 0) -> card.CardState:
        return card.read(self.card(index) / "state")

    def close(self) -> None:
        errors = []
        for worker in self.workers:
            try:
                worker.close()
            except (AssertionError, OSError, subprocess.TimeoutExpired) as error:
                errors.append(error)
            finally:
                if worker.process.poll() is None:
                    worker.kill()
        assert not errors, errors
