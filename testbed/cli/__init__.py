"""The ``testbed`` command."""

from testbed.cli.main import main

__all__ = ["main"]
