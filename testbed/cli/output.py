"""What the command line prints: tables for people, JSON for programs, errors."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Any

import msgspec
import typer

from testbed.errors import TestbedError


class Format(StrEnum):
    """Values of ``-o``."""

    table = "table"
    json = "json"


def emit(value: Any, text: str, output: Format) -> None:
    """Print a value as text, or as JSON of itself."""
    if output is Format.json:
        encoded = msgspec.json.encode(value, enc_hook=str)
        print(msgspec.json.format(encoded, indent=2).decode())
    else:
        print(text)


@contextmanager
def errors_as_exit_codes(output: Format = Format.table) -> Iterator[None]:
    """Turn an error into its lines on standard error and its exit code."""
    try:
        yield
    except TestbedError as error:
        if output is Format.json:
            fields = {"what": error.what, "why": error.why, "hint": error.hint}
            document = {"error": fields, "artifacts": str(error.artifacts or "")}
            print(json.dumps(document, indent=2))
        print(f"error: {error.text()}", file=sys.stderr)
        raise typer.Exit(error.exit_code) from error
    except KeyboardInterrupt as error:
        print("interrupted", file=sys.stderr)
        raise typer.Exit(2) from error
