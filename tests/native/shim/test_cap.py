"""The cap: what one program can allocate, by every way, and what it is told."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest
import shim_harness as harness
from shim_harness import CONTEXT, GIB, GRANULE, MIB, OUT_OF_MEMORY, Container

from testbed.native import region_layout as layout
from testbed.native.region import set_memory
from testbed.native.region_watch import RegionWatch

Make = Callable[..., Container]
PHYSICAL = 16 * GIB


def test_fills_to_the_granule_and_not_beyond(gibibyte: Container) -> None:
    with gibibyte.start() as program:
        assert program("context()") == 0
        assert program("fill()") == GIB - CONTEXT
        assert program("fake_peak()") == GIB
        assert gibibyte.used() == GIB
        assert program("alloc(2 * MIB)")[0] == OUT_OF_MEMORY


def test_control_without_the_library_takes_more(gibibyte: Container) -> None:
    with gibibyte.without_library().start() as program:
        assert program("context()") == 0
        assert program("fill()") == PHYSICAL - CONTEXT
        assert program("fake_peak()") > GIB


def test_small_allocations_are_summed(container: Make) -> None:
    box = container(CONTEXT + 4 * MIB)
    with box.start() as program:
        program("context()")
        assert program("[alloc(1)[0] for _ in range(4096)].count(0)") == 4096
        assert box.used() == CONTEXT + GRANULE == program("fake_used()")
        assert program("alloc(512)")[0] == 0  # begins the second granule
        assert box.used() == CONTEXT + 2 * GRANULE == program("fake_used()")
        assert program("alloc(MIB + 1)")[0] == OUT_OF_MEMORY  # would begin a third
        code, ptr = program("alloc(MIB)")  # is packed with the others
        assert (code, box.used()) == (0, CONTEXT + 2 * GRANULE)
        program(f"free({ptr})")
        assert program("[alloc(512)[0] for _ in range(5000)].count(0)") == 4095
        assert program("fake_peak()") == CONTEXT + 2 * GRANULE


def test_survives_and_allocates_again(gibibyte: Container) -> None:
    with gibibyte.start() as program:
        program("context()")
        code, ptr = program("alloc(900 * MIB)")
        assert code == 0
        assert program("alloc(900 * MIB)")[0] == OUT_OF_MEMORY
        assert gibibyte.view().denied == (1,)
        assert program(f"free({ptr})") == 0
        assert gibibyte.used() == CONTEXT
        assert program("alloc(900 * MIB)")[0] == 0


def test_sizes_are_told_alike(gibibyte: Container) -> None:
    with gibibyte.start() as program:
        program("context()")
        program("alloc(100 * MIB)")
        used = CONTEXT + 100 * MIB
        assert program("info()") == [0, GIB - used, GIB]
        assert program("total()") == GIB
        assert program("nvml_memory()") == [GIB, GIB - used, used]
        assert program("nvml_memory_v2()") == [GIB, 0, GIB - used, used]


def test_control_of_sizes(gibibyte: Container) -> None:
    with gibibyte.without_library().start() as program:
        program("context()")
        assert program("info()[2]") == PHYSICAL
        assert program("nvml_memory()[0]") == PHYSICAL


def test_old_interfaces_are_capped_too(gibibyte: Container) -> None:
    with gibibyte.start() as program:
        program("context()")
        program("p = c_uint()")
        v1 = "cuda().cuMemAlloc(byref(p), c_uint(600 * MIB))"
        assert program(v1) == 0
        assert program("fake_calls('cuMemAlloc')") == 1
        assert program(v1) == OUT_OF_MEMORY
        assert program("fake_calls('cuMemAlloc')") == 1
        assert program("cuda().cuMemFree(p)") == 0
        assert gibibyte.used() == CONTEXT
        program("t = c_uint()")
        assert program("cuda().cuDeviceTotalMem(byref(t), 0) or t.value") == GIB


@pytest.mark.parametrize("limit", [0, 17 * GIB])
def test_no_limit_and_a_limit_above_the_card(container: Make, limit: int) -> None:
    """D14, D15: totals are physical, and counting goes on."""
    box = container(limit)
    with box.start() as program:
        program("context()")
        assert program("alloc(2 * GIB)")[0] == 0
        assert program("info()[2]") == PHYSICAL
        assert program("total()") == PHYSICAL
        assert program("nvml_memory()[0]") == PHYSICAL
        assert box.used() == CONTEXT + 2 * GIB


def test_an_oversubscribed_limit_is_told_in_full(container: Make) -> None:
    with container(17 * GIB, oversubscribe=True).start() as program:
        program("context()")
        assert program("info()") == [0, 17 * GIB - CONTEXT, 17 * GIB]


BEYOND = [
    ("alloc(4 * GIB)", "free({0})", "cuMemAllocManaged"),
    ("alloc(4 * GIB)", "free_async({0})", "cuMemAllocManaged"),
    ("pitch(4 * MIB, 1024)", "free({0})", "cuMemAllocManaged"),
    ("alloc_async(4 * GIB)", "free_async({0})", "cuMemAllocManaged"),
    ("alloc_async(4 * GIB, 0, '_ptsz')", "free({0})", "cuMemAllocManaged"),
    ("alloc_pool(4 * GIB, pool())", "free_async({0})", "cuMemAllocManaged"),
    ("create(4 * GIB)", "release({0})", "cuMemCreate"),
]


@pytest.mark.parametrize(("call", "undo", "instead"), BEYOND)
def test_beyond_the_card_memory_lies_elsewhere(
    container: Make, call: str, undo: str, instead: str
) -> None:
    """Managed, or on the host; the cap counts it, the card does not."""
    box = container(20 * GIB, oversubscribe=True, FAKE_SWAP="1")
    with box.start() as program:
        program("context()")
        assert program("alloc(15 * GIB)")[0] == 0
        held = box.used()
        before = program(f"fake_calls({instead!r})")
        code, handle, *_ = program(call)
        assert code == 0
        assert program(f"fake_calls({instead!r})") > before
        assert held + 4 * GIB == box.used()
        assert program("fake_used()") == CONTEXT + 15 * GIB
        assert program("alloc(2 * GIB)")[0] == OUT_OF_MEMORY  # the cap
        assert program(undo.format(handle)) == 0
        assert box.used() == held


@pytest.mark.parametrize(("call", "undo", "instead"), BEYOND)
def test_control_without_oversubscription(
    container: Make, call: str, undo: str, instead: str
) -> None:
    del undo
    box = container(20 * GIB, FAKE_SWAP="1")
    with box.start() as program:
        program("context()")
        assert program("alloc(15 * GIB)")[0] == 0
        held = box.used()
        assert program(call)[0] == OUT_OF_MEMORY
        assert box.used() == held
        assert program("fake_calls('cuMemAllocManaged')") == 0
        assert program(f"fake_calls({instead!r})") <= 1


def test_what_others_may_import_stays_on_the_card(container: Make) -> None:
    """A pool or a handle for other processes: nothing can stand in for it."""
    box = container(20 * GIB, oversubscribe=True, FAKE_SWAP="1")
    with box.start() as program:
        program("context()")
        assert program("alloc(15 * GIB)")[0] == 0
        held = box.used()
        assert program("alloc_pool(4 * GIB, pool(handles=1))")[0] == OUT_OF_MEMORY
        assert program("create(4 * GIB, handles=1)")[0] == OUT_OF_MEMORY
        assert box.used() == held


def test_an_oversubscribed_failure_costs_nothing(container: Make) -> None:
    """Neither card nor host has room: what failed is not counted."""
    box = container(20 * GIB, oversubscribe=True, FAKE_SWAP="1")
    with box.start() as program:
        program("context()")
        assert program("alloc(15 * GIB)")[0] == 0
        held = box.used()
        program("fake_fail('cuMemAllocManaged', 2, 100)")
        program("fake_fail('cuMemCreate', 2, 100)")
        for call, _, _ in BEYOND:
            assert program(call)[0] == OUT_OF_MEMORY, call
            assert box.used() == held, call


def test_a_cap_below_the_context(container: Make) -> None:
    """D1: the context is there, nothing is free, nothing can be allocated."""
    with container(64 * MIB).start() as program:
        assert program("context()") == 0
        assert program("info()") == [0, 0, 64 * MIB]
        assert program("nvml_memory()") == [64 * MIB, 0, 64 * MIB]
        assert program("alloc(1)")[0] == OUT_OF_MEMORY


def test_a_second_context_may_not_pass_the_cap(gibibyte: Container) -> None:
    with gibibyte.start() as first, gibibyte.start() as second:
        first("context()")
        first("fill()")
        assert second("context()") == OUT_OF_MEMORY
        assert first("fake_peak()") == GIB


def test_the_primary_context_is_charged_once(gibibyte: Container) -> None:
    """D7"""
    with gibibyte.start() as program:
        program("[context() for _ in range(3)]")
        assert gibibyte.used() == CONTEXT
        assert [program("cuda().cuDevicePrimaryCtxRelease_v2(0)") for _ in range(3)] == [0, 0, 0]
        assert gibibyte.used() == 0 == program("fake_used()")


def test_what_a_context_holds_goes_with_it(gibibyte: Container) -> None:
    with gibibyte.start() as program:
        program("context()")
        program("other = c_void_p()")
        assert program("cuda().cuCtxCreate_v2(byref(other), 0, 0)") == 0
        assert gibibyte.used() == 2 * CONTEXT
        program("alloc(100 * MIB)")
        program("array(1024, 1024)")
        assert program("cuda().cuCtxDestroy_v2(other)") == 0
        assert gibibyte.used() == CONTEXT == program("fake_used()")


def test_reset_gives_everything_back(gibibyte: Container) -> None:
    with gibibyte.start() as program:
        program("context()")
        program("alloc(100 * MIB)")
        assert program("cuda().cuDevicePrimaryCtxReset_v2(0)") == 0
        assert gibibyte.used() == 0 == program("fake_used()")


@pytest.mark.parametrize("nvml", ["own", "used"])
def test_the_context_is_measured(container: Make, nvml: str) -> None:
    box = container(GIB, FAKE_NVML=nvml, FAKE_CONTEXT=str(123 * MIB))
    with box.start() as program:
        program("context()")
        assert box.view().used[0].context_bytes == 124 * MIB


def test_without_nvml_the_context_has_a_default(container: Make) -> None:
    box = container(GIB, FAKE_NVML="none")
    with box.start() as program:
        program("context()")
        assert box.view().used[0].context_bytes == 512 * MIB
        assert program("fill()") == 512 * MIB


def test_a_failed_context_costs_nothing(gibibyte: Container) -> None:
    with gibibyte.start() as program:
        program("cuda().cuInit(0)")
        program("fake_fail('cuDevicePrimaryCtxRetain', 999)")
        assert program("context()") == 999
        assert gibibyte.used() == 0
        assert program("context()") == 0
        assert gibibyte.used() == CONTEXT


@pytest.mark.parametrize(
    ("call", "name"),
    [
        ("alloc(10 * MIB)", "cuMemAlloc_v2"),
        ("managed(10 * MIB)", "cuMemAllocManaged"),
        ("pitch(4096, 4096)", "cuMemAllocPitch_v2"),
        ("alloc_async(10 * MIB)", "cuMemAllocAsync"),
        ("create(10 * MIB)", "cuMemCreate"),
        ("array(1024, 1024)", "cuArrayCreate_v2"),
        ("array3d(64, 64, 64)", "cuArray3DCreate_v2"),
        ("mipmapped(1024, 1024, 3)", "cuMipmappedArrayCreate"),
    ],
)
def test_a_call_that_the_driver_refuses_is_not_counted(
    gibibyte: Container, call: str, name: str
) -> None:
    """D8, and for every error of the driver's, not only its own OUT_OF_MEMORY."""
    with gibibyte.start() as program:
        program("context()")
        for code in (OUT_OF_MEMORY, 999):
            program(f"fake_fail({name!r}, {code})")
            assert program(call)[0] == code
            assert gibibyte.used() == CONTEXT
        assert program(call)[0] == 0
        assert gibibyte.used() > CONTEXT
        assert gibibyte.used() == program("fake_used()")


