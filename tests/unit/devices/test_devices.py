"""Driver roots, registered cards and CDI specs."""

from __future__ import annotations

import ctypes
import dataclasses
import fcntl
import json
import os
import struct
from pathlib import Path
from typing import Any

import pynvml
import pytest

from testbed.card import driver_root
from testbed.card.spec import CardSpec
from testbed.errors import DeployError, InputError, MissingTool
from testbed.native import card
from testbed.stack.config import DeviceConfig
from testbed.stack.devices import (
    Device,
    DriverRoot,
    card_book,
    emulated_spec,
    find_driver_root,
    nvidia,
    nvml_calls,
    registered_cards,
    sync_specs,
)
from testbed.stack.devices.cdi import hardware_specs, split_spec


def touch(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


def test_emulated_root_is_told_by_its_mark(tmp_path: Path) -> None:
    library = touch(tmp_path / "driver/libnvidia-ml.so.1")
    with pytest.raises(InputError):
        find_driver_root(str(tmp_path))
    touch(tmp_path / "EMULATION")
    root = find_driver_root(str(tmp_path))
    assert root == DriverRoot(path=str(tmp_path), emulated=True, nvml=library, seen=tmp_path)


@pytest.mark.parametrize("folder", ["usr/lib/x86_64-linux-gnu", "usr/lib64", "lib64"])
def test_hardware_root(tmp_path: Path, folder: str) -> None:
    library = touch(tmp_path / folder / "libnvidia-ml.so.1")
    assert find_driver_root(str(tmp_path)) == DriverRoot(
        path=str(tmp_path), emulated=False, nvml=library, seen=tmp_path
    )


def test_the_nodes_own_root_is_seen_where_the_pod_has_it(tmp_path: Path) -> None:
    library = touch(tmp_path / "usr/lib64/libnvidia-ml.so.1")
    for wanted in ("/", None, "auto"):
        root = find_driver_root(wanted, host=tmp_path)
        assert (root.path, root.nvml, root.seen) == ("/", library, tmp_path)


def test_no_driver_names_where_was_looked(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="usr/lib64/libnvidia-ml") as caught:
        find_driver_root(str(tmp_path))
    assert "driverRoot" in caught.value.hint


DEVICES = (
    Device(uuid="GPU-a", index=0, name="NVIDIA A100-SXM4-80GB", memory_bytes=81920 << 20),
    Device(uuid="GPU-b", index=1, name="Tesla T4", memory_bytes=(15360 << 20) + 5, numa=1),
)


def test_registered_cards() -> None:
    a, b = registered_cards(DEVICES, DeviceConfig(), unhealthy={"GPU-b"})
    assert (a.mem_mib, a.slots, a.core_pct, a.model) == (81920, 10, 100, "NVIDIA A100-SXM4-80GB")
    assert (b.mem_mib, b.index, b.numa, b.model) == (15360, 1, 1, "NVIDIA-Tesla T4")
    assert (a.healthy, b.healthy) == (True, False)
    config = DeviceConfig(deviceSplitCount=4, deviceMemoryScaling=1.5, deviceCoreScaling=2.0)
    scaled = registered_cards(DEVICES, config)
    assert [(c.slots, c.mem_mib, c.core_pct) for c in scaled] == [(4, 122880, 200), (4, 23040, 200)]


def test_what_the_driver_keeps_is_not_registered() -> None:
    device = Device(
        uuid="GPU-a", index=0, name="A100", memory_bytes=81920 << 20, reserved_bytes=870 << 20
    )
    (card,) = registered_cards((device,), DeviceConfig())
    assert card.mem_mib == 81050
    (scaled,) = registered_cards((device,), DeviceConfig(deviceMemoryScaling=2.0))
    assert scaled.mem_mib == 162100


ROOT = DriverRoot(path="/run/vgpu-emulated", emulated=True, nvml=Path("/x"))


def test_emulated_spec_is_the_contract() -> None:
    spec = emulated_spec(ROOT, "GPU-a")
    assert spec.file_name == "vgpu-testbed.dev-gpu-GPU-a.json"
    assert spec.document["kind"] == "vgpu-testbed.dev/gpu"
    (device,) = spec.document["devices"]
    assert device["name"] == "GPU-a"
    mounts = {
        m["containerPath"]: (m["hostPath"], m["options"][0])
        for m in device["containerEdits"]["mounts"]
    }
    assert mounts == {
        "/usr/local/vgpu/driver": ("/run/vgpu-emulated/driver", "ro"),
        "/usr/local/vgpu/cards/GPU-a": ("/run/vgpu-emulated/cards/GPU-a", "rw"),
    }


def test_specs_are_written_once_and_those_of_removed_cards_go(tmp_path: Path) -> None:
    folder = tmp_path / "cdi"
    both = [emulated_spec(ROOT, "GPU-a"), emulated_spec(ROOT, "GPU-b")]
    assert len(sync_specs(folder, both)) == 2
    foreign = touch(folder / "nvidia.com-gpu.json")
    inode = (folder / both[0].file_name).stat().st_ino
    assert sync_specs(folder, both[:1]) == (both[1].file_name,)
    assert (folder / both[0].file_name).stat().st_ino == inode, "equal: not touched"
    assert sorted(p.name for p in folder.iterdir()) == [foreign.name, both[0].file_name]
    assert json.loads((folder / both[0].file_name).read_text()) == both[0].document
    moved = emulated_spec(DriverRoot(path="/other", emulated=True, nvml=Path("/x")), "GPU-a")
    assert sync_specs(folder, [moved]) == (moved.file_name,)


def test_specs_folder_that_cannot_be_made(tmp_path: Path) -> None:
    touch(tmp_path / "file")
    with pytest.raises(DeployError, match="cannot be written"):
        sync_specs(tmp_path / "file/cdi", [])


def generated(*uuids: str) -> str:
    return json.dumps(
        {
            "cdiVersion": "0.5.0",
            "kind": "vgpu-testbed.dev/gpu",
            "devices": [
                {"name": uuid, "containerEdits": {"deviceNodes": [{"path": f"/dev/{uuid}"}]}}
                for uuid in (*uuids, "all")
            ],
            "containerEdits": {"mounts": [{"hostPath": "/l", "containerPath": "/l"}]},
        }
    )


def test_generated_spec_is_split_by_card() -> None:
    a, b = split_spec(generated("GPU-a", "GPU-b"), ["GPU-a", "GPU-b"])
    assert [d["name"] for d in a.document["devices"]] == ["GPU-a"]
    assert [d["name"] for d in b.document["devices"]] == ["GPU-b"]
    assert a.document["containerEdits"] == b.document["containerEdits"] != {}


@pytest.mark.parametrize("text", ["", "[]", "{}", generated("GPU-b")])
def test_generated_spec_that_does_not_do(text: str) -> None:
    with pytest.raises(DeployError):
        split_spec(text, ["GPU-a"])


def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    path = touch(tmp_path / "bin/nvidia-ctk")
    path.write_text("#!/bin/sh\n" + script)
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{path.parent}:/usr/bin:/bin")


def test_hardware_specs_ask_nvidias_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = DriverRoot(path="/run/nvidia/driver", emulated=False, nvml=Path("/x"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingTool, match="nvidia-ctk"):
        hardware_specs(root, ["GPU-a"])
    tool(
        tmp_path,
        monkeypatch,
        f"echo \"$@\" > {tmp_path}/asked\ncat <<'E'\n{generated('GPU-a')}\nE\n",
    )
    (spec,) = hardware_specs(root, ["GPU-a"])
    assert spec.uuid == "GPU-a"
    asked = (tmp_path / "asked").read_text()
    assert "--vendor vgpu-testbed.dev --class gpu" in asked
    assert "--driver-root /run/nvidia/driver" in asked
    tool(tmp_path, monkeypatch, "echo no driver here >&2; exit 3")
    with pytest.raises(DeployError, match="no driver here"):
        hardware_specs(root, ["GPU-a"])


def test_the_nodes_own_tool_is_called_in_the_nodes_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool(tmp_path, monkeypatch, "echo of the image >&2; exit 1")
    chroot = tmp_path / "bin/chroot"
    chroot.write_text(f"#!/bin/sh\necho \"$@\" > {tmp_path}/asked\necho '{generated('GPU-a')}'\n")
    chroot.chmod(0o755)
    host = tmp_path / "host"
    root = DriverRoot(path="/", emulated=False, nvml=Path("/x"), seen=host)
    with pytest.raises(DeployError, match="of the image"):  # the node has none
        hardware_specs(root, ["GPU-a"])
    # A link leads to where it leads in the node's root.
    (host / "usr/bin").mkdir(parents=True)
    (host / "usr/bin/nvidia-ctk").symlink_to("/opt/only-there/nvidia-ctk")
    (spec,) = hardware_specs(root, ["GPU-a"])
    assert spec.uuid == "GPU-a"
    words = (tmp_path / "asked").read_text().split()
    assert words[:4] == [str(host), "/usr/bin/nvidia-ctk", "cdi", "generate"]
    assert words[-2:] == ["--driver-root", "/"]
    # A driver with a root to itself has no tool in it.
    other = DriverRoot(path="/run/nvidia/driver", emulated=False, nvml=Path("/x"), seen=host)
    with pytest.raises(DeployError, match="of the image"):
        hardware_specs(other, ["GPU-a"])


class Process:
    def __init__(self, pid: int, used: int | None) -> None:
        self.pid = pid
        self.usedGpuMemory = used


def test_process_lists_are_joined_by_pid() -> None:
    compute: list[Any] = [Process(7, 100), Process(9, None)]
    graphics: list[Any] = [Process(7, 120), Process(8, 5)]
    merged = nvml_calls.merged(compute, graphics)
    assert [(p.pid, p.bytes) for p in merged] == [(7, 120), (8, 5), (9, 0)]


def test_numa_node_of_a_pci_address(tmp_path: Path) -> None:
    node = touch(tmp_path / "bus/pci/devices/0000:07:00.0/numa_node")
    node.write_text("1\n")
    assert nvml_calls.numa_of_pci("00000000:07:00.0", tmp_path) == 1
    assert nvml_calls.numa_of_pci("00000000:08:00.0", tmp_path) is None


NOT_FOUND = pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
NOT_SUPPORTED = pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)


class Sampled:
    """NVML's calls for samples, as ``nvidia`` uses them."""

    def __init__(
        self, processes: Any, card: Any, *, successor: Any = NOT_FOUND, rates: Any = NOT_SUPPORTED
    ) -> None:
        self.processes, self.card = processes, card
        self.successor, self.rates = successor, rates

    def __call__(self, monkeypatch: pytest.MonkeyPatch, since_us: int = 100) -> Any:
        def answer(value: Any) -> Any:
            if isinstance(value, Exception):
                raise value
            return value

        monkeypatch.setattr(
            pynvml, "nvmlDeviceGetProcessUtilization", lambda *_: answer(self.processes)
        )
        successor = "nvmlDeviceGetProcessesUtilizationInfo"
        monkeypatch.setattr(pynvml, successor, lambda *_: answer(self.successor))
        monkeypatch.setattr(pynvml, "nvmlDeviceGetSamples", lambda *_: answer(self.card))
        monkeypatch.setattr(pynvml, "nvmlDeviceGetUtilizationRates", lambda *_: answer(self.rates))
        nvml = nvidia.Nvml.__new__(nvidia.Nvml)
        nvml._handles = {"GPU-a": object()}
        return nvml.utilization("GPU-a", since_us, since_us)


def process_sample(pid: int, stamp: int, sm: int) -> Any:
    found = pynvml.c_nvmlProcessUtilizationSample_t()
    found.pid, found.timeStamp, found.smUtil = pid, stamp, sm
    return found


def card_sample(stamp: int, pct: int) -> Any:
    found = pynvml.c_nvmlSample_t()
    found.timeStamp, found.sampleValue.uiVal = stamp, pct
    return found


def test_samples_after_a_stamp(monkeypatch: pytest.MonkeyPatch) -> None:
    # Old entries and one without a process come as well (seen: go-nvml #51).
    processes = [process_sample(7, 200, 40), process_sample(8, 100, 9), process_sample(0, 200, 1)]
    unsigned = (pynvml.NVML_VALUE_TYPE_UNSIGNED_INT, [card_sample(150, 1), card_sample(210, 44)])
    found = Sampled(processes, unsigned)(monkeypatch)
    assert [(p.pid, p.stamp_us, p.sm_pct) for p in found.processes] == [(7, 200, 40)]
    assert (found.card_stamp_us, found.card_pct, found.offered) == (210, 44, True)
    double = card_sample(210, 0)
    double.sampleValue.dVal = 12.7
    found = Sampled([], (pynvml.NVML_VALUE_TYPE_DOUBLE, [double]))(monkeypatch)
    assert found.card_pct == 12


@pytest.mark.parametrize(
    "nothing",
    [
        pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND),
        pynvml.NVMLError(pynvml.NVML_SUCCESS),
        pynvml.NVMLError(pynvml.NVML_ERROR_INSUFFICIENT_SIZE),
    ],
)
def test_nobody_was_busy(monkeypatch: pytest.MonkeyPatch, nothing: Exception) -> None:
    found = Sampled(nothing, nothing)(monkeypatch)
    assert (found.processes, found.card_stamp_us, found.offered, found.error) == (
        (),
        None,
        True,
        "",
    )


