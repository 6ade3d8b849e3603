"""What the command line prints: tables for people, JSON for programs, errors."""

from __future__ import annotations

import errno
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec
import typer

from testbed.errors import FULL_HINT, TestbedError


class Format(StrEnum):
    """Values of ``-o``."""

    table = "table"
    json = "json"


_OS_HINTS = {errno.ENOSPC: FULL_HINT, errno.EDQUOT: FULL_HINT}
#: Holds something once a command answers for itself; see ``testbed.cli.main``.
began: list[str] = []


def emit(value: Any, text: str, output: Format) -> None:
    """Print a value as text, or as JSON of itself."""
    if output is Format.json:
        encoded = msgspec.json.encode(value, enc_hook=str)
        print(msgspec.json.format(encoded, indent=2).decode())
    elif text:
        print(text)


@contextmanager
def errors_as_exit_codes(output: Format = Format.table) -> Iterator[None]:
    """Turn an error into its lines on standard error and its exit code.

    Whatever happens, 1 is the answer of a check that failed and of nothing else.
    """
    began.append("command")
    try:
        yield
        sys.stdout.flush()
    except typer.Exit:
        raise
    except TestbedError as error:
        _tell(error, output)
        raise typer.Exit(error.exit_code) from error
    except KeyboardInterrupt as error:
        if output is Format.json:
            _document("interrupted")
        print("interrupted", file=sys.stderr)
        raise typer.Exit(2) from error
    except BrokenPipeError as error:
        # Who read our output has gone; Python would complain once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(2) from error
    except Exception as error:
        _tell(told(error), output)
        raise typer.Exit(2) from error


def told(error: Exception) -> TestbedError:
    """Return an error as a person is told it; where an unexpected one came from is in a file."""
    if isinstance(error, TestbedError):
        return error
    if isinstance(error, OSError):
        # A full disk is that of where a copy goes.
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        path = (error.filename2 if full else None) or error.filename
        where = f"{path}: " if path else ""
        hint = _OS_HINTS.get(error.errno or 0, "`testbed doctor` says what this machine lacks")
        return TestbedError(f"{where}{error.strerror or error}", hint=hint, artifacts=_trace(error))
    return TestbedError(
        f"unexpected {type(error).__name__}",
        why=str(error),
        hint="this is a defect of the testbed: report it with the file below",
        artifacts=_trace(error),
    )


def _tell(error: TestbedError, output: Format) -> None:
    if output is Format.json:
        _document(error.what, error.why, error.hint, str(error.artifacts or ""))
    print(f"error: {error.text()}", file=sys.stderr)


def _document(what: str, why: str = "", hint: str = "", artifacts: str = "") -> None:
    fields = {"what": what, "why": why, "hint": hint}
    print(json.dumps({"error": fields, "artifacts": artifacts}, indent=2))


def _trace(error: BaseException) -> Path | None:
    """Keep where an error came from in a file; nobody wants it on a terminal."""
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="testbed-error-", suffix=".txt", delete=False
        ) as file:
            traceback.print_exception(error, file=file)
    except OSError:
        return None
    return Path(file.name)
