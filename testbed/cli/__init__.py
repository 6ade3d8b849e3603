"""The ``testbed`` command."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line."""
    from testbed.cli import signals

    # Before the rest is imported, which takes a while: no key may show a traceback.
    signals.install()
    try:
        from testbed.cli.main import app

        app()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(2)
