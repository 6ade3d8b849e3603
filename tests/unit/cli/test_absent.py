"""A testbed that is not there, perhaps because its name was mistyped."""

import json

import pytest
from typer.testing import CliRunner

from testbed.cli.main import app


@pytest.fixture
def command(tmp_path, monkeypatch):
    """Calls the command where there are two other testbeds."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for name in ("mine", "yours"):
        (tmp_path / "vgpu-testbed" / name).mkdir(parents=True)
    return lambda *arguments: CliRunner().invoke(app, list(arguments))


def test_its_status_is_an_error_that_names_the_others(command):
    done = command("status", "--name", "mien")
    assert done.exit_code == 2
    assert done.stdout.startswith("testbed mien is not up   (testbed up --name mien)")
    assert "there are: mine, yours" in done.stdout


def test_taking_it_down_is_none_but_is_not_silent(command):
    done = command("down", "--name", "mien")
    assert done.exit_code == 0
    assert done.stdout == (
        "testbed mien is not there: nothing to take down   (there are: mine, yours)\n"
    )


@pytest.mark.parametrize(
    "words",
    ["kubeconfig", "logs", "logs kubelet", "explain a", "top", "limits show a", "deploy"],
)
def test_what_is_wanted_of_it_is_an_error_that_names_the_others(command, words):
    done = command(*words.split(), "--name", "mien")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "there is no testbed 'mien': known are mine, yours" in done.stderr
    assert "testbed up --name mien" in done.stderr


def test_programs_get_one_document(command):
    status = command("status", "--name", "mien", "-o", "json")
    assert (status.exit_code, json.loads(status.stdout)["state"]) == (2, "absent")
    down = command("down", "--name", "mien", "-o", "json")
    assert (down.exit_code, json.loads(down.stdout)["state"]) == (0, "absent")
