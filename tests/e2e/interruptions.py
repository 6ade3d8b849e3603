"""Fifty interruptions of a run: where in it, what is struck, by which signal.

A run here is ``testbed run`` of a small case on a testbed that it brings up, in folders
of its own. What is struck falls at a moment that the seed chooses within a stage, so that
rounds with different seeds strike different moments, and one seed the same again.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from testbed.lab import cache

from . import traces

ROOT = Path(__file__).parents[2]
CASE = "pods: {a: {gpumem: 4096}}\nallocators: [native]\n"
#: A run that was struck has come to an end by then: what it waits for is bounded.
END_S = 420.0
#: What belongs to a killed command ends with it.
ORPHANS_S = 60.0
SIGNALS = {
    "INT": signal.SIGINT,
    "TERM": signal.SIGTERM,
    "HUP": signal.SIGHUP,
    "KILL": signal.SIGKILL,
}

#: The stages of a run in their order, and how long each takes on an idle machine, seconds.
STAGES = {
    "start": 1.5,
    "processes": 0.7,
    "nodes": 4.0,
    "stack": 2.0,
    "ready": 6.0,
    "notebook": 3.0,
    "trial": 6.0,
    "control": 8.0,
    "report": 1.5,
    "down": 0.5,
}

#: How each part of a testbed is known: by its program's path, or by a word among the
#: first of a script's or module's command line. Those of the command are the processes
#: of its session.
PARTS = {
    "apiserver": "/kube-apiserver",
    "etcd": "/etcd",
    "controller-manager": "/kube-controller-manager",
    "kubelet": "/kubelet",
    "containerd": "/containerd",
    "shim": "/containerd-shim-runc-v2",
    "kube-proxy": "/kube-proxy",
    "relay": "/relay.py",
    "scheduler": "/kube-scheduler",
    "extender": "testbed.stack.extender",
    "webhook": "testbed.stack.webhook",
    "plugin": "testbed.stack.plugin",
    "monitor": "testbed.stack.monitor",
    "workload": "/workload.py",
    "papermill": "papermill",
    "kernel": "ipykernel_launcher",
    "init": "outer.json",
    "node": "-node-1.json",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One interruption."""

    victim: str
    sign: str
    stage: str

    def __str__(self) -> str:
        return f"{self.stage}-{self.victim}-SIG{self.sign}"


def _points() -> tuple[Point, ...]:
    found = [("command", sign, stage) for stage in STAGES for sign in ("INT", "KILL")]
    found += [("command", "TERM", stage) for stage in ("nodes", "trial", "down")]
    found += [("command", "HUP", stage) for stage in ("stack", "control")]
    up = ("apiserver", "etcd", "kubelet", "containerd", "init")
    found += [(victim, "KILL", "nodes") for victim in up]
    stack = ("apiserver", "kubelet", "extender", "plugin", "webhook", "monitor")
    found += [(victim, "KILL", "ready") for victim in stack]
    trial = ("etcd", "containerd", "scheduler", "extender", "papermill", "kernel", "node")
    found += [(victim, "KILL", "trial") for victim in trial]
    control = ("plugin", "monitor", "webhook", "workload")
    found += [(victim, "KILL", "control") for victim in control]
    found += [("kernel", "INT", "trial"), ("papermill", "INT", "control"), ("init", "INT", "trial")]
    return tuple(Point(victim=v, sign=sign, stage=stage) for v, sign, stage in found)


POINTS = _points()


#: Those that come before a case runs take a third of the others' time.
EARLY = ("start", "processes", "nodes", "stack", "ready")


