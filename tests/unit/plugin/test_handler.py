"""Whom an Allocate serves: the rule, its exceptions, and what it refuses to guess."""

from __future__ import annotations

from typing import Any

import pytest

from testbed.stack import names
from testbed.stack.model import PodKey, Share
from testbed.stack.plugin.handler import Refuse, Serve, annotation_patch, decide
from testbed.stack.plugin.pods import NodeContainer, NodePod

CARD = "GPU-a"


def entry(mem: int = 3000, cores: int = 30, uuid: str = CARD) -> str:
    return f"{uuid},NVIDIA,{mem},{cores}:"


def container(name: str, position: int, count: int = 1, **more: Any) -> NodeContainer:
    return NodeContainer(name=name, position=position, count=count, **more)


def pod(name: str, *containers: NodeContainer, text: str = "", **more: Any) -> NodePod:
    """A bound pod that waits for its devices; ``text`` is what it was promised."""
    given: dict[str, Any] = {
        "bind_phase": names.PHASE_ALLOCATING,
        "bind_time": "100",
        "to_allocate": text,
        "allocated": text,
    }
    return NodePod(
        key=PodKey(namespace="ns", name=name, uid=f"uid-{name}"),
        containers=containers or (container("main", 0),),
        **{**given, **more},
    )


def view(**pods: dict[str, bool]) -> dict[tuple[str, str], dict[str, bool]]:
    return {("ns", name): containers for name, containers in pods.items()}


def served(decision: Serve | Refuse) -> list[tuple[str, str, int]]:
    """(pod, container, MiB of its first device) of each grant."""
    assert isinstance(decision, Serve), decision
    return [
        (decision.pod.key.name, grant.container.name, grant.shares[0].mem_mib)
        for grant in decision.grants
    ]


def refused(decision: Serve | Refuse) -> Refuse:
    assert isinstance(decision, Refuse), decision
    return decision


def test_the_one_pod_that_waits_is_served_and_its_entry_taken() -> None:
    a = pod("a", text=entry(30720, 50) + ";")
    decision = decide([1], [a], view(a={"main": False}))
    assert served(decision) == [("a", "main", 30720)]
    assert isinstance(decision, Serve)
    assert decision.grants[0].shares == (Share(uuid=CARD, mem_mib=30720, core_pct=50),)
    assert annotation_patch(decision) == {
        names.POD_TO_ALLOCATE: ";",
        names.POD_BIND_PHASE: names.PHASE_SUCCESS,
    }


@pytest.mark.parametrize("order", [0, 1])
def test_two_pods_kubelet_asks_for_the_one_it_lists(order: int) -> None:
    """Both are bound and differ; kubelet admits them one by one, in either order."""
    pods = [pod("a", text=entry(30720) + ";"), pod("b", text=entry(20480) + ";")]
    for asker in ("a", "b"):
        other = "b" if asker == "a" else "a"
        # The other one is not known to kubelet yet ...
        decision = decide([1], pods[::-1] if order else pods, view(**{asker: {"main": False}}))
        assert served(decision)[0][0] == asker
        # ... or has its devices.
        known = view(**{asker: {"main": False}, other: {"main": True}})
        assert served(decide([1], pods[::-1] if order else pods, known))[0][0] == asker


def test_two_pods_that_differ_are_refused_by_name_where_kubelet_does_not_tell() -> None:
    pods = [pod("a", text=entry(30720) + ";"), pod("b", text=entry(20480) + ";")]
    for told in (None, view(a={"main": False}, b={"main": False})):
        refusal = refused(decide([1], pods, told))
        assert "ns/a" in refusal.reason and "ns/b" in refusal.reason
        assert refusal.blame is None


def test_two_pods_with_equal_promises_are_interchangeable() -> None:
    pods = [
        pod("a", text=entry() + ";", bind_time="200"),
        pod("b", text=entry() + ";", bind_time="100"),
    ]
    assert served(decide([1], pods, None)) == [("b", "main", 3000)]


