"""The library above the emulated driver: its figures are the card's, to the byte."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import shim_harness as harness
from shim_harness import GIB, MIB, OUT_OF_MEMORY, Container

from testbed.card import driver_root
from testbed.card.spec import CardSpec
from testbed.native import build, card
from testbed.native.region import RegionConstant, RegionDevice, make_region


class Emulated:
    """One container of a node with emulated A100 cards."""

    def __init__(
        self,
        folder: Path,
        limits: tuple[int, ...],
        *,
        sanitized: bool,
        oversubscribe: bool = False,
        cores: int = 0,
    ) -> None:
        self.root = folder / "root"
        specs = [CardSpec(profile="a100-80gb", count=len(limits))]
        self.uuids = driver_root.make(self.root, specs, budget_bytes=64 * MIB)
        (folder / "c").mkdir()
        devices = tuple(
            RegionDevice(uuid=uuid, memory_limit_bytes=limit, sm_limit_pct=cores)
            for uuid, limit in zip(self.uuids, limits, strict=True)
        )
        constant = RegionConstant(devices=devices, oversubscribe=oversubscribe)
        self.region = make_region(folder / "c", "cache", constant)
        library = harness.shim(sanitized=sanitized)
        driver = self.root / "driver"
        self.container = Container(
            library=library,
            driver=driver,
            environment={
                **harness.preload_of(library, sanitized=sanitized),
                "LD_LIBRARY_PATH": str(driver),
                "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(self.region),
            },
            region=self.region,
        )

    def state(self, index: int = 0) -> card.CardState:
        return card.read(self.root / "cards" / self.uuids[index] / "state")

    def on_card(self, index: int = 0) -> int:
        """What the card counts, by its own book: the observation beside the library's."""
        return sum(slot.context_bytes + slot.memory_bytes for slot in self.state(index).slots)

    def swapped(self, index: int = 0) -> int:
        return sum(slot.swapped_bytes for slot in self.state(index).slots)

    @property
    def context(self) -> int:
        return self.state().description.context_bytes


Make = Callable[..., Emulated]


@pytest.fixture(scope="session")
def _built() -> None:
    build.build(["emu"])


@pytest.fixture
def emulated(tmp_path: Path, sanitized: bool, _built: None) -> Make:
    return lambda *limits, **how: Emulated(tmp_path, limits, sanitized=sanitized, **how)


def test_fills_to_the_granule_by_the_cards_own_count(emulated: Make) -> None:
    box = emulated(20 * GIB)
    with box.container.start() as program:
        assert program("context()") == 0
        assert box.container.used() == box.on_card() == box.context
        program("fill()")
        assert 20 * GIB - 2 * MIB <= box.on_card() <= 20 * GIB
        assert box.container.used() == box.on_card()
        used = box.on_card()
        assert program("info()") == [0, 20 * GIB - used, 20 * GIB]
        assert program("total()") == 20 * GIB
        assert program("nvml_memory()") == [20 * GIB, 20 * GIB - used, used]


def test_control_without_the_library(emulated: Make) -> None:
    box = emulated(20 * GIB)
    with box.container.without_library().start() as program:
        program("context()")
        program("fill()")
        assert box.on_card() > 70 * GIB
        assert program("info()[2]") > 70 * GIB


@pytest.mark.parametrize(
    ("take", "give"),
    [
        ("alloc({0})", "free({0})"),
        ("managed({0})", "free({0})"),
        ("pitch({0} // 1024, 1024)", "free({0})"),
        ("alloc_async({0})", "free_async({0})"),
        ("alloc_pool({0}, p)", "free_async({0})"),
        ("create({0})", "release({0})"),
    ],
)
def test_every_way_agrees_with_the_card(emulated: Make, take: str, give: str) -> None:
    box = emulated(4 * GIB)
    with box.container.start() as program:
        program("context()")
        program("p = pool()")
        handles = []
        for size in (1 * GIB, 512 * MIB, 2 * MIB, 6 * MIB):
            code, handle, *_ = program(take.format(size))
            assert code == 0
            handles.append(handle)
            assert box.container.used() == box.on_card()
        code, handle, *_ = program(take.format(3 * GIB))
        assert code == OUT_OF_MEMORY
        for handle in handles:
            assert program(give.format(handle)) == 0
        program("cuda().cuCtxSynchronize()")
        assert box.container.used() == box.on_card() == box.context


