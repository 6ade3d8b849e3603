"""Where ``testbed bench shim`` takes place: a card, containers on it, their feedback.

All of it is thrown away: a driver root, regions and card pages as the device plugin makes
them, and a small process that writes NVML's samples into the regions as the monitor does.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from testbed.card.spec import CardSpec
from testbed.errors import TestbedError
from testbed.lab import shell
from testbed.lab.bench import feeder
from testbed.lab.bench.scheduled import scheduled
from testbed.lab.bench.shim_rows import Run, Shares, settled, shares_between
from testbed.lab.cluster.protocol import Progress
from testbed.native import artifacts, card, page
from testbed.native.region import (
    Policy,
    RegionConstant,
    RegionDevice,
    make_region,
    set_compute,
)
from testbed.stack import names
from testbed.stack.codec.environment import container_environment, region_name
from testbed.stack.model import Share
from testbed.stack.monitor.regions import region_path
from testbed.units import MIB

PROGRAM = "vgpu-bench-shim"
#: From when tenants begin until shares are measured, s: alone, and beside a neighbour.
SETTLE_S = {1: 1.0, 2: 3.0}
_ANSWER_S = 30.0
#: A step of the limit: its kernels, how long the tenant works before and after it, and how
#: often it is looked at.
_STEP_KERNEL_US, _STEP_BEFORE_S, _STEP_AFTER_S, _STEP_LOOK_S = 1000, 2.0, 4.0, 0.05
#: A look at the book that took longer than this is made again: its time is not known well.
_LOOK_NS = 2_000_000


@dataclass(slots=True)
class Ground:
    """A card, and what is needed to run tenants on it.

    Attributes:
        root: The driver root.
        uuid: The card's.
        library: What is put between the tenants and the driver.
    """

    root: Path
    folder: Path
    uuid: str
    library: Path
    program: Path
    feeder: subprocess.Popen[str]
    _made: int = 0

    @property
    def description(self) -> card.CardDescription:
        return self._state().description

    def _state(self) -> card.CardState:
        return card.read(self.root / "cards" / self.uuid / "state")

    def lapped(self) -> int:
        """Return how often the card's time had to be interpolated."""
        return self._state().lapped

    def variables(self, *, limit_pct: int | None, mem_mib: int = 0) -> tuple[str, dict[str, str]]:
        """Make a container; return its pod's uid and a process's whole environment.

        Args:
            limit_pct: Its share, 0 for none; None for a process without the library.
            mem_mib: Its memory, 0 for all.
        """
        self._made += 1
        uid = f"bench-{self._made}"
        environ = {
            "PATH": os.environ.get("PATH", os.defpath),
            "LD_LIBRARY_PATH": str(self.root / "driver"),
            "VGPU_EMU_LOG": "error",
        }
        if limit_pct is None:
            return uid, environ
        region = region_path(self.folder, (uid, feeder.CONTAINER))
        region.parent.mkdir(parents=True)
        device = RegionDevice(
            uuid=self.uuid, memory_limit_bytes=mem_mib * MIB, sm_limit_pct=limit_pct
        )
        make_region(
            region.parent,
            region_name(uid, feeder.CONTAINER),
            RegionConstant(
                devices=(device,),
                pod_uid=uid,
                pod_name=uid,
                container_name=feeder.CONTAINER,
                policy=Policy.FORCE,
            ),
        )
        # What the plugin sets, for a library that reads no region of ours.
        share = Share(uuid=self.uuid, mem_mib=mem_mib, core_pct=limit_pct)
        environ |= container_environment((share,), cache_uuid="", core_policy="force")
        environ[names.ENV_SHARED_CACHE] = str(region)
        environ[names.ENV_PAGE_FOLDER] = str(self.folder / "pages")
        environ["LD_PRELOAD"] = str(self.library)
        return uid, environ

    def run(self, run: Run, *, seconds: float, library: bool, stopping: threading.Event) -> Shares:
        """Run tenants together and return what the card granted to each.

        Args:
            run: The tenants.
            seconds: Over how long.
            library: Put the library between them and the driver.
            stopping: Set when nobody waits for this any more.

        Raises:
            TestbedError: one of them ended, or nobody waits any more.
        """
        with contextlib.ExitStack() as ending:
            tenants = []
            for limit in run.limits:
                uid, environ = self.variables(limit_pct=limit if library else None)
                tenant = ending.enter_context(_tenant(self._command(run), environ))
                tenants.append((uid, tenant))
            self._tell({tenant.pid: uid for uid, tenant in tenants} if library else {})
            for _, tenant in tenants:
                _write(tenant, "go\n")
            _pause(SETTLE_S[len(tenants)] if library else 0.5, stopping)
            pids = [tenant.pid for _, tenant in tenants]
            before = [_waited_ns(pid) for pid in pids]
            looks = [self._look()]
            for second in range(1, max(1, round(seconds)) + 1):
                _pause(looks[0][0] / 1e9 + second - time.monotonic(), stopping)
                looks.append(self._look())
            for _, tenant in tenants:
                if tenant.poll() is not None:
                    _, told = tenant.communicate(timeout=_ANSWER_S)
                    raise TestbedError("a tenant of the benchmark ended early", why=told.strip())
            waited = [
                after - start
                for start, after in zip(before, map(_waited_ns, pids), strict=True)
                if start is not None and after is not None
            ]
            return shares_between(looks, pids, waited if len(waited) == len(pids) else ())

    def step(self, before_pct: int, after_pct: int, *, change: bool) -> float | None:
        """Change the limit of a tenant that works; return after how long it holds, s.

        Args:
            before_pct: Its limit at first.
            after_pct: Its limit then.
            change: False looks at it all the same and changes nothing.

        Raises:
            TestbedError: it ended.
        """
        uid, environ = self.variables(limit_pct=before_pct)
        run = Run(limits=(before_pct,), kernel_us=_STEP_KERNEL_US, sync=False)
        with _tenant(self._command(run), environ) as tenant:
            self._tell({tenant.pid: uid})
            _write(tenant, "go\n")
            time.sleep(_STEP_BEFORE_S)
            if change:
                region = region_path(self.folder, (uid, feeder.CONTAINER))
                set_compute(region, sm_limit_pct={0: after_pct})
            changed_ns = time.monotonic_ns()
            looks = []
            while time.monotonic_ns() - changed_ns < _STEP_AFTER_S * 1e9:
                looks.append(self._look())
                time.sleep(_STEP_LOOK_S)
            if tenant.poll() is not None:
                _, told = tenant.communicate(timeout=_ANSWER_S)
                raise TestbedError("a tenant of the benchmark ended early", why=told.strip())
            return settled(looks, tenant.pid, changed_ns, after_pct)

    def _command(self, run: Run) -> list[str]:
        pattern = "sync" if run.sync else "deep"
        return [str(self.program), "tenant", str(run.kernel_us * 1000), pattern]

    def _tell(self, tenants: Mapping[int, str]) -> None:
        _write(self.feeder, json.dumps(tenants) + "\n")
        if _line(self.feeder) != "taken":
            _, told = self.feeder.communicate(timeout=_ANSWER_S)
            raise TestbedError("the feeder of the benchmark ended", why=told.strip()[-500:])

    def _look(self) -> tuple[int, dict[int, int]]:
        """Return device time by pid, ns, and when that was (CLOCK_MONOTONIC, ns)."""
        for _ in range(20):
            before = time.monotonic_ns()
            busy = {slot.pid: slot.busy_ns for slot in self._state().slots}
            after = time.monotonic_ns()
            if after - before < _LOOK_NS:
                break
        return after, busy