def test_equal_memory_on_another_card_is_not_equal() -> None:
    pods = [pod("a", text=entry() + ";"), pod("b", text=entry(uuid="GPU-b") + ";")]
    refused(decide([1], pods, None))


def test_a_pod_of_another_scheduler_is_refused_not_served() -> None:
    stranger = pod("s", to_allocate="", allocated="", bind_phase="")
    refusal = refused(decide([1], [stranger], view(s={"main": False})))
    assert "not placed by the scheduler" in refusal.reason
    assert refusal.blame == stranger
    # In between: an honest pod that has its turn is neither served instead nor blamed.
    a = pod("a", text=entry() + ";")
    assert refused(decide([1], [a, stranger], view(s={"main": False}))).blame == stranger
    assert served(decide([1], [a, stranger], view(a={"main": False}))) == [("a", "main", 3000)]
    refusal = refused(decide([1], [a, stranger], None))
    assert refusal.blame is None and "ns/s" in refusal.reason


@pytest.mark.parametrize("phase", ["", names.PHASE_FAILED])
def test_a_turn_that_has_ended_is_not_served(phase: str) -> None:
    late = pod("a", text=entry() + ";", bind_phase=phase)
    assert refused(decide([1], [late], view(a={"main": False}))).blame == late


def test_running_pods_without_devices_after_a_lost_checkpoint_do_not_count() -> None:
    """Kubelet lists them without devices for good, and never asks for them again."""
    running = pod("old", container("main", 0, started=True), text=entry(1) + ";")
    fresh = pod("new", text=entry(2) + ";")
    told = view(old={"main": False}, new={"main": False})
    assert served(decide([1], [running, fresh], told)) == [("new", "main", 2)]


def test_finished_pods_do_not_count() -> None:
    done = pod("done", text=entry(1) + ";", finished=True)
    fresh = pod("new", text=entry(2) + ";")
    assert served(decide([1], [done, fresh], None)) == [("new", "main", 2)]


def test_asked_again_after_success_is_served_from_the_promise() -> None:
    again = pod("a", to_allocate=";", allocated=entry(7) + ";", bind_phase=names.PHASE_SUCCESS)
    decision = decide([1], [again], view(a={"main": False}))
    assert served(decision) == [("a", "main", 7)]
    assert isinstance(decision, Serve) and annotation_patch(decision) == {}


def test_what_kubelet_was_told_in_this_life_it_does_not_ask_again() -> None:
    told = pod("a", to_allocate=";", allocated=entry(7) + ";", bind_phase=names.PHASE_SUCCESS)
    fresh = pod("b", text=entry(8) + ";")
    assert served(decide([1], [told, fresh], None, {("uid-a", "main")})) == [("b", "main", 8)]


def test_devices_by_number() -> None:
    two = pod("a", container("main", 0, count=2), text=entry() + entry(uuid="GPU-b") + ";")
    assert served(decide([2], [two], view(a={"main": False}))) == [("a", "main", 3000)]
    assert "no pod" in refused(decide([1], [two], view(a={"main": False}))).reason
    short = pod("a", container("main", 0, count=2), text=entry() + ";")
    refusal = refused(decide([2], [short], view(a={"main": False})))
    assert "device number not matched" in refusal.reason and refusal.blame == short


def test_the_number_tells_two_pods_apart() -> None:
    one = pod("a", text=entry(1) + ";")
    two = pod("b", container("main", 0, count=2), text=entry(2) + entry(2, uuid="GPU-b") + ";")
    assert served(decide([2], [one, two], None)) == [("b", "main", 2)]
    assert served(decide([1], [one, two], None)) == [("a", "main", 1)]


