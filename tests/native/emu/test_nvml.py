"""The emulated libnvidia-ml, through nvidia-ml-py and by its symbols."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from emu_harness import TIMEOUT_S, Emulation, Worker

from testbed.native import card

MIB = 1 << 20

#: What torch resolves in one go; a missing one is an assertion inside its error path.
TORCH = (
    "nvmlInit_v2",
    "nvmlDeviceGetHandleByPciBusId_v2",
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetNvLinkRemoteDeviceType",
    "nvmlDeviceGetNvLinkRemotePciInfo_v2",
    "nvmlDeviceGetGpuFabricInfoV",
    "nvmlSystemGetCudaDriverVersion_v2",
)


@pytest.fixture
def nvml(emulation: Emulation) -> Worker:
    worker = emulation.start()
    worker("import pynvml as n; n.nvmlInit(); h = n.nvmlDeviceGetHandleByIndex(0)")
    return worker


def test_what_a_card_says(emulation: Emulation, nvml: Worker) -> None:
    assert nvml("n.nvmlDeviceGetCount()") == 1
    assert nvml("n.nvmlDeviceGetName(h)") == "NVIDIA A100-SXM4-80GB"
    assert nvml("n.nvmlDeviceGetUUID(h)") == emulation.uuids[0]
    assert nvml("n.nvmlSystemGetDriverVersion()").endswith("+emulated")
    assert nvml("n.nvmlSystemGetCudaDriverVersion()") == 13020
    assert nvml("n.nvmlDeviceGetCudaComputeCapability(h)") == [8, 0]
    assert nvml("n.nvmlDeviceGetMigMode(h)") == [0, 0]
    assert nvml("n.nvmlDeviceGetPciInfo(h).busId") == "00000000:10:00.0"
    assert nvml("n.nvmlDeviceGetPciInfo(h).bus") == 0x10
    assert nvml("n.nvmlDeviceGetMinorNumber(h), n.nvmlDeviceGetIndex(h)") == [0, 0]
    assert nvml("n.nvmlDeviceGetUtilizationRates(h).gpu") == 0
    assert nvml("n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_SM)") == 1410
    assert nvml("n.nvmlDeviceGetGraphicsRunningProcesses(h)") == []


def test_memory(nvml: Worker) -> None:
    nvml("context(); p = call('cuMemAlloc', 100 * MIB)")
    used = (424 + 100) * MIB
    nvml("one = n.nvmlDeviceGetMemoryInfo(h)")
    assert nvml("one.total, one.used, one.total - one.free - one.used") == [
        81920 * MIB,
        used + 870 * MIB,
        0,
    ]
    nvml("two = n.nvmlDeviceGetMemoryInfo(h, version=n.nvmlMemory_v2)")
    assert nvml("two.total, two.reserved, two.used") == [81920 * MIB, 870 * MIB, used]
    assert nvml("two.total - two.reserved - two.used == two.free")
    assert nvml("two.free == call('cuMemGetInfo')[0]")


def test_handles(make_emulation: Callable[..., Emulation]) -> None:
    emulation = make_emulation(2)
    worker = emulation.start(CUDA_VISIBLE_DEVICES="1")
    worker("import pynvml as n; n.nvmlInit()")
    # NVML ignores CUDA_VISIBLE_DEVICES, as it does on hardware.
    assert worker("n.nvmlDeviceGetCount()") == 2
    worker(f"h = n.nvmlDeviceGetHandleByUUID({emulation.uuids[1]!r})")
    assert worker("n.nvmlDeviceGetIndex(h)") == 1
    assert worker("n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByPciBusId('0000:11:00.0'))") == 1
    for bad in (
        "n.nvmlDeviceGetHandleByIndex(2)",
        "n.nvmlDeviceGetHandleByUUID('GPU-none')",
        "n.nvmlDeviceGetHandleByPciBusId('0000:99:00.0')",
    ):
        with pytest.raises(AssertionError, match="NVMLError"):
            worker(bad)


def test_initialisation_is_counted(nvml: Worker) -> None:
    nvml("n.nvmlInit(); n.nvmlShutdown()")
    assert nvml("n.nvmlDeviceGetCount()") == 1
    nvml("n.nvmlShutdown()")
    with pytest.raises(AssertionError, match="Uninitialized"):
        nvml("n.nvmlDeviceGetCount()")
    nvml("n.nvmlInit(); h = n.nvmlDeviceGetHandleByIndex(0)")
    assert nvml("n.nvmlDeviceGetIndex(h)") == 0


def test_without_cards(emulation: Emulation) -> None:
    worker = emulation.start(VGPU_EMU_CARDS="/nowhere")
    worker("import pynvml as n")
    with pytest.raises(AssertionError, match="Driver Not Loaded"):
        worker("n.nvmlInit()")


def test_process_lists_in_three_layouts(nvml: Worker) -> None:
    nvml("""
        import struct
        context()
        library = ctypes.CDLL('libnvidia-ml.so.1')
        library.nvmlInit_v2()
        handle = ctypes.c_void_p()
        library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle))
        def ask(name, layout):
            room = ctypes.c_uint(0)
            code = getattr(library, name)(handle, ctypes.byref(room), None)
            buffer = ctypes.create_string_buffer(room.value * struct.calcsize(layout))
            again = getattr(library, name)(handle, ctypes.byref(room), buffer)
            return [code, again, *struct.unpack(layout, buffer.raw)]
    """)
    pid = nvml("os.getpid()")
    start = [7, 0, pid, 424 * MIB]  # 7: insufficient size, and how much is needed
    assert nvml("ask('nvmlDeviceGetComputeRunningProcesses', '=I4xQ')") == start
    for version in ("_v2", "_v3"):
        assert nvml(f"ask('nvmlDeviceGetComputeRunningProcesses{version}', '=I4xQII')") == [
            *start,
            0xFFFFFFFF,
            0xFFFFFFFF,
        ]


def test_xid_events(emulation: Emulation, nvml: Worker) -> None:
    nvml("""
        events = n.nvmlEventSetCreate()
        n.nvmlDeviceRegisterEvents(h, n.nvmlEventTypeXidCriticalError, events)
    """)
    with pytest.raises(AssertionError, match="Timeout"):
        nvml("n.nvmlEventSetWait_v2(events, 20)")
    nvml.send("(lambda e: [e.eventType, e.eventData])(n.nvmlEventSetWait_v2(events, 30000))")
    card.raise_xid(emulation.card() / "state", 31)
    assert nvml.receive() == [8, 31]
    card.raise_xid(emulation.card() / "state", 79, fallen_off=True)
    assert nvml("n.nvmlEventSetWait_v2(events, 30000).eventData") == 79
    with pytest.raises(AssertionError, match="GPU is lost"):
        nvml("n.nvmlDeviceGetName(h)")


def test_cards_that_cannot_be_written(emulation: Emulation) -> None:
    """The monitor and the plugin may see the cards on a read-only mount."""
    user = emulation.start()
    user("context()")
    cards = emulation.root / "cards"
    mount = f"mount --bind {cards} {cards} && mount -o remount,bind,ro {cards}"
    script = f"""
