"""One Allocate over fake edges: what is patched, in which order, and what happens on failure."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from testbed.errors import DeployError
from testbed.stack import names
from testbed.stack.config import DeviceConfig
from testbed.stack.extender.turns import TURN_S
from testbed.stack.kubeapi import ApiError
from testbed.stack.plugin import allocator as allocator_module
from testbed.stack.plugin.allocator import Allocator, Refused
from testbed.stack.plugin.answer import ContainerAnswer, HostPaths
from testbed.stack.plugin.pods import NodePod

TEXT = "GPU-a,NVIDIA,30720,50:;"


def raw(name: str, text: str = TEXT, **annotations: str) -> dict[str, Any]:
    return {
        "metadata": {
            "name": name,
            "namespace": "ns",
            "uid": f"uid-{name}",
            "resourceVersion": "1",
            "labels": {},
            "annotations": {
                names.POD_TO_ALLOCATE: text,
                names.POD_ALLOCATED: text,
                names.POD_BIND_PHASE: names.PHASE_ALLOCATING,
                **annotations,
            },
        },
        "spec": {
            "containers": [{"name": "main", "resources": {"limits": {names.RESOURCE_COUNT: "1"}}}]
        },
    }


class FakeApi:
    """Pods with resource versions; ``before_patch`` runs between reading and patching."""

    def __init__(self, *pods: dict[str, Any]) -> None:
        self.pods = {pod["metadata"]["uid"]: pod for pod in pods}
        self.patches: list[tuple[str, dict[str, Any]]] = []
        self.before_patch: Callable[[], None] = lambda: None
        self.broken: str = ""
        #: What becomes of the next calls: "lost" does as asked and gives no answer, "late"
        #: gives none and does it with the next call but one, a number refuses.
        self.list_faults: list[int] = []
        self.patch_faults: list[str | int] = []
        self.late: list[Callable[[], None]] = []
        self.timeouts: list[float] = []
        self.clock = 0.0

    def sleep(self, seconds: float) -> None:
        self.clock += seconds

    def _no_answer(self, call: str, timeout_s: float) -> ApiError:
        self.clock += timeout_s
        return ApiError(f"{call} failed", why="timed out")

    def list_pods(self, *, timeout_s: float) -> list[dict[str, Any]]:
        self.timeouts.append(timeout_s)
        if self.broken == "list":
            raise self._no_answer("GET", timeout_s)
        if self.list_faults:
            status = self.list_faults.pop(0)
            raise (
                ApiError("GET failed", why="refused", status=status)
                if status
                else (self._no_answer("GET", timeout_s))
            )
        return copy.deepcopy(list(self.pods.values()))

    def patch_pod(self, pod: NodePod, metadata: dict[str, Any], *, timeout_s: float) -> None:
        self.timeouts.append(timeout_s)
        self.before_patch()
        if self.broken == "patch":
            raise self._no_answer("PATCH", timeout_s)
        fault = self.patch_faults.pop(0) if self.patch_faults else None
        late, self.late = self.late, []
        if fault == "late":
            self.late.append(lambda: self._apply(pod, metadata))
            raise self._no_answer("PATCH", timeout_s)
        if isinstance(fault, int):
            raise ApiError("PATCH failed", why="refused", status=fault)
        for write in late:
            write()
        self._apply(pod, metadata)
        if fault == "lost":
            raise self._no_answer("PATCH", timeout_s)

    def _apply(self, pod: NodePod, metadata: dict[str, Any]) -> None:
        held = self.pods[pod.key.uid]["metadata"]
        if held["resourceVersion"] != pod.resource_version:
            raise ApiError("PATCH failed", why="changed", status=409)
        held["annotations"].update(metadata["annotations"])
        held["labels"].update(metadata.get("labels", {}))
        held["resourceVersion"] = str(int(held["resourceVersion"]) + 1)
        self.patches.append((pod.key.name, metadata))

    def annotation(self, name: str, key: str) -> str:
        text: str = self.pods[f"uid-{name}"]["metadata"]["annotations"][key]
        return text


class Bench:
    def __init__(self, *pods: dict[str, Any]) -> None:
        self.api = FakeApi(*pods)
        self.view: dict[tuple[str, str], dict[str, bool]] | None = {
            ("ns", pod["metadata"]["name"]): {"main": False} for pod in pods
        }
        self.prepared: list[ContainerAnswer] = []
        self.config = DeviceConfig()
        self.fail: BaseException | None = None
        self.allocator = Allocator(
            api=self.api,
            view=lambda: self.view,
            prepare=self._prepare,
            config=lambda: self.config,
            cards=lambda: frozenset({"GPU-a"}),
            paths=HostPaths(hook="/hook", build="b"),
            node="n1",
            clock=lambda: self.api.clock,
            sleep=lambda seconds: self.api.sleep(seconds),
        )

    def _prepare(self, answer: ContainerAnswer) -> None:
        if self.fail is not None:
            raise self.fail
        self.prepared.append(answer)


def test_folder_first_then_annotations_then_answer() -> None:
    bench = Bench(raw("a"))
    seen: list[int] = []
    bench.api.before_patch = lambda: seen.append(len(bench.prepared))
    (answer,) = bench.allocator.allocate([1])
    assert answer.env["CUDA_DEVICE_MEMORY_LIMIT_0"] == "30720m"
    assert seen == [1]
    assert bench.api.annotation("a", names.POD_TO_ALLOCATE) == ";"
    assert bench.api.annotation("a", names.POD_ALLOCATED) == TEXT
    assert bench.api.annotation("a", names.POD_BIND_PHASE) == names.PHASE_SUCCESS
    # The label that servers before 1.35 do not take with the Binding.
    assert bench.api.pods["uid-a"]["metadata"]["labels"] == {names.POD_NODE: "n1"}


def test_second_pod_after_the_first_without_kubelets_view() -> None:
    bench = Bench(raw("a"))
    bench.view = None
    bench.allocator.allocate([1])
    bench.api.pods["uid-b"] = raw("b", "GPU-a,NVIDIA,20480,30:;")
    (answer,) = bench.allocator.allocate([1])
    assert answer.env["CUDA_DEVICE_MEMORY_LIMIT_0"] == "20480m"


def test_a_new_kubelet_may_ask_again() -> None:
    bench = Bench(raw("a"))
    (first,) = bench.allocator.allocate([1])
    with pytest.raises(Refused):
        bench.allocator.allocate([1])
    bench.allocator.kubelet_restarted()
    (again,) = bench.allocator.allocate([1])
    assert again == first
    assert len(bench.api.patches) == 1, "nothing is popped twice"


def test_n7_a_restarted_plugin_serves_the_turn_that_was_under_way_and_pops_it_once() -> None:
    api = Bench(raw("a")).api  # the API server outlasts the plugins

    def started(*, has_its_devices: bool) -> Bench:
        bench = Bench(raw("a"))
        bench.api.pods = api.pods
        bench.view = {("ns", "a"): {"main": has_its_devices}}
        return bench

    killed = started(has_its_devices=False)
    killed.fail = KeyboardInterrupt()  # before anything was written
    with pytest.raises(KeyboardInterrupt):
        killed.allocator.allocate([1])
    assert api.annotation("a", names.POD_BIND_PHASE) == names.PHASE_ALLOCATING
    second = started(has_its_devices=False)
    (answer,) = second.allocator.allocate([1])
    assert answer.env["CUDA_DEVICE_MEMORY_LIMIT_0"] == "30720m"
    assert api.annotation("a", names.POD_BIND_PHASE) == names.PHASE_SUCCESS
    # One that was ended after it had written: kubelet has no answer and asks again.
    third = started(has_its_devices=False)
    assert third.allocator.allocate([1]) == (answer,)
    assert third.api.patches == []
    with pytest.raises(Refused):
        started(has_its_devices=True).allocator.allocate([1])


def test_refusal_of_the_certain_asker_gives_its_turn_back() -> None:
    bench = Bench(raw("a", "GPU-b,NVIDIA,1,1:;"))
    with pytest.raises(Refused, match="GPU-b"):
        bench.allocator.allocate([1])
    assert bench.api.annotation("a", names.POD_BIND_PHASE) == names.PHASE_FAILED
    assert bench.prepared == []


def test_refusal_of_a_stranger_touches_nobody() -> None:
    stranger = raw("s", "")
    stranger["metadata"]["annotations"] = {}
    bench = Bench(raw("a"), stranger)
    bench.view = {("ns", "s"): {"main": False}}
    with pytest.raises(Refused, match="not placed by the scheduler"):
        bench.allocator.allocate([1])
    assert bench.api.patches == []


def test_ambiguity_touches_nobody_and_names_all() -> None:
    bench = Bench(raw("a"), raw("b", "GPU-a,NVIDIA,1,1:;"))
    bench.view = None
    with pytest.raises(Refused, match=r"ns/a.*ns/b"):
        bench.allocator.allocate([1])
    assert bench.api.patches == [] and bench.prepared == []


def test_pod_that_changed_meanwhile_is_decided_anew() -> None:
    bench = Bench(raw("a"))

    def touched_once() -> None:
        bench.api.before_patch = lambda: None
        bench.api.pods["uid-a"]["metadata"]["resourceVersion"] = "5"

    bench.api.before_patch = touched_once
    bench.allocator.allocate([1])
    assert bench.api.annotation("a", names.POD_BIND_PHASE) == names.PHASE_SUCCESS


def test_turn_that_was_taken_away_meanwhile_is_not_served() -> None:
    bench = Bench(raw("a"))

    def expired() -> None:
        bench.api.before_patch = lambda: None
        metadata = bench.api.pods["uid-a"]["metadata"]
        metadata["annotations"][names.POD_BIND_PHASE] = names.PHASE_FAILED
        metadata["resourceVersion"] = "2"

    bench.api.before_patch = expired
    with pytest.raises(Refused, match="failed"):
        bench.allocator.allocate([1])
    assert bench.api.annotation("a", names.POD_BIND_PHASE) == names.PHASE_FAILED


def test_pod_that_changes_for_ever_is_refused() -> None:
    bench = Bench(raw("a"))

    def touched() -> None:
        metadata = bench.api.pods["uid-a"]["metadata"]
        metadata["resourceVersion"] = str(int(metadata["resourceVersion"]) + 1)

    bench.api.before_patch = touched
    with pytest.raises(Refused, match="changed"):
        bench.allocator.allocate([1])


def test_folder_that_cannot_be_made_fails_the_pod() -> None:
    bench = Bench(raw("a"))
    for error in (OSError(28, "No space left on device"), DeployError("no", why="space left")):
        bench.api.pods["uid-a"] = raw("a")
        bench.fail = error
        with pytest.raises(Refused, match="space left"):
            bench.allocator.allocate([1])
        assert bench.api.annotation("a", names.POD_BIND_PHASE) == names.PHASE_FAILED


@pytest.mark.parametrize("broken", ["list", "patch"])
def test_api_server_that_does_not_answer_is_a_refusal(broken: str) -> None:
    bench = Bench(raw("a"))
    bench.api.broken = broken
    with pytest.raises(Refused, match="timed out"):
        bench.allocator.allocate([1])
    # The extender takes the turn back 30 s after the Binding.
    assert bench.api.clock < TURN_S - 5
    # It was not served: when asked again, it is.
    bench.api.broken = ""
    bench.allocator.allocate([1])


def test_enforcement_is_read_at_each_call() -> None:
    bench = Bench(raw("a"))
    bench.config = DeviceConfig(enforcement="off")
    (answer,) = bench.allocator.allocate([1])
    assert answer.env == {"NVIDIA_VISIBLE_DEVICES": "void"} and answer.mounts == ()
    assert bench.api.annotation("a", names.POD_BIND_PHASE) == names.PHASE_SUCCESS


@pytest.mark.parametrize("fault", ["lost", "late", 500, 503, 504, 429, 401, 403, 409])
def test_slow_api_server_fails_no_pod(fault: str | int) -> None:
    bench = Bench(raw("a"))
    bench.api.patch_faults = [fault]
    (answer,) = bench.allocator.allocate([1])
    assert answer.env["CUDA_DEVICE_MEMORY_LIMIT_0"] == "30720m"
    assert bench.api.annotation("a", names.POD_BIND_PHASE) == names.PHASE_SUCCESS
    assert len(bench.api.patches) == 1, "written once"
    with pytest.raises(Refused):
        bench.allocator.allocate([1])  # it was served


def test_write_that_arrives_behind_its_repetition_changes_nothing() -> None:
    bench = Bench(raw("a"))
    bench.api.patch_faults = ["late", "late", "lost"]
    bench.allocator.allocate([1])
    assert len(bench.api.patches) == 1
    assert bench.api.annotation("a", names.POD_BIND_PHASE) == names.PHASE_SUCCESS


@pytest.mark.parametrize("faults", [[0], [0, 503, 429, 403], [500] * 10])
def test_slow_lists_fail_no_pod(faults: list[int]) -> None:
    bench = Bench(raw("a"))
    bench.api.list_faults = faults
    assert bench.allocator.allocate([1])


@pytest.mark.parametrize("status", [400, 404, 422])
def test_what_the_server_refuses_for_good_is_not_asked_again(status: int) -> None:
    bench = Bench(raw("a"))
    bench.api.patch_faults = [status]
    with pytest.raises(Refused, match="refused"):
        bench.allocator.allocate([1])
    assert bench.api.clock == 0
    assert bench.api.annotation("a", names.POD_BIND_PHASE) == names.PHASE_FAILED


def turn_goes_on(bench: Bench) -> None:
    """The write of pod a arrives, its answer does not, and the next pod is bound."""
    bench.api.patch_faults = ["lost"]
    bench.view = {("ns", "a"): {"main": False}, ("ns", "b"): {"main": False}}
    listed = bench.api.list_pods

    def list_pods(*, timeout_s: float) -> list[dict[str, Any]]:
        if bench.api.patches:
            bench.api.pods.setdefault("uid-b", raw("b", "GPU-a,NVIDIA,20480,30:;"))
        return listed(timeout_s=timeout_s)

    bench.api.list_pods = list_pods  # type: ignore[method-assign]


def test_a_write_that_had_arrived_is_the_answer_though_the_next_pod_is_there() -> None:
    bench = Bench(raw("a"))
    turn_goes_on(bench)
    (answer,) = bench.allocator.allocate([1])
    assert answer.env["CUDA_DEVICE_MEMORY_LIMIT_0"] == "30720m"
    (answer,) = bench.allocator.allocate([1])
    assert answer.env["CUDA_DEVICE_MEMORY_LIMIT_0"] == "20480m"


def test_without_reading_it_back_nobody_could_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocator_module, "_says", lambda *_: False)
    bench = Bench(raw("a"))
    turn_goes_on(bench)
    with pytest.raises(Refused, match="does not say which one asks"):
        bench.allocator.allocate([1])


def test_lost_answers_for_each_of_several_containers() -> None:
    text = "GPU-a,NVIDIA,1000,10:;GPU-a,NVIDIA,2000,20:;"
    pod = raw("a", text)
    pod["spec"]["containers"].append({**pod["spec"]["containers"][0], "name": "second"})
    bench = Bench(pod)
    bench.view = None  # then only the annotation tells what was served
    bench.api.patch_faults = ["lost", "lost"]
    for limit in ("1000m", "2000m"):
        (answer,) = bench.allocator.allocate([1])
        assert answer.env["CUDA_DEVICE_MEMORY_LIMIT_0"] == limit
    assert bench.api.annotation("a", names.POD_TO_ALLOCATE) == ";;"
    assert bench.api.annotation("a", names.POD_BIND_PHASE) == names.PHASE_SUCCESS


def test_a_pod_that_is_gone_after_a_lost_answer_is_refused() -> None:
    bench = Bench(raw("a"))
    bench.api.patch_faults = ["late"]
    bench.api.before_patch = lambda: bench.api.pods.pop("uid-a", None) and None
    with pytest.raises(Refused, match="no pod of this node waits"):
        bench.allocator.allocate([1])


def test_nobody_waits_any_more() -> None:
    bench = Bench(raw("a"))
    bench.api.broken = "patch"
    with pytest.raises(Refused, match="timed out"):
        bench.allocator.allocate([1], lambda: False)
    # One list, one write, and the word that it has failed.
    assert len(bench.api.timeouts) == 3


def test_each_call_leaves_time_for_another() -> None:
    bench = Bench(raw("a"))
    bench.api.list_faults = [0, 0, 0]
    bench.allocator.allocate([1])
    assert bench.api.timeouts[0] >= 5
    assert all(later <= 0.6 * first for first, later in itertools.pairwise(bench.api.timeouts[:4]))


def test_kubelet_that_was_too_busy_to_tell_its_view_is_asked_again() -> None:
    bench = Bench(raw("a"), raw("b", "GPU-a,NVIDIA,20480,30:;"))
    views = [None, {("ns", "b"): {"main": False}}]
    bench.view = None

    def sleep(_seconds: float) -> None:
        bench.view = views[1]

    bench.api.sleep = sleep  # type: ignore[method-assign]
    (answer,) = bench.allocator.allocate([1])
    assert answer.env["CUDA_DEVICE_MEMORY_LIMIT_0"] == "20480m"