def test_init_then_app_containers_each_get_their_own_entry() -> None:
    """C3, C5: kubelet asks init containers first and may offer their ids again."""
    made = (
        container("init", 0, plain_init=True),
        container("x", 1),
        container("none", 2, count=0),
        container("y", 3),
    )
    text = f"{entry(1)};{entry(2)};;{entry(3)};"
    expected = [("init", 1, f";{entry(2)};;{entry(3)};"), ("x", 2, f";;;{entry(3)};")]
    expected += [("y", 3, ";;;;")]
    left, told, known = text, set[tuple[str, str]](), {"x": False, "y": False, "none": False}
    for name, mem, after in expected:
        current = pod("p", *made, to_allocate=left, allocated=text)
        decision = decide([1], [current], view(p=known), told)
        assert served(decision) == [("p", name, mem)]
        assert isinstance(decision, Serve) and decision.to_allocate == after
        assert decision.complete == (name == "y")
        left = after
        told.add(("uid-p", name))
        if name != "init":
            known[name] = True


def test_several_requests_in_one_call() -> None:
    """C6."""
    both = pod("p", container("x", 0), container("y", 1), text=f"{entry(1)};{entry(2)};")
    decision = decide([1, 1], [both], view(p={"x": False, "y": False}))
    assert served(decision) == [("p", "x", 1), ("p", "y", 2)]
    assert isinstance(decision, Serve) and decision.complete and decision.to_allocate == ";;"


def test_half_served_pod_whose_first_container_is_asked_again() -> None:
    """Kubelet lost its checkpoint between the two containers: PodResources tells."""
    half = pod(
        "p",
        container("x", 0),
        container("y", 1),
        to_allocate=f";{entry(2)};",
        allocated=f"{entry(1)};{entry(2)};",
    )
    again = decide([1], [half], view(p={"x": False, "y": False}))
    assert served(again) == [("p", "x", 1)]
    assert isinstance(again, Serve) and annotation_patch(again) == {}
    assert served(decide([1], [half], view(p={"x": True, "y": False}))) == [("p", "y", 2)]
    assert "does not say" in refused(decide([1], [half], None)).reason


def test_a_served_init_container_is_told_by_the_devices_of_a_later_one() -> None:
    """Kubelet does not list init containers; it asks in order, though."""
    first = pod(
        "a",
        container("init", 0, plain_init=True),
        container("x", 1),
        to_allocate=";;",
        allocated=f"{entry(1)};{entry(2)};",
        bind_phase=names.PHASE_SUCCESS,
    )
    fresh = pod("b", text=entry(9) + ";")
    told = view(a={"x": True}, b={"main": False})
    assert served(decide([1], [first, fresh], told)) == [("b", "main", 9)]


def test_an_init_container_that_may_have_been_served_is_not_guessed() -> None:
    half = pod(
        "p",
        container("init", 0, plain_init=True),
        container("x", 1),
        to_allocate=f";{entry(2)};",
        allocated=f"{entry(1)};{entry(2)};",
    )
    assert "does not say" in refused(decide([1], [half], view(p={"x": False}))).reason
    known = {("uid-p", "init")}
    assert served(decide([1], [half], view(p={"x": False}), known)) == [("p", "x", 2)]


def test_unreadable_annotation_is_refused_with_its_text() -> None:
    broken = pod("a", text="GPU-a,NVIDIA,30;")
    refusal = refused(decide([1], [broken], view(a={"main": False})))
    assert "GPU-a,NVIDIA,30" in refusal.reason and refusal.blame == broken


def test_a_card_of_another_node_is_refused() -> None:
    a = pod("a", text=entry(uuid="GPU-gone") + ";")
    refusal = refused(decide([1], [a], view(a={"main": False}), cards={CARD}))
    assert "GPU-gone" in refusal.reason


def test_nobody_waits() -> None:
    refusal = refused(decide([1], [], view()))
    assert "none" in refusal.reason and refusal.blame is None
    assert refused(decide([1], [pod("a", text=entry() + ";")], view())).blame is None
