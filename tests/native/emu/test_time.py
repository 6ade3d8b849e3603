"""Time on the card: durations, streams, events, waiting, and sharing between processes.

What is compared are virtual times (events, device time in the card's book), so that the
tolerances hold on a machine that is busy.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from emu_harness import Emulation, Worker

from testbed.card import profiles
from testbed.errors import InputError

MS = 1_000_000
IMAGE = "b'VGPU-EMULATED-KERNELS 1\\nlast spin\\nwork work\\n'"
#: Names for the code in a worker: kernels of known length, and the time between events.
SETUP = f"""
    context_ = call('cuCtxGetCurrent')
    module = call('cuModuleLoadData', {IMAGE})
    last, work = (call('cuModuleGetFunction', module, n) for n in (b'last', b'work'))

    def spin(ns, stream=0):
        call('cuLaunchKernel', last, 1, 1, 1, 32, 1, 1, 0, stream, ((ns,), (ctypes.c_uint64,)), 0)

    import threading
    gates, kept = [], []

    def ahead(stream=0):
        # What is asked for now begins with `go`: all of it is there, and without a gap.
        gate = threading.Event()
        kept.append(ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda data: gate.wait()))
        gates.append(gate)
        raw('cuLaunchHostFunc')(ctypes.c_void_p(int(stream) or None), kept[-1], None)
        spin(1_000_000, stream)

    def go():
        while gates:
            gates.pop().set()

    def finish(stream=0):
        go()
        call('cuStreamSynchronize', stream)

    def event(stream=0):
        made = call('cuEventCreate', 0)
        call('cuEventRecord', made, stream)
        return made

    def between(a, b):
        return call('cuEventElapsedTime', a, b)
"""
#: What a timing event costs on the card of the tests, between two of them.
EVENT_MS = profiles.load("a100-80gb").figures["event_ns"].value / 1e6
OVERHEAD_MS = profiles.load("a100-80gb").figures["launch_overhead_ns"].value / 1e6


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
        ahead(); a = event(); spin(5_000_000); b = event()
        early = error('cuEventElapsedTime', a, b), error('cuEventQuery', b)
        finish()
    """)
    assert timed("early") == ["CUDA_ERROR_NOT_READY"] * 2
    assert timed("between(a, b)") == pytest.approx(5 + EVENT_MS, abs=0.0005)
    assert timed("error('cuEventQuery', b)") == "CUDA_SUCCESS"


def test_synchronising_waits(timed: Worker) -> None:
    timed("""
        import time
        ahead(); spin(50_000_000)  # it returns, though nothing has begun
        state = error('cuStreamQuery', 0)
        start = time.monotonic()
        go()
        call('cuCtxSynchronize')
        waited = time.monotonic() - start
    """)
    assert timed("waited") >= 0.05
    assert timed("state") == "CUDA_ERROR_NOT_READY"
    assert timed("error('cuStreamQuery', 0)") == "CUDA_SUCCESS"


KERNELS_NS = (5_000, 1_000_000, 200_000_000)
#: Keeps the queue full from a thread of its own until `stop` is set.
FLOOD = """
    import threading
    stop = threading.Event()

    def flood(ns):
        call('cuCtxSetCurrent', context_)
        while not stop.is_set():
            spin(ns)

    thread = threading.Thread(target=flood, args=({ns},), daemon=True)
    thread.start()
"""


#: A look at the book that took longer says too little of when it was.
AT_ONCE_S = 0.002


def look(emulation: Emulation) -> tuple[list[int], float]:
    """The book, and when that was: looked at again where the host came in between."""
    while True:
        before, found, after = time.monotonic(), busy(emulation), time.monotonic()
        if after - before < AT_ONCE_S:
            return found, (before + after) / 2


def granted(emulation: Emulation, seconds: float) -> list[float]:
    """Shares of device time of the processes over a while, by slot."""
    before, began = look(emulation)
    time.sleep(seconds)
    after, ended = look(emulation)
    return [(b - a) / (ended - began) / 1e9 for a, b in zip(before, after, strict=True)]


#: How often shares may be measured where the host keeps a process from asking for work.
WINDOWS = 10


