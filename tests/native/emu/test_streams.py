"""Streams, events, captures and graphs; modules, launches, occupancy."""

from __future__ import annotations

from emu_harness import Emulation, Worker

MIB = 1 << 20
MODE = "driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED"


def test_events_measure_time(worker: Worker) -> None:
    worker("""
        import time
        a, b = call('cuEventCreate', 0), call('cuEventCreate', 0)
        began = time.monotonic()
        call('cuEventRecord', a, 0)
        start = time.monotonic()
        time.sleep(0.05)
        slept = (time.monotonic() - start) * 1000
        call('cuEventRecord', b, 0)
        measured = call('cuEventElapsedTime', a, b)
        passed = (time.monotonic() - began) * 1000
    """)
    # A millisecond for what the events themselves take on the card.
    assert worker("slept <= measured <= passed + 1")
    assert worker("call('cuEventElapsedTime', b, a) == -measured")


def test_events_refuse(worker: Worker) -> None:
    worker("a, b = call('cuEventCreate', 0), call('cuEventCreate', 2)")
    assert worker("error('cuEventElapsedTime', a, b)") == "CUDA_ERROR_INVALID_HANDLE"
    worker("call('cuEventRecord', a, 0); call('cuEventRecord', b, 0)")
    assert worker("error('cuEventElapsedTime', a, b)") == "CUDA_ERROR_INVALID_HANDLE"  # no timing
    worker("call('cuEventDestroy', a)")
    assert worker("error('cuEventRecord', a, 0)") == "CUDA_ERROR_INVALID_HANDLE"


def test_streams(worker: Worker) -> None:
    worker("s = call('cuStreamCreateWithPriority', 1, -3)")
    assert worker("call('cuStreamGetPriority', s)") == -3
    assert worker("call('cuStreamGetFlags', s)") == 1
    worker("call('cuStreamSynchronize', s); call('cuStreamDestroy', s)")
    assert worker("error('cuStreamSynchronize', s)") == "CUDA_ERROR_INVALID_HANDLE"


def test_host_functions_run_in_order(worker: Worker) -> None:
    worker("""
        import threading
        p = call('cuMemAlloc', 4)
        seen, threads, refused = [], set(), []
        launch = raw('cuLaunchHostFunc')
        kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

        def look(data):
            seen.append(ctypes.string_at(int(p), 1)[0])  # device memory has a host address here
            threads.add(threading.get_native_id())
            refused.append(error('cuMemGetInfo'))

        function = kind(look)
        call('cuMemsetD8Async', p, 5, 4, 0)
        launch(None, function, None)
        call('cuMemsetD8Async', p, 6, 4, 0)
        launch(None, function, None)
        call('cuMemsetD8Async', p, 7, 4, 0)
        call('cuStreamSynchronize', 0)
    """)
    assert worker("seen") == [5, 6]  # each in its turn, though all was asked for at once
    assert worker("download(p, 1)[0]") == 7
    assert worker("len(threads), threading.get_native_id() in threads") == [1, False]
    assert worker("set(refused) == {'CUDA_ERROR_NOT_PERMITTED'}")


def test_graph_replays(emulation: Emulation, worker: Worker) -> None:
    worker(f"""
        s, side = call('cuStreamCreate', 0), call('cuStreamCreate', 0)
        fork, join = call('cuEventCreate', 2), call('cuEventCreate', 2)
        a, b = call('cuMemAlloc', 4096), call('cuMemAlloc', 4096)
        f = call('cuModuleGetFunction', call('cuModuleLoadData', b'any image'), b'kernel')
        call('cuStreamBeginCapture', s, {MODE})
        call('cuMemcpyDtoDAsync', b, a, 4096, s)
        call('cuEventRecord', fork, s)
        call('cuStreamWaitEvent', side, fork, 0)
        call('cuMemsetD8Async', int(b) + 8, 7, 8, side)
        call('cuLaunchKernel', f, 1, 1, 1, 32, 1, 1, 0, side, 0, 0)
        call('cuEventRecord', join, side)
        call('cuStreamWaitEvent', s, join, 0)
    """)
    assert worker("int(call('cuStreamIsCapturing', side))") == 1
    worker("graph = call('cuStreamEndCapture', s); upload(a, b'A' * 4096)")
    assert worker("int(call('cuStreamIsCapturing', side))") == 0
    assert worker("download(b, 4) == bytes(4)")  # recorded, not done
    assert worker("call('cuGraphGetNodes', graph, 0)[1]") == 3
    worker("exec_ = call('cuGraphInstantiate', graph, 0); call('cuGraphDestroy', graph)")
    before = emulation.state().slots[0].launches
    worker("[call('cuGraphLaunch', exec_, s) for _ in range(10)]")
    assert worker("download(b, 20).decode('latin1')") == "A" * 8 + "\x07" * 8 + "A" * 4
    assert emulation.state().slots[0].launches - before == 10
    worker("call('cuGraphExecDestroy', exec_)")