def test_the_successor_is_asked_where_the_older_call_tells_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for older in (NOT_FOUND, NOT_SUPPORTED):
        found = Sampled(older, NOT_FOUND, successor=[process_sample(7, 200, 40)])(monkeypatch)
        assert [(p.pid, p.sm_pct) for p in found.processes] == [(7, 40)] and found.offered


def test_the_cards_rate_stands_in_for_its_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = pynvml.c_nvmlUtilization_t()
    rates.gpu = 61
    found = Sampled(NOT_FOUND, NOT_SUPPORTED, rates=rates)(monkeypatch)
    assert (found.card_stamp_us, found.card_pct) == (None, 61)
    assert Sampled(NOT_FOUND, NOT_SUPPORTED)(monkeypatch).card_pct is None


def test_a_driver_that_samples_no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = NOT_SUPPORTED
    found = Sampled(refused, refused, successor=refused)(monkeypatch)
    assert (found.offered, found.error) == (False, "")
    lost = pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
    assert "lost" in Sampled(lost, refused)(monkeypatch).error


def test_books_of_an_emulated_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slot counts for the living owner of its lock, by the pid that we see."""
    (uuid,) = driver_root.make(tmp_path, [CardSpec(count=1)])
    root = DriverRoot(path="/x", emulated=True, nvml=tmp_path / "driver/libnvidia-ml.so.1")
    folder = tmp_path / "cards" / uuid
    book = card_book(root, uuid)
    assert book is not None
    assert (book.clock, book.lapped, book.budget_hits, book.busy_ns) == ("slices", 0, 0, {})
    layout = card.StateLayout
    size = ctypes.sizeof(card.SlotLayout)
    with (folder / "state").open("r+b") as file:
        os.pwrite(file.fileno(), struct.pack("<Q", 2), layout.slot_count.offset)
        for index in range(2):
            slot = card.SlotLayout(generation=1, pid=1)
            os.pwrite(file.fileno(), bytes(slot), layout.slots.offset + index * size)
        os.pwrite(file.fileno(), struct.pack("<I", 1), _clock_mode())
    state = card.read(folder / "state")
    used = (5000, 7000)
    told = dataclasses.replace(
        state,
        slots=tuple(
            dataclasses.replace(s, busy_ns=used[s.index], swapped_bytes=s.index * 9)
            for s in state.slots
        ),
    )
    monkeypatch.setattr(card, "read", lambda _: told)
    assert card_book(root, uuid) == dataclasses.replace(book, clock="sharing"), "nobody lives"
    ready, wait = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        try:
            lock = os.open(folder / "cuda.lock", os.O_RDWR | os.O_CREAT)
            fcntl.lockf(lock, fcntl.LOCK_EX, 1, 1)
            os.write(ready[1], b"1")
            os.close(wait[1])
            os.read(wait[0], 1)  # until the test ends
        finally:
            os._exit(0)
    try:
        assert os.read(ready[0], 1) == b"1"
        found = card_book(root, uuid)
        assert found is not None and found.busy_ns == {child: 7000}
        assert found.swapped_bytes == {child: 9}
    finally:
        os.close(wait[1])
        os.waitpid(child, 0)
        for end in (*ready, wait[0]):
            os.close(end)
    hardware = DriverRoot(path="/x", emulated=False, nvml=root.nvml)
    assert card_book(hardware, uuid) is None


def _clock_mode() -> int:
    layout = card.StateLayout
    return int(layout.description.offset + card.DescriptionLayout.clock_mode.offset)
