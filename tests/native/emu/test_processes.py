"""Several processes on one card: sums, death, PID namespaces, and lost descriptors."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Callable

import pytest
from emu_harness import Emulation, Worker, children_of

from testbed.native import card

MIB = 1 << 20
GIB = 1 << 30
CONTEXT = 424 * MIB

NVML = """
    import pynvml
    def processes():
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        found = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
        pynvml.nvmlShutdown()
        return sorted((p.pid, p.usedGpuMemory) for p in found)
    def nvml_used():
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        info = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
        pynvml.nvmlShutdown()
        return info.used
"""


def both(emulation: Emulation, *, own_namespace: bool) -> tuple[Worker, Worker]:
    workers = (
        emulation.start(own_namespace=own_namespace),
        emulation.start(own_namespace=own_namespace),
    )
    for worker in workers:
        worker("context()")
        assert (worker("os.getpid()") == 1) is own_namespace
    return workers


@pytest.fixture(params=[False, True], ids=["one-namespace", "pid-1-each"])
def pair(request: pytest.FixtureRequest, emulation: Emulation) -> tuple[Worker, Worker]:
    """Two processes with a context; in the second form each is pid 1 of its own world."""
    return both(emulation, own_namespace=request.param)


def test_sum_over_processes(pair: tuple[Worker, Worker]) -> None:
    first, second = pair
    first("p = call('cuMemAlloc', 50 * GIB)")
    assert second("used()") == 50 * GIB + 2 * CONTEXT
    assert second("error('cuMemAlloc', 30 * GIB)") == "CUDA_ERROR_OUT_OF_MEMORY"
    first("call('cuMemFree', p)")
    second("p = call('cuMemAlloc', 30 * GIB)")
    assert first("used()") == 30 * GIB + 2 * CONTEXT


def test_memory_of_a_killed_process_returns(
    emulation: Emulation, pair: tuple[Worker, Worker]
) -> None:
    first, second = pair
    first("p = call('cuMemAlloc', 60 * GIB)")
    first.kill()
    second("p = call('cuMemAlloc', 70 * GIB)")  # swept when room is short
    assert second("used()") == 70 * GIB + CONTEXT
    assert emulation.state().reclaimed == 1
    assert len(emulation.state().slots) == 1


def test_memory_of_an_ended_process_returns(pair: tuple[Worker, Worker]) -> None:
    first, second = pair
    first("p = call('cuMemAlloc', 60 * GIB)")
    first.close()
    assert second("used()") == CONTEXT


def test_a_sweep_spares_the_living(emulation: Emulation, pair: tuple[Worker, Worker]) -> None:
    first, second = pair
    first("p = call('cuMemAlloc', 60 * GIB)")
    for _ in range(20):
        assert second("error('cuMemAlloc', 60 * GIB)") == "CUDA_ERROR_OUT_OF_MEMORY"
        assert first("error('cuMemAlloc', 60 * GIB)") == "CUDA_ERROR_OUT_OF_MEMORY"
    assert emulation.state().reclaimed == 0
    assert {slot.memory_bytes for slot in emulation.state().slots} == {0, 60 * GIB}


@pytest.mark.parametrize(
    "loss",
    [
        "os.closerange(3, 1000)",
        # A close of any descriptor of the file drops the lock, and nobody is told.
        "os.close(os.open(lock, os.O_RDWR))",
    ],
    ids=["closerange", "foreign-close"],
)
def test_a_lost_lock_is_taken_again(
    emulation: Emulation, pair: tuple[Worker, Worker], loss: str
) -> None:
    first, second = pair
    lock = emulation.card() / "cuda.lock"
    first(f"lock = {str(lock)!r}; p = call('cuMemAlloc', 60 * GIB); {loss}")
    first("q = call('cuMemAlloc', GIB)")  # the next call that counts
    assert second("error('cuMemAlloc', 60 * GIB)") == "CUDA_ERROR_OUT_OF_MEMORY"
    assert second("used()") == 61 * GIB + 2 * CONTEXT
    assert emulation.state().reclaimed == 0


def test_launches_alone_take_it_again(pair: tuple[Worker, Worker]) -> None:
    first, second = pair
    first("""
        import time
        p = call('cuMemAlloc', 60 * GIB)
        f = call('cuModuleGetFunction', call('cuModuleLoadData', b'image'), b'kernel')
        os.closerange(3, 1000)
        end, late = time.monotonic() + 0.3, False  # the driver looks ten times a second
        while not late:
            late = time.monotonic() >= end  # and once more after that
            call('cuLaunchKernel', f, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0)
    """)
    assert second("error('cuMemAlloc', 60 * GIB)") == "CUDA_ERROR_OUT_OF_MEMORY"


def test_a_slot_lost_for_good_is_replaced(
    emulation: Emulation, pair: tuple[Worker, Worker]
) -> None:
    first, second = pair
    first("p = call('cuMemAlloc', 10 * GIB); os.closerange(3, 1000)")
    second("p = call('cuMemAlloc', 75 * GIB)")  # sweeps the slot of the careless one
    first("call('cuMemFree', p); p = call('cuMemAlloc', GIB)")
    assert second("used()") == 76 * GIB + 2 * CONTEXT
    assert sorted(s.memory_bytes for s in emulation.state().slots) == [GIB, 75 * GIB]


def test_descriptor_number_of_another_file(pair: tuple[Worker, Worker]) -> None:
    first, second = pair
    first("""
        p = call('cuMemAlloc', 60 * GIB)
        os.closerange(3, 1000)
        others = [os.open('/dev/null', os.O_RDWR) for _ in range(20)]
        q = call('cuMemAlloc', GIB)
    """)
    assert second("used()") == 61 * GIB + 2 * CONTEXT
    assert first("len([os.fstat(n) for n in others])") == 20  # theirs were left alone


@pytest.mark.parametrize("own_namespace", [False, True])
def test_fork_without_exec(emulation: Emulation, own_namespace: bool) -> None:
    """As on hardware, a child cannot use the card; and it takes nothing from its parent."""
    parent, other = both(emulation, own_namespace=own_namespace)
    parent("""
        p = call('cuMemAlloc', 60 * GIB)
        def in_child(code):
            read, write = os.pipe()
            pid = os.fork()
            if pid == 0:
                os.write(write, str(eval(code)).encode())
                os._exit(0)
            os.close(write)
            answer = os.read(read, 4096).decode()
            os.close(read)
            assert os.waitpid(pid, 0)[1] == 0
            return answer
    """)
    assert parent("in_child(\"error('cuInit', 0)\")") == "CUDA_ERROR_NOT_INITIALIZED"
    assert parent("in_child(\"error('cuMemAlloc', 4096)\")") == "CUDA_ERROR_NOT_INITIALIZED"
    assert parent("in_child('os.closerange(3, write) or os.closerange(write + 1, 1000)')") == "None"
    assert other("error('cuMemAlloc', 60 * GIB)") == "CUDA_ERROR_OUT_OF_MEMORY"
    assert other("used()") == 60 * GIB + 2 * CONTEXT
    assert emulation.state().reclaimed == 0
    parent("q = call('cuMemAlloc', GIB)")


def test_fork_before_initialisation(emulation: Emulation) -> None:
    parent = emulation.start()
    parent("""
        call('cuDriverGetVersion')  # the library is loaded, the card not in use
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            context()
            call('cuMemAlloc', 3 * GIB)
            os.write(write, b'ready')
            import time
            time.sleep(600)
        os.read(read, 5)
        context()
    """)
    assert parent("used()") == 3 * GIB + 2 * CONTEXT
    parent("import signal; os.kill(pid, signal.SIGKILL); os.waitpid(pid, 0)")
    assert parent("used()") == CONTEXT


def test_decided_under_the_lock(emulation: Emulation, pair: tuple[Worker, Worker]) -> None:
    """Who charges memory holds the card's lock: while we have it, nobody can."""
    first, second = pair
    with (emulation.card() / "cuda.lock").open("r+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX, 1, card.LOCK_MEMORY)
        first.send("int(call('cuMemAlloc', GIB))")
        second.send("used()")
        assert not first.answers_within(0.3)
        assert not second.answers_within(0.0)
        assert {slot.memory_bytes for slot in emulation.state().slots} == {0}
        fcntl.lockf(file, fcntl.LOCK_UN, 1, card.LOCK_MEMORY)
    assert first.receive() > 0
    assert second.receive() in (2 * CONTEXT, 2 * CONTEXT + GIB)


def test_nvml_names_the_processes(emulation: Emulation) -> None:
    first = emulation.start()
    second = emulation.start()
    reader = emulation.start()
    reader(NVML)
    assert reader("processes()") == []
    first("context(); p = call('cuMemAlloc', 3 * GIB)")
    second("context(); p = call('cuMemAlloc', 5 * GIB)")
    expected = sorted(
        [(first.process.pid, 3 * GIB + CONTEXT), (second.process.pid, 5 * GIB + CONTEXT)]
    )
    assert reader("processes()") == [list(entry) for entry in expected]
    # A process that uses the card sees itself too, although F_GETLK hides its own locks.
    first(NVML)
    assert first("processes()") == [list(entry) for entry in expected]
    second.kill()
    assert reader("nvml_used()") == 3 * GIB + CONTEXT
    assert reader("len(processes())") == 1


def test_nvml_across_namespaces(emulation: Emulation) -> None:
    first, second = both(emulation, own_namespace=True)
    first("p = call('cuMemAlloc', 3 * GIB)")
    second("p = call('cuMemAlloc', 5 * GIB)")
    for worker in (first, second):
        worker(NVML)
    # Each knows itself as pid 1; the sibling lives but has no pid there.
    assert first("processes()") == [[0, 5 * GIB + CONTEXT], [1, 3 * GIB + CONTEXT]]
    assert second("processes()") == [[0, 3 * GIB + CONTEXT], [1, 5 * GIB + CONTEXT]]
    # The outer namespace, as the monitor's, names both.
    outer = emulation.start()
    outer(NVML)
    pids = {pid for pid, _ in outer("processes()")}
    assert 0 not in pids and len(pids) == 2
    assert outer("nvml_used()") == 8 * GIB + 2 * CONTEXT


def test_nvml_leaves_the_locks_alone(emulation: Emulation, pair: tuple[Worker, Worker]) -> None:
    first, second = pair
    first("p = call('cuMemAlloc', 60 * GIB)")
    first(NVML)
    first("for _ in range(100): processes()")
    # Without any call in between that would have taken the lock again:
    assert second("error('cuMemAlloc', 60 * GIB)") == "CUDA_ERROR_OUT_OF_MEMORY"
    assert emulation.state().reclaimed == 0


def test_nvml_after_closerange(emulation: Emulation) -> None:
    first = emulation.start()
    first("context(); p = call('cuMemAlloc', GIB)")
    reader = emulation.start()
    reader(NVML)
    assert reader("nvml_used()") == GIB + CONTEXT
    reader("os.closerange(3, 1000)")
    assert reader("nvml_used()") == GIB + CONTEXT
    # And the own slot, whose lock the program just threw away:
    first(NVML)
    first("os.closerange(3, 1000)")
    assert first("processes()") == [[first.process.pid, GIB + CONTEXT]]
    assert reader("nvml_used()") == GIB + CONTEXT


def test_stopped_holder_is_waited_for(emulation: Emulation, pair: tuple[Worker, Worker]) -> None:
    """A process that is stopped outside of the lock stops nobody."""
    first, second = pair
    first("p = call('cuMemAlloc', GIB)")
    target = (children_of(first.process.pid) or [first.process.pid])[0]
    os.kill(target, signal.SIGSTOP)
    try:
        second("p = call('cuMemAlloc', GIB)")
    finally:
        os.kill(target, signal.SIGCONT)
    assert second("used()") == 2 * GIB + 2 * CONTEXT


def test_two_cards(make_emulation: Callable[..., Emulation]) -> None:
    emulation = make_emulation(2)
    worker = emulation.start()
    worker("context(1); p = call('cuMemAlloc', GIB)")
    assert emulation.state(0).slots == ()
    assert emulation.state(1).slots[0].memory_bytes == GIB
    worker("context(0); call('cuMemFree', p)")  # freed on another current device
    assert emulation.state(1).slots[0].memory_bytes == 0
    assert emulation.state(0).slots[0].memory_bytes == 0


def test_threads(emulation: Emulation, worker: Worker) -> None:
    worker("""
        import threading
        c = call('cuCtxGetCurrent')
        failures = []
        def work(seed):
            try:
                call('cuCtxSetCurrent', c)
                for i in range(200):
                    p = call('cuMemAlloc', (1 + (i * seed) % 7) * MIB)
                    q = call('cuMemAllocAsync', 1 + i * seed * 1000, 0)
                    call('cuMemsetD8', p, seed, MIB)
                    call('cuMemFree', p)
                    call('cuMemFreeAsync', q, 0)
            except Exception as problem:
                failures.append(str(problem))
        threads = [threading.Thread(target=work, args=(n,)) for n in (1, 2, 3, 4)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        call('cuCtxSynchronize')
    """)
    assert worker("failures") == []
    assert worker("used()") == CONTEXT
    assert emulation.state().slots[0].resident_bytes == 0


def test_kill_at_any_moment(emulation: Emulation) -> None:
    """Killed amid allocations, a process leaves a card that works for the others."""
    other = emulation.start()
    other("context()")
    for delay in (0.0, 0.002, 0.005, 0.011, 0.017):
        victim = emulation.start()
        victim("context()")
        victim.send("while True: call('cuMemFree', call('cuMemAlloc', 40 * GIB))")
        time.sleep(delay)  # not a wait: where it dies is the point
        victim.kill()
        other("p = call('cuMemAlloc', 70 * GIB); call('cuMemFree', p)")
    assert other("used()") == CONTEXT
