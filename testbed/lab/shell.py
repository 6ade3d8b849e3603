"""One process on emulated cards, without a cluster: driver, PyTorch, and the limiter if wanted."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from testbed.card import driver_root
from testbed.card.spec import CardSpec
from testbed.errors import InputError, MissingTool
from testbed.lab.cluster.protocol import Progress
from testbed.lab.command import uninterrupted
from testbed.lab.images import pytorch
from testbed.native import artifacts, card
from testbed.native.region import Policy, RegionConstant, RegionDevice, make_region
from testbed.stack import names
from testbed.stack.codec.environment import container_environment
from testbed.stack.model import Share
from testbed.units import MIB

_PREFIX = "vgpu-card-"
_LOCK = ".in-use"
_LIBRARY = "libvgpu.so"
_HIDING = {*names.ENV_LIBRARY, names.ENV_VISIBLE, "CUDA_VISIBLE_DEVICES", "VGPU_EMU_CARDS"} - {
    names.ENV_LOG_LEVEL  # that is asked for
}
POLICIES = tuple(policy.name.lower() for policy in Policy)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the limiter shall hold the processes to, on each card.

    Attributes:
        mem_mib: 0 leaves the whole card.
        core_pct: 0 or 100 leave all of its time.
        policy: ``default``, ``force``, ``disable``.
        oversubscribe: ``mem_mib`` may be above the card; what does not fit lies outside it.
    """

    mem_mib: int = 0
    core_pct: int = 0
    policy: str = "default"
    oversubscribe: bool = False

    def __post_init__(self) -> None:
        if self.mem_mib < 0 or not 0 <= self.core_pct <= 100:
            raise InputError(
                f"limits of {self.mem_mib} MiB and {self.core_pct} % are not possible",
                hint="memory in MiB from 0, cores from 0 to 100",
            )
        if self.policy not in POLICIES:
            raise InputError(
                f"there is no policy {self.policy!r}", hint="one of " + ", ".join(POLICIES)
            )

    @property
    def any(self) -> bool:
        return bool(self.mem_mib or self.core_pct)


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """Cards that exist while it is open.

    Attributes:
        root: The driver root.
        models: Each card's model, in order.
        uuids: Likewise.
        environ: The whole environment for a process on them.
        torch: Whether its ``python`` has PyTorch.
    """

    root: Path
    models: tuple[str, ...]
    uuids: tuple[str, ...]
    environ: Mapping[str, str]
    torch: bool


@contextlib.contextmanager
def session(
    cards: Sequence[CardSpec],
    progress: Progress,
    *,
    limits: Limits | None = None,
    with_torch: bool = True,
    clock: str = "",
) -> Iterator[Session]:
    """Make cards and what a process needs to use them; all is gone afterwards.

    Args:
        cards: Which.
        progress: Told what has to be made first.
        limits: What the limiter holds every process to; without it there is no limiter.
        with_torch: Put the PyTorch environment first on PATH.
        clock: ``slices`` or ``sharing``; empty for the default.

    Raises:
        InputError: cards or limits that there cannot be.
        MissingTool: a library has not been built.
        TestbedError: PyTorch cannot be had.
    """
    environment = pytorch.prepare(progress) if with_torch else None
    _sweep()
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    with contextlib.ExitStack() as ending:
        ending.callback(shutil.rmtree, folder, ignore_errors=True)
        new = folder / f"{_LOCK}.new"
        lock = ending.enter_context(new.open("w"))
        fcntl.flock(lock, fcntl.LOCK_EX)
        new.rename(folder / _LOCK)  # only now another session may ask whether we live
        root = folder / "root"
        with _clock(clock):
            uuids = driver_root.make(root, cards)
        environ = {**os.environ, **_libraries(root, environment)}
        _forget(environ)
        if environment is not None:
            environ["PATH"] = f"{environment / 'bin'}:{environ.get('PATH', os.defpath)}"
        if limits is not None and limits.any:
            environ.update(_limiter(folder, root, uuids, limits))
        yield Session(
            root=root,
            models=tuple(_state(root, each).description.name for each in uuids),
            uuids=uuids,
            environ=environ,
            torch=environment is not None,
        )


