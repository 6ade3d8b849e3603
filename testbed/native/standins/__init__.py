"""Stand-ins for the libraries that torch links and that an emulated card does not have."""

from testbed.native.standins.build import build, compiler, sources

__all__ = ["build", "compiler", "sources"]