@pytest.mark.parametrize(
    ("call", "undo"),
    [
        ("alloc(600 * MIB)", "free({0})"),
        ("managed(600 * MIB)", "free({0})"),
        ("pitch(600 * MIB // 1024, 1024)", "free({0})"),
        ("alloc_async(600 * MIB)", "free_async({0})"),
        ("alloc_async(600 * MIB, 0, '_ptsz')", "free_async({0})"),
        ("alloc_async(600 * MIB)", "free({0})"),
        ("alloc(600 * MIB)", "free_async({0})"),
        ("alloc_pool(600 * MIB, default_pool())", "free_async({0})"),
        ("create(600 * MIB)", "release({0})"),
        ("array(600 * 1024, 256)", "destroy_array({0})"),
        ("array3d(1024, 1024, 150)", "destroy_array({0})"),
        ("mipmapped(600 * 1024, 192, 2)", "destroy_array({0}, 'cuMipmappedArrayDestroy')"),
    ],
)
def test_every_kind_is_capped_and_given_back(gibibyte: Container, call: str, undo: str) -> None:
    """D4: a hundred rounds end where they began."""
    with gibibyte.start() as program:
        program("context()")
        for _ in range(100):
            code, handle, *_ = program(call)
            assert code == 0
            assert gibibyte.used() == program("fake_used()") > CONTEXT + 550 * MIB
            assert program(call)[0] == OUT_OF_MEMORY
            assert program(undo.format(handle)) == 0
            assert gibibyte.used() == program("fake_used()") == CONTEXT
        assert program("fake_peak()") <= GIB


