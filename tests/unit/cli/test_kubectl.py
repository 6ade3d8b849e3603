"""``testbed kubectl``: what is ours, what is kubectl's."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import typer
from typer.testing import CliRunner

from testbed.cli import kubectl as command
from testbed.cli.main import app
from testbed.lab import testbed


def cluster(name: str) -> SimpleNamespace:
    return SimpleNamespace(
        provider="process", kubeconfig=lambda: Path("/state", name, "kubeconfig")
    )


@pytest.mark.parametrize(
    ("arguments", "name", "passed"),
    [
        (["get", "pods", "-A"], "vgpu", ["get", "pods", "-A"]),
        (["-n", "x", "logs", "p", "--name", "y"], "vgpu", ["-n", "x", "logs", "p", "--name", "y"]),
        (["--name", "mine", "get", "--help"], "mine", ["get", "--help"]),
        (["exec", "p", "--", "sh", "-c", "ls"], "vgpu", ["exec", "p", "--", "sh", "-c", "ls"]),
    ],
)
def test_arguments_reach_kubectl(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], name: str, passed: list[str]
) -> None:
    seen: list[tuple[str, list[str], str]] = []

    def execute(program: Path, argv: list[str], environ: dict[str, str]) -> None:
        seen.append((str(program), argv, environ["KUBECONFIG"]))
        raise typer.Exit(0)

    monkeypatch.setattr(testbed, "cluster_provider", lambda kind, name: cluster(name))
    monkeypatch.setattr(testbed.binaries, "find", lambda program: Path("/cache", program))
    monkeypatch.setattr(command.os, "execve", execute)
    assert CliRunner().invoke(app, ["kubectl", *arguments]).exit_code == 0
    assert seen == [("/cache/kubectl", ["kubectl", *passed], f"/state/{name}/kubeconfig")]
