"""What ``--help`` says fits a terminal of 80 columns."""

from __future__ import annotations

import inspect

import pytest
import typer

from testbed.cli.main import app

#: Typer puts a blank on either side.
WIDTH = 78


def commands(command, path=()):
    """Yield every command below one, with its words."""
    if below := getattr(command, "commands", None):
        for name, each in below.items():
            yield from commands(each, (*path, name))
    else:
        yield pytest.param(command, id=" ".join(path))


def too_wide(text):
    """Return the lines of paragraphs that Typer would break once more in their middle.

    It keeps line ends but for the first paragraph's; a paragraph of one line breaks well.
    """
    paragraphs = inspect.cleandoc(text).split("\n\n")[1:]
    broken = [lines for lines in (each.split("\n") for each in paragraphs) if len(lines) > 1]
    return [line for lines in broken for line in lines if len(line) > WIDTH]


@pytest.mark.parametrize("command", [*commands(typer.main.get_command(app))])
def test_no_line_breaks_in_its_middle(command):
    assert command.help, "it says nothing of itself"
    assert too_wide(command.help) == []


def test_one_that_would_is_seen():
    line = "x " * 40
    assert too_wide(f"Do it.\n\n{line}\nends") == [line]
    assert too_wide(f"Do it.\n\n{line}") == []