def test_small_allocations_agree_with_the_card(emulated: Make) -> None:
    box = emulated(2 * GIB)
    with box.container.start() as program:
        program("context()")
        program("held = [alloc(n * 777)[1] for n in range(1, 1000)]")
        assert box.container.used() == box.on_card() > box.context
        program("[free(p) for p in held[::2]]")
        assert box.container.used() == box.on_card()
        program("[free(p) for p in held[1::2]]")
        assert box.container.used() == box.on_card() == box.context


def test_graph_memory_agrees_with_the_card(emulated: Make) -> None:
    box = emulated(2 * GIB)
    with box.container.start() as program:
        program("context()")
        program("g = graph()")
        assert program("memory_node(g, 600 * MIB)") == 0
        program("e = instantiate(g)")
        assert [program("launch(e)") for _ in range(3)] == [0, 0, 0]
        assert box.container.used() == box.on_card() >= box.context + 600 * MIB
        assert program("memory_node(g, 1500 * MIB)") == OUT_OF_MEMORY
        assert box.container.used() == box.on_card()


def test_process_lists_agree_with_the_card(emulated: Make) -> None:
    box = emulated(2 * GIB)
    with box.container.start() as program:
        program("context(); alloc(100 * MIB)")
        assert program("processes()") == [0, 1, [[program.pid, box.on_card()]]]


def test_pools_fill_to_the_granule(emulated: Make) -> None:
    box = emulated(2 * GIB)
    with box.container.start() as program:
        program("context(); keep(default_pool(), 2**63)")
        program("size = GIB\nwhile size >= 2 * MIB:\n    if alloc_async(size)[0]: size //= 2\n")
        assert 2 * GIB - 2 * MIB <= box.on_card() <= 2 * GIB
        assert box.container.used() == box.on_card()


def test_mapped_segments_as_torch_makes_them(emulated: Make) -> None:
    """expandable_segments: one reservation, handles of 20 MiB mapped into it."""
    box = emulated(2 * GIB)
    with box.container.start() as program:
        program("context()")
        program(
            "base, n = reserve(64 * GIB), 0\n"
            "while True:\n"
            "    code, handle = create(20 * MIB)\n"
            "    if code: break\n"
            "    assert map_(base + n * 20 * MIB, 20 * MIB, handle) == 0\n"
            "    assert release(handle) == 0\n"
            "    n += 1\n"
        )
        assert 2 * GIB - 20 * MIB < box.on_card() <= 2 * GIB
        assert box.container.used() == box.on_card()
        program("[unmap(base + i * 20 * MIB, 20 * MIB) for i in range(n)]")
        assert box.container.used() == box.on_card() == box.context


def test_two_processes_and_a_kill(emulated: Make) -> None:
    box = emulated(4 * GIB)
    with box.container.start() as first:
        first("context()")
        with box.container.start() as second:
            second("context()")
            assert second("alloc(2 * GIB)")[0] == 0
            assert first("alloc(2 * GIB)")[0] == OUT_OF_MEMORY
            assert box.container.used() == box.on_card() == 2 * box.context + 2 * GIB
            second.kill()
        assert first("alloc(2 * GIB)")[0] == 0
        assert first("info()[1]") == 2 * GIB - box.context


def test_each_card_has_its_own_limit(emulated: Make) -> None:
    box = emulated(2 * GIB, 3 * GIB)
    with box.container.start(CUDA_VISIBLE_DEVICES="1,0") as program:
        assert program("cuda().cuInit(0)") == 0
        assert [program("total(0)"), program("total(1)")] == [3 * GIB, 2 * GIB]
        program("context(0)")
        program("fill()")
        assert box.container.used(1) == box.on_card(1) == 3 * GIB
        assert box.on_card(0) == 0


