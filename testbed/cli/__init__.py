"""The ``testbed`` command."""

from __future__ import annotations

import sys

#: What typer makes of a Ctrl-C that comes before the command itself has begun.
_TYPER_INTERRUPTED = 130


def main() -> None:
    """Run the command line."""
    began: list[str] = []
    try:
        # Before the rest is imported, which takes a while: no key may show a traceback.
        # What was pressed while Python started is answered here.
        from testbed.cli import signals

        signals.install()
        from testbed.cli import output
        from testbed.cli.main import app

        began = output.began
        app(prog_name="testbed")
    except KeyboardInterrupt:
        _answer(began, "interrupted")
        print("interrupted", file=sys.stderr)
        sys.exit(2)
    except SystemExit as ended:
        if ended.code == _TYPER_INTERRUPTED and not began:
            _answer(began, "interrupted")
            print("interrupted", file=sys.stderr)
            sys.exit(2)
        if ended.code:
            why, hint = _usage(ended)
            _answer(began, "the command line cannot be understood", why, hint)
        raise


def _usage(ended: SystemExit) -> tuple[str, str]:
    """Return what typer printed on standard error before it ended, and what helps."""
    error = ended.__context__
    message = getattr(error, "format_message", None)
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "testbed"
    return message() if message is not None else "", f"{command} --help"


def _answer(began: list[str], what: str, why: str = "", hint: str = "testbed --help") -> None:
    """Print the error's document for a program that asked for one.

    A command that has begun does so itself, or has printed its own.
    """
    import json

    given = " ".join(sys.argv[1:]).replace("=", " ")
    asked = any(word in given for word in ("--json", "-o json", "-ojson", "--output json"))
    if asked and not began:
        fields = {"what": what, "why": why, "hint": hint}
        print(json.dumps({"error": fields, "artifacts": ""}, indent=2))
