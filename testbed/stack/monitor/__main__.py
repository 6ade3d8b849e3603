"""``python -m testbed.stack.monitor``: what the cards of one node measure."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from testbed.stack import names, program
from testbed.stack.monitor.server import Options, serve


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line and serve."""
    parser = argparse.ArgumentParser(prog="python -m testbed.stack.monitor", description=__doc__)
    parser.add_argument("--node-name", help="this node; default: the environment's NODE_NAME")
    parser.add_argument("--driver-root", help="folder of the node's driver; default: detected")
    parser.add_argument("--hook-path", type=Path, default=Path(names.HOOK_PATH))
    parser.add_argument("--kubeconfig", type=Path, help="default: the pod's service account")
    parser.add_argument("--port", type=int, default=names.PORT_MONITOR)
    parser.add_argument("--period", type=float, default=0.2, help="seconds between samples")
    given = parser.parse_args(arguments)
    node = program.node_name(given.node_name)
    if not node:
        parser.error("give --node-name or set NODE_NAME")
    if not 0.01 <= given.period <= 60:
        parser.error("--period is between 0.01 and 60 seconds")

    return program.run(
        lambda stop: serve(
            Options(
                node=node,
                driver_root=given.driver_root,
                hook_path=given.hook_path,
                kubeconfig=given.kubeconfig,
                port=given.port,
                period_s=given.period,
            ),
            stop,
        )
    )


if __name__ == "__main__":
    sys.exit(main())