def chosen(count: int, seed: int) -> tuple[Point, ...]:
    """Return so many points, two of three of them from the stages that are soon there.

    Seeds that follow one another take turns: with six a day, a fortnight sees all fifty.
    """
    if count >= len(POINTS):
        return POINTS
    early = [point for point in POINTS if point.stage in EARLY]
    late = [point for point in POINTS if point.stage not in EARLY]
    found: list[Point] = []
    for points, wanted in ((early, count - count // 3), (late, count // 3)):
        random.Random("order").shuffle(points)  # the same always: only the start moves
        found += [points[(seed * wanted + i) % len(points)] for i in range(wanted)]
    return tuple(dict.fromkeys(found))


class Owner:
    """One person's folders and testbed, and the commands that they give."""

    def __init__(self, home: Path, name: str) -> None:
        self.home, self.name = home, name
        self.clone, self.state, self.scratch = home / "clone", home / "state", home / "tmp"
        #: The state folder as this process sees it, and what each command is started with.
        self.seen, self.prefix = self.state, ()
        folder = self.clone / "scenarios" / "co_location"
        folder.mkdir(parents=True)
        for path in (ROOT / "scenarios/co_location").glob("*.py"):
            shutil.copy(path, folder)
        (folder / "small.yaml").write_text(CASE)
        (self.clone / "notebooks").mkdir()
        shutil.copy(ROOT / "notebooks/co_location.ipynb", self.clone / "notebooks")
        self.scratch.mkdir()
        self.state.mkdir()

    @property
    def environment(self) -> dict[str, str]:
        return {
            **{key: value for key, value in os.environ.items() if not key.startswith("VGPU_")},
            "HOME": str(self.home),
            "XDG_STATE_HOME": str(self.state),
            "XDG_CACHE_HOME": str(cache.root().parent),
            "TMPDIR": str(self.scratch),
            "NO_COLOR": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def start(self, *arguments: str, name: str = "", **environment: str) -> Command:
        """Start a command as a shell does, in a session of its own.

        Args:
            arguments: The command's.
            name: Of the testbed, where it is not the owner's.
            environment: Variables that differ.
        """
        return Command(self, arguments, name, environment)

    def do(
        self, *arguments: str, timeout_s: float = 120, name: str = "", **environment: str
    ) -> Command:
        """Run a command to its end."""
        command = self.start(*arguments, name=name, **environment)
        command.end(timeout_s)
        return command

    def run(self, **environment: str) -> Command:
        return self.start("run", "co_location/small", "-o", "json", **environment)

    @property
    def record(self) -> dict[str, object]:
        """What the cluster's record says; empty before there is one."""
        path = self.seen / "vgpu-testbed" / self.name / "cluster.json"
        with contextlib.suppress(OSError, ValueError):
            return json.loads(path.read_text())
        return {}

    def part(self, part: str) -> int:
        """Return the pid of a part of the testbed; 0 where it is not there."""
        if part == "launcher":
            return int(str(self.record.get("pid", 0)))
        word = PARTS[part]
        token = str(self.record.get("token", "none"))
        for each in traces.alive(self.name, self.home):
            if part in ("init", "node"):
                if each.is_pid1 and token in each.argv and any(a.endswith(word) for a in each.argv):
                    return each.pid
            elif _runs(each.argv, word):
                return each.pid
        return 0


def _runs(argv: tuple[str, ...], word: str) -> bool:
    """Tell whether a command line is a part's.

    A program is its first word alone: another's path may be among the arguments of
    one that works for it, as containerd's is of a shim.
    """
    if word.endswith(".py"):
        return any(each.endswith(word) for each in argv[:5])
    return argv[0].endswith(word) if word[0] == "/" else word in argv[:5]


class Command:
    """A command that was started."""

    def __init__(
        self, owner: Owner, arguments: tuple[str, ...], name: str, environment: dict[str, str]
    ) -> None:
        self.owner, self.arguments = owner, arguments
        stamp = f"{time.monotonic_ns()}"
        # Beside the owner's folders, which are compared.
        self._out = owner.home.with_name(f"{owner.home.name}-{stamp}.out")
        self._err = self._out.with_suffix(".err")
        program = Path(sys.executable).with_name("testbed")
        with self._out.open("w") as out, self._err.open("w") as err:
            self.process = subprocess.Popen(
                [*owner.prefix, str(program), *arguments, "--name", name or owner.name],
                cwd=owner.clone,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env={**owner.environment, **environment},
                start_new_session=True,
            )

    @property
    def out(self) -> str:
        return self._out.read_text()

    @property
    def err(self) -> str:
        return self._err.read_text()

    @property
    def code(self) -> int | None:
        return self.process.poll()

    @property
    def last(self) -> str:
        """The last line that it said to people."""
        return next(reversed(self.err.strip().splitlines()), "")

    def end(self, timeout_s: float) -> int:
        """Return the exit status.

        Raises:
            AssertionError: there is no end; the text holds what it said.
        """
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            raise AssertionError(f"no end after {timeout_s:.0f} s:\n{self.err}") from None

    def wait(self, condition: Callable[[], object], what: str, timeout_s: float = 240) -> bool:
        """Wait for a condition; tell whether it came before the command's end.

        Raises:
            AssertionError: neither came.
        """
        until = time.monotonic() + timeout_s
        while True:
            if condition():
                return True
            if self.code is not None:
                return bool(condition())
            assert time.monotonic() < until, f"no {what} after {timeout_s:.0f} s:\n{self.err}"
            time.sleep(0.03)


def reached(command: Command, stage: str) -> bool:
    """Tell whether a run has come to a stage."""
    owner = command.owner
    if stage == "start":
        return True
    if stage == "processes":
        return (owner.seen / "vgpu-testbed" / owner.name).exists()
    if stage == "nodes":
        return bool(owner.record.get("pid"))
    if stage == "down":
        return any(owner.clone.glob("runs/*/report.json"))
    if stage == "trial":
        return "pods with the limiter" in command.err or owner.part("workload") != 0
    said = {
        "stack": "wait for the nodes",
        "ready": "stack applied",
        "notebook": "monitors",
        "control": "pods with the limiter",
        "report": "the same pods without the limiter",
    }[stage]
    if stage == "notebook":
        return any(owner.clone.glob("runs/*/*/*/progress.log"))
    # A step's line comes at its end; updates of the step before it do not count.
    return any(said in line and "…" not in line for line in command.err.splitlines())


def strike(command: Command, point: Point, seed: int) -> bool:
    """Wait for a stage, then for a part of it, and strike; False if all was over by then."""
    if not command.wait(lambda: reached(command, point.stage), point.stage):
        return False
    share = random.Random(f"{seed} {point}").random()
    # The moment is what is tested, so here time itself is waited for.
    with contextlib.suppress(subprocess.TimeoutExpired):
        command.process.wait(share * STAGES[point.stage])
        return False
    sign = SIGNALS[point.sign]
    if point.victim == "command":
        if point.sign == "INT":  # Ctrl-C goes to all of the terminal's group
            os.killpg(command.process.pid, sign)
        else:
            command.process.send_signal(sign)
        return True
    found: list[int] = []

    def there() -> bool:
        found[:] = [pid for pid in [command.owner.part(point.victim)] if pid]
        return bool(found)

    if not command.wait(there, point.victim):
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(found[0], sign)
    return True


@contextlib.contextmanager
def owning(home: Path, name: str) -> Iterator[Owner]:
    """An owner whose testbed, processes and folders go, whatever a test does."""
    owner = Owner(home, name)
    try:
        yield owner
    finally:
        with contextlib.suppress(AssertionError):
            owner.do("down")
        for each in traces.alive(name, home):
            with contextlib.suppress(ProcessLookupError):
                os.kill(each.pid, signal.SIGKILL)
        shutil.rmtree(home, ignore_errors=True)


def wait_until_gone(look: Callable[[], object], what: str, timeout_s: float = ORPHANS_S) -> None:
    """Wait until a look finds nothing.

    Raises:
        AssertionError: it goes on finding something.
    """
    until = time.monotonic() + timeout_s
    while left := look():
        assert time.monotonic() < until, f"{what}: {left}"
        time.sleep(0.05)


def notebooks(owner: Owner) -> list[str]:
    """Return the papermills and kernels that work for an owner."""
    return [
        f"{each.pid} {' '.join(each.argv)}"
        for each in traces.alive(owner.name, owner.home)
        if {"papermill", "ipykernel_launcher"} & set(each.argv)
    ]
