"""The monitor on a double of NVML, with pods from a double of the API server."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed.card.profiles import load
from testbed.native import card
from testbed.native import region_layout as layout
from testbed.native.region import RegionConstant, RegionDevice, make_region, set_memory
from testbed.stack.codec import region_name
from testbed.stack.devices import (
    CardReading,
    Device,
    DriverRoot,
    ProcessBytes,
    ProcessSample,
    UtilizationReading,
)
from testbed.stack.kubeapi import KubeApi
from testbed.stack.monitor.follow import follow_pods
from testbed.stack.monitor.pods import PodIndex
from testbed.stack.monitor.server import Monitor, Options
from testbed.stack.monitor.whose import Owner

from .waiting import DEADLINE_S, eventually

GPU = "GPU-00000000-0000-0000-0000-00000000000a"


class Nvml:
    def __init__(self) -> None:
        self.reading = CardReading(uuid=GPU)
        #: Percent of every sixth of a second that processes keep the card busy.
        self.busy: dict[int, int] = {}
        self.offered = True

    def devices(self) -> tuple[Device, ...]:
        return (Device(uuid=GPU, index=0, name="NVIDIA A100", memory_bytes=1 << 30),)

    def read(self, uuid: str) -> CardReading:
        return self.reading

    def utilization(self, uuid: str, since_us: int, card_since_us: int) -> UtilizationReading:
        if not self.offered:
            return UtilizationReading(offered=False)
        period_us = 1_000_000 // 6
        stamp = (time.time_ns() // 1000 - 100_000) // period_us * period_us
        if stamp <= since_us:
            return UtilizationReading()
        busy = dict(self.busy)
        return UtilizationReading(
            processes=tuple(
                ProcessSample(pid=pid, stamp_us=stamp, sm_pct=pct) for pid, pct in busy.items()
            ),
            card_stamp_us=stamp,
            card_pct=min(100, sum(busy.values())),
        )


class Running:
    def __init__(self, tmp_path: Path, api: Any) -> None:
        self.hook = tmp_path / "hook"
        self.nvml = Nvml()
        self._api = KubeApi.connect(api.kubeconfig(tmp_path / "kubeconfig"))
        self._stop = threading.Event()
        options = Options(node="n1", driver_root="/x", hook_path=self.hook, port=0, period_s=0.02)
        self.state = tmp_path / "root" / "cards" / GPU / "state"
        self.state.parent.mkdir(parents=True)
        a100 = {name: figure.value for name, figure in load("a100-80gb").figures.items()}
        card.make(
            self.state,
            card.CardDescription(
                uuid=GPU, name="A100", pci_bus_id="", index=0, minor=0, driver_text="", **a100
            ),
        )
        nvml = tmp_path / "root" / "driver" / "libnvidia-ml.so.1"
        root = DriverRoot(path="/x", emulated=True, nvml=nvml)
        self.pods = PodIndex(keep_s=600)
        #: Pids that the kernel would tell to be a container's.
        self.owned: dict[int, tuple[str, str]] = {}
        self.monitor = Monitor(options, self.nvml, root, self.pods)  # type: ignore[arg-type]
        known = self.monitor._processes.owners
        self.monitor._processes.owners = lambda pids: {  # type: ignore[method-assign]
            pid: Owner(pod_uid=self.owned[pid][0], container=self.owned[pid][1])
            if pid in self.owned
            else found
            for pid, found in known(pids).items()
        }
        self._threads = [
            threading.Thread(target=self.monitor.run, args=(self._stop,)),
            threading.Thread(
                target=follow_pods, args=(self._api, "n1", self.pods, self._stop), daemon=True
            ),
        ]
        for thread in self._threads:
            thread.start()
        eventually(lambda: self.monitor.http_port != 0, "http is up")

    def close(self) -> None:
        self._stop.set()
        self._threads[0].join(DEADLINE_S)
        assert not self._threads[0].is_alive(), "the monitor does not end"
        self._api.close()

    def get(self, path: str) -> tuple[int, str]:
        url = f"http://127.0.0.1:{self.monitor.http_port}{path}"
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def cards(self, since: float = 0) -> dict[str, Any]:
        status, text = self.get(f"/v1/cards?since={since}")
        assert status == 200, text
        document: dict[str, Any] = json.loads(text)
        return document

    def containers(self, span: float = 5) -> dict[str, Any]:
        """Containers by their pod's name."""
        status, text = self.get(f"/v1/containers?span={span}")
        assert status == 200, text
        return {entry["pod"]: entry for entry in json.loads(text)["containers"]}


