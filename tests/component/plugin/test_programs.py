"""Plugin and monitor as programs, on the emulated driver, with real processes on the card."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from testbed.card import driver_root
from testbed.card.spec import CardSpec
from testbed.errors import MissingTool
from testbed.native import artifacts, card
from testbed.native.region import read_region
from testbed.stack import names
from testbed.units import GIB, MIB

from .waiting import DEADLINE_S, eventually

#: Holds memory of one card until its input ends.
HOLDER = """
import ctypes, sys
cuda = ctypes.CDLL(sys.argv[1])
def checked(result):
    assert result == 0, result
checked(cuda.cuInit(0))
device, context, address = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
checked(cuda.cuDeviceGet(ctypes.byref(device), int(sys.argv[2])))
checked(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
checked(cuda.cuCtxSetCurrent(context))
checked(cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(int(sys.argv[3]))))
print("ready", flush=True)
sys.stdin.readline()
"""


def built(name: str) -> bool:
    try:
        artifacts.library(name)
    except MissingTool:
        return False
    return True


pytestmark = pytest.mark.skipif(
    not (built("libnvidia-ml.so.1") and built("libcuda.so.1") and built("libvgpu.so")),
    reason="the native libraries are not built (python -m testbed.native.build)",
)


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start processes; none outlives the test."""
    running: list[subprocess.Popen[str]] = []

    def run(*command: str, **more: Any) -> subprocess.Popen[str]:
        process = subprocess.Popen([sys.executable, *command], text=True, **more)
        running.append(process)
        return process

    yield run
    for process in running:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()