def test_flat_out_processes_get_equal_shares(emulation: Emulation) -> None:
    workers = [start(emulation) for _ in KERNELS_NS]
    for worker, ns in zip(workers, KERNELS_NS, strict=True):
        count = min(1000, 60_000_000_000 // ns)
        worker(f"[spin({ns}) for _ in range({count})]")
        if ns * count < 10_000_000_000:
            worker(FLOOD.format(ns=ns))
    description = emulation.state().description
    slice_ns = description.time_slice_us * 1000
    expected = slice_ns / (slice_ns + description.switch_ns) / 3
    for left in reversed(range(WINDOWS)):
        shares = granted(emulation, 1.5)
        assert sum(shares) <= 1.001
        # The one with 5 us kernels depends on being scheduled by the host now and then, and
        # what it cannot take is the others'.
        even = shares[1:] == pytest.approx([expected] * 2, rel=0.1)
        if even and shares[0] > 0.6 * expected:
            break
        assert left, shares
    workers[0]("stop.set()")
    for worker in workers:
        worker.kill()


def test_little_work_is_not_behind_a_queue(emulation: Emulation) -> None:
    hog, small = start(emulation), start(emulation)
    hog("[spin(50_000_000) for _ in range(900)]")
    small("""
        times = []
        for _ in range(20):
            ahead(); a = event(); spin(100_000); b = event()
            finish()
            times.append(between(a, b))
    """)
    description = emulation.state().description
    turn_ms = description.time_slice_us / 1000 + 2 * description.switch_ns / 1e6
    # Its own time, and at most one turn of the other in between.
    assert small("max(times)") <= 0.1 + turn_ms + 0.01
    assert small("min(times)") >= 0.0999
    hog.kill()


def test_a_killed_neighbour_leaves_at_once(emulation: Emulation) -> None:
    hog, other = start(emulation), start(emulation)
    hog("[spin(100_000_000) for _ in range(1000)]")
    other("spin(1_000_000); call('cuStreamSynchronize', 0)")
    hog.kill()
    other("""
        import time
        time.sleep(0.05)  # longer than a process counts as alive that nobody looked at
        ahead(); a = event(); spin(300_000_000); b = event()
        finish()
    """)
    assert other("between(a, b)") == pytest.approx(300, abs=25)


def test_newcomers_stretch_what_is_queued(emulation: Emulation) -> None:
    first, second = start(emulation), start(emulation)
    # The second may be late by a second, when the host has no time for it.
    first("a = event(); spin(1_500_000_000); b = event()")
    second("[spin(2_000_000_000) for _ in range(10)]")
    first("call('cuStreamSynchronize', 0)")
    assert 2000 < first("between(a, b)") < 3600
    second.kill()


def test_time_passes_without_anybody_looking(timed: Worker) -> None:
    timed("""
        import time
        s, t = call('cuStreamCreate', 1), call('cuStreamCreate', 1)
        pinned, p = call('cuMemHostAlloc', 24 * MIB, 0), call('cuMemAlloc', 24 * MIB)
        call('cuMemcpyHtoDAsync', p, pinned, 24 * MIB, s)
        spin(500_000_000, s)  # what is asked for meanwhile follows without a gap
        a = event(s)
        spin(1_000_000_000, s)  # while the host moves the bytes, which takes it longer
        call('cuMemcpyHtoDAsync', p, pinned, 24 * MIB, s)
        b = event(s)
        call('cuStreamWaitEvent', t, b, 0)
        spin(5_000_000, t)
        c = event(t)
        time.sleep(2)
    """)
    copy_ms = 24 * (1 << 20) / 24e9 * 1e3 + OVERHEAD_MS
    assert timed("between(a, b)") == pytest.approx(1000 + copy_ms + EVENT_MS, abs=0.0005)
    assert timed("between(b, c)") == pytest.approx(5 + EVENT_MS, abs=0.0005)


def test_a_queue_is_full_at_some_point(timed: Worker) -> None:
    timed("""
        import time
        s = call('cuStreamCreate', 1)
        spin(1_500_000_000, s)
        start = time.monotonic()
        for _ in range(1021): spin(1, s)
        free = time.monotonic() - start
        spin(1, s)
        full = time.monotonic() - start
    """)
    # Less than the whole, since the first began before the clock was read.
    assert timed("free") < 1.0 < timed("full")


def test_default_stream_is_a_barrier(timed: Worker) -> None:
    timed("""
        s, free = call('cuStreamCreate', 0), call('cuStreamCreate', 1)
        ahead(s)
        a = event(s)
        spin(10_000_000, s)
        b = event(0)      # behind what the blocking stream has
        c = event(free)   # behind nothing
        spin(10_000_000, 0)
        d = event(s)      # behind the default stream
        go()
        call('cuCtxSynchronize')
    """)
    assert timed("between(a, b)") == pytest.approx(10 + EVENT_MS, abs=0.0005)
    assert timed("between(a, c)") < 0  # long before
    assert timed("between(b, d)") == pytest.approx(10 + EVENT_MS, abs=0.0005)


def test_priorities(timed: Worker) -> None:
    timed("""
        low = call('cuStreamCreateWithPriority', 1, 0)
        high = call('cuStreamCreateWithPriority', 1, -5)
        work_ = lambda s: call('cuLaunchKernel', work, 100000, 1, 1, 1024, 1, 1, 0, s,
                               ((0, 20_000_000_000, 0),
                                (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint32)), 0)
        ahead(low)
        a = event(low)
        call('cuStreamWaitEvent', high, a, 0)  # both begin at one time
        for _ in range(10): work_(low)
        work_(high)
        h, l = event(high), event(low)
        go()
        call('cuCtxSynchronize')
    """)
    assert timed("between(a, h)") < 1.8 * 11.3
    assert timed("between(a, l)") == pytest.approx(11 * 11.3, rel=0.05)


def test_work_takes_what_it_says(timed: Worker) -> None:
    timed("""
        def launch(*parameters):
            kinds = ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint32
            ahead()
            a = event()
            call('cuLaunchKernel', work, 8, 8, 8, 128, 1, 1, 0, 0, (parameters, kinds), 0)
            b = event()
            finish()
            return between(a, b)
    """)
    overhead = OVERHEAD_MS + EVENT_MS
    for precision, flops in enumerate((19.5e12, 156e12, 312e12, 9.7e12, 624e12)):
        assert timed(f"launch({10**12}, 0, {precision})") == pytest.approx(
            1e15 / flops + overhead, abs=0.001
        )
    assert timed("launch(1, 2_039_000_000 * 87 // 100, 0)") == pytest.approx(
        1 + overhead, abs=0.001
    )


def test_torch_sleep(timed: Worker) -> None:
    timed("""
        other = call('cuModuleLoadData', b'an image')
        sleep = call('cuModuleGetFunction', other, b'_ZN2at4cuda11spin_kernelEl')
        ahead()
        a = event()
        parameters = (14_100_000,), (ctypes.c_int64,)
        call('cuLaunchKernel', sleep, 1, 1, 1, 1, 1, 1, 0, 0, parameters, 0)
        b = event()
        finish()
    """)
    assert timed("between(a, b)") == pytest.approx(10 + EVENT_MS, abs=0.0005)


def test_images_of_our_own(timed: Worker) -> None:
    assert timed("error('cuModuleGetFunction', module, b'no')") == "CUDA_ERROR_NOT_FOUND"
    for bad in (b"k\n", b"k what\n", b" spin\n"):
        image = b"VGPU-EMULATED-KERNELS 1\n" + bad
        assert timed(f"error('cuModuleLoadData', {image!r})") == "CUDA_ERROR_INVALID_IMAGE"


def test_copies_have_engines_of_their_own(timed: Worker) -> None:
    timed("""
        s, t = call('cuStreamCreate', 1), call('cuStreamCreate', 1)
        pinned, p = call('cuMemHostAlloc', 48 * MIB, 0), call('cuMemAlloc', 48 * MIB)
        a = event(s)
        spin(1_000_000_000, t)
        call('cuMemcpyHtoDAsync', p, pinned, 48 * MIB, s)
        b, c = event(s), event(t)
        call('cuCtxSynchronize')
    """)
    assert timed("between(a, b)") < timed("between(a, c)")
    assert timed("between(a, b)") >= 48 * (1 << 20) / 24e9 * 1e3


def test_pageable_memory_is_ready_when_the_call_returns(timed: Worker) -> None:
    timed("""
        import time
        p, data = call('cuMemAlloc', MIB), bytearray(MIB)
        start = time.monotonic()
        spin(50_000_000)
        call('cuMemcpyDtoHAsync', data, p, MIB, 0)
        waited = time.monotonic() - start
    """)
    assert timed("waited") >= 0.05


def test_cooperative_launches(timed: Worker) -> None:
    launch = "error('cuLaunchCooperativeKernel', last, {}, 1, 1, 1024, 1, 1, 0, 0, p)"
    timed("p = ((1000,), (ctypes.c_uint64,))")
    assert timed(launch.format(2 * 108)) == "CUDA_SUCCESS"
    assert timed(launch.format(2 * 108 + 1)) == "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE"


def test_busy_time_and_nvml(timed: Worker, emulation: Emulation) -> None:
    timed("""
        import os, time
        import pynvml as n
        n.nvmlInit()
        h = n.nvmlDeviceGetHandleByIndex(0)
        try:
            idle = n.nvmlDeviceGetProcessUtilization(h, 0)
        except n.NVMLError_NotFound:
            idle = None
        def work():
            start = time.monotonic()
            for _ in range(100):  # 40 % of the time
                spin(4_000_000); time.sleep(0.01); call('cuStreamSynchronize', 0)
            wall = time.monotonic() - start
            samples = n.nvmlDeviceGetProcessUtilization(h, 0)
            return [40 / wall, [[s.pid, s.smUtil, s.timeStamp] for s in samples],
                    n.nvmlDeviceGetUtilizationRates(h).gpu]
        began = time.time()
    """)
    assert timed("idle") is None
    for turn in range(1, WINDOWS + 1):
        used, samples, rates = timed("work()")
        assert busy(emulation) == [pytest.approx(turn * 400 * MS, abs=turn * MS)]
        ((pid, share, stamp),) = samples
        assert pid == timed("os.getpid()")
        assert timed(f"began < {stamp} / 1e6 < time.time()")
        # One period of a busy machine: far from exact, but of the right size; and where the
        # host let the work stand still in just that one, another is looked at.
        if all(used * 0.4 < found < min(100, used * 2.5) for found in (share, rates)):
            break
        assert turn < WINDOWS, (used, samples, rates)
    assert timed("len(n.nvmlDeviceGetSamples(h, 0 + 1, 0)[1])") >= 2


CAPTURE = "driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED"


def test_graphs_take_what_their_nodes_take(timed: Worker) -> None:
    timed(f"""
        s = call('cuStreamCreate', 1)
        call('cuStreamBeginCapture', s, {CAPTURE})
        for _ in range(50): spin(100_000, s)
        graph = call('cuGraphInstantiate', call('cuStreamEndCapture', s), 0)
        ahead(s)
        a = event(s)
        for _ in range(3): call('cuGraphLaunch', graph, s)
        b = event(s)
        finish(s)
    """)
    assert timed("between(a, b)") == pytest.approx(15 + EVENT_MS, abs=0.0005)


def test_branches_of_a_graph_overlap(timed: Worker) -> None:
    timed(f"""
        s, side = call('cuStreamCreate', 1), call('cuStreamCreate', 1)
        pinned, p = call('cuMemHostAlloc', 24 * MIB, 0), call('cuMemAlloc', 24 * MIB)
        call('cuStreamBeginCapture', s, {CAPTURE})
        spin(1_000_000, s)
        fork, join = call('cuEventCreate', 2), call('cuEventCreate', 2)
        call('cuEventRecord', fork, s)
        call('cuStreamWaitEvent', side, fork, 0)
        call('cuMemcpyHtoDAsync', p, pinned, 24 * MIB, side)
        spin(4_000_000, s)
        call('cuEventRecord', join, side)
        call('cuStreamWaitEvent', s, join, 0)
        spin(2_000_000, s)
        captured = call('cuStreamEndCapture', s)
        count = call('cuGraphGetNodes', captured, 0)[1]
        graph = call('cuGraphInstantiate', captured, 0)
        call('cuMemcpyHtoD', p, pinned, 24 * MIB)
        spin(1_500_000_000, s)  # while the host moves the bytes
        a = event(s)
        call('cuGraphLaunch', graph, s)
        b = event(s)
        spin(1_000_000, s)
        c = event(s)
        call('cuStreamSynchronize', s)
    """)
    assert timed("count") == 4
    # The copy (1.05 ms) is beside the 4 ms, not behind them.
    assert timed("between(a, b)") == pytest.approx(7 + EVENT_MS, abs=0.0005)
    assert timed("between(b, c)") == pytest.approx(1 + EVENT_MS, abs=0.0005)


def test_a_graph_is_one_launch_of_the_queue(timed: Worker) -> None:
    timed(f"""
        s = call('cuStreamCreate', 1)
        call('cuStreamBeginCapture', s, {CAPTURE})
        for _ in range(20): spin(1, s)
        graph = call('cuGraphInstantiate', call('cuStreamEndCapture', s), 0)
        ahead(s)
        for _ in range(200): call('cuGraphLaunch', graph, s)  # four times the queue's room
        state = error('cuStreamQuery', s)
        finish(s)
    """)
    assert timed("state") == "CUDA_ERROR_NOT_READY"


def test_every_thread_has_a_default_stream(timed: Worker) -> None:
    timed("""
        import threading
        query, own_query = raw('cuStreamQuery'), raw('cuStreamQuery_ptsz')
        launch = raw('cuLaunchKernel_ptsz')
        ns = ctypes.c_uint64(3_000_000_000)
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(ns))
        one = ctypes.c_uint(1)
        launch(ctypes.c_void_p(int(last)), one, one, one, one, one, one, ctypes.c_uint(0), None,
               parameters, None)
        found = [own_query(None)]

        def other():
            call('cuCtxSetCurrent', context_)
            found.append(own_query(None))
            found.append(query(None))  # the legacy one waits for both

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    """)
    assert timed("found") == [600, 0, 600]


def test_freeing_waits_for_the_device(timed: Worker) -> None:
    timed("""
        import time
        p = call('cuMemAlloc', MIB)
        start = time.monotonic()
        spin(50_000_000)
        call('cuMemFree', p)
        waited = time.monotonic() - start
    """)
    assert timed("waited") >= 0.05


def test_host_functions_are_called_in_time(timed: Worker) -> None:
    timed("""
        import time
        called = []
        function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(
            lambda data: (called.append(time.monotonic()), time.sleep(0.1)))
        start = time.monotonic()
        spin(1_000_000_000)
        raw('cuLaunchHostFunc')(None, function, None)
        b = event()
        spin(1_000_000)
        c = event()
        returned = time.monotonic() - start
        call('cuStreamSynchronize', 0)
        waited = time.monotonic() - start
    """)
    assert timed("returned < 1 <= called[0] - start") and timed("waited") >= 1.101
    assert timed("between(b, c)") == pytest.approx(1 + EVENT_MS, abs=0.05)


def test_a_stream_waits_for_another_card(make_emulation: Callable[..., Emulation]) -> None:
    worker = make_emulation(2).start()
    worker("""
        context(0)
        first = call('cuCtxGetCurrent')
        second = context(1)
    """)
    worker(SETUP)
    worker("""
        import time
        start = time.monotonic()
        spin(100_000_000)
        b = event()
        call('cuCtxSetCurrent', first)
        s = call('cuStreamCreate', 1)
        call('cuStreamWaitEvent', s, b, 0)
        spin(1_000_000, s)
        call('cuStreamSynchronize', s)
        waited = time.monotonic() - start
    """)
    assert worker("waited") >= 0.1


def test_a_driver_without_samples_by_process(
    make_emulation: Callable[..., Emulation], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VGPU_EMU_PROCESS_SAMPLES", "off")
    emulation = make_emulation()
    worker = start(emulation)
    worker("""
        import time
        import pynvml as n
        n.nvmlInit()
        h = n.nvmlDeviceGetHandleByIndex(0)
        spin(20_000_000_000)
        time.sleep(0.7)
        try:
            found = len(n.nvmlDeviceGetProcessUtilization(h, 0))
        except n.NVMLError_NotFound:
            found = None
        rate = n.nvmlDeviceGetUtilizationRates(h).gpu
    """)
    assert worker("[found, rate]") == [None, 100]
    worker.kill()
    monkeypatch.setenv("VGPU_EMU_PROCESS_SAMPLES", "maybe")
    with pytest.raises(InputError, match="maybe"):
        make_emulation()


def test_a_sample_may_have_the_whole_card_for_one_process(
    make_emulation: Callable[..., Emulation], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on an H200 under driver 580: who is met, had it all."""
    monkeypatch.setenv("VGPU_EMU_PROCESS_SAMPLES", "one")
    emulation = make_emulation()
    first, second, watcher = start(emulation), start(emulation), start(emulation)
    watcher("import time; import pynvml as n; n.nvmlInit()")
    for worker in (first, second):
        worker("[spin(20_000_000) for _ in range(900)]")
    watcher("""
        h = n.nvmlDeviceGetHandleByIndex(0)
        by_stamp, seen, deadline = {}, 0, time.monotonic() + 60
        while len(by_stamp) < 8 and time.monotonic() < deadline:
            try:
                found = n.nvmlDeviceGetProcessUtilization(h, seen)
            except n.NVMLError_NotFound:
                found = []
            for sample in found:
                by_stamp.setdefault(sample.timeStamp, []).append((sample.pid, sample.smUtil))
                seen = max(seen, sample.timeStamp)
            time.sleep(0.02)
        both = sorted(by_stamp.items())[1:-1]
    """)
    both = watcher("[entries for _, entries in both]")
    for worker in (first, second):
        worker.kill()
    inner = [entries for entries in both if entries[0][1] > 80]
    assert len(inner) >= 4, both
    assert all(len(entries) == 1 for entries in inner), both


def test_clocks(make_emulation: Callable[..., Emulation], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VGPU_EMU_CLOCK", "sharing")
    emulation = make_emulation()
    first, second = start(emulation), start(emulation)
    first("[spin(20_000_000) for _ in range(900)]")
    second("[spin(100_000_000) for _ in range(200)]")
    # No switches, so nothing is lost, and nobody waits for a turn.
    assert granted(emulation, 0.5) == pytest.approx([0.5, 0.5], abs=0.01)
    for worker in (first, second):
        worker.kill()
