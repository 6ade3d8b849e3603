"""The whole device plugin between a double of kubelet and one of the API server."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from testbed.native.page import read_page
from testbed.native.region import RegionDevice, read_region
from testbed.stack import names
from testbed.stack.codec import decode_register
from testbed.stack.devices import Device, DriverRoot
from testbed.stack.kubeapi import KubeApi
from testbed.stack.plugin.server import Options, Plugin
from testbed.units import MIB

from .waiting import DEADLINE_S, eventually

GPU = "GPU-00000000-0000-0000-0000-00000000000a"


class Nvml:
    """A driver with one card, whose health the test sets."""

    def __init__(self) -> None:
        self.sick: dict[str, str] = {}
        self.xids: list[int] = []

    def devices(self) -> tuple[Device, ...]:
        name = "NVIDIA A100-SXM4-80GB"
        return (Device(uuid=GPU, index=0, name=name, memory_bytes=81920 * MIB),)

    def unhealthy(self) -> dict[str, str]:
        return dict(self.sick)

    def watch_errors(self) -> bool:
        return True

    def errors(self) -> tuple[tuple[str, int], ...]:
        xids, self.xids = self.xids, []
        return tuple((GPU, xid) for xid in xids)

    def recovery_actions(self) -> dict[str, int]:
        return {}

    def reopen(self) -> None: ...


class Running:
    """A plugin in a thread of this process."""

    def __init__(self, tmp_path: Path, api: Any) -> None:
        self.hook = tmp_path / "hook"
        self.cdi = tmp_path / "cdi"
        self.config = tmp_path / "config.yaml"
        self.config.write_text("generation: 1\n")
        library = tmp_path / "libvgpu.so"
        library.write_bytes(b"library")
        self.nvml = Nvml()
        self._api = KubeApi.connect(api.kubeconfig(tmp_path / "kubeconfig"))
        self._stop = threading.Event()
        self.failure: BaseException | None = None
        options = Options(
            node="n1",
            driver_root="/run/vgpu-emulated",
            hook_path=self.hook,
            library=library,
            config=self.config,
            cdi_root=self.cdi,
            plugin_root=tmp_path / "kubelet",
            pod_resources=tmp_path / "kubelet/kubelet.sock",
            port=0,
        )
        root = DriverRoot(path="/run/vgpu-emulated", emulated=True, nvml=Path("/x"))
        self.plugin = Plugin(options, self._api, self.nvml, root)  # type: ignore[arg-type]
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.plugin.run(self._stop)
        except BaseException as error:  # noqa: BLE001 - shown by close()
            self.failure = error

    def configure(self, text: str) -> None:
        """Change the configuration as kubelet does: whoever reads sees the old or the new."""
        new = self.config.with_suffix(".new")
        new.write_text(text)
        new.replace(self.config)

    def close(self) -> None:
        self._stop.set()
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive(), "the plugin does not end"
        self._api.close()
        if self.failure is not None:
            raise self.failure

    def metrics(self) -> str:
        eventually(lambda: self.plugin.http_port != 0, "http is up")
        url = f"http://127.0.0.1:{self.plugin.http_port}/metrics"
        with urllib.request.urlopen(url, timeout=30) as answer:
            text: str = answer.read().decode()
            return text

    def healthz(self) -> tuple[int, dict[str, Any]]:
        eventually(lambda: self.plugin.http_port != 0, "http is up")
        url = f"http://127.0.0.1:{self.plugin.http_port}/healthz"
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)


@pytest.fixture
def plugin(
    tmp_path: Path, api: Any, start_kubelet: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Running]:
    monkeypatch.setattr("testbed.stack.plugin.server.HEALTH_S", 0.0)
    # start_kubelet comes first, so that kubelet outlives the plugin.
    running = Running(tmp_path, api)
    yield running
    running.close()


def test_registers_lists_and_tells_the_node(plugin: Running, api: Any, start_kubelet: Any) -> None:
    assert plugin.healthz()[0] == 503, "there is no kubelet yet"
    kubelet = start_kubelet()
    kubelet.wait(lambda: len(kubelet.devices) == 10, "ten slots of one card")
    (request,) = kubelet.registered
    assert (request.version, request.resource_name) == ("v1beta1", "nvidia.com/gpu")
    assert request.endpoint == "nvidia-gpu.sock"
    eventually(lambda: plugin.healthz()[0] == 200, "ready")
    text = api.nodes["n1"]["metadata"]["annotations"][names.NODE_REGISTER]
    (card,) = decode_register(text)
    assert (card.uuid, card.slots, card.mem_mib, card.healthy) == (GPU, 10, 81920, True)
    assert plugin.healthz()[1]["cards"] == [GPU]
    assert [p.name for p in plugin.cdi.iterdir()] == [f"vgpu-testbed.dev-gpu-{GPU}.json"]


def test_serves_by_the_annotation(
    plugin: Running, api: Any, start_kubelet: Any, bound_pod: Any
) -> None:
    kubelet = start_kubelet()
    kubelet.wait(lambda: len(kubelet.devices) == 10, "devices")
    pods = {
        name: api.put(bound_pod(name, f"{GPU},NVIDIA,{mem},{cores}:;"))
        for name, mem, cores in (("a", 30720, 50), ("b", 20480, 30))
    }
    # Both are there at once; kubelet takes the younger first.
    for name, mem, cores in (("b", 20480, 30), ("a", 30720, 50)):
        uid = pods[name]["metadata"]["uid"]
        (answer,) = kubelet.admit("ns", name, ("main", 1))
        assert answer.envs["CUDA_DEVICE_MEMORY_LIMIT_0"] == f"{mem}m"
        assert answer.envs["CUDA_DEVICE_SM_LIMIT"] == str(cores)
        assert [d.name for d in answer.cdi_devices] == [f"vgpu-testbed.dev/gpu={GPU}"]
        assert api.annotation(uid, names.POD_BIND_PHASE) == "success"
        assert api.annotation(uid, names.POD_TO_ALLOCATE) == ";"
        host = {m.container_path: Path(m.host_path) for m in answer.mounts}
        folder = host["/usr/local/vgpu"]
        assert folder == plugin.hook / "containers" / f"{uid}_main"
        assert folder.stat().st_mode & 0o777 == 0o777
        assert host["/usr/local/vgpu/libvgpu.so"].read_bytes() == b"library"
        assert host["/etc/ld.so.preload"].read_text() == "/usr/local/vgpu/libvgpu.so\n"
        named = answer.envs["CUDA_DEVICE_MEMORY_SHARED_CACHE"].removeprefix("/usr/local/vgpu/")
        assert (folder / "region").readlink() == Path(named)
        for path in (folder / named, folder / f"{named}.lock"):
            assert path.stat().st_mode & 0o777 == 0o666
        constant = read_region(folder / named).constant
        assert (constant.pod_uid, constant.container_name) == (uid, "main")
        (device,) = constant.devices
        assert device == RegionDevice(uuid=GPU, memory_limit_bytes=mem * MIB, sm_limit_pct=cores)


def test_refusal_reaches_kubelet_and_the_annotation(
    plugin: Running, api: Any, start_kubelet: Any, bound_pod: Any
) -> None:
    kubelet = start_kubelet()
    kubelet.wait(lambda: len(kubelet.devices) == 10, "devices")
    stranger = bound_pod("stranger", "")
    stranger["metadata"]["annotations"] = {}
    api.put(stranger)
    honest = api.put(bound_pod("honest", f"{GPU},NVIDIA,1024,10:;"))
    with pytest.raises(grpc.RpcError) as caught:
        kubelet.admit("ns", "stranger", ("main", 1))
    assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION  # type: ignore[attr-defined]
    assert "ns/stranger" in caught.value.details()  # type: ignore[attr-defined]
    (answer,) = kubelet.admit("ns", "honest", ("main", 1))
    assert answer.envs["CUDA_DEVICE_MEMORY_LIMIT_0"] == "1024m"
    wrong = api.put(bound_pod("wrong", f"{GPU},NVIDIA,1,1:;", count=2))
    with pytest.raises(grpc.RpcError, match="device number not matched"):
        kubelet.admit("ns", "wrong", ("main", 2))
    assert api.annotation(wrong["metadata"]["uid"], names.POD_BIND_PHASE) == "failed"
    assert api.annotation(honest["metadata"]["uid"], names.POD_BIND_PHASE) == "success"


def test_api_server_that_writes_and_does_not_answer_fails_no_pod(
    plugin: Running,
    api: Any,
    start_kubelet: Any,
    bound_pod: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("testbed.stack.plugin.patience.Patience.call_s", lambda _: 2.0)
    kubelet = start_kubelet()
    kubelet.wait(lambda: len(kubelet.devices) == 10, "devices")
    pod = api.put(bound_pod("a", f"{GPU},NVIDIA,1024,10:;"))
    api.stalls = [names.POD_BIND_PHASE]
    (answer,) = kubelet.admit("ns", "a", ("main", 1))
    assert answer.envs["CUDA_DEVICE_MEMORY_LIMIT_0"] == "1024m"
    assert api.stalls == []
    uid = pod["metadata"]["uid"]
    assert api.annotation(uid, names.POD_BIND_PHASE) == names.PHASE_SUCCESS
    assert (plugin.hook / "containers" / f"{uid}_main").is_dir()


def test_another_kubelet_is_registered_with_and_may_ask_again(
    plugin: Running, api: Any, start_kubelet: Any, bound_pod: Any
) -> None:
    kubelet = start_kubelet()
    kubelet.wait(lambda: len(kubelet.devices) == 10, "devices")
    api.put(bound_pod("a", f"{GPU},NVIDIA,1024,10:;"))
    (first,) = kubelet.admit("ns", "a", ("main", 1))
    # It comes back without its checkpoint, and the container has not started.
    again = start_kubelet()
    again.wait(lambda: len(again.devices) == 10, "registered with the new kubelet")
    assert len(again.registered) == 1
    (second,) = again.admit("ns", "a", ("main", 1))
    assert second == first


def test_n7_a_restarted_plugin_tells_the_same_and_loses_no_turn(
    tmp_path: Path,
    api: Any,
    start_kubelet: Any,
    bound_pod: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("testbed.stack.plugin.server.HEALTH_S", 0.0)
    kubelet = start_kubelet()
    told = []
    for number in (1, 2):
        running = Running(tmp_path, api)
        try:
            kubelet.wait(lambda wanted=number: len(kubelet.registered) == wanted, "registered")
            eventually(lambda it=running: it.healthz()[0] == 200, "ready")  # type: ignore[misc]
            kubelet.wait(lambda: len(kubelet.devices) == 10, "devices")
            register = api.nodes["n1"]["metadata"]["annotations"][names.NODE_REGISTER]
            told.append((sorted(kubelet.devices), register))
            if number == 1:
                # Its turn begins with this plugin, and is taken by the next one.
                pod = api.put(bound_pod("a", f"{GPU},NVIDIA,1024,10:;"))
            else:
                (answer,) = kubelet.admit("ns", "a", ("main", 1))
                assert answer.envs["CUDA_DEVICE_MEMORY_LIMIT_0"] == "1024m"
        finally:
            running.close()
        kubelet.wait(lambda: not kubelet.devices, "it sees that the plugin is gone")
        phase = api.annotation(pod["metadata"]["uid"], names.POD_BIND_PHASE)
        assert phase == (names.PHASE_ALLOCATING if number == 1 else names.PHASE_SUCCESS)
    assert told[0] == told[1]


def test_socket_that_was_taken_away_is_made_anew(
    plugin: Running, start_kubelet: Any, tmp_path: Path
) -> None:
    kubelet = start_kubelet()
    kubelet.wait(lambda: len(kubelet.devices) == 10, "devices")
    (tmp_path / "kubelet/nvidia-gpu.sock").unlink()
    kubelet.wait(lambda: len(kubelet.registered) == 2, "registered again")
    kubelet.wait(lambda: len(kubelet.devices) == 10, "devices again")


def test_health_reaches_kubelet_and_node_and_comes_back(
    plugin: Running, api: Any, start_kubelet: Any
) -> None:
    kubelet = start_kubelet()
    kubelet.wait(lambda: len(kubelet.devices) == 10, "devices")
    plugin.nvml.sick = {GPU: "GPU is lost"}
    kubelet.wait(lambda: set(kubelet.devices.values()) == {"Unhealthy"}, "unhealthy")

    def told() -> bool:
        annotations = api.nodes["n1"]["metadata"]["annotations"]
        return decode_register(annotations[names.NODE_REGISTER])[0].healthy

    eventually(lambda: not told(), "the node's annotation says so")
    assert plugin.healthz()[1]["unhealthy"] == {GPU: "GPU is lost"}
    plugin.nvml.sick = {}
    kubelet.wait(lambda: set(kubelet.devices.values()) == {"Healthy"}, "healthy again")
    eventually(told, "the node's annotation says so again")


@pytest.mark.parametrize("stalls", [False, True], ids=["", "the word's end gets no answer"])
def test_an_xid_keeps_new_pods_away_until_an_operator_says_so(
    plugin: Running, api: Any, start_kubelet: Any, stalls: bool
) -> None:
    """N4, N5: applications' errors and contained ones change nothing; others do, and stay."""
    kubelet = start_kubelet()
    kubelet.wait(lambda: len(kubelet.devices) == 10, "devices")
    plugin.nvml.xids = [13, 94]
    eventually(lambda: 'action="contained"' in plugin.metrics(), "the contained error is counted")
    assert plugin.healthz()[1]["unhealthy"] == {}
    assert "vgpu_card_healthy{" in plugin.metrics() and "} 0.0" not in plugin.metrics()
    plugin.nvml.xids = [48]
    kubelet.wait(lambda: set(kubelet.devices.values()) == {"Unhealthy"}, "unhealthy")
    assert plugin.healthz()[1]["unhealthy"] == {GPU: "XID 48"}
    annotations = api.nodes["n1"]["metadata"]["annotations"]

    def told() -> bool:
        return decode_register(annotations[names.NODE_REGISTER])[0].healthy

    eventually(lambda: not told(), "the node's annotation says so")
    (line,) = [x for x in plugin.metrics().splitlines() if x.startswith("vgpu_card_healthy{")]
    assert line.endswith(" 0.0")
    with api.changed:
        api.stalls = [names.NODE_CARDS_RECOVERED] if stalls else []
        annotations[names.NODE_CARDS_RECOVERED] = GPU
    kubelet.wait(lambda: set(kubelet.devices.values()) == {"Healthy"}, "healthy again")
    eventually(told, "the node's annotation says so again")
    eventually(lambda: names.NODE_CARDS_RECOVERED not in annotations, "the word is taken away")
    assert api.stalls == []