@pytest.mark.parametrize("visible", ["uuid", "prefix", "number"])
def test_the_charge_lands_on_the_card_that_is_visible(emulated: Make, visible: str) -> None:
    box = emulated(2 * GIB, 3 * GIB)
    # The shortest beginning that is the second card's alone.
    own, other = box.uuids[1], box.uuids[0]
    prefix = next(own[:n] for n in range(5, len(own)) if not other.startswith(own[:n]))
    name = {"uuid": own, "prefix": prefix, "number": "1"}[visible]
    with box.container.start(CUDA_VISIBLE_DEVICES=name, CUDA_DEVICE_ORDER="PCI_BUS_ID") as program:
        program("context(0)")
        assert program("alloc(GIB)")[0] == 0
        assert program("total(0)") == 3 * GIB
        assert box.container.used(1) == box.on_card(1) == box.context + GIB
        assert box.container.used(0) == box.on_card(0) == 0
        assert program("nvml_memory(1)")[2] == box.on_card(1)  # NVML numbers all cards
        assert program("nvml_memory(0)")[2] == 0


def test_the_context_goes_and_comes(emulated: Make) -> None:
    box = emulated(4 * GIB)
    with box.container.start() as program:
        program("context()")
        program("alloc(GIB)")
        assert program("cuda().cuDevicePrimaryCtxReset_v2(0)") == 0
        assert box.container.used() == box.on_card()
        program("context()")
        assert box.container.used() == box.on_card() == box.context
        program("other = c_void_p()")
        if program("cuda().cuCtxCreate_v2(byref(other), 0, 0)") == 0:
            assert box.container.used() == box.on_card() == 2 * box.context
            program("cuda().cuCtxDestroy_v2(other)")
            assert box.container.used() == box.on_card() == box.context


def test_a_context_that_was_attached_goes_with_the_last_detach(emulated: Make) -> None:
    box = emulated(4 * GIB)
    with box.container.start() as program:
        program("context()")
        program("other, again = c_void_p(), c_void_p()")
        assert program("cuda().cuCtxCreate_v2(byref(other), 0, 0)") == 0
        assert program("cuda().cuCtxAttach(byref(again), 0)") == 0
        assert program("again.value == other.value")
        assert program("alloc(GIB)")[0] == 0
        assert program("cuda().cuCtxDetach(other)") == 0
        assert box.container.used() == box.on_card() == 2 * box.context + GIB
        assert program("cuda().cuCtxDetach(other)") == 0
        assert box.container.used() == box.on_card() == box.context
        assert program("cuda().cuCtxDetach(other)") != 0
        assert box.container.used() == box.on_card() == box.context


def test_a_pools_memory_that_is_freed_as_plain_is_given_back_too(emulated: Make) -> None:
    box = emulated(4 * GIB)
    with box.container.start() as program:
        program("context()")
        code, pointer = program("alloc_async(600 * MIB)")
        assert code == 0
        assert program(f"free({pointer})") == 0
        assert program("cuda().cuCtxSynchronize()") == 0
        assert box.container.used() == box.on_card() == box.context


def test_graphs_memory_goes_with_its_context(emulated: Make) -> None:
    box = emulated(4 * GIB)
    with box.container.start() as program:
        program("context()")
        assert program("memory_node(graph(), 600 * MIB)") == 0
        assert box.container.used() == box.on_card() == box.context + 600 * MIB
        assert program("cuda().cuDevicePrimaryCtxRelease_v2(0)") == 0
        assert box.container.used() == box.on_card() == 0


def test_lookups_by_version_agree(emulated: Make) -> None:
    """The emulated driver's answers lead to hooks, version by version."""
    with emulated(GIB).container.start() as program:
        for base, version, symbol in (
            ("cuMemAlloc", 12000, "cuMemAlloc_v2"),
            ("cuMemFree", 12000, "cuMemFree_v2"),
            ("cuMemGetInfo", 12000, "cuMemGetInfo_v2"),
            ("cuMemAllocAsync", 12000, "cuMemAllocAsync"),
            ("cuMemCreate", 12000, "cuMemCreate"),
            ("cuCtxCreate", 11000, "cuCtxCreate_v2"),
            ("cuCtxCreate", 13000, "cuCtxCreate_v4"),
            ("cuCtxSynchronize", 12000, "cuCtxSynchronize"),
            ("cuCtxSynchronize", 13000, "cuCtxSynchronize_v2"),
        ):
            assert program(f"proc({base!r}, {version})") == program(f"address({symbol!r})"), base


# --- memory of another process ------------------------------------------------------------