def run(command: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run a command as a shell would: Ctrl-C is its own; return its exit status.

    Raises:
        MissingTool: there is no such program.
    """
    program = shutil.which(command[0], path=environ.get("PATH"))
    if program is None:
        raise MissingTool(f"there is no program {command[0]!r}")
    # Not ignored: that the command would inherit; a handler it does not.
    kept = {
        each: signal.signal(each, _leave_it)
        for each in (signal.SIGINT, signal.SIGQUIT)
        if signal.getsignal(each) is not signal.SIG_IGN
    }
    process: subprocess.Popen[bytes] | None = None
    try:
        with uninterrupted():
            process = subprocess.Popen([program, *command[1:]], env=dict(environ))
        code = process.wait()
    except BaseException:  # SIGTERM or SIGHUP of our own
        if process is not None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5)
            process.kill()
            process.wait()
        raise
    finally:
        for each, handler in kept.items():
            signal.signal(each, handler)
    return 128 - code if code < 0 else code


def _leave_it(number: int, frame: FrameType | None) -> None:
    """A key that was pressed is the command's affair."""
    del number, frame


def _state(root: Path, name: str) -> card.CardState:
    return card.read(root / "cards" / name / "state")


@contextlib.contextmanager
def _clock(clock: str) -> Iterator[None]:
    """Say to what makes the cards which clock they run by."""
    variable = "VGPU_EMU_CLOCK"
    before = os.environ.get(variable)
    if clock:
        os.environ[variable] = clock
    try:
        yield
    finally:
        if clock and before is None:
            del os.environ[variable]
        elif before is not None:
            os.environ[variable] = before


def _forget(environ: dict[str, str]) -> None:
    """Take out what hides the cards: a person's habits, and a session that this one is in."""
    for name in list(environ):
        common = name.rstrip("0123456789").rstrip("_")
        if common in _HIDING:
            del environ[name]
    preload = [
        each
        for each in environ.pop("LD_PRELOAD", "").replace(":", " ").split()
        if Path(each).name != _LIBRARY
    ]
    if preload:
        environ["LD_PRELOAD"] = " ".join(preload)


def _libraries(root: Path, environment: Path | None) -> dict[str, str]:
    if environment is None:
        return {"LD_LIBRARY_PATH": str(root / "driver")}
    return dict(pytorch.host_command(environment, root).environ)


def _limiter(folder: Path, root: Path, uuids: Sequence[str], limits: Limits) -> dict[str, str]:
    """Make a region as the device plugin would, and say where it is."""
    sizes = []
    for name in uuids:
        description = _state(root, name).description
        whole = (description.memory_bytes - description.reserved_bytes) // MIB
        sizes.append(limits.mem_mib or whole)
        if limits.mem_mib > whole and not limits.oversubscribe:
            raise InputError(
                f"{limits.mem_mib:,} MiB are more than a card has",
                why=f"programs see {whole:,} MiB of {description.name}",
                hint="--oversubscribe lets the rest lie outside the card",
            )
    own = folder / "container"
    own.mkdir(mode=0o777)
    constant = RegionConstant(
        devices=tuple(
            RegionDevice(uuid=name, memory_limit_bytes=mib * MIB, sm_limit_pct=limits.core_pct)
            for name, mib in zip(uuids, sizes, strict=True)
        ),
        pod_name="card-shell",
        container_name="shell",
        policy=Policy[limits.policy.upper()],
        oversubscribe=limits.oversubscribe,
    )
    region = make_region(own, str(uuid.uuid4()), constant)
    shares = tuple(
        Share(uuid=name, mem_mib=mib, core_pct=limits.core_pct)
        for name, mib in zip(uuids, sizes, strict=True)
    )
    variables = container_environment(
        shares, cache_uuid="", core_policy=limits.policy, oversubscribe=limits.oversubscribe
    )
    variables[names.ENV_SHARED_CACHE] = str(region)
    # Not by /etc/ld.so.preload, which is the machine's.
    others = os.environ.get("LD_PRELOAD", "").replace(":", " ").split()
    kept = [each for each in others if Path(each).name != _LIBRARY]
    variables["LD_PRELOAD"] = " ".join([str(artifacts.library(_LIBRARY)), *kept])
    return variables


def _sweep() -> None:
    """Remove what sessions that were killed have left."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        try:
            if folder.stat().st_uid != os.geteuid():
                continue
            with (folder / _LOCK).open() as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue  # in use, or just being made or removed
