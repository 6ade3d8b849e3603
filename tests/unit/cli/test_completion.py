"""What a shell completes, and what a help text says."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from testbed.cli.main import app

from ..scenario.conftest import ROOT


def completed(words, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", "from testbed.cli import main; main()"],
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
        env={
            **os.environ,
            "_TESTBED_COMPLETE": "complete_bash",
            "COMP_WORDS": f"testbed {words}",
            "COMP_CWORD": str(len(words.split())),
            "VGPU_TESTBED_SCENARIOS": str(ROOT / "scenarios"),
            "XDG_STATE_HOME": str(tmp_path),
        },
    )
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("expl", ["explain"]),
        ("run co_location/a100-e", ["co_location/a100-example"]),
        ("card show a100-8", ["a100-80gb"]),
        ("card shell --cards t4,n", []),  # no real card without a cluster
        ("card shell --cards t4,l", ["t4,l40s"]),
        ("bench card --card n", []),
        ("up --cards t4,n", ["t4,nvidia"]),
        ("up --cards a100-80gb:2,a100-4", ["a100-80gb:2,a100-40gb"]),
        ("up --cards a100-80gb;a100-4", ["a100-80gb;a100-40gb"]),
        ("status --name mi", ["mine"]),
        ("up --provider p", ["process"]),
    ],
)
def test_words_are_completed(words, expected, tmp_path):
    (tmp_path / "vgpu-testbed" / "mine").mkdir(parents=True)
    assert completed(words, tmp_path) == expected


def every_command():
    group = get_command(app)
    for name, command in group.commands.items():
        below = getattr(command, "commands", None)
        yield from ([name, each] for each in below) if below else [[name]]


@pytest.mark.parametrize("words", list(every_command()), ids=" ".join)
def test_every_command_says_what_it_does(words):
    if words == ["kubectl"]:
        return  # its --help is kubectl's
    for flag in ("--help", "-h"):
        done = CliRunner().invoke(app, [*words, flag])
        assert done.exit_code == 0 and f"Usage: testbed {' '.join(words)}" in done.stdout


#: Whose output is that of another program.
NO_JSON = {("kubectl",), ("card", "shell")}


@pytest.mark.parametrize("words", list(every_command()), ids=" ".join)
def test_every_command_answers_programs(words):
    command = get_command(app)
    for word in words:
        command = command.commands[word]
    options = {name for each in command.params for name in each.opts}
    assert ({"-o", "--json"} <= options) is (tuple(words) not in NO_JSON)


def test_an_unknown_command_names_the_nearest():
    done = CliRunner().invoke(app, ["rnu"])
    assert done.exit_code == 2 and "Did you mean 'run'?" in done.stderr