def test_unknown_pointers_go_to_the_driver(gibibyte: Container) -> None:
    """D4"""
    with gibibyte.start() as program:
        program("context()")
        program("alloc(10 * MIB)")
        before = gibibyte.used()
        for name in ("cuMemFree_v2", "cuMemFreeAsync"):
            calls = program(f"fake_calls({name!r})")
            program(f"cuda().{name}(c_uint64(0xdead0000), None)")
            assert program(f"fake_calls({name!r})") == calls + 1
        assert program("free(0xdead0000)") == 1
        assert program("release(77)") == 1
        assert program("unmap(0xdead0000, 4096)") == 1
        assert program("destroy_array(0xdead0000)") == 1
        assert gibibyte.used() == before


def test_a_free_that_fails_stays_counted(gibibyte: Container) -> None:
    with gibibyte.start() as program:
        program("context()")
        _, ptr = program("alloc(10 * MIB)")
        program("fake_fail('cuMemFree_v2', 999)")
        assert program(f"free({ptr})") == 999
        assert gibibyte.used() == CONTEXT + 10 * MIB
        assert program(f"free({ptr})") == 0
        assert gibibyte.used() == CONTEXT


def test_a_coarser_pitch_is_corrected(container: Make) -> None:
    box = container(GIB, FAKE_PITCH="4096")
    with box.start() as program:
        program("context()")
        assert program("pitch(100, 20000)")[0] == 0
        assert box.used() == program("fake_used()") == CONTEXT + 80 * MIB
        assert program("pitch(100, 250000)")[0] == OUT_OF_MEMORY  # 122 MiB by 512, 977 by 4096
        assert box.used() == program("fake_used()") == CONTEXT + 80 * MIB


@pytest.mark.parametrize("size", [2**63, 2**64 - 1, 2**64 - 511, 1 << 62])
def test_huge_sizes_do_not_overflow(gibibyte: Container, size: int) -> None:
    with gibibyte.start() as program:
        program("context()")
        for call in (
            f"alloc({size})",
            f"alloc_async({size})",
            f"create({size})",
            f"managed({size})",
            f"pitch({size}, {size})",
            f"array({size}, {size})",
        ):
            assert program(call)[0] == OUT_OF_MEMORY, call
        assert gibibyte.used() == CONTEXT


def test_nothing_is_asked_of_the_driver_for_zero_bytes_but_the_call(gibibyte: Container) -> None:
    with gibibyte.start() as program:
        program("context()")
        assert program("alloc(0)")[0] == 1
        assert gibibyte.view().denied == (0,)


# --- pools ---------------------------------------------------------------------------


def test_a_pool_is_counted_by_what_it_reserves(gibibyte: Container) -> None:
    with gibibyte.start() as program:
        program("context()")
        assert program("keep(default_pool(), 2**63)") == 0
        _, ptr = program("alloc_async(300 * MIB)")
        program(f"free_async({ptr})")
        assert program("reserved(default_pool())") == 300 * MIB
        assert gibibyte.used() == CONTEXT + 300 * MIB
        assert program("cuda().cuMemPoolTrimTo(c_void_p(default_pool()), c_size_t(0))") == 0
        assert gibibyte.used() == CONTEXT


@pytest.mark.parametrize("call", ["alloc(900 * MIB)", "alloc_pool(900 * MIB, pool())"])
def test_what_a_pool_only_keeps_makes_room(gibibyte: Container, call: str) -> None:
    with gibibyte.start() as program:
        program("context()")
        program("keep(default_pool(), 2**63)")
        _, ptr = program("alloc_async(300 * MIB)")
        program(f"free_async({ptr})")
        assert program(call)[0] == 0
        assert program("fake_peak()") <= GIB
        assert gibibyte.used() == program("fake_used()")


def test_frees_that_the_stream_has_yet_to_reach_make_room(container: Make) -> None:
    box = container(GIB, FAKE_DEFER="1")
    with box.start() as program:
        program("context()")
        for _ in range(20):
            code, ptr = program("alloc_async(800 * MIB)")
            assert code == 0
            assert program(f"free_async({ptr})") == 0
        assert program("fake_peak()") <= GIB


