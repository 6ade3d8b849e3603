"""``testbed bench card``: what calls cost on an emulated card, and whether its time is true.

Everything runs on cards of its own, which are gone afterwards; no cluster is needed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from testbed.card.spec import CardSpec
from testbed.errors import InputError, TestbedError
from testbed.lab import command, shell
from testbed.lab.bench.figures import Environment, Figure, Spread, environment, spread
from testbed.lab.cluster.protocol import Progress, Step
from testbed.lab.host import load
from testbed.native import artifacts

PROGRAM = "vgpu-bench-card"
#: Launches that follow each other without waiting: fewer than a stream's queue holds.
_LAUNCHES = 500
_PAIRS = 2000
_BATCHES = 40
#: Sizes of an allocation, in bytes; the first is the one that the aim is about.
ALLOCATIONS = (2 << 20, 512, 1 << 30)
KERNEL_NS = 5_000_000
_FIRST_TENSOR = "import torch; torch.zeros(1).cuda(); torch.cuda.synchronize()"
_DEADLINE_S = 120.0

#: Aims: key, text, aim.
_FIGURES = {
    "runtime_launch_us": ("launch through the CUDA runtime", 2.0),
    "driver_launch_us": ("launch through the driver API", 0.5),
    "alloc_free_us": ("allocation of 2 MiB and its release", 2.0),
    "first_tensor_s": ("PyTorch from its start to the first tensor", 2.0),
    "time_error_pct": ("error of the card's time, events and wall clock", 1.0),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CardBench:
    """What was measured.

    Attributes:
        figures: In the order of ``_FIGURES``.
        allocations: Microseconds of an allocation and its release, by size in bytes.
        profile: The card's.
        environment: The machine.
    """

    figures: tuple[Figure, ...]
    allocations: dict[int, Spread]
    profile: str
    environment: Environment

    @property
    def held(self) -> bool:
        """No aim is missed; what was not measured misses its aim."""
        return all(figure.held for figure in self.figures)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeRun:
    """Kernels of known length, one after the other; all in ns."""

    modelled_ns: float
    events_ns: float
    wall_ns: float

    @property
    def error_pct(self) -> float:
        """The larger of both errors, in percent of the modelled time."""
        worst = max(abs(self.events_ns - self.modelled_ns), abs(self.wall_ns - self.modelled_ns))
        return worst / self.modelled_ns * 100

    @property
    def timeless(self) -> bool:
        """Whether kernels took no time at all."""
        return self.wall_ns < self.modelled_ns / 100


def measure(
    progress: Progress,
    *,
    profile: str = "a100-80gb",
    repeat: int = 3,
    seconds: float = 10.0,
    with_torch: bool = True,
) -> CardBench:
    """Measure a card.

    Args:
        progress: Told each step.
        profile: Of the card.
        repeat: How often PyTorch is started.
        seconds: How long the run of kernels is that the card's time is judged by.
        with_torch: Measure what needs the PyTorch environment.

    Raises:
        InputError: an unknown profile, or numbers that cannot be.
        MissingTool: something is not built.
        TestbedError: a program failed.
    """
    if repeat < 1 or not 0.1 <= seconds <= 3600:
        raise InputError(
            f"{repeat} repeats of {seconds:g} s cannot be measured",
            hint="at least one repeat, 0.1 to 3600 seconds",
        )
    before = load()
    program = str(artifacts.library(PROGRAM))
    with shell.session(
        [CardSpec(profile=profile, count=1)], progress, with_torch=with_torch
    ) as session:
        environ = dict(session.environ)
        environ.setdefault("VGPU_EMU_LOG", "error")
        if not with_torch:
            runtime = artifacts.library("libcudart.so.13").parent
            environ["LD_LIBRARY_PATH"] += f":{runtime}"
        bench = _Bench(program, environ)
        figures: dict[str, Spread | str] = {}
        with progress.step("launches") as step:
            figures["runtime_launch_us"] = bench.batches("runtime", _BATCHES, _LAUNCHES)
            figures["driver_launch_us"] = bench.batches("driver", _BATCHES, _LAUNCHES)
            _tell(step, figures, "driver_launch_us", "µs")
        with progress.step("allocations") as step:
            sizes = {size: bench.batches("alloc", _BATCHES, _PAIRS, size) for size in ALLOCATIONS}
            figures["alloc_free_us"] = sizes[ALLOCATIONS[0]]
            _tell(step, figures, "alloc_free_us", "µs")
        if with_torch:
            with progress.step(f"first tensor, {repeat} times") as step:
                figures["first_tensor_s"] = bench.first_tensor(repeat, step.update)
                _tell(step, figures, "first_tensor_s", "s")
        else:
            figures["first_tensor_s"] = "left out (--no-torch)"
        with progress.step(f"{seconds:g} s of kernels"):
            figures["time_error_pct"] = bench.time_error(seconds)
    builds = {
        name: artifacts.build_of(artifacts.library(name).read_bytes())
        for name in ("libcuda.so.1", "libcudart.so.13")
    }
    return CardBench(
        figures=tuple(
            _figure(key, text, aim, figures[key]) for key, (text, aim) in _FIGURES.items()
        ),
        allocations=sizes,
        profile=profile,
        environment=environment(before, builds),
    )


def _tell(step: Step, figures: Mapping[str, Spread | str], key: str, unit: str) -> None:
    found = figures[key]
    if isinstance(found, Spread):
        step.update(f"{found.median:.2f} {unit}")


def _figure(key: str, text: str, aim: float, found: Spread | str) -> Figure:
    if isinstance(found, str):
        return Figure(key=key, text=text, aim=aim, reason=found)
    return Figure(key=key, text=text, aim=aim, spread=found)


def parse_time(output: str) -> TimeRun:
    """Read what the program prints of a run of kernels.

    Raises:
        TestbedError: it printed something else.
    """
    try:
        modelled, events, wall = (float(word) for word in output.split())
    except ValueError as error:
        raise TestbedError(f"{PROGRAM} printed no times", why=repr(output[:200])) from error
    return TimeRun(modelled_ns=modelled, events_ns=events, wall_ns=wall)


class _Bench:
    """Runs the program and PyTorch on the session's card."""

    def __init__(self, program: str, environ: Mapping[str, str]) -> None:
        self._program, self._environ = program, environ

    def _run(self, *arguments: str, timeout_s: float = _DEADLINE_S) -> str:
        return command.run(
            arguments,
            what=f"cannot measure: {' '.join(arguments)[:80]}",
            timeout_s=timeout_s,
            environ=self._environ,
        )

    def batches(self, *arguments: str | int) -> Spread:
        output = self._run(self._program, *map(str, arguments))
        try:
            return spread(float(line) for line in output.split())
        except ValueError as error:
            raise TestbedError(f"{PROGRAM} printed no times", why=repr(output[:200])) from error

    def first_tensor(self, repeat: int, tell: Callable[[str], None]) -> Spread:
        times = []
        # Once more than is counted: the files must be in the host's memory.
        for turn in range(repeat + 1):
            start = time.monotonic()
            self._run("python3", "-c", _FIRST_TENSOR)
            times.append(time.monotonic() - start)
            tell(f"{times[-1]:.2f} s" + ("" if turn else " (not counted)"))
        return spread(times[1:])

    def time_error(self, seconds: float) -> Spread | str:
        output = self._run(
            self._program,
            *("time", f"{seconds:g}", str(KERNEL_NS)),
            timeout_s=_DEADLINE_S + 3 * seconds,
        )
        run = parse_time(output)
        if run.timeless:
            return "kernels take no time on this build of the emulated driver"
        return spread([run.error_pct])
