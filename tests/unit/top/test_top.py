"""What `testbed top` shows, of answers as the parts give them."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from rich.console import Console

from testbed.errors import ClusterError, DeployError
from testbed.lab.top import View, frame, gather, text, view
from testbed.lab.top.model import NodeAnswer, Pending, node_answer
from testbed.lab.top.show import bar
from testbed.units import GIB

A, B = "GPU-a", "GPU-b"


def card(uuid: str = A, index: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "uuid": uuid,
        "name": "NVIDIA A100-SXM4-80GB",
        "index": index,
        "memory_bytes": 80 * GIB,
        "used_bytes": 30 * GIB,
        "utilization_pct": 79,
        "process_samples": True,
        "clock": "slices",
        "lapped": 0,
        **more,
    }


def container(
    pod: str, uuid: str = A, *, share: float | None = 29.9, **more: Any
) -> dict[str, Any]:
    asked = {"bytes": 30 * GIB, "core_pct": 30}
    return {
        "namespace": "ns",
        "pod": pod,
        "pod_uid": f"uid-{pod}",
        "container": "main",
        "running": True,
        "policy": "force",
        "priority": 1,
        "flags": [],
        "unenforced": None,
        "devices": [
            {
                "uuid": uuid,
                "number": 0,
                "asked": asked,
                "limit": asked,
                "got": {"bytes": 12 * GIB, "processes": 1, "share_pct": share},
                "waited": 0.7,
                "waited_for": {"budget": 0.6, "queue": 0.1, "priority": 0.0},
            }
        ],
        **more,
    }


def booked(uuid: str = A, **more: Any) -> dict[str, Any]:
    return {
        "uuid": uuid,
        "index": 0,
        "model": "NVIDIA A100-SXM4-80GB",
        "healthy": True,
        "cordoned": False,
        "slots": {"used": 1, "total": 10},
        "mem_mib": {"used": 30720, "total": 81050},
        "core_pct": {"used": 30, "total": 100},
        **more,
    }


def told(node: str = "n1", *, cards: Any = None, containers: Any = ()) -> NodeAnswer:
    return node_answer(
        node,
        json.dumps({"node": node, "cards": [card()] if cards is None else cards}).encode(),
        json.dumps({"node": node, "containers": list(containers)}).encode(),
    )


def look(*answers: NodeAnswer, **more: Any) -> View:
    given = {"nodes": {"n1": True}, "ledger": {"nodes": {"n1": {"cards": [booked()]}}}, **more}
    return view(answers, **given)


def drawn(shown: View, width: int, **more: Any) -> str:
    out = io.StringIO()
    Console(file=out, width=width, color_system=None).print(frame(shown, width=width, **more))
    return out.getvalue()


def test_joined_from_monitor_ledger_and_nodes() -> None:
    shown = look(told(containers=[container("p")]))
    (node,) = shown.nodes
    assert (node.name, node.ready, node.cards, node.healthy, node.pods) == ("n1", True, 1, 1, 1)
    (row,) = shown.cards
    assert (row.model, row.utilization_pct, row.pods) == ("A100-SXM4-80GB", 79, 1)
    assert (row.promised_mib, row.mem_mib, row.promised_pct, row.core_pct) == (
        30720,
        81050,
        30,
        100,
    )
    assert row.flags == ()
    (entry,) = shown.containers
    assert (entry.asked_bytes, entry.bytes) == (30 * GIB, 12 * GIB)
    assert (entry.asked_pct, entry.share_pct, entry.waited) == (30, 29.9, 0.7)
    assert (entry.card, entry.waits_for, entry.policy) == (0, "budget", "force")


def test_what_is_out_of_the_ordinary_is_flagged() -> None:
    sick = booked(healthy=False, cordoned=True)
    shown = look(
        told(cards=[card(process_samples=False, clock="sharing")]),
        ledger={"nodes": {"n1": {"cards": [sick]}}},
    )
    assert shown.cards[0].flags == (
        "unhealthy",
        "cordoned",
        "no-process-samples",
        "clock=sharing",
    )
    assert shown.nodes[0].healthy == 0
    shown = look(
        told(
            containers=[
                container("p", flags=["degraded", "unenforced"], unenforced="no-region"),
                container("q", running=False, devices=[]),
            ]
        )
    )
    (row,) = shown.containers
    assert row.flags == ("degraded", "unenforced: no-region")
    assert look(told(cards=[card(error="GPU is lost")])).cards[0].flags == ("unreadable",)


def test_a_part_that_is_silent_leaves_the_rest() -> None:
    shown = look(NodeAnswer(node="n1", problem="monitor: 503"))
    assert shown.problems == ("n1: monitor: 503",)
    (row,) = shown.cards
    assert (row.used_bytes, row.utilization_pct, row.promised_mib) == (None, None, 30720)
    shown = look(told(containers=[container("p")]), ledger=None, problems=("extender: gone",))
    assert shown.cards[0].flags == ("not registered",) and shown.problems == ("extender: gone",)
    assert shown.containers


def test_a_changed_limit_is_what_counts_and_a_whole_card_is_no_limit() -> None:
    entry = container("p")
    entry["devices"][0]["limit"] = {"bytes": 8 * GIB, "core_pct": 10}
    (row,) = look(told(containers=[entry])).containers
    assert (row.asked_bytes, row.asked_pct) == (8 * GIB, 10)
    entry["devices"][0]["limit"] = {"bytes": 8 * GIB, "core_pct": 100}
    (row,) = look(told(containers=[entry])).containers
    assert row.asked_pct == 0
    entry["devices"][0]["limit"] = None
    (row,) = look(told(containers=[entry])).containers
    assert (row.asked_bytes, row.asked_pct) == (30 * GIB, 30), "no region: what was asked"


def test_several_nodes_and_cards_and_one_namespace() -> None:
    answers = [
        told("n2", containers=[container("b")]),
        told("n1", cards=[card(B, 1), card(A, 0)], containers=[container("a", B)]),
    ]
    pending = [
        Pending(namespace="other", pod="x", since="t"),
        Pending(namespace="ns", pod="w", since="t"),
    ]
    shown = view(answers, nodes={"n1": True}, ledger={"nodes": {}}, pending=pending)
    assert [(n.name, n.ready, n.cards) for n in shown.nodes] == [("n1", True, 2), ("n2", False, 1)]
    assert [(c.node, c.index) for c in shown.cards] == [("n1", 0), ("n1", 1), ("n2", 0)]
    assert [(c.pod, c.card) for c in shown.containers] == [("a", 1), ("b", 0)]
    only = view(answers, nodes={}, ledger=None, pending=pending, namespace="other")
    assert not only.containers and [p.pod for p in only.pending] == ["x"]
    assert [n.pods for n in only.nodes] == [1, 1], "nodes count everybody's pods"


def test_a_monitor_of_another_version_is_said() -> None:
    with pytest.raises(DeployError, match="monitor of n1"):
        node_answer("n1", b'{"cards": [{}]}', b'{"containers": []}')


def test_plain_text_is_kubectls_kind_of_table() -> None:
    shown = look(
        told(containers=[container("p")]), pending=[Pending(namespace="ns", pod="w", since="t")]
    )
    lines = text(shown).splitlines()
    assert lines[0].split() == ["NODE", "STATUS", "CARDS", "PODS", "MEMORY"]
    row = next(line for line in lines if line.startswith("ns          p"))
    for cell in ("12 of 30 GiB", "29.9 of 30 %", "70 % budget"):
        assert cell in row
    assert "testbed explain ns/w" in text(shown)
    assert "testbed explain --name mine ns/w" in text(shown, options="--name mine")
    assert "█" not in text(shown), "bars are for terminals"
    assert "no container uses a card" in text(look(told()))


def test_memory_outside_the_card_is_told_beside_it() -> None:
    entry = container("p")
    entry["devices"][0]["got"]["swapped_bytes"] = 4 * GIB
    assert "12 of 30 GiB, 4 GiB swapped" in text(look(told(containers=[entry])))
    entry["devices"][0]["got"]["swapped_bytes"] = 0
    assert "swapped" not in text(look(told(containers=[entry])))


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_a_terminal_of_any_width_is_not_overrun(width: int) -> None:
    shown = look(told(containers=[container("p"), container("q" * 60)]), problems=("x: y",))
    out = drawn(shown, width, title="testbed vgpu", problem="figures are 9 s old")
    assert max(len(line) for line in out.splitlines()) <= width
    assert ("█" in out) == (width >= 110)
    assert "testbed vgpu" in out and "problem: x: y" in out and "9 s old" in out


def test_a_narrow_terminal_still_shows_flags_and_tells_containers_apart() -> None:
    entries = [container("p", flags=["degraded"]), container("p", container="side"), container("q")]
    out = drawn(look(told(containers=entries)), 80)
    assert "degraded" in out and "70 % budget" in out and "29.9 of 30 %" in out
    assert "p/main" in out and "p/side" in out and "q/main" not in out
    assert "CONTAINER" not in out and "CONTAINER" in drawn(look(told(containers=entries)), 100)


def test_names_with_markup_are_shown_as_they_are() -> None:
    odd = replace(look(told(containers=[container("p")])).containers[0], pod="[red]p[/red]")
    assert "[red]p[/red]" in drawn(View(containers=(odd,)), 200)


def test_bars() -> None:
    assert bar(0, cells=4) == "    "
    assert bar(1, cells=4) == bar(7, cells=4) == "████"
    assert bar(0.5, cells=4) == "██  "
    assert bar(0.001, cells=4) == "▏   ", "something is not nothing"
    assert bar(0.25, mark=0.5, cells=4) == "█ │ "
    assert bar(0.9, mark=0.5, cells=4)[2] == "█", "over the limit covers the mark"
    assert bar(0, mark=1, cells=4) == "    "
    for part in range(-5, 150):
        assert len(bar(part / 100, mark=0.3)) == 10


def test_one_json_document() -> None:
    shown = look(told(containers=[container("p", share=None)]))
    document = json.loads(msgspec.json.encode(shown))
    assert set(document) == {"nodes", "cards", "containers", "pending", "problems"}
    assert document["containers"][0]["share_pct"] is None


class FakeKube:
    """The calls that ``gather`` makes."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Any]] = []
        self.broken: set[str] = set()

    def list(self, api: str, kind: str, namespace: str | None = None, **more: Any) -> list[Any]:
        if kind == "Node":
            return [
                {
                    "metadata": {"name": "n1"},
                    "status": {"conditions": [{"type": "Ready", "status": "True"}]},
                }
            ]
        if "monitor" in more.get("labels", ""):
            return [{"metadata": {"name": "vgpu-monitor-1"}, "spec": {"nodeName": "n1"}}]
        if more.get("labels"):
            return [{"metadata": {"name": "vgpu-scheduler-1"}, "spec": {"nodeName": "n1"}}]
        assert more["fields"] == "spec.nodeName=,status.phase=Pending"
        mine = {
            "metadata": {"namespace": "ns", "name": "w"},
            "spec": {"schedulerName": "vgpu-scheduler"},
        }
        other = {"metadata": {"namespace": "ns", "name": "o"}, "spec": {"schedulerName": "x"}}
        return [mine, other]

    def pod_proxy(self, namespace: str, pod: str, port: int, path: str, query: Any = None) -> bytes:
        self.asked.append((path, query))
        if path in self.broken:
            raise ClusterError("GET failed", why="503: no endpoint")
        answers: dict[str, Any] = {
            "/v1/cards": {"cards": [card()]},
            "/v1/containers": {"containers": [container("p")]},
            "/debug/ledger": {"nodes": {"n1": {"cards": [booked()]}}, "pods": []},
        }
        return json.dumps(answers[path]).encode()


def test_gathered_from_the_cluster() -> None:
    kube = FakeKube()
    shown = gather(kube, span_s=3)  # type: ignore[arg-type]
    assert shown == look(
        told(containers=[container("p")]), pending=[Pending(namespace="ns", pod="w", since="")]
    )
    assert ("/v1/containers", {"span": "3"}) in kube.asked
    ((_, query),) = [asked for asked in kube.asked if asked[0] == "/v1/cards"]
    assert float(query["since"]) > 1e15, "no history is carried"


@pytest.mark.parametrize("path", ["/v1/containers", "/debug/ledger"])
def test_what_does_not_answer_is_a_problem_and_no_end(path: str) -> None:
    kube = FakeKube()
    kube.broken = {path}
    shown = gather(kube)  # type: ignore[arg-type]
    assert len(shown.problems) == 1 and "503: no endpoint" in shown.problems[0]
    assert shown.cards