def test_waiting_brings_the_count_down(container: Make) -> None:
    box = container(GIB, FAKE_DEFER="1")
    with box.start() as program:
        program("context()")
        for wait in ("sync()", "cuda().cuCtxSynchronize()"):
            _, ptr = program("alloc_async(800 * MIB)")
            program(f"free_async({ptr})")
            assert box.used() == CONTEXT + 800 * MIB
            assert program(wait) == 0
            assert box.used() == CONTEXT


def test_a_coarse_pool_is_learned(container: Make) -> None:
    """A pool that grows by 32 MiB: once seen, no allocation passes the cap by it."""
    box = container(CONTEXT + 80 * MIB, FAKE_CHUNK=str(32 * MIB))
    with box.start() as program:
        program("context()")
        assert program("alloc_async(2 * MIB)")[0] == 0
        assert box.used() == program("fake_used()") == CONTEXT + 32 * MIB
        assert [program("alloc_async(31 * MIB)")[0] for _ in range(3)] == [0, 2, 2]
        assert box.used() == program("fake_peak()") == CONTEXT + 64 * MIB


def test_the_allocation_that_shows_a_coarse_pool_is_undone(container: Make) -> None:
    box = container(CONTEXT + 80 * MIB, FAKE_CHUNK=str(128 * MIB))
    with box.start() as program:
        program("context()")
        assert program("alloc_async(2 * MIB)")[0] == OUT_OF_MEMORY
        assert box.used() == program("fake_used()") == CONTEXT
        peak = program("fake_peak()")
        assert program("[alloc_async(2 * MIB)[0] for _ in range(5)]") == [OUT_OF_MEMORY] * 5
        assert program("fake_peak()") == peak
        assert program("fake_calls('cuMemAllocAsync')") == 1


def test_host_pools_and_imported_pools_are_not_counted(gibibyte: Container) -> None:
    with gibibyte.start() as program:
        program("context()")
        assert program("alloc_pool(4 * GIB, pool(0, 2))")[0] == 0
        assert gibibyte.used() == CONTEXT


def test_a_destroyed_pool_with_memory_out_stays_counted(gibibyte: Container) -> None:
    with gibibyte.start() as program:
        program("context()")
        program("p = pool()")
        assert program("alloc_pool(100 * MIB, p)")[0] == 0
        assert program("cuda().cuMemPoolDestroy(c_void_p(p))") == 0
        assert gibibyte.used() == CONTEXT + 100 * MIB
        program("p = pool()")
        assert program("cuda().cuMemPoolDestroy(c_void_p(p))") == 0
        assert gibibyte.used() == CONTEXT + 100 * MIB


@pytest.mark.parametrize("nvml", ["own", "used", "none"])
def test_what_the_driver_takes_for_stream_ordered_memory_is_counted(
    container: Make, nvml: str
) -> None:
    """Measured on an H200: 70 MiB beside pools and contexts."""
    box = container(GIB, FAKE_HIDDEN=str(70 * MIB), FAKE_NVML=nvml, FAKE_CONTEXT=str(512 * MIB))
    with box.start() as program:
        program("context(); keep(default_pool(), 2**63)")
        program("while alloc_async(8 * MIB)[0] == 0: pass")
        assert GIB - 10 * MIB <= program("fake_peak()") <= GIB
        hidden = 72 * MIB if nvml == "none" else 70 * MIB
        assert box.view().used[0].module_bytes == hidden
        assert box.used() - program("fake_used()") == hidden - 70 * MIB
        assert program("cuda().cuDevicePrimaryCtxReset_v2(0)") == 0
        assert box.view().used[0].module_bytes == 0


def test_without_room_for_it_there_is_no_stream_ordered_memory(container: Make) -> None:
    box = container(CONTEXT + 200 * MIB, FAKE_HIDDEN=str(70 * MIB))
    with box.start() as program:
        program("context()")
        _, ptr = program("alloc(150 * MIB)")
        assert program("alloc_async(2 * MIB)")[0] == OUT_OF_MEMORY
        assert program("fake_calls('cuMemAllocAsync')") == 0
        assert box.used() == CONTEXT + 150 * MIB == program("fake_used()")
        program(f"free({ptr})")
        assert program("alloc_async(100 * MIB)")[0] == 0
        assert box.used() == CONTEXT + 170 * MIB == program("fake_used()")


@pytest.mark.parametrize("create", ["cuStreamCreate", "cuStreamCreateWithPriority"])
def test_what_streams_take_is_counted(container: Make, create: str) -> None:
    """Measured on an H200: 70 MiB with PyTorch's first streams, whatever then allocates."""
    box = container(GIB, FAKE_STREAM=str(70 * MIB))
    with box.start() as program:
        program("context()")
        program(f"cuda().{create}(byref(c_uint64()), 0, 0)")
        program("while alloc(8 * MIB)[0] == 0: pass")
        assert GIB - 10 * MIB <= program("fake_peak()") <= GIB
        assert box.view().used[0].module_bytes == 70 * MIB
        assert box.used() == program("fake_used()")
        assert program("cuda().cuDevicePrimaryCtxReset_v2(0)") == 0
        assert box.view().used[0].module_bytes == 0


def test_a_stream_that_passes_the_cap_is_not_given_out(container: Make) -> None:
    box = container(GIB, FAKE_STREAM=str(70 * MIB))
    with box.start() as program:
        program("context()")
        while program("alloc(8 * MIB)")[0] == 0:
            pass
        program("made = c_uint64()")
        assert program("cuda().cuStreamCreate(byref(made), 0)") == OUT_OF_MEMORY
        assert not program("made.value")
        assert program("fake_calls('cuStreamDestroy_v2')") == 1
        # The driver keeps what it took; it counts, and nothing more is had.
        assert box.view().used[0].module_bytes == 70 * MIB
        assert program("alloc(2 * MIB)")[0] == OUT_OF_MEMORY


