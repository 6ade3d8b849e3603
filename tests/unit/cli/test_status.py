"""What ``testbed status`` says, and what it points to."""

from __future__ import annotations

from pathlib import Path

from testbed.cli.cluster import status_text
from testbed.lab.cluster.protocol import ClusterStatus, NodeStatus


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


def test_one_that_is_up_is_used():
    assert status_text(status("up")).endswith("\ntestbed kubectl --name x get pods -A")


def test_one_that_is_broken_is_not():
    said = status_text(status("broken"))
    assert "problem: its own docker has ended" in said
    assert "kubectl" not in said and "testbed up --name x, with" in said
    assert said.endswith("testbed down --name x clears it")
    assert "--name" not in status_text(status("broken", "vgpu"))


def test_one_that_is_not_there_is_brought_up():
    assert status_text(status("absent")) == "testbed x is not up   (testbed up --name x)"