def test_the_policy_on_xids_is_the_configurations(plugin: Running, start_kubelet: Any) -> None:
    kubelet = start_kubelet()
    kubelet.wait(lambda: len(kubelet.devices) == 10, "devices")
    plugin.configure("generation: 2\nxidPolicy: {94: unhealthy, 48: ignore}\n")
    eventually(lambda: plugin.healthz()[1]["generation"] == 2, "generation 2")
    plugin.nvml.xids = [48, 94]
    kubelet.wait(lambda: set(kubelet.devices.values()) == {"Unhealthy"}, "unhealthy")
    assert plugin.healthz()[1]["unhealthy"] == {GPU: "XID 94"}
    plugin.configure("generation: 3\nxidPolicy: {94: fatal}\n")
    eventually(lambda: "xidPolicy" in plugin.healthz()[1]["config_error"], "a mistyped word")


def test_card_pages_are_made_and_mounted(
    plugin: Running, api: Any, start_kubelet: Any, bound_pod: Any
) -> None:
    page = plugin.hook / "pages" / f"{GPU}.page"
    assert read_page(page).uuid == GPU and page.stat().st_mode & 0o777 == 0o666
    kubelet = start_kubelet()
    kubelet.wait(lambda: len(kubelet.devices) == 10, "devices")
    page.unlink()  # somebody tidied up: it is there again before a container starts
    api.put(bound_pod("a", f"{GPU},NVIDIA,1024,10:;"))
    (answer,) = kubelet.admit("ns", "a", ("main", 1))
    mount = next(m for m in answer.mounts if m.host_path == str(page))
    assert mount.container_path == f"/usr/local/vgpu/pages/{GPU}.page" and not mount.read_only
    inode = page.stat().st_ino
    api.put(bound_pod("b", f"{GPU},NVIDIA,1024,10:;"))
    kubelet.admit("ns", "b", ("main", 1))
    assert page.stat().st_ino == inode, "one page for all containers of the card"


