"""The monitor on a double of NVML, with pods from a double of the API server."""

from __future__ import annotations

import json
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
from testbed.native.region import RegionConstant, RegionDevice, make_region
from testbed.stack.devices import CardReading, Device, DriverRoot, ProcessBytes
from testbed.stack.kubeapi import KubeApi
from testbed.stack.monitor.pods import PodIndex
from testbed.stack.monitor.server import Monitor, Options, follow_pods

GPU = "GPU-00000000-0000-0000-0000-00000000000a"
DEADLINE_S = 20.0


class Nvml:
    def __init__(self) -> None:
        self.reading = CardReading(uuid=GPU)

    def devices(self) -> tuple[Device, ...]:
        return (Device(uuid=GPU, index=0, name="NVIDIA A100", memory_bytes=1 << 30),)

    def read(self, uuid: str) -> CardReading:
        return self.reading


def eventually(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, f"not within the deadline: {what}"
        time.sleep(0.02)


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
        self.monitor = Monitor(options, self.nvml, root, self.pods)  # type: ignore[arg-type]
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
            with urllib.request.urlopen(url, timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def cards(self, since: float = 0) -> dict[str, Any]:
        status, text = self.get(f"/v1/cards?since={since}")
        assert status == 200, text
        document: dict[str, Any] = json.loads(text)
        return document


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
        {"uuid": GPU, "name": "NVIDIA A100", "index": 0, "memory_bytes": 1 << 30, "budget_hits": 0}
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
        return [line for line in metrics().splitlines() if line.startswith("hami_vgpu")]

    eventually(lambda: 'reason="no-region"' in metrics(), "a container without a region")
    assert "hami_host_gpu_memory_used_bytes{" in metrics()
    folder = monitor.hook / "containers" / f"{uid}_main"
    folder.mkdir(parents=True)
    constant = RegionConstant(
        devices=(RegionDevice(uuid=GPU, memory_limit_bytes=10 << 20),),
        pod_uid=uid,
        pod_namespace="ns",
        pod_name="a",
        container_name="main",
    )
    make_region(folder, "c", constant)
    assert "vgpu_container_unenforced{" not in metrics()
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
