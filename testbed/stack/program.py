"""What the node programs' command lines have in common."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from testbed.errors import TestbedError
from testbed.stack import names


def parser(module: str, description: str | None, *, port: int) -> argparse.ArgumentParser:
    """Return a parser with the flags that every node program has.

    Args:
        module: What follows ``python -m``.
        description: The module's docstring.
        port: Default of ``--port``.
    """
    found = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    found.add_argument("--node-name", help="this node; default: the environment's NODE_NAME")
    found.add_argument("--driver-root", help="folder of the node's driver; default: detected")
    found.add_argument("--hook-path", type=Path, default=Path(names.HOOK_PATH))
    found.add_argument("--kubeconfig", type=Path, help="default: the pod's service account")
    found.add_argument("--port", type=int, default=port)
    return found


def parse(found: argparse.ArgumentParser, arguments: list[str] | None) -> argparse.Namespace:
    """Return the flags; ``node_name`` may come from the downward API's variable instead."""
    given = found.parse_args(arguments)
    given.node_name = given.node_name or os.environ.get("NODE_NAME", "")
    if not given.node_name:
        found.error("give --node-name or set NODE_NAME")
    return given


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
