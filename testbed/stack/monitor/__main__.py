"""``python -m testbed.stack.monitor``: what the cards of one node measure."""

from __future__ import annotations

import sys

from testbed.stack import names, program
from testbed.stack.monitor.server import Options, serve


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line and serve."""
    parser = program.parser("testbed.stack.monitor", __doc__, port=names.PORT_MONITOR)
    parser.add_argument("--period", type=float, default=0.2, help="seconds between samples")
    given = program.parse(parser, arguments)
    if not 0.01 <= given.period <= 60:
        parser.error("--period is between 0.01 and 60 seconds")

    return program.run(
        lambda stop: serve(
            Options(
                node=given.node_name,
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
