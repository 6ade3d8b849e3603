"""Take a testbed down when the process that brought it up has ended.

A notebook under plain papermill takes down what it brought up, also when its kernel
is killed: ``python -m testbed.lab.reaper NAME PID`` waits for the kernel's end.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys

from testbed.errors import TestbedError
from testbed.lab.progress import QuietProgress
from testbed.lab.testbed import Testbed


def start(name: str) -> subprocess.Popen[bytes]:
    """Start the one that watches this process; end it to keep the testbed."""
    return subprocess.Popen(
        [sys.executable, "-m", "testbed.lab.reaper", name, str(os.getpid())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def wait_for_end(pid: int) -> None:
    """Return when a process has ended."""
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        poll = select.poll()
        poll.register(watched, select.POLLIN)
        poll.poll()
    finally:
        os.close(watched)


def main() -> int:
    """Wait, then take the testbed down unless somebody works on it by now."""
    name, pid = sys.argv[1], int(sys.argv[2])
    # Only its starter ends it; Ctrl-C in a terminal is meant for others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    wait_for_end(pid)
    testbed, progress = Testbed(name), QuietProgress()
    try:
        with testbed.use("down", progress, wait_s=0):
            testbed.down(progress)
    except TestbedError:
        return 2  # in use: whoever works on it keeps it
    return 0


if __name__ == "__main__":
    sys.exit(main())