@pytest.fixture
def monitor(tmp_path: Path, api: Any) -> Iterator[Running]:
    running = Running(tmp_path, api)
    yield running
    running.close()


def test_samples_and_since(monitor: Running) -> None:
    eventually(lambda: len(monitor.cards()["samples"]) >= 3, "samples")
    first = monitor.cards()
    assert (first["node"], first["source"]) == ("n1", "emulated")
    assert first["cards"] == [
        {
            "uuid": GPU,
            "name": "NVIDIA A100",
            "index": 0,
            "memory_bytes": 1 << 30,
            "used_bytes": 0,
            "utilization_pct": None,
            "process_samples": True,
            "clock": "slices",
            "lapped": 0,
            "budget_hits": 0,
        }
    ]
    assert {(s["pid"], s["bytes"], s["pod_uid"]) for s in first["samples"]} == {(0, 0, "")}
    monitor.nvml.reading = CardReading(
        uuid=GPU, used_bytes=70, processes=(ProcessBytes(pid=2**22 + 7, bytes=70),)
    )
    seen: list[dict[str, Any]] = []
    since = first["now"]
    while not seen or seen[-1]["bytes"] == 0:
        document = monitor.cards(since)
        assert all(sample["time"] > since for sample in document["samples"])
        since = document["now"]
        seen += document["samples"]
    times = [sample["time"] for sample in seen]
    assert times == sorted(set(times)), "one sample a tick, none twice"
    assert seen[-1]["pod_uid"] == "unknown" and seen[-1]["pid"] == 2**22 + 7


def test_a_card_that_fails_is_told_and_silent(monitor: Running) -> None:
    monitor.nvml.reading = CardReading(uuid=GPU, error="GPU is lost")
    eventually(lambda: "error" in monitor.cards()["cards"][0], "the error is told")
    now = monitor.cards()["now"]
    assert monitor.cards(now)["samples"] == []
    monitor.nvml.reading = CardReading(uuid=GPU)
    eventually(lambda: bool(monitor.cards(now)["samples"]), "samples again")
    assert "error" not in monitor.cards()["cards"][0]


def test_what_the_memory_budget_refused_is_told(monitor: Running) -> None:
    assert monitor.cards()["cards"][0]["budget_hits"] == 0
    with monitor.state.open("r+b") as file:
        file.seek(card.StateLayout.budget_hits.offset)
        file.write((3).to_bytes(8, "little"))
    assert monitor.cards()["cards"][0]["budget_hits"] == 3
    monitor.state.unlink()
    assert monitor.get("/v1/cards")[0] == 500, "not zero: nobody knows"


def test_bad_questions(monitor: Running) -> None:
    assert monitor.get("/v1/cards?since=yesterday")[0] == 400
    assert monitor.get("/v2/cards")[0] == 404
    eventually(lambda: monitor.get("/healthz")[0] == 200, "healthy")


def test_series_come_and_go_with_the_pod(monitor: Running, api: Any, bound_pod: Any) -> None:
    """N8, N9, D22: before there is a folder, while the pod runs, and when it has ended."""
    pod = bound_pod("a", f"{GPU},NVIDIA,10,5:;")
    pod["status"] = {
        "phase": "Running",
        "containerStatuses": [
            {"name": "main", "containerID": "containerd://1", "state": {"running": {}}}
        ],
    }
    api.put(pod)
    uid = pod["metadata"]["uid"]
    who = 'container="main",namespace="ns",pod="a"'

    def metrics() -> str:
        return monitor.get("/metrics")[1]

    def containers() -> list[str]:
        mine = ("hami_vgpu", "hami_container", "vgpu_container", "vgpu_launches", "vgpu_waited")
        return [line for line in metrics().splitlines() if line.startswith(mine)]

    eventually(lambda: 'reason="no-region"' in metrics(), "a container without a region")
    assert "hami_host_gpu_memory_used_bytes{" in metrics()
    folder = monitor.hook / "containers" / f"{uid}_main"
    folder.mkdir(parents=True)
    constant = RegionConstant(
        devices=(RegionDevice(uuid=GPU, memory_limit_bytes=10 << 20, sm_limit_pct=5),),
        pod_uid=uid,
        pod_namespace="ns",
        pod_name="a",
        container_name="main",
    )
    region = make_region(folder, region_name(uid, "main"), constant)
    eventually(lambda: "vgpu_container_unenforced{" not in metrics(), "the region is seen")
    # As a tenant could who knows the layout: it is his file.
    set_memory(region, {0: 11 << 20})
    eventually(lambda: 'reason="limit-above-promise"' in metrics(), "more than was promised")
    set_memory(region, {0: 10 << 20})
    eventually(lambda: "vgpu_container_unenforced{" not in metrics(), "as it was promised")
    eventually(lambda: "vgpu_launches_total{" in metrics(), "the library's counters")
    limits = [line for line in containers() if line.startswith("hami_vgpu_memory_limit")]
    assert [float(line.split()[-1]) for line in limits] == [10 << 20]
    assert all(part in limits[0] for part in who.split(","))
    done = json.loads(json.dumps(pod))
    done["status"]["phase"] = "Succeeded"
    api.put(done)
    eventually(lambda: not containers(), "no series of an ended pod")
    api.put(pod)
    eventually(lambda: bool(containers()), "there again")
    api.delete(uid)
    eventually(lambda: not containers(), "no series of a deleted pod")