import os, pynvml as n
try:
    open({str(emulation.card() / "state")!r}, "r+b")
except OSError as error:
    print(error.strerror)
n.nvmlInit()
h = n.nvmlDeviceGetHandleByIndex(0)
print(n.nvmlDeviceGetMemoryInfo(h, version=n.nvmlMemory_v2).used)
"""
    inner = shlex.join(emulation.command(sys.executable, "-c", script))
    done = subprocess.run(
        [
            "unshare",
            "--user",
            "--map-root-user",
            "--mount",
            "sh",
            "-ec",
            f"{mount} && exec {inner}",
        ],
        env=emulation.environment(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["Read-only file system", str(424 * MIB)]


def test_unsupported(nvml: Worker) -> None:
    with pytest.raises(AssertionError, match="Not Supported"):
        nvml("n.nvmlDeviceGetFanSpeed(h)")


def test_symbols(emulation: Emulation) -> None:
    """All symbols resolve at once, and those that torch and nvidia-ml-py ask for exist."""
    import pynvml

    text = Path(pynvml.__file__).read_text()
    names = set(re.findall(r'GetFunctionPointer\("(nvml\w+)"\)', text)) | set(TORCH)
    assert len(names) > 300
    script = (
        "import ctypes, os, sys\n"
        "library = ctypes.CDLL('libnvidia-ml.so.1', mode=os.RTLD_NOW)\n"
        "print([n for n in sys.argv[1:] if not hasattr(library, n)])"
    )
    done = subprocess.run(
        emulation.command(sys.executable, "-c", script, *sorted(names)),
        env=emulation.environment(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