def _pause(seconds: float, stopping: threading.Event) -> None:
    if stopping.wait(max(0.0, seconds)):
        raise TestbedError("a run of the benchmark was given up", why="another one failed")


@contextlib.contextmanager
def ground(progress: Progress, *, library: Path, clock: str) -> Iterator[Ground]:
    """Make a card and what belongs to it; all is gone afterwards.

    Args:
        progress: Told what has to be made first.
        library: What is put between tenants and driver.
        clock: ``slices`` or ``sharing``.

    Raises:
        MissingTool: something has not been built.
        TestbedError: it cannot be made.
    """
    program = artifacts.library(PROGRAM)
    spec = [CardSpec(profile="a100-80gb", count=1)]
    with contextlib.ExitStack() as ending:
        session = ending.enter_context(shell.session(spec, progress, with_torch=False, clock=clock))
        (uuid,) = session.uuids
        folder = session.root.parent / "node"
        page.make_page(folder / "pages" / f"{uuid}.page", uuid)
        command = [sys.executable, "-m", feeder.__name__, str(session.root), str(folder)]
        process = ending.enter_context(_process(command, dict(os.environ)))
        found = Ground(
            root=session.root,
            folder=folder,
            uuid=uuid,
            library=library,
            program=program,
            feeder=process,
        )
        found._tell({})
        yield found


@contextlib.contextmanager
def _process(command: Sequence[str], environ: Mapping[str, str]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        command,
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        with contextlib.suppress(ValueError):  # its pipes were read to their end before
            process.communicate(timeout=_ANSWER_S)


@contextlib.contextmanager
def _tenant(command: Sequence[str], environ: Mapping[str, str]) -> Iterator[subprocess.Popen[str]]:
    with _process(command, environ) as process:
        if _line(process) != "ready":
            process.kill()
            _, told = process.communicate(timeout=_ANSWER_S)
            raise TestbedError("a tenant of the benchmark did not start", why=told.strip()[-500:])
        yield process


def _waited_ns(pid: int) -> int | None:
    """Return how long a process has waited for a processor, ns; None if nobody counts."""
    found = scheduled(pid)
    return found.waited_ns if found else None


def _line(process: subprocess.Popen[str]) -> str:
    """Return the next line that a process says; what it says besides is another's error."""
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], _ANSWER_S)
    return process.stdout.readline().strip() if ready else ""


def _write(process: subprocess.Popen[str], text: str) -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # that it has ended is seen where it answers
        process.stdin.write(text)
        process.stdin.flush()