def test_far_from_the_cap_and_without_one_nvml_is_not_asked(container: Make) -> None:
    for limit in (0, 4 * GIB):
        box = container(limit, FAKE_STREAM=str(70 * MIB))
        with box.start() as program:
            program("context()")
            program("stream()")
            asked = program("fake_calls('nvmlDeviceGetComputeRunningProcesses_v3')")
            for _ in range(5):
                assert program("alloc(8 * MIB)")[0] == 0
            assert program("fake_calls('nvmlDeviceGetComputeRunningProcesses_v3')") == asked


def test_where_nvml_knows_nobody_of_ours_it_is_soon_left_alone(container: Make) -> None:
    box = container(GIB, FAKE_NVML="foreign")
    with box.start() as program:
        program("context()")
        program("while alloc(8 * MIB)[0] == 0: pass")
        asked = program("fake_calls('nvmlDeviceGetComputeRunningProcesses_v3')")
        for _ in range(5):
            assert program("alloc(8 * MIB)")[0] == OUT_OF_MEMORY
        assert program("fake_calls('nvmlDeviceGetComputeRunningProcesses_v3')") == asked
        assert box.view().used[0].module_bytes == 0


# --- who NVML says is there -------------------------------------------------------------


@pytest.mark.parametrize("nvml", ["own", "foreign"])
def test_process_lists_are_the_containers_own(container: Make, nvml: str) -> None:
    """Also where NVML counts in another PID namespace, and tells nobody of ours."""
    box = container(GIB, FAKE_NVML=nvml)
    with box.start() as first, box.start() as second:
        first("context()")
        used = [CONTEXT, CONTEXT + 10 * MIB]
        if nvml == "foreign":  # the context's cost is the card's growth then
            assert box.used() == CONTEXT
        assert first("processes()") == [0, 1, [[first.pid, CONTEXT]]]
        second("context(); alloc(10 * MIB)")
        pairs = [[first.pid, used[0]], [second.pid, used[1]]]
        for suffix in ("", "_v3"):
            code, count, found = first(f"processes({suffix!r})")
            assert (code, count, sorted(found)) == (0, 2, sorted(pairs))
        assert first("processes('_v3', 1)")[:2] == [7, 2]
        assert first("processes('_v3', 0)")[:2] == [7, 2]
        assert first("utilization()") == [0, [[first.pid, 30]]]
        second.kill()
        assert first("processes()")[1] == 1


def test_control_of_process_lists(gibibyte: Container) -> None:
    with gibibyte.without_library().start() as program:
        program("context()")
        assert [1000001, 5 * MIB] in program("processes()")[2]
        assert [1000001, 60] in program("utilization()")[1]


def test_a_process_without_memory_is_in_no_list(gibibyte: Container) -> None:
    with gibibyte.start() as program:
        program("cuda().cuInit(0)")
        assert program("processes()") == [0, 0, []]
        assert program("utilization()") == [6, []]


# --- what the monitor reads from the card ----------------------------------------------


def test_what_the_card_counts_beyond_us_counts_against_the_limit(container: Make) -> None:
    gibibyte = container(GIB, FAKE_NVML="foreign")  # only the monitor sees our processes
    assert gibibyte.region is not None
    watch = RegionWatch(gibibyte.region)
    with gibibyte.start() as program:
        program("context()")
        assert program("alloc(500 * MIB)")[0] == 0
        program("cuda().fake_take(c_uint64(200 * MIB))")  # as a module or a kernel's stack does

        def reading(stamp: int, own: int) -> None:
            watch.feed_bytes(0, own=own, other=0, stamp_ns=stamp)
            assert program("info()")[0] == 0

        # What was freed a moment ago is no riddle: the reading may be older.
        _, ptr = program("alloc(300 * MIB)")
        assert program(f"free({ptr})") == 0
        reading(1, CONTEXT + 800 * MIB)
        assert gibibyte.view().unexplained_bytes == (0,)
        for stamp in (2, 3, 4, 5):
            reading(stamp, program("fake_used()"))
        assert gibibyte.view().unexplained_bytes == (200 * MIB,)
        assert program("info()[1]") == GIB - CONTEXT - 700 * MIB
        assert program("alloc(300 * MIB)")[0] == OUT_OF_MEMORY
        program("fill()")
        assert program("fake_used()") == GIB
        # And it goes when the card says so.
        for stamp in (6, 7, 8, 9):
            reading(stamp, gibibyte.used())
        assert gibibyte.view().unexplained_bytes == (0,)


def test_memory_limits_change_while_a_program_runs(gibibyte: Container) -> None:
    assert gibibyte.region is not None
    with gibibyte.start(LIBCUDA_LOG_LEVEL="1") as program:
        program("context()")
        _, ptr = program("alloc(500 * MIB)")
        set_memory(gibibyte.region, {0: 400 * MIB})  # below what it holds
        assert program("info()") == [0, 0, 400 * MIB]
        assert program("nvml_memory()") == [400 * MIB, 0, 400 * MIB]
        assert program("total()") == 400 * MIB
        assert program("alloc(1)")[0] == OUT_OF_MEMORY
        assert program(f"free({ptr})") == 0
        assert program("alloc(300 * MIB)")[0] == 0
        assert program("alloc(2 * MIB)")[0] == OUT_OF_MEMORY
        set_memory(gibibyte.region, {0: 2 * GIB})
        assert program("alloc(GIB)")[0] == 0
        set_memory(gibibyte.region, {0: 0})
        assert program("alloc(4 * GIB)")[0] == 0
        assert program("total()") == PHYSICAL
        _, errors = program.finish()
        assert f"limit of {400 * MIB}, {600 * MIB} used" in errors