def test_compute_limits_reach_the_region(
    plugin: Running, api: Any, start_kubelet: Any, bound_pod: Any
) -> None:
    plugin.configure("gpuCorePolicy: force\npriorityFloorPercent: 5\ngeneration: 2\n")
    eventually(lambda: plugin.healthz()[1]["generation"] == 2, "generation 2")
    kubelet = start_kubelet()
    kubelet.wait(lambda: len(kubelet.devices) == 10, "devices")
    pod = bound_pod("a", f"{GPU},NVIDIA,1024,30:;")
    pod["spec"]["containers"][0]["resources"]["limits"][names.RESOURCE_PRIORITY] = "0"
    api.put(pod)
    (answer,) = kubelet.admit("ns", "a", ("main", 1))
    for name, value in (
        ("CUDA_DEVICE_SM_LIMIT", "30"),
        ("GPU_CORE_UTILIZATION_POLICY", "force"),
        ("CUDA_TASK_PRIORITY", "0"),
    ):
        assert answer.envs[name] == value
    constant = read_region(
        plugin.hook / "containers" / f"{pod['metadata']['uid']}_main" / "region"
    ).constant
    assert [device.sm_limit_pct for device in constant.devices] == [30]
    assert (constant.policy.name, constant.priority) == ("FORCE", 0)
    assert constant.priority_floor_pct == 5


