"""Time on the card: durations, streams, events, waiting, and sharing between processes.

What is compared are virtual times (events, device time in the card's book), so that the
tolerances hold on a machine that is busy.
"""

from __future__ import annotations

import time

import pytest
from emu_harness import Emulation, Worker

MS = 1_000_000
IMAGE = "b'VGPU-EMULATED-KERNELS 1\\nlast spin\\nwork work\\n'"
#: Names for the code in a worker: kernels of known length, and the time between events.
SETUP = f"""
    module = call('cuModuleLoadData', {IMAGE})
    last, work = (call('cuModuleGetFunction', module, n) for n in (b'last', b'work'))

    def spin(ns, stream=0):
        call('cuLaunchKernel', last, 1, 1, 1, 32, 1, 1, 0, stream, ((ns,), (ctypes.c_uint64,)), 0)

    def event(stream=0):
        made = call('cuEventCreate', 0)
        call('cuEventRecord', made, stream)
        return made

    def between(a, b):
        return call('cuEventElapsedTime', a, b)
"""


@pytest.fixture
def timed(worker: Worker) -> Worker:
    """A process with a context and kernels of known length."""
    worker(SETUP)
    return worker


def start(emulation: Emulation) -> Worker:
    worker = emulation.start()
    worker("context()")
    worker(SETUP)
    return worker


def busy(emulation: Emulation) -> list[int]:
    return [slot.busy_ns for slot in emulation.state().slots]


def test_a_kernel_takes_its_time(timed: Worker) -> None:
    timed("""
        spin(1_000_000); a = event(); spin(5_000_000); b = event()
        early = error('cuEventElapsedTime', a, b), error('cuEventQuery', b)
        call('cuStreamSynchronize', 0)
    """)
    assert timed("early") == ["CUDA_ERROR_NOT_READY"] * 2
    assert timed("between(a, b)") == pytest.approx(5.0, abs=0.001)
    assert timed("error('cuEventQuery', b)") == "CUDA_SUCCESS"


def test_synchronising_waits(timed: Worker) -> None:
    timed("""
        import time
        start = time.monotonic(); spin(50_000_000)
        launched = time.monotonic() - start
        state = error('cuStreamQuery', 0)
        call('cuCtxSynchronize')
        waited = time.monotonic() - start
    """)
    assert timed("launched") < 0.05 <= timed("waited")
    assert timed("state") == "CUDA_ERROR_NOT_READY"
    assert timed("error('cuStreamQuery', 0)") == "CUDA_SUCCESS"


def test_two_processes_share(emulation: Emulation) -> None:
    first, second = start(emulation), start(emulation)
    for worker in (first, second):
        worker("[spin(1_000_000) for _ in range(1000)]")
    before = busy(emulation)
    time.sleep(0.5)
    gained = [b - a for a, b in zip(before, busy(emulation), strict=True)]
    assert gained[0] == pytest.approx(gained[1], rel=0.05)
    for worker in (first, second):
        worker("call('cuCtxSynchronize')")