@pytest.mark.parametrize("killer", ["1", "true", "0", ""])
def test_who_asks_beyond_a_lowered_limit_ends_where_that_is_wanted(
    gibibyte: Container, killer: str
) -> None:
    """ACTIVE_OOM_KILLER; an ordinary refusal, within the limit, ends nobody."""
    assert gibibyte.region is not None
    with gibibyte.start(ACTIVE_OOM_KILLER=killer, LIBCUDA_LOG_LEVEL="1") as program:
        program("context()")
        assert program("alloc(500 * MIB)")[0] == 0
        assert program("alloc(2 * GIB)")[0] == OUT_OF_MEMORY
        set_memory(gibibyte.region, {0: 400 * MIB})
        if killer in ("0", ""):
            assert program("alloc(2 * MIB)")[0] == OUT_OF_MEMORY
            return
        program.send("alloc(2 * MIB)")
        code, errors = program.finish()
        assert code == -signal.SIGKILL
        assert "ACTIVE_OOM_KILLER" in errors
    assert gibibyte.used() == 0


def test_a_spoiled_change_of_limits_changes_nothing(gibibyte: Container) -> None:
    assert gibibyte.region is not None
    with gibibyte.start() as program:
        program("context()")
        start = layout.EXT_OFFSET + layout.Extension.constant.offset
        with gibibyte.region.open("r+b") as file:
            file.seek(start + layout.Constant.memory_limit.offset)
            file.write((8 * GIB).to_bytes(8, "little"))  # the checksum is the old one
        assert program("alloc(2 * GIB)")[0] == OUT_OF_MEMORY
        with gibibyte.region.open("r+b") as file:
            file.seek(layout.EXT_OFFSET + layout.Extension.checksum.offset)
            file.write(bytes(8))
        assert program("alloc(2 * GIB)")[0] == OUT_OF_MEMORY
        assert program("total()") == GIB


# --- graphs ----------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["cuGraphLaunch", "cuGraphUpload"])
def test_a_graphs_memory_counts_from_its_first_launch(gibibyte: Container, call: str) -> None:
    with gibibyte.start() as program:
        program("context()")
        program("g = graph()")
        assert program("memory_node(g, 300 * MIB)") == 0
        assert program("memory_node(g, 300 * MIB, 'cuGraphAddNode')") == 0
        assert gibibyte.used() == CONTEXT == program("fake_used()")
        program("a, b = instantiate(g), instantiate(g)")
        for _ in range(3):  # what it has, it need not get again
            assert program(f"launch(a, {call!r})") == 0
            assert gibibyte.used() == CONTEXT + 600 * MIB == program("fake_used()")
        assert program("alloc(500 * MIB)")[0] == 0, "a graph that does not run makes room"
        assert gibibyte.used() == CONTEXT + 500 * MIB == program("fake_used()")
        launches = program(f"fake_calls({call!r})")
        assert program(f"launch(b, {call!r})") == OUT_OF_MEMORY
        assert program(f"fake_calls({call!r})") == launches
        assert program("fake_peak()") <= GIB


def test_a_graphs_memory_on_two_devices(container: Make) -> None:
    """Each has its own limit: a launch that does not fit one of them takes of neither."""
    box = container(GIB, GIB)
    with box.start() as program:
        program("context()")
        program("g = graph()")
        for dev in (0, 1, 0, 1):
            assert program(f"memory_node(g, 300 * MIB, dev={dev})") == 0
        program("a, b = instantiate(g), instantiate(g)")
        assert program("launch(a)") == 0
        assert [box.used(dev) for dev in (0, 1)] == [CONTEXT + 600 * MIB, 600 * MIB]
        assert [program(f"fake_used({dev})") for dev in (0, 1)] == [CONTEXT + 600 * MIB, 600 * MIB]
        assert program("cuda().cuDeviceGraphMemTrim(0)") == 0
        assert program("cuda().cuDeviceGraphMemTrim(1)") == 0
        assert [box.used(dev) for dev in (0, 1)] == [CONTEXT, 0]
        # Something on the second one, which its first has nothing of.
        other = "cuda().cuMemCreate(byref(c_uint64()), c_size_t({}), byref(prop), c_uint64(0))"
        program("prop = AllocationProp(type=1, location=Location(1, 1))")
        assert program(other.format("600 * MIB")) == 0
        launches = program("fake_calls('cuGraphLaunch')")
        assert program("launch(b)") == OUT_OF_MEMORY
        assert program("fake_calls('cuGraphLaunch')") == launches
        assert [box.used(dev) for dev in (0, 1)] == [CONTEXT, 600 * MIB]


def test_graphs_make_room_for_each_other(gibibyte: Container) -> None:
    with gibibyte.start() as program:
        program("context()")
        program("g = graph(); memory_node(g, 700 * MIB); a, b = instantiate(g), instantiate(g)")
        for name in "abab":
            assert program(f"launch({name})") == 0
            assert gibibyte.used() == CONTEXT + 700 * MIB == program("fake_used()")
        assert program("cuda().cuGraphExecDestroy(c_void_p(b))") == 0
        assert gibibyte.used() == CONTEXT + 700 * MIB, "kept for graphs"
        assert program("cuda().cuDeviceGraphMemTrim(0)") == 0
        assert gibibyte.used() == CONTEXT == program("fake_used()")
        assert program("fake_peak()") <= GIB


@pytest.mark.parametrize("call", ["cuGraphAddMemAllocNode", "cuGraphAddNode", "cuGraphAddNode_v2"])
def test_a_node_that_could_never_fit_is_refused(gibibyte: Container, call: str) -> None:
    with gibibyte.start() as program:
        program("context()")
        program("g = graph()")
        assert program(f"memory_node(g, 2 * GIB, {call!r})") == OUT_OF_MEMORY
        assert program(f"fake_calls({call!r})") == 0
        assert gibibyte.view().denied == (1,)
        assert program(f"memory_node(g, 100 * MIB, {call!r})") == 0