def test_names_of_a_pod_that_came_by_the_watch(monitor: Running, api: Any, bound_pod: Any) -> None:
    eventually(lambda: monitor.pods.synced, "the list")
    pod = api.put(bound_pod("late", f"{GPU},NVIDIA,10,5:;"))
    key = monitor.pods.key
    eventually(lambda: key(pod["metadata"]["uid"]) is not None, "the watch")
    found = key(pod["metadata"]["uid"])
    assert found is not None and (found.namespace, found.name) == ("ns", "late")


@pytest.fixture
def running_pod(monitor: Running, api: Any, bound_pod: Any) -> Callable[..., str]:
    """Make a running pod with a region, and say that processes are its own; give its uid."""

    def make(name: str, *pids: int, mem_mib: int = 10, cores: int = 30, **constant: Any) -> str:
        pod = bound_pod(name, f"{GPU},NVIDIA,{mem_mib},{cores}:;")
        uid: str = pod["metadata"]["uid"]
        runtime_id = f"{abs(hash(name)):064x}"[-64:]
        pod["status"] = {
            "phase": "Running",
            "containerStatuses": [
                {
                    "name": "main",
                    "containerID": f"containerd://{runtime_id}",
                    "state": {"running": {}},
                }
            ],
        }
        folder = monitor.hook / "containers" / f"{uid}_main"
        folder.mkdir(parents=True)
        device = RegionDevice(uuid=GPU, memory_limit_bytes=mem_mib << 20, sm_limit_pct=cores)
        given = RegionConstant(devices=(device,), pod_uid=uid, container_name="main", **constant)
        make_region(folder, region_name(uid, "main"), given)
        monitor.owned |= dict.fromkeys(pids, (uid, "main"))
        api.put(pod)
        return uid

    return make


def region_of(monitor: Running, uid: str) -> Path:
    return monitor.hook / "containers" / f"{uid}_main" / f"{region_name(uid, 'main')}.cache"


def feedback(path: Path) -> tuple[int, int, int, int, int]:
    data = layout.Extension.from_buffer_copy(path.read_bytes(), layout.EXT_OFFSET).feedback[0]
    return (
        data.stamp_ns,
        data.own_util_pm,
        data.other_util_pm,
        data.own_bytes,
        data.other_bytes,
    )


def test_feedback_comes_with_every_sample(monitor: Running, running_pod: Any) -> None:
    """Own and others' use, about six times a second, with a time that is not the future."""
    a, b = running_pod("a", 101, 102), running_pod("b", 103)
    monitor.nvml.reading = CardReading(
        uuid=GPU,
        processes=tuple(ProcessBytes(pid=pid, bytes=pid) for pid in (101, 102, 103, 104)),
    )
    monitor.nvml.busy = {101: 20, 102: 10, 103: 50, 104: 5}
    path, other = region_of(monitor, a), region_of(monitor, b)
    eventually(lambda: feedback(path)[1:] == (300, 550, 203, 207), "a's own and the others'")
    eventually(lambda: feedback(other)[1:] == (500, 350, 103, 307), "b's likewise")
    stamps: set[int] = set()

    def collected() -> bool:
        stamp = feedback(path)[0]
        assert stamp <= time.monotonic_ns()
        if stamp:
            stamps.add(stamp)
        return len(stamps) >= 6

    eventually(collected, "six samples")
    assert max(stamps) - min(stamps) >= 4 * 10**9 // 6, "each is one of NVML's"
    monitor.nvml.busy = {}
    eventually(lambda: feedback(path)[1:3] == (0, 0), "idle is told, too")