def test_capture_breaks(worker: Worker) -> None:
    worker(f"s = call('cuStreamCreate', 0); call('cuStreamBeginCapture', s, {MODE})")
    assert worker("error('cuStreamSynchronize', s)") == "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"
    assert worker("error('cuStreamEndCapture', s)") == "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"
    worker("call('cuStreamSynchronize', s)")
    assert worker("error('cuStreamEndCapture', s)") == "CUDA_ERROR_ILLEGAL_STATE"
    assert (
        worker(f"error('cuStreamBeginCapture', 0, {MODE})")
        == "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"
    )


def test_memory_of_a_graph(worker: Worker) -> None:
    worker(f"""
        s = call('cuStreamCreate', 0)
        before = used()
        call('cuStreamBeginCapture', s, {MODE})
        p = call('cuMemAllocAsync', 10 * MIB, s)
        call('cuMemsetD8Async', p, 3, 16, s)
        call('cuMemFreeAsync', p, s)
        graph = call('cuStreamEndCapture', s)
        exec_ = call('cuGraphInstantiate', graph, 0)
        call('cuGraphDestroy', graph)
        call('cuGraphLaunch', exec_, s)
    """)
    assert worker("used() - before") == 10 * MIB
    worker("call('cuGraphExecDestroy', exec_); call('cuStreamSynchronize', s)")
    assert worker("used() - before") == 0


def test_memory_of_a_graph_that_the_program_freed(worker: Worker) -> None:
    worker(f"""
        s = call('cuStreamCreate', 0)
        call('cuStreamBeginCapture', s, {MODE})
        p = call('cuMemAllocAsync', 10 * MIB, s)
        graph = call('cuStreamEndCapture', s)
        call('cuMemFreeAsync', p, s)
        q = call('cuMemAllocAsync', 10 * MIB, s)
        upload(q, b'mine')
        call('cuGraphDestroy', graph)
    """)
    assert worker("int(q) == int(p)")  # the address was used again
    assert worker("download(q, 4).decode()") == "mine"
    worker("call('cuMemFreeAsync', q, s)")


def test_code_and_launches(emulation: Emulation, worker: Worker) -> None:
    worker("""
        library = call('cuLibraryLoadData', b'never parsed', [], [], 0, [], [], 0)
        kernel = call('cuLibraryGetKernel', library, b'name')
        f = call('cuKernelGetFunction', kernel)
    """)
    assert worker("call('cuFuncGetName', f).decode()") == "name"
    worker("call('cuLaunchKernel', f, 10, 1, 1, 256, 1, 1, 0, 0, 0, 0)")
    assert emulation.state().slots[0].launches == 1
    for bad in (
        "f, 0, 1, 1, 1, 1, 1, 0",
        "f, 1, 1, 1, 1025, 1, 1, 0",
        "f, 1, 1, 1, 1, 1, 1, 49153",
    ):
        assert worker(f"error('cuLaunchKernel', {bad}, 0, 0, 0)") == "CUDA_ERROR_INVALID_VALUE"
    worker("""
        call('cuFuncSetAttribute', f, driver.CUfunction_attribute(8), 100000)
        call('cuLaunchKernel', f, 1, 1, 1, 1, 1, 1, 100000, 0, 0, 0)
    """)
    assert worker("call('cuOccupancyMaxActiveBlocksPerMultiprocessor', f, 1024, 0)") == 2
    assert worker("call('cuOccupancyMaxActiveBlocksPerMultiprocessor', f, 32, 0)") == 32
    assert worker("call('cuOccupancyMaxActiveBlocksPerMultiprocessor', f, 32, 80000)") == 2
    worker("call('cuLibraryUnload', library)")
    assert (
        worker("error('cuLaunchKernel', f, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0)")
        == "CUDA_ERROR_INVALID_HANDLE"
    )
    assert worker("error('cuModuleLoad', b'/no/such/file')") == "CUDA_ERROR_FILE_NOT_FOUND"


def test_globals(worker: Worker) -> None:
    worker("m = call('cuModuleLoadData', b'x'); before = used()")
    worker("p, size = call('cuModuleGetGlobal', m, b'counter')")
    assert worker("used() - before") == 0
    worker("upload(p, b'abc')")
    assert worker("int(call('cuModuleGetGlobal', m, b'counter')[0]) == int(p)")
