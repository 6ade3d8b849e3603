"""Run a program to its end, with a deadline, and show what it says while it runs."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType

from testbed.errors import FULL_HINT, MissingTool, TestbedError

#: Lines of output that an error message carries.
_TAIL = 12


def run(
    arguments: Sequence[str | Path],
    *,
    what: str,
    timeout_s: float,
    tell: Callable[[str], None] | None = None,
    cwd: Path | None = None,
    environ: Mapping[str, str] | None = None,
    hint: str = "",
) -> str:
    """Return the program's output (both streams).

    Args:
        arguments: Program and arguments.
        what: What could not be done if it fails, for the error.
        timeout_s: After this long the program and its children are killed.
        tell: Called with each line of output, such as a step's ``update``.
        cwd: Working folder.
        environ: The whole environment; the own one if not given.
        hint: What helps if it fails, for the error.

    Raises:
        MissingTool: there is no such program.
        TestbedError: it failed or took too long; with the end of its output.
    """
    process: subprocess.Popen[str] | None = None
    expired = threading.Event()

    def expire() -> None:
        expired.set()
        if process is not None:
            _kill_group(process.pid)

    timer = threading.Timer(timeout_s, expire)
    timer.daemon = True
    lines: list[str] = []
    tail: deque[str] = deque(maxlen=_TAIL)
    try:
        with uninterrupted():
            process = subprocess.Popen(
                [str(a) for a in arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd=cwd,
                env=None if environ is None else dict(environ),
                text=True,
                errors="replace",
                start_new_session=True,  # so that its children can be killed with it
            )
        timer.start()
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if line.strip():
                tail.append(line.rstrip())
                if tell is not None:
                    tell(line.strip())
        code = process.wait()
    except OSError as error:
        if process is not None:
            raise
        raise MissingTool(what, why=f"cannot start {arguments[0]}: {error}", hint=hint) from error
    finally:
        timer.cancel()
        if process is not None:
            # Before the wait the leader is at worst a zombie, so its number is still ours.
            if process.returncode is None:
                _kill_group(process.pid)
                process.wait()
            if process.stdout is not None:
                process.stdout.close()
    if expired.is_set():
        raise TestbedError(
            what, why=f"no end within {timeout_s:g} s\n" + "\n".join(tail), hint=hint
        )
    if code:
        why = f"exit code {code}\n" + "\n".join(tail)
        if "no space left on device" in why.lower():
            hint = FULL_HINT
        raise TestbedError(what, why=why, hint=hint)
    return "".join(lines)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Let what would end us by an exception come after the body, which starts a program.

    A program begins to run before ``Popen`` has returned; an exception raised in
    between would leave it running, and nobody would know its number.
    """
    came: list[int] = []
    before: dict[signal.Signals, Callable[[int, FrameType | None], object]] = {}
    if threading.current_thread() is threading.main_thread():  # handlers are its affair
        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            handler = signal.getsignal(each)
            if callable(handler):
                before[each] = handler
                signal.signal(each, lambda number, _frame: came.append(number))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for late in came:
            signal.raise_signal(late)


def leashed(*arguments: str | Path) -> list[str]:
    """Return a command that is killed when the thread that starts it ends, however it ends.

    It is for programs that are of no use alone, beside a clean-up that may not come to
    run (SIGKILL). The process keeps its number. Where util-linux's ``setpriv`` is missing
    it is the command itself.
    """
    setpriv = shutil.which("setpriv")
    leash = (setpriv, "--pdeathsig", "KILL", "--") if setpriv else ()
    return [str(each) for each in (*leash, *arguments)]


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