IPC = """
class Ipc(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_ubyte * 64),)
def export(ptr):
    handle = Ipc()
    assert cuda().cuIpcGetMemHandle(byref(handle), c_uint64(ptr)) == 0
    return bytes(handle.bytes).hex()
def opened(text):
    ptr, call = c_uint64(), cuda().cuIpcOpenMemHandle_v2
    call.argtypes = [POINTER(c_uint64), Ipc, c_uint]
    return [call(byref(ptr), Ipc.from_buffer_copy(bytes.fromhex(text)), 1), ptr.value]
"""


def test_opened_memory_is_its_owners_alone(emulated: Make) -> None:
    """IPC: counted once, however many have it open, and gone with its owner."""
    box = emulated(2 * GIB)
    with box.container.start() as owner, box.container.start() as guest:
        for program in (owner, guest):
            assert program("context()") == 0
            program(IPC)
        _, ptr = owner("alloc(GIB)")
        used = box.container.used()
        assert used == box.on_card() == 2 * box.context + GIB
        code, mapped = guest(f"opened({owner(f'export({ptr})')!r})")
        assert code == 0
        assert box.container.used() == box.on_card() == used
        mine = next(p for p in box.container.view().processes if p.pid == guest.pid)
        assert mine.uses[0].buffer_bytes == 0
        assert guest(f"cuda().cuIpcCloseMemHandle(c_uint64({mapped}))") == 0
        assert box.container.used() == box.on_card() == used, "closing gives nothing back"
        assert owner(f"free({ptr})") == 0
        assert box.container.used() == box.on_card() == 2 * box.context


SHARED = """
def exported(handle):
    fd = c_int(-1)
    call = cuda().cuMemExportToShareableHandle
    call.argtypes = [c_void_p, c_uint64, c_int, c_uint64]
    return [call(byref(fd), handle, 1, 0), fd.value]
def imported(path):
    import os
    fd, handle = os.open(path, os.O_RDWR), c_uint64()
    call = cuda().cuMemImportFromShareableHandle
    call.argtypes = [POINTER(c_uint64), c_void_p, c_int]
    return [call(byref(handle), fd, 1), handle.value]
"""


def test_physical_memory_of_another_process_is_its_exporters(emulated: Make) -> None:
    """By descriptor: the importer's handle and mapping cost it nothing."""
    box = emulated(2 * GIB)
    with box.container.start() as owner, box.container.start() as guest:
        for program in (owner, guest):
            assert program("context()") == 0
            program(SHARED)
        code, handle = owner("create(GIB, handles=1)")
        assert code == 0
        code, descriptor = owner(f"exported({handle})")
        assert code == 0
        used = box.container.used()
        assert used == box.on_card() == 2 * box.context + GIB
        code, other = guest(f"imported('/proc/{owner.pid}/fd/{descriptor}')")
        assert code == 0
        guest(f"at = reserve(GIB); map_(at, GIB, {other})")
        assert box.container.used() == box.on_card() == used
        mine = next(p for p in box.container.view().processes if p.pid == guest.pid)
        assert mine.uses[0].buffer_bytes == 0
        assert guest("unmap(at, GIB)") == guest(f"release({other})") == 0
        assert box.container.used() == box.on_card() == used
        assert owner(f"release({handle})") == 0
        assert box.container.used() == 2 * box.context


# --- a limit above the card ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("take", "give"),
    [
        ("alloc(8 * GIB)", "free({0})"),
        ("pitch(8 * MIB, 1024)", "free({0})"),
        ("alloc_async(8 * GIB)", "free_async({0})"),
        ("alloc_pool(8 * GIB, pool())", "free_async({0})"),
    ],
)
def test_what_does_not_fit_the_card_is_swapped_out(emulated: Make, take: str, give: str) -> None:
    box = emulated(100 * GIB, oversubscribe=True)
    with box.container.start() as program:
        assert program("context()") == 0
        assert program("info()")[2] == 100 * GIB
        assert program("alloc(70 * GIB)")[0] == 0
        code, handle, *_ = program(take)
        assert code == 0
        held = [handle]
        for _ in range(2):
            code, handle, *_ = program(take)
            assert code == 0
            held.append(handle)
        # The library counts all of it, the card what is there; the rest is swapped out.
        assert box.swapped() > 10 * GIB
        assert box.container.used() == box.on_card() + box.swapped()
        assert program("alloc(8 * GIB)")[0] == OUT_OF_MEMORY  # the cap
        for handle in held:
            assert program(give.format(handle)) == 0
        assert box.container.used() == box.on_card()
        assert box.swapped() == 0