def test_without_process_samples_there_is_no_feedback(monitor: Running, running_pod: Any) -> None:
    monitor.nvml.offered = False
    path = region_of(monitor, running_pod("a", 101))
    eventually(lambda: not monitor.cards()["cards"][0]["process_samples"], "told of the card")
    eventually(lambda: "vgpu_launches_total{" in monitor.get("/metrics")[1], "the region is known")
    assert feedback(path)[0] == 0
    assert "vgpu_card_process_samples{" in monitor.get("/metrics")[1]


def test_a_high_priority_pauses_a_low_one_in_hamis_fields(
    monitor: Running, running_pod: Any
) -> None:
    high, low = running_pod("high", 101, priority=0), running_pod("low", 102, priority=1)
    monitor.nvml.reading = CardReading(
        uuid=GPU, processes=tuple(ProcessBytes(pid=pid, bytes=1) for pid in (101, 102))
    )

    def fields(uid: str) -> tuple[int, int]:
        data = layout.HamiRegion.from_buffer_copy(region_of(monitor, uid).read_bytes())
        return data.utilization_switch, data.recent_kernel

    monitor.nvml.busy = {102: 90}
    eventually(lambda: fields(low) == (0, 2), "alone")
    monitor.nvml.busy = {101: 10, 102: 80}
    eventually(lambda: (fields(high), fields(low)) == ((0, 2), (1, -1)), "paused")
    assert monitor.containers()["low"]["flags"] == [], "nothing of it waits"
    offset = layout.EXT_OFFSET + layout.Extension.waited_priority_ns.offset
    with region_of(monitor, low).open("r+b") as file:
        file.seek(offset)
        file.write((10**8).to_bytes(8, "little"))
    eventually(lambda: monitor.containers()["low"]["flags"] == ["paused"], "now it does")
    monitor.nvml.busy = {102: 90}
    eventually(lambda: fields(low) == (0, 2), "alone again")


def test_containers_ask_get_and_wait(monitor: Running, running_pod: Any) -> None:
    uid = running_pod("a", 101, mem_mib=64, cores=30)
    monitor.nvml.reading = CardReading(uuid=GPU, processes=(ProcessBytes(pid=101, bytes=7),))
    monitor.nvml.busy = {101: 30}

    def device() -> dict[str, Any]:
        found: dict[str, Any] = monitor.containers(span=1)["a"]["devices"][0]
        return found

    eventually(lambda: "a" in monitor.containers(), "the pod")
    eventually(lambda: device()["got"]["share_pct"] == 30, "NVML's mean: the state has no slot")
    found = device()
    assert found["asked"] == found["limit"] == {"bytes": 64 << 20, "core_pct": 30}
    assert (found["got"]["bytes"], found["got"]["processes"]) == (7, 1)
    offset = layout.EXT_OFFSET + layout.Extension.waited_ns.offset
    written = 0

    def waited() -> bool:
        """Tell whether it is seen; it goes on, since a busy machine may look too late."""
        nonlocal written
        written += 10**9
        with region_of(monitor, uid).open("r+b") as file:
            file.seek(offset)
            file.write(written.to_bytes(8, "little"))
        return (device()["waited"] or 0) > 0

    eventually(waited, "it waited")
    eventually(lambda: device()["waited_ns"] == written, "the last that was written")
    assert monitor.get("/v1/containers?span=0")[0] == 400
    assert monitor.get("/v1/containers?span=x")[0] == 400


def test_a_process_without_the_library_is_unenforced(monitor: Running, running_pod: Any) -> None:
    """A real process of the container on the card, and no record in the region."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        try:
            running_pod("a", process.pid)
            monitor.nvml.reading = CardReading(
                uuid=GPU, processes=(ProcessBytes(pid=process.pid, bytes=7),)
            )
            eventually(
                lambda: monitor.containers().get("a", {}).get("unenforced") == "library-not-loaded",
                "unenforced",
            )
            assert 'reason="library-not-loaded"' in monitor.get("/metrics")[1]
        finally:
            process.kill()
    eventually(lambda: not monitor.containers()["a"]["flags"], "it has ended")
