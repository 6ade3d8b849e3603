"""Hold a testbed for a pytest session, and take it down if the session cannot.

``python -m testbed.lab.pytest_plugin.keeper NAME PROVIDER PID MODE`` is the testbed's user
(``testbed.lab.use``) for as long as the process PID lives, so that no other command
measures or takes down in between; with pytest-xdist that is one use for all workers.
Whoever ends it by SIGTERM has taken the testbed down, or leaves it up. If PID ends
before that, it takes down what the session would have.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from testbed.errors import ClusterError, TestbedError
from testbed.lab.cluster.state import state_home
from testbed.lab.progress import QuietProgress
from testbed.lab.reaper import wait_for_end
from testbed.lab.testbed import USE_SECONDS, Testbed
from testbed.lab.use import VARIABLE

#: Take down at the end what was not there at the beginning, or leave it.
TAKE_DOWN, KEEP = "down", "keep"
_START_S = USE_SECONDS + 60.0
_END_S = 30.0
#: How long the keeper of a session that was killed waits for its last command.
_LATER_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What a keeper tells when it is ready.

    Attributes:
        pid: The keeper's.
        temporary: The testbed goes at the end.
    """

    pid: int
    temporary: bool


def start(name: str, provider: str, process: int, *, keep: bool) -> Kept:
    """Start the keeper of a testbed and wait until it is the testbed's user.

    Args:
        name: The testbed's.
        provider: Its kind of cluster.
        process: The session ends with it.
        keep: Leave up what this session brings up.

    Raises:
        ClusterError: another command works on the testbed and does not end.
    """
    mode = KEEP if keep else TAKE_DOWN
    environ = {key: value for key, value in os.environ.items() if key != VARIABLE}
    keeper = subprocess.Popen(
        [sys.executable, "-m", __name__, name, provider, str(process), mode],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environ,
        text=True,
        start_new_session=True,
    )
    assert keeper.stdout is not None
    try:
        line = _line(keeper)
        told = json.loads(line) if line else {}
    except BaseException:
        keeper.terminate()
        raise
    finally:
        keeper.stdout.close()
    if "error" in told:
        raise ClusterError(**told["error"])
    if "temporary" not in told:
        keeper.terminate()
        raise ClusterError(
            f"testbed {name!r} cannot be held for this session",
            why=f"its keeper ended with status {keeper.poll()}" if keeper.poll() else "no answer",
            hint="`testbed doctor` says what this machine lacks",
        )
    return Kept(pid=keeper.pid, temporary=told["temporary"])


def end(pid: int) -> None:
    """End a keeper; the testbed is as it shall be.

    Raises:
        ClusterError: it does not end.
    """
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(watched, signal.SIGTERM)
        # It may be the child of another process of the session: not waitpid.
        if not _ended(watched, _END_S):
            raise ClusterError(f"the testbed's keeper (process {pid}) does not end")
    finally:
        os.close(watched)


def main() -> int:
    """Hold the testbed until told to let go, or until the session's process has ended."""
    name, provider, process, mode = sys.argv[1:5]
    # Ctrl-C in a terminal is meant for the session, which ends this one when it is done.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _let_go)
    testbed, progress = Testbed(name, provider), QuietProgress()
    try:
        with testbed.use("pytest", progress) as use:
            absent = testbed.cluster.status().state == "absent"
            temporary = mode == TAKE_DOWN and (absent or use.inherited)
            use.note(temporary=temporary)
            print(json.dumps({"temporary": temporary}), flush=True)  # noqa: T201
            wait_for_end(int(process))
            # What the session was doing when it was killed may be going on for a moment.
            deadline = time.monotonic() + _LATER_S
            while temporary:
                try:
                    testbed.down(progress)
                    break
                except TestbedError:
                    if time.monotonic() > deadline:
                        return 2
                    time.sleep(1.0)
            state_file(name).unlink(missing_ok=True)
    except TestbedError as error:
        words = {"what": error.what, "why": error.why, "hint": error.hint}
        print(json.dumps({"error": words}), flush=True)  # noqa: T201
        return 2
    return 0


def state_file(name: str) -> Path:
    """Return where a session's processes tell each other of a testbed."""
    return state_home() / f".{name}.pytest"


def _let_go(number: int, frame: object) -> None:
    del number, frame
    raise SystemExit(0)


def _line(keeper: subprocess.Popen[str]) -> str:
    """Return the keeper's first line; empty if it ends without, or takes too long."""
    import select

    assert keeper.stdout is not None
    ready, _, _ = select.select([keeper.stdout], [], [], _START_S)
    return keeper.stdout.readline() if ready else ""


def _ended(watched: int, seconds: float) -> bool:
    import select

    poll = select.poll()
    poll.register(watched, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


if __name__ == "__main__":
    sys.exit(main())
