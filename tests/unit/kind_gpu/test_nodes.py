"""What is run in nodes, and what comes of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.card.spec import parse_nodes
from testbed.errors import ClusterError, InputError, TestbedError
from testbed.lab.cluster.kind import gpu, gpu_cards, gpu_host, gpu_nodes, toolkit

DATA = Path(__file__).parents[2] / "data/toolkit"


def text(name: str) -> str:
    return (DATA / name).read_text()


CARDS = gpu_cards.joined(
    gpu_cards.parse_list(text("made/smi-list-mig.txt")),
    gpu_cards.parse_query(text("made/smi-query-mig.txt")),
    [(f"GPU-11111111-aaaa-bbbb-cccc-00000000000{n}", n) for n in range(3)],
)[:2]


class Engine:
    """An engine whose nodes say what they are told to, and remember what was asked."""

    def __init__(self, listed: str, fails: str = "") -> None:
        self.listed = listed
        self.fails = fails
        self.asked: list[tuple[str, str]] = []

    def inside(self, node, argv, *, what, timeout_s=60.0):
        self.asked.append((node, argv[-1]))
        if self.fails and self.fails in what:
            raise TestbedError(what, why="exit code 1\nNo devices were found")
        return self.listed if argv == gpu.NodeGpus.LIST else ""


@pytest.fixture
def machine(monkeypatch):
    host = gpu.GpuHost(
        cards=CARDS,
        toolkit=toolkit.Toolkit(
            version=(1, 18, 1), programs={"/opt/nvidia-ctk": "/usr/bin/nvidia-ctk"}
        ),
        parts=toolkit.parse_specification(text("made/specification-mig.json")),
    )
    monkeypatch.setattr(gpu_host, "look", lambda: host)
    return host


def test_emulated_cards_ask_nothing_of_the_machine(monkeypatch):
    def look():
        raise AssertionError("no driver may be asked for")

    monkeypatch.setattr(gpu_host, "look", look)
    assert gpu_nodes.planned(parse_nodes("t4:2", 3)[1]) is None


def test_scripts_run_in_their_order_and_the_cards_are_looked_at(machine):
    plan = gpu_nodes.planned(parse_nodes("nvidia:0:1;nvidia:device=1")[1])
    assert plan is not None
    engine = Engine(text("made/smi-list-8.txt"))
    with pytest.raises(ClusterError, match="n2 does not see the cards"):
        gpu_nodes.set_up(engine, "n2", plan.nodes[1])
    assert [script for _, script in engine.asked[:-1]] == [s.text for s in plan.nodes[1].scripts]
    one = f"GPU 0: NVIDIA A100-SXM4-80GB (UUID: {CARDS[1].uuid})\n"
    gpu_nodes.set_up(Engine(one), "n2", plan.nodes[1])


def test_a_script_that_fails_ends_it(machine):
    plan = gpu_nodes.planned(parse_nodes("nvidia:device=1")[1])
    assert plan is not None
    engine = Engine("", fails="keep device nodes")
    with pytest.raises(TestbedError, match="n1: cannot keep device nodes from being made"):
        gpu_nodes.set_up(engine, "n1", plan.nodes[0])
    assert engine.asked[-1][1] == plan.nodes[0].scripts[2].text
    with pytest.raises(ClusterError, match="sees no card") as failed:
        gpu_nodes.set_up(Engine("", fails="list its cards"), "n1", plan.nodes[0])
    assert failed.value.hint


def test_a_restarted_node_gets_the_same_cards_by_their_uuids(machine):
    plan = gpu_nodes.planned(parse_nodes("nvidia:0:1;nvidia:device=1")[1])
    assert plan is not None
    given = {f"n{n}": node.devices for n, node in enumerate(plan.nodes)}
    assert given["n0"] == ("MIG-22222222-0000-5000-8000-000000000001",)
    assert gpu_nodes.again(given) == plan
    with pytest.raises(InputError, match="no card GPU-gone"):
        gpu_nodes.again({"n0": ("GPU-gone",)})
    # Who brought it up is told what was done, and what does not work.
    assert "mounts" in plan.told()[0] and "whole cards" in plan.told()[1]