def test_captured_allocations_become_a_graphs_memory(gibibyte: Container) -> None:
    with gibibyte.start() as program:
        program("context()")
        program("cuda().fake_capture(1)")
        assert program("alloc_async(600 * MIB)")[0] == 0
        assert program("alloc_async(2 * GIB)")[0] == OUT_OF_MEMORY
        program("cuda().fake_capture(0)")
        assert gibibyte.used() == CONTEXT == program("fake_used()")
        program("e = instantiate(captured())")
        assert program("launch(e)") == 0
        assert gibibyte.used() == CONTEXT + 600 * MIB == program("fake_used()")
        assert program("alloc_async(2 * MIB)")[0] == 0


def test_a_launch_that_is_captured_takes_nothing(gibibyte: Container) -> None:
    """It is recorded only, and must not fail for memory that it does not take."""
    with gibibyte.start() as program:
        program("context()")
        program("g = graph()")
        assert program("memory_node(g, 600 * MIB)") == 0
        program("a = instantiate(g)")
        _, ptr = program("alloc(500 * MIB)")
        program("cuda().fake_capture(1)")
        assert program("launch(a)") == 0
        program("cuda().fake_capture(0)")
        assert gibibyte.used() == CONTEXT + 500 * MIB == program("fake_used()")
        assert program("launch(a)") == OUT_OF_MEMORY
        assert program(f"free({ptr})") == 0
        assert program("launch(a)") == 0
        assert gibibyte.used() == CONTEXT + 600 * MIB == program("fake_used()")


def test_a_driver_that_takes_a_nodes_memory_at_once(container: Make) -> None:
    box = container(GIB, FAKE_EAGER="1")
    with box.start() as program:
        program("context()")
        program("g = graph()")
        assert program("memory_node(g, 600 * MIB)") == 0
        assert box.used() == CONTEXT + 600 * MIB == program("fake_used()")
        program("e = instantiate(g)")
        assert [program("launch(e)") for _ in range(3)] == [0, 0, 0]
        assert box.used() == CONTEXT + 600 * MIB == program("fake_used()")


def test_control_graphs_without_a_limit(container: Make) -> None:
    box = container(0)
    with box.start() as program:
        program("context()")
        program("g = graph(); memory_node(g, 3 * GIB); e = instantiate(g)")
        assert program("launch(e)") == 0
        assert box.used() == CONTEXT + 3 * GIB == program("fake_used()")


# --- physical memory ------------------------------------------------------------------


def test_physical_memory_counts_until_released_and_unmapped(gibibyte: Container) -> None:
    with gibibyte.start() as program:
        program("context()")
        _, handle = program("create(100 * MIB)")
        assert program(f"map_(0x10000000, 100 * MIB, {handle})") == 0
        assert program(f"release({handle})") == 0
        assert gibibyte.used() == CONTEXT + 100 * MIB  # still mapped
        _, other = program("create(50 * MIB)")  # gets the number while the first lives
        code, again = program("retain(0x10000000 + 5 * MIB)")
        assert (code, again) == (0, handle)
        assert program("unmap(0x10000000, 100 * MIB)") == 0
        assert gibibyte.used() == CONTEXT + 150 * MIB  # held again
        assert program(f"release({again})") == 0
        assert gibibyte.used() == CONTEXT + 50 * MIB
        assert program(f"release({other})") == 0
        assert gibibyte.used() == CONTEXT == program("fake_used()")


def test_one_unmap_of_many_mappings(gibibyte: Container) -> None:
    with gibibyte.start() as program:
        program("context()")
        program(
            "for i in range(20):\n"
            "    _, h = create(20 * MIB)\n"
            "    assert map_(0x10000000 + i * 20 * MIB, 20 * MIB, h) == 0\n"
            "    assert release(h) == 0"
        )
        assert gibibyte.used() == CONTEXT + 400 * MIB
        assert program("unmap(0x10000000, 400 * MIB)") == 0
        assert gibibyte.used() == CONTEXT == program("fake_used()")


def test_physical_memory_before_any_context(container: Make) -> None:
    """D6: the device is the location's, not the current context's."""
    box = container(GIB, 2 * GIB)
    with box.start() as program:
        program("cuda().cuInit(0)")
        assert program("create(600 * MIB, 1)")[0] == 0
        assert (box.used(0), box.used(1)) == (0, 600 * MIB)
        assert program("create(600 * MIB, 0)")[0] == 0
        assert program("create(600 * MIB, 0)")[0] == OUT_OF_MEMORY
        assert program("create(600 * MIB, 0, 2)")[0] == 0  # host memory


def test_deferred_arrays_are_free(gibibyte: Container) -> None:
    with gibibyte.start() as program:
        program("context()")
        for flags in (0x40, 0x80):
            assert program(f"array3d(1 << 20, 1 << 20, 1, {flags})")[0] == 0
        assert gibibyte.used() == CONTEXT


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("cuMemcpyAtoA_v2", (1, 2, 3, 4)),
        ("cuMemcpyAtoD_v2", (1, 3, 4)),
        ("cuMemcpyDtoA_v2", (1, 2, 3)),
    ],
)
def test_copies_of_arrays_reach_the_driver(
    gibibyte: Container, name: str, arguments: tuple[int, ...]
) -> None:
    given = ", ".join(f"c_uint64({value})" for value in arguments)
    with gibibyte.start() as program:
        program("context()")
        assert program(f"cuda().{name}({given}, c_uint64(4 * MIB))") == 0
        assert program(f"fake_calls({name!r})") == 1


BATCHES = (
    "cuMemcpyBatchAsync",
    "cuMemcpyBatchAsync_v2",
    "cuMemcpy3DBatchAsync",
    "cuMemcpy3DBatchAsync_v2",
    "cuMemcpyWithAttributesAsync",
    "cuMemcpy3DWithAttributesAsync",
)