def test_enforcement_is_switched_while_running(
    plugin: Running, api: Any, start_kubelet: Any, bound_pod: Any
) -> None:
    kubelet = start_kubelet()
    kubelet.wait(lambda: len(kubelet.devices) == 10, "devices")
    assert plugin.healthz()[1]["enforcement"] == "on"
    plugin.configure("enforcement: 'off'\ngeneration: 2\n")
    eventually(lambda: plugin.healthz()[1]["generation"] == 2, "generation 2")
    assert plugin.healthz()[1]["enforcement"] == "off"
    pod = api.put(bound_pod("a", f"{GPU},NVIDIA,1024,10:;"))
    (answer,) = kubelet.admit("ns", "a", ("main", 1))
    assert dict(answer.envs) == {"NVIDIA_VISIBLE_DEVICES": "void"}
    assert not answer.mounts and len(answer.cdi_devices) == 1
    assert api.annotation(pod["metadata"]["uid"], names.POD_BIND_PHASE) == "success"
    plugin.configure("deviceSplitCount: 4\ngeneration: 3\n")
    kubelet.wait(lambda: len(kubelet.devices) == 4, "four slots")
    assert plugin.healthz()[1]["config_error"] == ""


def test_node_is_written_on_change_only(plugin: Running, api: Any, start_kubelet: Any) -> None:
    kubelet = start_kubelet()
    kubelet.wait(lambda: len(kubelet.devices) == 10, "devices")
    eventually(lambda: api.node_patches == 1, "written")
    plugin.configure("deviceSplitCount: 4\n")
    kubelet.wait(lambda: len(kubelet.devices) == 4, "four slots")
    eventually(lambda: api.node_patches >= 2, "written again")
    for generation in (1, 2, 3):  # each is a turn of the loop in which no card changes
        plugin.configure(f"deviceSplitCount: 4\ngeneration: {generation}\n")
        eventually(
            lambda wanted=generation: plugin.healthz()[1]["generation"] == wanted,  # type: ignore[misc]
            "another turn",
        )
    assert api.node_patches == 2


def test_kubelet_that_leaves_our_socket_is_noticed(plugin: Running, start_kubelet: Any) -> None:
    kubelet = start_kubelet()
    kubelet.wait(lambda: len(kubelet.devices) == 10, "devices")
    again = start_kubelet(wipe=False)
    again.wait(lambda: len(again.devices) == 10, "registered with the new kubelet")
