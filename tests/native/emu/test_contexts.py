"""Contexts: what they cost and what goes with them; devices and which are visible."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from emu_harness import Emulation, Worker

MIB = 1 << 20
CONTEXT = 424 * MIB


def test_primary_context_costs_once(emulation: Emulation) -> None:
    worker = emulation.start()
    worker("call('cuInit', 0)")
    assert emulation.state().slots == ()  # nothing before there is a context
    worker("made = [call('cuDevicePrimaryCtxRetain', 0) for _ in range(3)]")
    assert worker("len({int(c) for c in made})") == 1
    assert emulation.state().slots[0].context_bytes == CONTEXT
    worker("[call('cuDevicePrimaryCtxRelease', 0) for _ in range(2)]")
    assert emulation.state().slots[0].context_bytes == CONTEXT
    worker("call('cuDevicePrimaryCtxRelease', 0)")
    assert emulation.state().slots[0].context_bytes == 0
    assert worker("error('cuDevicePrimaryCtxRelease', 0)") == "CUDA_ERROR_INVALID_CONTEXT"


def test_memory_goes_with_the_context(emulation: Emulation, worker: Worker) -> None:
    worker("""
        call('cuMemAlloc', 10 * MIB)
        call('cuMemAllocAsync', 10 * MIB, 0)
        call('cuDevicePrimaryCtxRelease', 0)
    """)
    assert emulation.state().slots[0].memory_bytes == 0
    assert worker("error('cuMemAlloc', 8)") == "CUDA_ERROR_CONTEXT_IS_DESTROYED"
    worker("context(); call('cuMemAlloc', 8)")


def test_own_contexts(worker: Worker) -> None:
    worker("""
        before = used()
        parameters = driver.CUctxCreateParams()
        c = call('cuCtxCreate', None, 0, 0)
    """)
    assert worker("used() - before") == CONTEXT
    assert worker("int(call('cuCtxGetCurrent')) == int(c)")
    worker("p = call('cuMemAlloc', MIB); call('cuCtxDestroy', c)")
    assert worker("used() - before") == 0
    assert worker("int(call('cuCtxGetCurrent')) != int(c)")
    assert worker("error('cuCtxPushCurrent', c)") == "CUDA_ERROR_INVALID_CONTEXT"
    assert worker("error('cuCtxDestroy', c)") == "CUDA_ERROR_CONTEXT_IS_DESTROYED"


def test_each_thread_has_its_stack(worker: Worker) -> None:
    worker("""
        import threading
        seen = []
        thread = threading.Thread(target=lambda: seen.append(int(call('cuCtxGetCurrent'))))
        thread.start(); thread.join()
    """)
    assert worker("seen") == [0]


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, [0, 1, 2]),
        ("2,0", [2, 0]),
        ("1,7,0", [1]),  # up to the first that names none
        ("1,1,0", [1]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("{2}", [2]),
        ("{1:.12},{0}", [1, 0]),
    ],
)
def test_visible_devices(
    make_emulation: Callable[..., Emulation], visible: str | None, expected: list[int]
) -> None:
    emulation = make_emulation(3)
    environment = {}
    if visible is not None:
        uuids = emulation.uuids
        environment["CUDA_VISIBLE_DEVICES"] = (
            visible.replace("{1:.12}", uuids[1][:12]).replace("{0}", uuids[0])
        ).replace("{2}", uuids[2])
    worker = emulation.start(**environment)
    if not expected:
        assert worker("error('cuInit', 0)") == "CUDA_ERROR_NO_DEVICE"
        return
    worker("call('cuInit', 0)")
    uuids = [
        worker(f"call('cuDeviceGetUuid', {i}).bytes.hex()")
        for i in range(worker("call('cuDeviceGetCount')"))
    ]
    assert uuids == [emulation.uuids[i].removeprefix("GPU-").replace("-", "") for i in expected]


def test_cards_elsewhere(make_emulation: Callable[..., Emulation]) -> None:
    emulation = make_emulation()
    worker = emulation.start(VGPU_EMU_CARDS=str(emulation.root / "nowhere"))
    assert worker("error('cuInit', 0)") == "CUDA_ERROR_NO_DEVICE"
    other = make_emulation(2)
    worker = emulation.start(VGPU_EMU_CARDS=str(other.root / "cards"))
    worker("call('cuInit', 0)")
    assert worker("call('cuDeviceGetCount')") == 2


def test_bus_ids(make_emulation: Callable[..., Emulation]) -> None:
    worker = make_emulation(2).start()
    worker("call('cuInit', 0); text = call('cuDeviceGetPCIBusId', 64, 1).split(b'\\0')[0]")
    assert worker("text.decode()") == "0000:11:00.0"
    assert worker("int(call('cuDeviceGetByPCIBusId', text))") == 1
    assert worker("error('cuDeviceGetByPCIBusId', b'0000:55:00.0')") == "CUDA_ERROR_INVALID_DEVICE"


def test_attributes(worker: Worker) -> None:
    worker("attributes = driver.CUdevice_attribute")
    for name, value in {
        "COMPUTE_CAPABILITY_MAJOR": 8,
        "COMPUTE_CAPABILITY_MINOR": 0,
        "MULTIPROCESSOR_COUNT": 108,
        "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 166912,
        "VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED": 1,
        "MEMORY_POOLS_SUPPORTED": 1,
    }.items():
        assert (
            worker(f"call('cuDeviceGetAttribute', attributes.CU_DEVICE_ATTRIBUTE_{name}, 0)")
            == value
        )
