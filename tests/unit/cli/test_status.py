"""What ``testbed status`` says, and what it points to."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from testbed.cli.cluster import certificates_text, status_text
from testbed.cli.main import app
from testbed.lab import images
from testbed.lab.cluster.protocol import ClusterStatus, NodeStatus
from testbed.lab.testbed import Testbed


def status(state: str, name: str = "x") -> ClusterStatus:
    node = NodeStatus(name=f"{name}-1", ready=state == "up", address="", cards=(), profiles=())
    return ClusterStatus(
        name=name,
        provider="kind",
        state=state,
        kubeconfig=Path("/kubeconfig"),
        nodes=(node,),
        problems=() if state == "up" else ("its own docker has ended",),
    )


def test_an_interrupted_deployment_says_what_is_there(monkeypatch, tmp_path):
    """Of a cluster that never came up there is nothing to say: it is gone."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(images, "prepare", lambda progress: ())
    monkeypatch.setattr(Testbed, "check", lambda self, spec, **options: None)
    monkeypatch.setattr(Testbed, "chosen", lambda self: None)

    def interrupted(self, *arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(Testbed, "up", lambda self, *a, **k: status("up"))
    monkeypatch.setattr(Testbed, "deploy", interrupted)
    done = CliRunner().invoke(app, ["up", "--name", "x"])
    assert done.exit_code == 2
    assert "testbed x is up, its stack is not" in done.stderr
    assert "testbed up --name x, with" in done.stderr
    assert "testbed down --name x clears it" in done.stderr
    monkeypatch.setattr(Testbed, "up", interrupted)
    done = CliRunner().invoke(app, ["up", "--name", "x"])
    assert (done.exit_code, done.stderr) == (2, "interrupted\n")


def test_one_that_is_up_is_used():
    assert status_text(status("up")).endswith("\ntestbed kubectl --name x get pods -A")


def test_one_that_is_broken_is_not():
    said = status_text(status("broken"))
    assert "problem: its own docker has ended" in said
    assert "kubectl" not in said and "testbed up --name x mends it" in said
    assert said.endswith("testbed down --name x clears it")
    assert "--name" not in status_text(status("broken", "vgpu"))


@pytest.mark.parametrize(("states", "code"), [((), 0), (("up", "absent"), 0), (("broken",), 2)])
def test_all_of_them(states, code, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for state in states:
        (tmp_path / "vgpu-testbed" / state).mkdir(parents=True)
    monkeypatch.setattr(Testbed, "status", lambda self: status(self.name, self.name))
    done = CliRunner().invoke(app, ["status", "--all"])
    assert done.exit_code == code
    lines = done.output.splitlines()
    assert len(lines) == 1 + len(states)
    assert [line.split()[0] for line in lines[1:]] == sorted(states)
    if not states:
        assert lines == ["there is no testbed   (testbed up)"]
    document = json.loads(CliRunner().invoke(app, ["status", "--all", "-o", "json"]).output)
    assert [each["state"] for each in document] == sorted(states)


def test_one_that_is_not_there_is_brought_up():
    assert status_text(status("absent")) == "testbed x is not up   (testbed up --name x)"


@pytest.mark.parametrize(
    ("days", "words"),
    [
        (364, "certificates until 2026-12-01 (364 days), renewed 30 days before"),
        (29, "certificates until 2026-12-01 (29 days), renewed"),
        (28, "certificates end in 28 days, and were not renewed: testbed deploy"),
        (0, "certificates end in 0 days"),
        (-1, "certificates ended on 2026-12-01: testbed deploy makes new ones"),
    ],
)
def test_the_certificates_remaining_life_is_told(days, words):
    end = dt.datetime(2026, 12, 1, tzinfo=dt.UTC)
    now = end - dt.timedelta(days=days, minutes=1)
    assert certificates_text("2026-12-01T00:00:00Z", now).startswith(words)


def test_a_testbed_without_a_stack_has_none_to_tell():
    assert "certificates" not in status_text(status("up"))
    told = dataclasses.replace(status("up"), certificates_until="2099-01-01T00:00:00Z")
    assert "certificates until 2099-01-01" in status_text(told)
