"""What the node programs' command lines have in common."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable

from testbed.errors import TestbedError


def node_name(given: str | None) -> str:
    """Return this node's name: the flag, else what the downward API put into the environment."""
    return given or os.environ.get("NODE_NAME", "")


def run(serve: Callable[[threading.Event], None]) -> int:
    """Run a program until SIGTERM or SIGINT; return its exit code.

    One line an event goes to stderr. An error of ours is shown as its own text, and
    any other with its trace: that is a defect.
    """
    logging.basicConfig(
        level=logging.INFO,
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        serve(stop)
    except TestbedError as error:
        print(error.text(), file=sys.stderr, flush=True)  # noqa: T201
        return error.exit_code
    return 0