def test_physical_memory_beyond_the_card_lies_on_the_host(emulated: Make) -> None:
    box = emulated(100 * GIB, oversubscribe=True)
    with box.container.start() as program:
        program("context()")
        assert program("alloc(75 * GIB)")[0] == 0
        counted = box.on_card()
        code, handle = program("create(8 * GIB)")
        assert code == 0
        program(f"at = reserve(8 * GIB); map_(at, 8 * GIB, {handle})")
        assert box.on_card() == counted
        assert box.container.used() == counted + 8 * GIB
        assert program("unmap(at, 8 * GIB)") == 0
        assert program(f"release({handle})") == 0
        assert box.container.used() == box.on_card()


def test_control_a_card_is_no_larger_without_oversubscription(emulated: Make) -> None:
    box = emulated(100 * GIB)
    with box.container.start() as program:
        program("context()")
        assert program("alloc(75 * GIB)")[0] == 0
        for take in ("alloc(8 * GIB)", "alloc_async(8 * GIB)", "create(8 * GIB)"):
            assert program(take)[0] == OUT_OF_MEMORY
        assert box.swapped() == 0


# --- copies of planes and blocks ----------------------------------------------------------

SHAPES = ("cuMemcpy2D_v2", "cuMemcpy2DUnaligned_v2", "cuMemcpy3D_v2")
ROWS = 512  # 2 MiB


@pytest.mark.parametrize("name", [*SHAPES, "cuMemcpy2DAsync_v2", "cuMemcpy3DAsync_v2"])
def test_large_copies_of_any_shape_are_the_devices_work(emulated: Make, name: str) -> None:
    box = emulated(GIB, cores=50)
    with box.container.start() as program:
        program("context()")
        program("a, b = alloc(4 * MIB)[1], alloc(4 * MIB)[1]")
        program("buffer = ctypes.create_string_buffer(4 * MIB); h = ctypes.addressof(buffer)")
        for ends, rows, counted in (
            ("(DEVICE, a), (DEVICE, b)", ROWS, 1),
            ("(UNIFIED, a), (UNIFIED, b)", ROWS, 1),
            ("(DEVICE, a), (UNIFIED, b)", ROWS, 1),
            ("(DEVICE, a), (DEVICE, b)", 16, 0),  # small
            ("(HOST, h), (DEVICE, b)", ROWS, 0),  # a copy engine's
            ("(DEVICE, a), (HOST, h)", ROWS, 0),
        ):
            before = box.container.view().processes[0].compute[0].launches
            assert program(f"copy_rows({name!r}, {ends}, {rows})") == 0
            after = box.container.view().processes[0].compute[0].launches
            assert after - before == counted, ends


def test_a_batch_of_copies_is_the_devices_work_by_its_sum(emulated: Make) -> None:
    box = emulated(GIB, cores=50)
    with box.container.start() as program:
        program("context()")
        program("a, b = alloc(4 * MIB)[1], alloc(4 * MIB)[1]")
        program("buffer = ctypes.create_string_buffer(4 * MIB); h = ctypes.addressof(buffer)")
        program(
            "def batch(*copies):\n"
            "    kinds = (c_uint64, c_uint64, c_size_t)\n"
            "    lists = [(k * len(copies))(*v) for k, v in zip(kinds, zip(*copies))]\n"
            "    nothing = (None, None, c_size_t(0), None)\n"
            "    return cuda().cuMemcpyBatchAsync_v2(*lists, c_size_t(len(copies)), *nothing)"
        )
        for copies, counted in (
            ("(b, a, 2 * MIB)", 1),
            ("(b, a, MIB // 2), (b + MIB, a + MIB, MIB // 2)", 1),
            ("(b, a, MIB // 2), (b + MIB, a + MIB, MIB // 4)", 0),  # small
            ("(b, h, 2 * MIB), (h, a, 2 * MIB)", 0),  # copy engines'
            ("(b, h, 2 * MIB), (b + 2 * MIB, a, MIB // 2)", 0),
        ):
            before = box.container.view().processes[0].compute[0].launches
            assert program(f"batch({copies})") == 0
            after = box.container.view().processes[0].compute[0].launches
            assert after - before == counted, copies