@pytest.mark.parametrize("name", [name + suffix for name in BATCHES for suffix in ("", "_ptsz")])
def test_batches_of_copies_are_launches_and_reach_the_driver(
    gibibyte: Container, name: str
) -> None:
    def launches() -> int:
        assert program("cuda().cuCtxSynchronize()") == 0  # the count is written out
        return gibibyte.view().processes[0].compute[0].launches

    with gibibyte.start() as program:
        program("context()")
        program("a, b = alloc(4 * MIB)[1], alloc(4 * MIB)[1]")
        for calls in (1, 2):
            assert program(f"copy_batch({name!r}, a, b, 4 * MIB)") == 0
            assert (program(f"fake_calls({name!r})"), launches()) == (calls, calls)
        program("buffer = ctypes.create_string_buffer(4 * MIB)")
        assert program(f"copy_batch({name!r}, a, ctypes.addressof(buffer), 4 * MIB)") == 1
        assert program(f"copy_batch({name!r}, a, b, 512 * 1024)") == 1
        assert (program(f"fake_calls({name!r})"), launches()) == (4, 2)  # host's, or small


_COPIES = """
import threading
codes = []
def work(ctx):
    cuda().cuCtxSetCurrent(ctx)
    a, b = alloc(4 * MIB)[1], alloc(4 * MIB)[1]
    for _ in range({times}):
        codes.append(copy_batch("cuMemcpyBatchAsync_v2", a, b, 4 * MIB))
threads = [threading.Thread(target=work, args=(ctx,)) for ctx in {contexts}]
[t.start() for t in threads]; [t.join() for t in threads]
cuda().cuCtxSynchronize()
answer = [len(codes), codes.count(0)]
"""
_CONTEXT = "{0} = c_void_p(); answer = cuda().cuCtxCreate_v2(byref({0}), 0, {1})"


def test_launches_that_nothing_holds_are_counted_all(container: Make) -> None:
    """Of several threads, and of contexts that had none before; on the one device there is."""
    box = container(2 * GIB)
    with box.start() as program:
        assert program(_CONTEXT.format("first", 0)) == 0
        assert program(_COPIES.format(times=100, contexts="[first, first, first]")) == [300, 300]
        assert box.view().processes[0].compute[0].launches == 300
        assert program(_CONTEXT.format("second", 0)) == 0
        assert program(_COPIES.format(times=100, contexts="[second, second]")) == [200, 200]
        assert box.view().processes[0].compute[0].launches == 500


def test_launches_count_on_the_device_of_their_context(container: Make) -> None:
    box = container(2 * GIB, 2 * GIB)
    with box.start() as program:
        assert program(_CONTEXT.format("first", 0)) == 0
        assert program(_COPIES.format(times=30, contexts="[first]")) == [30, 30]
        assert program(_CONTEXT.format("second", 1)) == 0
        assert program(_COPIES.format(times=20, contexts="[second]")) == [20, 20]
        compute = box.view().processes[0].compute
        assert (compute[0].launches, compute[1].launches) == (30, 20)


# --- devices --------------------------------------------------------------------------


def test_limits_follow_the_card_not_its_number(container: Make) -> None:
    """CUDA_VISIBLE_DEVICES=1,0"""
    box = container(GIB, 2 * GIB, FAKE_ORDER="1,0")
    with box.start() as program:
        assert program("total(0)") == 2 * GIB
        assert program("total(1)") == GIB
        program("context(0)")
        assert program("alloc(1500 * MIB)")[0] == 0
        assert (box.used(0), box.used(1)) == (0, CONTEXT + 1500 * MIB)
        assert program("nvml_memory(0)[0]") == GIB


def test_the_same_by_environment(container: Make) -> None:
    with container(GIB, 2 * GIB, by="environment", FAKE_ORDER="1,0").start() as program:
        assert program("total(0)") == 2 * GIB
        assert program("total(1)") == GIB


@pytest.mark.parametrize("given", [harness.fake_uuid, harness.fake_instance])
def test_an_instance_is_found_by_its_name_or_its_cards(
    container: Make, given: Callable[[int], str]
) -> None:
    """MIG: the container was given the instance, or the card that was cut."""
    box = container(GIB, 2 * GIB, uuid=given, FAKE_MIG="1", FAKE_ORDER="1,0")
    with box.start() as program:
        assert [program("total(0)"), program("total(1)")] == [2 * GIB, GIB]
        program("context(0)")
        assert program("alloc(1500 * MIB)")[0] == 0
        assert program("alloc(1500 * MIB)")[0] == OUT_OF_MEMORY
        assert (box.used(0), box.used(1)) == (0, CONTEXT + 1500 * MIB)
        used = CONTEXT + 1500 * MIB
        assert program("nvml_instance_memory(1)") == [2 * GIB, 2 * GIB - used, used]
        assert program("nvml_instance_memory(0)[2]") == 0


def test_control_an_instance_that_was_not_given(container: Make) -> None:
    box = container(GIB, uuid=lambda card: harness.fake_instance(card + 2), FAKE_MIG="1")
    with box.start() as program:
        assert program("context()") == 0
        assert program("alloc(2 * MIB)")[0] == OUT_OF_MEMORY


def test_freeing_on_another_device_uncounts_the_owner(container: Make) -> None:
    """D4: the current device has nothing to say."""
    box = container(GIB, GIB)
    with box.start() as program:
        program("context(0)")
        _, plain = program("alloc(100 * MIB)")
        _, ordered = program("alloc_async(100 * MIB)")
        program("context(1)")
        assert program(f"free({plain})") == 0
        assert program(f"free_async({ordered})") == 0
        assert (box.used(0), box.used(1)) == (CONTEXT, CONTEXT)


def test_a_stream_of_another_device(container: Make) -> None:
    box = container(GIB, GIB)
    with box.start() as program:
        program("context(0)")
        program("s = stream()")
        program("context(1)")
        assert program("alloc_async(100 * MIB, s)")[0] == 0
        assert (box.used(0), box.used(1)) == (CONTEXT + 100 * MIB, CONTEXT)


def test_a_card_that_was_not_given(container: Make) -> None:
    with container(GIB, cards=2).start() as program:
        assert program("context(1)") == 0
        assert program("alloc(2 * MIB)")[0] == OUT_OF_MEMORY
        assert program("context(0)") == 0
        assert program("alloc(2 * MIB)")[0] == 0