@pytest.fixture
def hold(root: Path, start: Any) -> Callable[..., subprocess.Popen[str]]:
    def run(index: int, size: int) -> subprocess.Popen[str]:
        library = str(root / "driver/libcuda.so.1")
        process: subprocess.Popen[str] = start(
            *("-c", HOLDER, library, str(index), str(size)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        return process

    return run


@pytest.fixture
def uuids(tmp_path: Path) -> tuple[str, ...]:
    return driver_root.make(tmp_path / "root", [CardSpec(count=2)])


@pytest.fixture
def root(tmp_path: Path, uuids: tuple[str, ...]) -> Path:
    return tmp_path / "root"


def fetch(port: int, path: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def logged(stream: IO[str], pattern: str) -> str:
    """Read a program's log up to a line; return the pattern's group."""
    seen = []
    for line in stream:
        seen.append(line)
        if match := re.search(pattern, line):
            return match[1]
    raise AssertionError(f"the program ended: {''.join(seen)}")


def ends_well(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGTERM)
    assert process.wait(DEADLINE_S) == 0


def test_monitor_measures_what_processes_hold(
    tmp_path: Path, root: Path, uuids: tuple[str, ...], api: Any, start: Any, hold: Any
) -> None:
    monitor = start(
        *("-m", "testbed.stack.monitor", "--node-name", "n1", "--driver-root", str(root)),
        *("--hook-path", str(tmp_path / "hook"), "--port", "0"),
        *("--kubeconfig", str(api.kubeconfig(tmp_path / "kubeconfig"))),
        stderr=subprocess.PIPE,
    )
    port = int(logged(monitor.stderr, r" port=(\d+)"))
    eventually(lambda: fetch(port, "/healthz")[0] == 200, "healthy")

    def held() -> dict[str, dict[int, int]]:
        """Bytes by card and pid, at the last tick."""
        samples = json.loads(fetch(port, "/v1/cards?since=0")[1])["samples"]
        last = samples[-1]["time"]
        found: dict[str, dict[int, int]] = {}
        for sample in samples:
            if sample["time"] == last:
                found.setdefault(sample["uuid"], {})[sample["pid"]] = sample["bytes"]
        return found

    eventually(lambda: held() == {uuid: {0: 0} for uuid in uuids}, "both cards are idle")
    first, second = hold(0, GIB), hold(0, 3 * GIB)
    other = hold(1, 64 * MIB)
    want = {uuids[0]: {first.pid, second.pid}, uuids[1]: {other.pid}}
    eventually(lambda: {u: set(p) for u, p in held().items()} == want, "all three processes")
    now = held()
    context = card.read(root / "cards" / uuids[0] / "state").description.context_bytes
    assert now[uuids[0]] == {first.pid: GIB + context, second.pid: 3 * GIB + context}
    assert now[uuids[1]] == {other.pid: 64 * MIB + context}
    first.kill()
    eventually(lambda: set(held()[uuids[0]]) == {second.pid}, "the dead process' memory is back")
    document = json.loads(fetch(port, "/v1/cards")[1])
    assert document["source"] == "emulated"
    assert [c["uuid"] for c in document["cards"]] == list(uuids)
    assert {s["pod_uid"] for s in document["samples"] if s["pid"]} == {"unknown"}
    assert b"hami_host_gpu_memory_used_bytes{" in fetch(port, "/metrics")[1]
    ends_well(monitor)


def test_plugin_serves_cards_of_the_driver_root(
    tmp_path: Path,
    root: Path,
    uuids: tuple[str, ...],
    api: Any,
    start_kubelet: Any,
    start: Any,
    bound_pod: Any,
) -> None:
    kubelet = start_kubelet()
    config = tmp_path / "config.yaml"
    config.write_text("deviceSplitCount: 3\n")
    kubelet_folder = tmp_path / "kubelet"
    plugin = start(
        *("-m", "testbed.stack.plugin", "--driver-root", str(root), "--config", str(config)),
        *("--hook-path", str(tmp_path / "hook"), "--cdi-root", str(tmp_path / "cdi")),
        *("--plugin-root", str(kubelet_folder)),
        *("--pod-resources", str(kubelet_folder / "kubelet.sock")),
        *("--kubeconfig", str(api.kubeconfig(tmp_path / "kubeconfig")), "--port", "0"),
        env={**os.environ, "NODE_NAME": "n1"},
    )
    kubelet.wait(lambda: len(kubelet.devices) == 6, "three slots of two cards")
    text = f"{uuids[0]},NVIDIA,2048,0:{uuids[1]},NVIDIA,1024,0:;"
    pod = api.put(bound_pod("a", text, count=2))
    (answer,) = kubelet.admit("ns", "a", ("main", 2))
    specs = {
        json.loads(path.read_text())["devices"][0]["name"]
        for path in (tmp_path / "cdi").glob("*.json")
    }
    assert {f"vgpu-testbed.dev/gpu={uuid}" for uuid in specs} == {
        device.name for device in answer.cdi_devices
    }
    library = next(m for m in answer.mounts if m.container_path.endswith("libvgpu.so"))
    built_here = artifacts.library("libvgpu.so").read_bytes()
    assert Path(library.host_path).read_bytes() == built_here
    region = read_region(tmp_path / "hook/containers" / f"{pod['metadata']['uid']}_main" / "region")
    assert [d.memory_limit_bytes for d in region.constant.devices] == [2048 * MIB, 1024 * MIB]
    # A card that falls off the bus is unhealthy for kubelet, with all its slots.
    card.raise_xid(root / "cards" / uuids[1] / "state", 79, fallen_off=True)
    kubelet.wait(
        lambda: sorted(kubelet.devices.values()) == ["Healthy"] * 3 + ["Unhealthy"] * 3,
        "three slots are unhealthy",
    )
    assert all((health == "Healthy") == (uuids[0] in i) for i, health in kubelet.devices.items())
    # It is reset: XID 79 is forgotten since the card was away in between.
    faults = card.StateLayout.faults.offset + card.FaultsLayout.fallen_off.offset
    with (root / "cards" / uuids[1] / "state").open("r+b") as state:
        os.pwrite(state.fileno(), bytes(4), faults)
    kubelet.wait(lambda: set(kubelet.devices.values()) == {"Healthy"}, "healthy again")
    assert api.annotation(pod["metadata"]["uid"], names.POD_BIND_PHASE) == names.PHASE_SUCCESS
    ends_well(plugin)


@pytest.mark.parametrize("module", ["plugin", "monitor"])
def test_a_node_without_a_driver_is_one_clear_error(
    tmp_path: Path, start: Any, module: str
) -> None:
    process = start(
        *("-m", f"testbed.stack.{module}", "--node-name", "n1", "--driver-root", str(tmp_path)),
        stderr=subprocess.PIPE,
    )
    _, text = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 2
    assert text.startswith("no GPU driver on this node: ")
    assert "Traceback" not in text
